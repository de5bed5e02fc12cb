"""Draw the small pictures beside figures: how usual a duration is, a value over time, a value in its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, share, tag
from policies.quantities import milliseconds

_HEIGHT: Final = 22


def among_its_kind(value: float, quantiles: Sequence[float]) -> Markup:
    """Draw one duration among all of its kind, on a logarithmic axis.

    `quantiles` are the 5th, 25th, 50th, 75th, 95th and 99th percentile of the kind.
    """
    low, high = min(quantiles[0], value), max(quantiles[5], value)
    if low <= 0 or not all(map(math.isfinite, (*quantiles, value))):
        low = max(low, 1e-3)
    span = math.log(max(high, low * 1.01) / low)

    def x(at: float) -> float:
        return 0.04 + 0.92 * math.log(max(at, low) / low) / span

    middle = _HEIGHT / 2
    left, median, right = map(x, quantiles[1:4])
    unusual = " high" if value > quantiles[4] else " low" if value < quantiles[0] else ""
    usual, p95, p99, here = map(milliseconds, (quantiles[2], quantiles[4], quantiles[5], value))
    text = f"median {usual}, p95 {p95}, p99 {p99}; here {here}"
    shapes = [
        tag("title", text),
        tag("line", x1=share(x(quantiles[0])), x2=share(x(quantiles[5])), y1=middle, y2=middle, class_="range"),
        tag("rect", x=share(left), width=share(right - left), y=middle - 4, height=8, class_="box"),
        tag("line", x1=share(median), x2=share(median), y1=middle - 5, y2=middle + 5, class_="median"),
        tag("circle", cx=share(x(value)), cy=middle, r=3.5, class_=f"here{unusual}"),
    ]
    return tag("svg", joined(shapes), class_="minigraph", width="96", height=_HEIGHT, role="img", aria_label=text)


def sparkline(
    values: Sequence[float | None], text: str, *, marks: Sequence[Mapping[str, Any]] = (), width: int = 120
) -> Markup:
    """Draw a value over time; gaps where it is None. `marks` are moments with a `kind`, a `text` and a place
    (`at`, 0 to 1)."""
    numbers = [value for value in values if value is not None]
    most = max(*numbers, 1e-12) if numbers else 1.0
    step = width / max(len(values) - 1, 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{place * step:.1f},{_HEIGHT - 2 - value / most * (_HEIGHT - 4):.1f}")
    shapes = [tag("title", text)]
    for mark in marks:
        x = f"{mark['at'] * width:.1f}"
        shapes.append(
            tag("line", tag("title", mark["text"]), x1=x, x2=x, y1=0, y2=_HEIGHT, class_=f"change {mark['kind']}")
        )
    for run in filter(None, runs):
        if len(run) > 1:
            shapes.append(tag("polyline", points=" ".join(run), class_="spark"))
        else:
            x, _, y = run[0].partition(",")
            shapes.append(tag("circle", cx=x, cy=y, r=2.5, class_="dot"))
    return tag(
        "svg", joined(shapes), class_="sparkline", width=width, height=_HEIGHT, viewBox=f"0 0 {width} {_HEIGHT}",
        role="img", aria_label=text,
    )  # fmt: skip


def bullet(value: float | None, limit: float, text: str) -> Markup:
    """Draw a value against its limit, which stands at two thirds of the width."""
    shapes = [tag("title", text), tag("rect", x=0, y=7, width="100%", height=8, rx=2, class_="track")]
    if value is not None:
        part = min(value / limit * 2 / 3, 1.0)
        shapes.append(
            tag("rect", x=0, y=7, width=share(part), height=8, rx=2, class_="over" if value > limit else "fill")
        )
    shapes.append(tag("line", x1=share(2 / 3), x2=share(2 / 3), y1=3, y2=19, class_="limit"))
    return tag("svg", joined(shapes), class_="bullet", width="120", height=_HEIGHT, role="img", aria_label=text)


def stacked(parts: Sequence[tuple[str, float]], text: str) -> Markup:
    """Draw shares of a whole beside each other; each part is its class and its size."""
    total = sum(size for _, size in parts) or 1.0
    shapes, x = [tag("title", text)], 0.0
    for kind, size in parts:
        shapes.append(tag("rect", x=share(x), y=5, width=share(size / total), height=12, class_=f"part {kind}"))
        x += size / total
    return tag("svg", joined(shapes), class_="stacked", width="120", height=_HEIGHT, role="img", aria_label=text)
