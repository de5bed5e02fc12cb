"""Draw a race's lanes on one time axis: each attempt as it waited, was held and was sent on, and what came when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from gateway.console.svg import joined, share, tag
from gateway.console.svg.waterfall import axis
from gateway.console.timeline import Timeline

_ROW: Final = 22
_BAR: Final = 12
_LEAST: Final = 0.0025
_MOST_TICKS: Final = 400

Segment = tuple[str, float, float]
"""What an attempt did (wait, held, sent, dropped, cache), from when to when in milliseconds."""


def race_axis(end_ms: float) -> Markup:
    """Draw the axis that both lanes have."""
    return axis(_scale(end_ms))


def segments(parts: Sequence[Segment], end_ms: float, text: str) -> Markup:
    """Draw what an attempt did, one part after the other. `text` says it in words."""
    y = (_ROW - _BAR) / 2
    shapes = [tag("title", text)]
    for kind, from_ms, to_ms in parts:
        width = max((to_ms - from_ms) / end_ms, _LEAST)
        shapes.append(
            tag("rect", x=share(from_ms / end_ms), y=y, width=share(width), height=_BAR, class_=f"race-{kind}")
        )
    return tag("svg", joined(shapes), class_="lane", width="100%", height=_ROW, role="img", aria_label=text)


def arrivals(
    at_ms: Sequence[float], commit_ms: float | None, over_ms: float | None, end_ms: float, text: str
) -> Markup:
    """Draw what a client sees: nothing, the begin of the reply, each piece of text as it came, and the end."""
    middle = _ROW / 2
    reached = over_ms if over_ms is not None else end_ms
    shapes = [
        tag("title", text),
        tag("line", x1="0", x2=share(reached / end_ms), y1=middle, y2=middle, class_="race-line"),
    ]
    step = max(1, math.ceil(len(at_ms) / _MOST_TICKS))
    for at in at_ms[::step]:
        x = share(at / end_ms)
        shapes.append(tag("line", x1=x, x2=x, y1=middle - 5, y2=middle + 5, class_="race-token"))
    if commit_ms is not None:
        x = share(commit_ms / end_ms)
        shapes.append(tag("line", x1=x, x2=x, y1=1, y2=_ROW - 1, class_="race-commit"))
    if over_ms is not None:
        shapes.append(tag("circle", cx=share(over_ms / end_ms), cy=middle, r=4, class_="race-end"))
    return tag("svg", joined(shapes), class_="lane", width="100%", height=_ROW, role="img", aria_label=text)


def _scale(end_ms: float) -> Timeline:
    return Timeline((), (), (), end_ms, None, False, None, (), ())
