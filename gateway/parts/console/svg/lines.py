"""Draw values over time as lines in one frame, with limits across it and moments through it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, share, tag
from policies.quantities import milliseconds

HEIGHT: Final = 190
_TOP: Final = 8
_WIDE: Final = 1000
"""Width of the frame in its own units: it stretches with the page, and the lines keep their width (`vector-effect`)."""
_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROOM: Final = 1.25
"""A limit is drawn where it is at most so far above the largest value; else it would press the lines flat."""


def over_time(
    series: Mapping[str, Sequence[float | None]],
    limits: Mapping[str, float],
    marks: Sequence[Mapping[str, Any]],
    text: str,
) -> Markup:
    """Draw milliseconds over time. A line is of the class of its name, with gaps where a value is None.

    `limits` are drawn across in the class of the line that they are for; `marks` have a place `at` (0 to 1), a `kind`
    and a `text`.
    """
    most = max((value for line in series.values() for value in line if value is not None), default=0.0)
    most = max([most, *(limit for limit in limits.values() if limit <= most * _ROOM)])
    step = _step(most)
    top = step * max(math.ceil(most / step), 1)

    def y(value: float) -> float:
        return _TOP + (1 - value / top) * (HEIGHT - _TOP - 1)

    grid, labels = [], []
    for number in range(round(top / step) + 1):
        height = y(number * step)
        grid.append(tag("line", x1=0, x2=_WIDE, y1=f"{height:.1f}", y2=f"{height:.1f}", class_="grid"))
        if number:
            labels.append(tag("text", milliseconds(number * step), x=2, y=f"{height + 12:.1f}", class_="scale"))
    lines = [
        tag("polyline", points=" ".join(run), class_=f"line {name}")
        for name, values in series.items()
        for run in _runs(values, y)
    ]
    for name, limit in limits.items():
        if limit <= top:
            at = f"{y(limit):.1f}"
            words = tag("title", f"{name} limit {milliseconds(limit)}")
            lines.append(tag("line", words, x1=0, x2=_WIDE, y1=at, y2=at, class_=f"limit {name}"))
    moments = [
        tag("line", tag("title", mark["text"]), x1=share(mark["at"]), x2=share(mark["at"]), y1=0, y2=HEIGHT,
            class_=f"change {mark['kind']}")
        for mark in marks
    ]  # fmt: skip
    frame = tag(
        "svg", joined([*grid, *lines]), viewBox=f"0 0 {_WIDE} {HEIGHT}", preserveAspectRatio="none", width="100%",
        height=HEIGHT,
    )  # fmt: skip
    shapes = joined([tag("title", text), frame, *moments, *labels])
    return tag("svg", shapes, class_="over-time", width="100%", height=HEIGHT, role="img", aria_label=text)


def _runs(values: Sequence[float | None], y: Any) -> list[list[str]]:
    """Return the points of each part of a line that has no gap; a value between two gaps is a short line."""
    wide = _WIDE / max(len(values), 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        runs[-1].append(f"{(place + 0.5) * wide:.1f},{y(value):.1f}")
    for run in runs:
        if len(run) == 1:
            x, _, height = run[0].partition(",")
            run[:] = [f"{float(x) - wide / 2:.1f},{height}", f"{float(x) + wide / 2:.1f},{height}"]
    return [run for run in runs if run]


def _step(most: float) -> float:
    """Return the distance of lines across, of which three to six are below `most`."""
    if most <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(most / 3))
    return next(factor * power for factor in _STEPS if most / (factor * power) <= 5)
