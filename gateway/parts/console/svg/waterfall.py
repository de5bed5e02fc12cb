"""Draw a timeline: one small drawing per hop that stretches with the page, and the marks that run through all rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from gateway.parts.console.attempt_races import loss_of
from gateway.parts.console.bar import Bar
from gateway.parts.console.critical_path import PathSegment
from gateway.parts.console.svg import joined, share, tag
from gateway.parts.console.timeline import Ghost, Timeline
from policies.quantities import milliseconds

_ROW: Final = 22
_BAR: Final = 12
_BUDGET: Final = 34
_LEAST: Final = 0.0025
"""Smallest width of a bar, in shares of the axis: what took microseconds can still be seen."""


def bar(timeline: Timeline, hop: Bar) -> Markup:
    """Draw one hop. Of an attempt, its wait in a queue is hatched, and the part before its first token lighter."""
    left, right = timeline.x(hop.start_ms), timeline.x(hop.end_ms)
    width, y = max(right - left, _LEAST), (_ROW - _BAR) / 2
    state = " error" if hop.error else " served" if hop.served else ""
    title = tag("title", f"{hop.label}: {hop.duration_ms:.2f} ms, from {hop.start_ms:.2f} ms")
    shapes = [
        tag("rect", title, x=share(left), y=y, width=share(width), height=_BAR, rx=2, class_=f"bar {hop.kind}{state}")
    ]
    shapes += [_critical(timeline, segment) for segment in timeline.path if segment.number == hop.number]
    called = timeline.x(hop.start_ms + hop.queue_ms)
    if hop.queue_ms:
        words = tag("title", f"waited {milliseconds(hop.queue_ms)} in the queue")
        shapes += [
            tag("rect", x=share(left), y=y, width=share(called - left), height=_BAR, class_="behind-queue"),
            tag("line", words, x1=share(left), x2=share(called), y1=_ROW / 2, y2=_ROW / 2, class_="queued"),
            _vertical(called, y, y + _BAR, "called"),
        ]
    if hop.first_ms is not None and hop.start_ms < hop.first_ms < hop.end_ms:
        first = timeline.x(hop.first_ms)
        shapes.append(tag("rect", x=share(called), y=y, width=share(first - called), height=_BAR, class_="waiting"))
        shapes.append(_vertical(first, y, y + _BAR, "first"))
    if hop.verdict_ms is not None:
        shapes.append(_vertical(timeline.x(hop.verdict_ms), y - 3, y + _BAR + 3, "verdict"))
    if hop.lost:
        cross = tag("title", loss_of(hop)) + "\N{MULTIPLICATION SIGN}"
        shapes.append(tag("text", cross, x=share(right), y=y + _BAR - 1, class_="cancel"))
    return tag("svg", joined(shapes), class_="lane", width="100%", height=_ROW, role="presentation")


def _critical(timeline: Timeline, part: PathSegment) -> Markup:
    """Draw a line under the part of a bar that the total time consists of."""
    left, right = timeline.x(part.start_ms), timeline.x(part.end_ms)
    title = tag("title", f"{milliseconds(part.end_ms - part.start_ms)} of the total time")
    return tag("rect", title, x=share(left), y=_ROW - 4, width=share(max(right - left, _LEAST)), height=2.5,
               class_="critical")  # fmt: skip


def budget(timeline: Timeline) -> Markup | None:
    """Draw the time left until the deadline, and until the first token is due, as lines that fall to nothing there.

    A dot on the first stands where a hop began, with what was left then. None without a deadline.
    """
    if timeline.deadline_ms is None:
        return None
    shapes: list[Markup] = []
    limits = [("left", timeline.deadline_ms, timeline.deadline_ms)]
    if timeline.target_ms is not None and timeline.target_ms < timeline.deadline_ms:
        limits.append(("left soon", timeline.target_ms, timeline.target_ms))
    for kind, limit, until in limits:
        ends = [at for at in (0.0, timeline.end_ms) if at < until] + [until]
        shapes += [
            tag("line", x1=share(timeline.x(at)), x2=share(timeline.x(to)), y1=_height(1 - at / limit),
                y2=_height(1 - to / limit), class_=kind)
            for at, to in itertools.pairwise(ends)
        ]  # fmt: skip
    for hop in timeline.bars:
        left = hop.budget_ms
        if left is not None and 0 < hop.start_ms <= timeline.end_ms:
            title = tag("title", f"{hop.label}: {milliseconds(left)} of {milliseconds(timeline.deadline_ms)} left")
            y = _height(max(left, 0.0) / timeline.deadline_ms)
            shapes.append(tag("circle", title, cx=share(timeline.x(hop.start_ms)), cy=y, r=2.5, class_="left"))
    text = budget_words(timeline)
    return tag("svg", joined(shapes), class_="budget", width="100%", height=_BUDGET, role="img", aria_label=text)


def budget_words(timeline: Timeline) -> str:
    """Return in words what was left of the deadline at the end; empty without one."""
    left, deadline = timeline.left_ms(timeline.total_ms), timeline.deadline_ms
    if left is None or deadline is None:
        return ""
    if left == 0.0:
        return f"the deadline of {milliseconds(deadline)} was used up"
    return f"{milliseconds(left)} of {milliseconds(deadline)} left at the end"


def race_marks(timeline: Timeline, lanes: Sequence[Bar]) -> Markup:
    """Draw the lines through the lanes of one race: where each later one began, and where a loser was cancelled."""
    forks = [_line(timeline.x(bar.start_ms), "fork") for bar in lanes[1:]]
    ends = [_line(timeline.x(bar.end_ms), "decided") for bar in lanes if bar.lost]
    return tag("svg", joined(forks + ends), class_="marks", width="100%", height="100%", aria_hidden="true")


def path_strip(timeline: Timeline) -> Markup | None:
    """Draw what the total time consists of as parts of one bar; None where that is not known."""
    if not timeline.path or not timeline.total_ms:
        return None
    kinds = {bar.number: ("served" if bar.served else bar.kind, bar.label) for bar in timeline.bars}
    shapes = []
    for part in timeline.path:
        kind, label = ("own", "between the hops") if part.number is None else kinds[part.number]
        kind, label = ("in-queue", f"queue of {label}") if part.queued else (kind, label)
        took = part.end_ms - part.start_ms
        title = tag("title", f"{label}: {milliseconds(took)}, {took / timeline.total_ms:.1%} of the total time")
        width = share(took / timeline.total_ms)
        shapes.append(
            tag("rect", title, x=share(part.start_ms / timeline.total_ms), y=0, width=width, height=10,
                class_=f"bar {kind}")
        )  # fmt: skip
    words = ", ".join(f"{label} {part:.0%}" for label, part in path_parts(timeline))
    text = f"what the total time consists of: {words}"
    return tag("svg", joined(shapes), class_="path", width="100%", height=10, role="img", aria_label=text)


def path_parts(timeline: Timeline) -> list[tuple[str, float]]:
    """Return the hops that the total time consists of with their shares of it (0 to 1), the largest first."""
    total = timeline.total_ms
    if not total:
        return []
    parts = [(bar.label, timeline.critical_ms(bar.number, queued=False) / total) for bar in timeline.bars]
    parts += [
        (f"queue of {bar.label}", timeline.critical_ms(bar.number, queued=True) / total)
        for bar in timeline.bars
        if bar.queue_ms
    ]
    parts.append(("between the hops", timeline.critical_ms(None) / total))
    return sorted(((label, part) for label, part in parts if part >= 0.0005), key=lambda pair: -pair[1])


def _height(part: float) -> float:
    """Return the place of a share of the budget in its drawing, from above."""
    return round(4 + (1 - max(0.0, min(part, 1.0))) * (_BUDGET - 8), 1)


def ghost(timeline: Timeline, road: Ghost) -> Markup:
    """Draw what would have taken how long: a dashed bar to the median, with a whisker to the 95th percentile."""
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
    shapes += [_line(timeline.x(moment.at_ms), f"mark {moment.kind}") for moment in timeline.moments]
    return tag("svg", joined(shapes), class_="marks", width="100%", height="100%", aria_hidden="true")


def _line(x: float, kind: str) -> Markup:
    return tag("line", x1=share(x), x2=share(x), y1="0", y2="100%", class_=kind)


def _vertical(x: float, top: float, bottom: float, kind: str) -> Markup:
    return tag("line", x1=share(x), x2=share(x), y1=top, y2=bottom, class_=kind)
