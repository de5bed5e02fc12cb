"""Draw a timeline: one small drawing per hop that stretches with the page, and the marks that run through all rows."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from gateway.console.svg import joined, share, tag
from gateway.console.timeline import Bar, Ghost, Timeline

_ROW: Final = 22
_BAR: Final = 12
_LEAST: Final = 0.0025
"""Smallest width of a bar, in shares of the axis: what took microseconds can still be seen."""


def bar(timeline: Timeline, hop: Bar) -> Markup:
    """Draw one hop. Of an attempt, the part before its first token is lighter."""
    left, right = timeline.x(hop.start_ms), timeline.x(hop.end_ms)
    width, y = max(right - left, _LEAST), (_ROW - _BAR) / 2
    state = " error" if hop.error else " served" if hop.served else ""
    title = tag("title", f"{hop.label}: {hop.duration_ms:.2f} ms, from {hop.start_ms:.2f} ms")
    shapes = [
        tag("rect", title, x=share(left), y=y, width=share(width), height=_BAR, rx=2, class_=f"bar {hop.kind}{state}")
    ]
    if hop.first_ms is not None and hop.start_ms < hop.first_ms < hop.end_ms:
        waited = timeline.x(hop.first_ms) - left
        shapes.append(tag("rect", x=share(left), y=y, width=share(waited), height=_BAR, class_="waiting"))
        shapes.append(_vertical(left + waited, y, y + _BAR, "first"))
    if hop.verdict_ms is not None:
        shapes.append(_vertical(timeline.x(hop.verdict_ms), y - 3, y + _BAR + 3, "verdict"))
    return tag("svg", joined(shapes), class_="lane", width="100%", height=_ROW, role="presentation")


def ghost(timeline: Timeline, road: Ghost) -> Markup:
    """Draw a road not taken: dashed, up to what was expected at the median, with a whisker to the 95th percentile."""
    left, right = timeline.x(road.start_ms), timeline.x(road.start_ms + road.duration_ms)
    y = (_ROW - _BAR) / 2
    shape = tag(
        "rect", tag("title", road.text), x=share(left), y=y, width=share(max(right - left, _LEAST)), height=_BAR, rx=2,
        class_="ghost late" if road.late else "ghost",
    )  # fmt: skip
    shapes = [shape]
    if road.p95_ms is not None:
        far = timeline.x(road.start_ms + road.p95_ms)
        middle = _ROW / 2
        shapes.append(tag("line", x1=share(right), x2=share(far), y1=middle, y2=middle, class_="whisker"))
        shapes.append(_vertical(far, middle - 4, middle + 4, "whisker"))
    return tag("svg", joined(shapes), class_="lane", width="100%", height=_ROW, role="presentation")


def axis(timeline: Timeline) -> Markup:
    """Draw the axis: round times, and the break before the deadline."""
    shapes = []
    for at_ms, text in timeline.ticks():
        x = timeline.x(at_ms)
        shapes.append(tag("text", text, x=share(x), y=12, class_="tick start" if x < 0.01 else "tick"))
    if timeline.broken:
        x = timeline.x(timeline.end_ms)
        shapes += [
            tag("line", x1=share(x + by), x2=share(x + by + 0.004), y1=15, y2=5, class_="break") for by in (0.01, 0.016)
        ]
    return tag("svg", joined(shapes), class_="axis", width="100%", height=18, role="presentation")


def marks(timeline: Timeline) -> Markup:
    """Draw the lines through all rows: grid, first byte, target and deadline. It lies behind the rows."""
    shapes = [_line(timeline.x(at_ms), "grid") for at_ms, _ in timeline.ticks()]
    shapes += [_line(timeline.x(one.at_ms), f"mark {one.kind}") for one in timeline.moments]
    return tag("svg", joined(shapes), class_="marks", width="100%", height="100%", aria_hidden="true")


def _line(x: float, kind: str) -> Markup:
    return tag("line", x1=share(x), x2=share(x), y1="0", y2="100%", class_=kind)


def _vertical(x: float, top: float, bottom: float, kind: str) -> Markup:
    return tag("line", x1=share(x), x2=share(x), y1=top, y2=bottom, class_=kind)
