"""Draw how many requests go from where to where, and above a slider how they spread along it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, share, tag

_TALLEST: Final = 120.0
"""Height of all ribbons together."""
_THINNEST: Final = 1.5
_LABEL: Final = 34.0
"""Least height of one end, for its two lines of text."""
_GAP: Final = 8.0
_MOST: Final = 8
_LEFT, _RIGHT = 0.36, 0.64
_BARS: Final = 36

_End = tuple[str, str]


def moves(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw moves of requests from a path and tier to another, the most frequent ones: each a ribbon."""
    rows = rows[:_MOST]
    total = sum(row["requests"] for row in rows) or 1.0
    ribbons = [
        ((row["path"], row["tier"]), (row["new_path"], row["new_tier"]), row["requests"],
         max(_THINNEST, row["requests"] / total * _TALLEST))
        for row in rows
    ]  # fmt: skip
    before = _ends([(node, thick) for node, _, _, thick in ribbons])
    after = _ends([(other, thick) for _, other, _, thick in ribbons])
    height = max(sum(high + _GAP for _, high in ends.values()) for ends in (before, after))
    used_before, used_after = dict.fromkeys(before, 0.0), dict.fromkeys(after, 0.0)
    drawn = []
    for node, other, count, thick in ribbons:
        y, z = _middle(before, node) + used_before[node], _middle(after, other) + used_after[other]
        y, z = y - _used(ribbons, node, 0) / 2, z - _used(ribbons, other, 1) / 2
        used_before[node] += thick
        used_after[other] += thick
        upper = f"M0,{y:.1f} C50,{y:.1f} 50,{z:.1f} 100,{z:.1f}"
        y, z = y + thick, z + thick
        curve = f"{upper} V{z:.1f} C50,{z:.1f} 50,{y:.1f} 0,{y:.1f} Z"
        words = f"{_name(node)} to {_name(other)}: {count:,.0f} requests"
        drawn.append(tag("path", tag("title", words), d=curve, class_=f"move to-{other[0].split('-')[0] or 'none'}"))
    middle = tag(
        "svg", joined(drawn), x=share(_LEFT), width=share(_RIGHT - _LEFT), y=0, height=f"{height:.0f}",
        viewBox=f"0 0 100 {height:.0f}", preserveAspectRatio="none",
    )  # fmt: skip
    texts = [
        *_texts(before, ribbons, 0, x=_LEFT - 0.015, anchor="end"),
        *_texts(after, ribbons, 1, x=_RIGHT + 0.015, anchor="start"),
    ]
    text = "; ".join(f"{count:,.0f} from {_name(node)} to {_name(other)}" for node, other, count, _ in ribbons)
    return tag(
        "svg", joined([tag("title", f"Requests that move: {text}"), middle, *texts]), class_="flows", width="100%",
        height=f"{height:.0f}", role="img", aria_label=f"Requests that move: {text}",
    )  # fmt: skip


def spread(counts: Sequence[int], low: float, high: float, in_force: float, value: float, text: str) -> Markup:
    """Draw how many requests lie where between two numbers, with lines at the one in force and at the one tried."""
    most, width = max(*counts, 1), 1 / len(counts)
    shapes = [tag("title", text)]
    for place, count in enumerate(counts):
        if count:
            height = max(1.0, count / most * (_BARS - 4))
            shapes.append(
                tag("rect", x=share(place * width), width=share(width * 0.86), y=f"{_BARS - height:.1f}",
                    height=f"{height:.1f}")
            )  # fmt: skip
    for kind, at in (("was", in_force), ("now", value)):
        x = share((at - low) / (high - low or 1.0))
        shapes.append(tag("line", x1=x, x2=x, y1=0, y2=_BARS, class_=kind))
    return tag("svg", joined(shapes), class_="spread", width="100%", height=_BARS, role="img", aria_label=text)


def _ends(parts: Sequence[tuple[_End, float]]) -> dict[_End, tuple[float, float]]:
    """Return for each end of ribbons its place from above and its height, the thickest first."""
    sizes: dict[_End, float] = {}
    for end, thick in parts:
        sizes[end] = sizes.get(end, 0.0) + thick
    ends, y = {}, 0.0
    for end, size in sorted(sizes.items(), key=lambda pair: -pair[1]):
        ends[end] = y, max(size, _LABEL)
        y += ends[end][1] + _GAP
    return ends


def _middle(ends: Mapping[_End, tuple[float, float]], end: _End) -> float:
    y, height = ends[end]
    return y + height / 2


def _used(ribbons: Sequence[Any], end: _End, side: int) -> float:
    return float(sum(ribbon[3] for ribbon in ribbons if ribbon[side] == end))


def _texts(
    ends: Mapping[_End, tuple[float, float]], ribbons: Sequence[Any], side: int, *, x: float, anchor: str
) -> list[Markup]:
    texts = []
    for end in ends:
        count = sum(ribbon[2] for ribbon in ribbons if ribbon[side] == end)
        y = _middle(ends, end)
        texts.append(tag("text", _name(end), x=share(x), y=f"{y - 2:.1f}", text_anchor=anchor))
        texts.append(tag("text", f"{count:,.0f}", x=share(x), y=f"{y + 13:.1f}", text_anchor=anchor, class_="muted"))
    return texts


def _name(end: _End) -> str:
    path, tier = end
    return " · ".join(word for word in (path or "no answer", tier) if word)
