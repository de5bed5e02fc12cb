"""Draw a difference over time in its band of certainty, against what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, tag

_WIDTH: Final = 360
_HEIGHT: Final = 130
_EDGE: Final = 6
_FLAT: Final = 0.002
"""Smallest height of the drawing in the difference's unit, so that noise around nothing looks like nothing."""

Point = tuple[float, float | None, float | None, float | None]
"""Unix seconds, the difference, and the lower and upper edge of its band; None where it is not known yet."""


def band(points: Sequence[Point], allowed: float, text: str, *, good_is_up: bool) -> Markup:
    """Draw the tile of one guard. `allowed`: the difference at which it is crossed, below it where good is up."""
    # The first bands are as wide as all that is possible: the drawing keeps to where the newest half of them lies.
    recent = [value for _, *values in points[len(points) // 2 :] for value in values if value is not None]
    low, high = min([*recent, allowed, 0.0]), max([*recent, allowed, 0.0])
    margin = max(high - low, _FLAT) * 0.12
    low, high = low - margin, high + margin
    start, end = (points[0][0], points[-1][0]) if points else (0.0, 1.0)
    span = max(end - start, 1e-9)

    def x(at: float) -> float:
        return _EDGE + (at - start) / span * (_WIDTH - 2 * _EDGE)

    def y(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return _HEIGHT - _EDGE - share * (_HEIGHT - 2 * _EDGE)

    worse_from, worse_to = (y(allowed), float(_HEIGHT)) if good_is_up else (0.0, y(allowed))
    shapes = [
        tag("title", text),
        tag("rect", x=0, width=_WIDTH, y=f"{worse_from:.1f}", height=f"{worse_to - worse_from:.1f}", class_="worse"),
    ]  # fmt: skip
    both = [(at, low_, high_) for at, _, low_, high_ in points if low_ is not None and high_ is not None]
    if len(both) > 1:
        upper = [f"{x(at):.1f},{y(high_):.1f}" for at, _, high_ in both]
        lower = [f"{x(at):.1f},{y(low_):.1f}" for at, low_, _ in reversed(both)]
        shapes.append(tag("polygon", points=" ".join([*upper, *lower]), class_="band"))
    line = [f"{x(at):.1f},{y(value):.1f}" for at, value, _, _ in points if value is not None]
    shapes += [
        _across(y(0.0), "zero"),
        _across(y(allowed), "allowed"),
        *([tag("polyline", points=" ".join(line), class_="difference")] if len(line) > 1 else []),
    ]
    return tag(
        "svg",
        joined(shapes),
        class_="guard",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width="100%",
        role="img",
        aria_label=text,
    )


def _across(y: float, kind: str) -> Markup:
    return tag("line", x1=0, x2=_WIDTH, y1=f"{y:.1f}", y2=f"{y:.1f}", class_=kind)
