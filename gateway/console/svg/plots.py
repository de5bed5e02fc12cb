"""Draw how predictions fit what was observed, a difference with its interval, and two distributions side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.console.svg import joined, share, tag

_SIDE: Final = 220
_LEFT: Final = 34
_FOOT: Final = 24
_LARGEST: Final = 6.0


def reliability_diagram(bins: Sequence[Mapping[str, Any]], text: str) -> Markup:
    """Draw bins of predictions: across what was predicted, upwards what was observed with its 95% interval.

    A right head's points lie on the diagonal; a point's area grows with the number of its predictions.
    """
    most = max((one["count"] for one in bins), default=1)

    def x(value: float) -> float:
        return _LEFT + value * _SIDE

    def y(value: float) -> float:
        return 6 + (1 - value) * _SIDE

    shapes = [tag("title", text)]
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        shapes += [
            tag("line", x1=x(0), x2=x(1), y1=f"{y(value):.1f}", y2=f"{y(value):.1f}", class_="grid"),
            tag("line", x1=f"{x(value):.1f}", x2=f"{x(value):.1f}", y1=y(0), y2=y(1), class_="grid"),
        ]
        if value in (0.0, 0.5, 1.0):
            shapes += [
                tag("text", f"{value:.0%}", x=_LEFT - 5, y=f"{y(value) + 4:.1f}", text_anchor="end", class_="scale"),
                tag("text", f"{value:.0%}", x=f"{x(value):.1f}", y=y(0) + 16, text_anchor="middle", class_="scale"),
            ]
    shapes.append(tag("line", x1=x(0), y1=y(0), x2=x(1), y2=y(1), class_="right"))
    line = " ".join(f"{x(one['predicted']):.1f},{y(one['observed']):.1f}" for one in bins)
    shapes.append(tag("polyline", points=line, class_="observed"))
    for one in bins:
        at, words = f"{x(one['predicted']):.1f}", f"predicted {one['predicted']:.1%}, observed {one['observed']:.1%}"
        words += f" ({one['low']:.1%} to {one['high']:.1%}), {one['count']} answers"
        radius = 2 + (_LARGEST - 2) * (one["count"] / most) ** 0.5
        shapes += [
            tag("line", x1=at, x2=at, y1=f"{y(one['low']):.1f}", y2=f"{y(one['high']):.1f}", class_="interval"),
            tag("circle", tag("title", words), cx=at, cy=f"{y(one['observed']):.1f}", r=f"{radius:.1f}", class_="bin"),
        ]
    width, height = _LEFT + _SIDE + 12, _SIDE + _FOOT + 6
    return tag(
        "svg", joined(shapes), class_="reliability", viewBox=f"0 0 {width} {height}", width=width, role="img",
        aria_label=text,
    )  # fmt: skip


def difference(value: float, low: float, high: float, most: float, text: str) -> Markup:
    """Draw a difference with its interval about 0, on an axis from -`most` to `most`."""

    def x(at: float) -> str:
        return share((at / most + 1) / 2)

    kind = "worse" if high < 0 else "better" if low > 0 else "open"
    shapes = [
        tag("title", text),
        tag("line", x1="50%", x2="50%", y1=1, y2=21, class_="zero"),
        tag("line", x1=x(low), x2=x(high), y1=11, y2=11, class_=f"interval {kind}"),
        tag("circle", cx=x(value), cy=11, r=4, class_=kind),
    ]
    return tag("svg", joined(shapes), class_="forest", width="160", height=22, role="img", aria_label=text)


def beside(bins: Sequence[tuple[str, float, float]], text: str) -> Markup:
    """Draw the shares of two distributions over the same bins (name, before, now), each pair beside each other."""
    height = 64
    most = max((max(before, now) for _, before, now in bins), default=1.0) or 1.0
    width, shapes = 1 / max(len(bins), 1), [tag("title", text)]
    for place, (name, before, now) in enumerate(bins):
        words = f"{name}: {before:.1%} before, {now:.1%} now"
        for side, kind, value in ((0, "was", before), (1, "is", now)):
            tall = value / most * (height - 4)
            x, wide = share((place + 0.08 + side * 0.42) * width), share(0.4 * width)
            y, high = f"{height - 1 - tall:.1f}", f"{tall:.1f}"
            shapes.append(tag("rect", tag("title", words), x=x, width=wide, y=y, height=high, class_=kind))
    shapes.append(tag("line", x1=0, x2="100%", y1=height - 0.5, y2=height - 0.5, class_="grid"))
    return tag("svg", joined(shapes), class_="beside", width="100%", height=height, role="img", aria_label=text)
