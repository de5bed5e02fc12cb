"""Draw how a quantity is distributed, with thresholds as lines, and what is below the first of them in another colour.

scale = scale_of(values, [0.62], share=True)
histogram(counted(values, scale), scale, [Mark(0.62, "0.62")], "scores of local: 31% are below 0.62")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from gateway.parts.console.svg import joined, share, tag
from policies.quantities import milliseconds

BINS: Final = 40
_TOP, _BASE, _HEIGHT = 16, 60, 76
"""Places of the tallest bar's top, of the axis, and of the drawing's lower end, in pixels; labels stand above and
below the bars."""
_ROW: Final = 12
"""Height of a further row of labels, where one would cover another."""
_LETTER: Final = 0.021
"""Width of a letter, as a part of the drawing where that is narrow."""
_RIGHT: Final = 0.6
"""From this place on, a label stands left of its line."""
_LEAST_BAR: Final = 1.5
_WIDE: Final = 50.0
"""From this ratio of the largest to the smallest value on, the axis is logarithmic."""
_WRITTEN: Final[Mapping[str, Callable[[float], str]]] = {"ms": milliseconds, "count": "{:,.0f}".format}
"""How values of a unit are written at the axis."""


@dataclass(frozen=True, slots=True)
class HistogramScale:
    """The axis, from `low` to `high`, which is greater; `low` is above 0 where it is logarithmic."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return where a value is on the axis, 0 to 1; values outside of it are at its ends."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, place: float) -> float:
        """Return the value at a place of 0 to 1."""
        if self.logarithmic:
            return math.exp(math.log(self.low) + place * math.log(self.high / self.low))
        return self.low + place * (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Mark:
    """A line at a value with a label. `kind` is its CSS class: `limit`, or `proposed` for what is being tried."""

    value: float
    label: str
    kind: str = "limit"


def scale_of(values: Sequence[float], marks: Iterable[float] = (), *, share: bool = False) -> HistogramScale:
    """Return an axis on which these values and marks are: 0 to 1 for shares, else as wide as they are spread.

    Of the values, the largest hundredth may lie beyond its end (and is drawn there) if that is far away.
    """
    if share:
        return HistogramScale(0.0, 1.0)
    ordered = sorted(values)
    marks = list(marks)
    most = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.99))] if ordered else 1.0
    largest = max([most * 1.05, *[mark * 1.1 for mark in marks]], default=1.0)
    positive = [value for value in (*ordered, *marks) if value > 0]
    if positive and largest / min(positive) >= _WIDE:
        return HistogramScale(min(positive) * 0.95, largest, logarithmic=True)
    return HistogramScale(min([0.0, *ordered[:1], *marks]), largest if largest > 0 else 1.0)


def bin_counts(values: Iterable[float], scale: HistogramScale, bins: int = BINS) -> list[int]:
    """Return how many values are in each of so many equally wide parts of the axis."""
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int(scale.place(value) * bins + 1e-9))] += 1
    return counts


def histogram(
    counts: Sequence[int],
    scale: HistogramScale,
    marks: Sequence[Mark],
    text: str,
    *,
    written: Callable[[float], str] = "{:.3g}".format,
) -> Markup:
    """Draw the counts of equally wide parts of the axis; it is as wide as the page gives it.

    What is below the first mark has the class `below`, the rest `above`; a bar that the mark crosses is parted there.
    `text` says in words what can be seen; `written` formats the values at the axis' ends.
    """
    parted = scale.place(marks[0].value) if marks else 0.0
    labels = _labels(scale, marks)
    down = _ROW * max([row for _, _, row in labels], default=0)
    shapes = [tag("title", text), *_bars(counts, parted, _TOP + down, _BASE + down)]
    axis = _BASE + down
    shapes.append(tag("line", x1="0%", x2="100%", y1=axis, y2=axis, class_="axis"))
    for value, at, anchor in ((scale.low, 0.0, "start"), (scale.value(0.5), 0.5, "middle"), (scale.high, 1.0, "end")):
        shapes.append(tag("text", written(value), x=share(at), y=axis + 13, text_anchor=anchor, class_="at"))
    for mark, _, row in labels:
        x = share(scale.place(mark.value))
        shapes.append(tag("line", x1=x, x2=x, y1=2 + _ROW * row, y2=axis + 3, class_=mark.kind))
    for mark, anchor, row in labels:  # over all lines
        x, beside, y = share(scale.place(mark.value)), -5 if anchor == "end" else 5, 11 + _ROW * row
        shapes.append(tag("text", mark.label, x=x, dx=beside, y=y, text_anchor=anchor, class_=f"{mark.kind}-label"))
    return tag(
        "svg", joined(shapes), class_="histogram", width="100%", height=_HEIGHT + down, role="img", aria_label=text
    )


def _labels(scale: HistogramScale, marks: Sequence[Mark]) -> list[tuple[Mark, str, int]]:
    """Return each mark with the anchor of its label and the row that it stands in, so that labels do not overlap."""
    placed: list[tuple[float, float, int]] = []
    found = []
    for mark in marks:
        at, width = scale.place(mark.value), (len(mark.label) + 2) * _LETTER
        anchor = "end" if at > _RIGHT else "start"
        left, right = (at - width, at) if anchor == "end" else (at, at + width)
        row = 0
        while any(line == row and left < end and start < right for start, end, line in placed):
            row += 1
        placed.append((left, right, row))
        found.append((mark, anchor, row))
    return found


def drawn(threshold: Mapping[str, Any], text: str) -> Markup:
    """Draw a threshold as `console.thresholds` gives it: with its limits, and where an edit moves one, both places."""
    marks = []
    for limit in threshold["limits"]:
        moved = limit["before"] is not None
        marks.append(Mark(limit["value"], limit["written"], "proposed" if moved else "limit"))
        if moved:
            marks.append(Mark(limit["before"], "in force"))
    written = _WRITTEN.get(threshold["unit"], "{:,.3g}".format)
    return histogram(threshold["counts"], HistogramScale(**threshold["scale"]), marks, text, written=written)


def _bars(counts: Sequence[int], parted: float, top: int, base: int) -> list[Markup]:
    """Return a bar for each count that is not 0; the highest reaches from `base` to `top`."""
    most, width = max([*counts, 1]), 1 / max(len(counts), 1)
    bars = []
    for i, count in enumerate(counts):
        if not count:
            continue
        height = max(_LEAST_BAR, (base - top) * count / most)
        left, right = i * width, (i + 1) * width
        cut = min(max(parted, left), right)
        for start, end, side in ((left, cut, "below"), (cut, right, "above")):
            if end - start > 1e-6:
                size = {"width": share(end - start), "height": f"{height:.1f}"}
                bars.append(tag("rect", x=share(start), y=f"{base - height:.1f}", **size, class_=side))
    return bars
