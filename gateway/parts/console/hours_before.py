"""Compare each surface with the hours before: what it costs, what is escalated, hit, judged by nobody, or not asked.

A limit that is kept says nothing of an edit that triples the cost. The requests from a moment on are held against
those before it, up to `BEFORE_S` back: the latest change of the policy within the span that is shown, else the span's
beginning, else its last third. A figure is told where it moved by much and by more than chance (`_Z`, which leaves room
for the many figures that are looked at). Traffic that is gone is told where a tenth or less came of what was expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from gateway.parts.console.standing import Need, StandingMark
from gateway.parts.console.surface_counts import BUCKETS, counts
from policies.quantities import dollars, percent

SLOT_MS: Final = 360_000
"""The slots of the hours before, in milliseconds: those that are summarised in advance."""
BEFORE_S: Final = 6 * 3600
_FEWEST: Final = 30
"""Fewest requests on either side of a comparison."""
_Z: Final = 4.0
_MUCH: Final = 0.05
"""Least difference of a share that is told."""
_TIMES: Final = 1.5
"""Least ratio that is told."""
_LATELY: Final = BUCKETS // 4
"""The last part of the span, in which traffic may be gone."""
_EXPECTED: Final = 40.0
_STEADY_SLOTS: Final = 5
"""Slots with requests, fewer of which say nothing of the traffic to expect."""
BEFORE: Final = f"""
SELECT surface, sum(COLUMNS('^(requests|escalated|hits|cost|cost_squares|drafts|unjudged)$')),
    count(DISTINCT slot_ms) AS slots, min(slot_ms) AS first_ms
FROM {counts(SLOT_MS).name} WHERE slot_ms >= $from_ms AND slot_ms < $to_ms GROUP BY surface
"""  # noqa: S608
"""The requests of the hours before by surface, over the summary `counts(SLOT_MS)`."""


@dataclass(frozen=True, slots=True)
class PeriodSums:
    """Sums over the requests of one surface in one period. Money is in US dollars."""

    requests: float = 0.0
    escalated: float = 0.0
    hits: float = 0.0
    cost: float = 0.0
    cost_squares: float = 0.0
    drafts: float = 0.0
    """Requests of which a draft was to be judged."""
    unjudged: float = 0.0
    """Those of which nobody said how sure the draft is."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> PeriodSums:
        """Return the sums of rows, of which each column may be None."""
        return cls(*(math.fsum(row.get(field.name) or 0.0 for row in rows) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class FigureMoved:
    """A figure that is another than before, in words: `escalations 10.0% -> 38.0%`."""

    name: str
    before: float
    now: float
    text: str


def moved_figures(now: PeriodSums, before: PeriodSums) -> list[FigureMoved]:
    """Return the figures that moved by much and by more than chance, the cost first."""
    if min(now.requests, before.requests) < _FEWEST:
        return []
    found = []
    was, mean = before.cost / before.requests, now.cost / now.requests
    if _ratio(mean, was) >= _TIMES and _apart(mean - was, _variance_of_cost(now) + _variance_of_cost(before)):
        text = f"cost per 1,000 {dollars(was * 1000)} -> {dollars(mean * 1000)}"
        found.append(FigureMoved("cost", was * 1000, mean * 1000, text))
    for name, words, part, of in (
        ("escalated", "escalations", "escalated", "requests"),
        ("hits", "cache hits", "hits", "requests"),
        ("unjudged", "drafts that nobody judged", "unjudged", "drafts"),
    ):
        n, m = getattr(now, of), getattr(before, of)
        if min(n, m) < _FEWEST:
            continue
        share, earlier = getattr(now, part) / n, getattr(before, part) / m
        both = (getattr(now, part) + getattr(before, part)) / (n + m)
        if (
            abs(share - earlier) >= _MUCH
            and _ratio(share, earlier) >= _TIMES
            and _apart(share - earlier, both * (1 - both) * (1 / n + 1 / m))
        ):
            found.append(FigureMoved(name, earlier, share, f"{words} {percent(earlier, 1)} -> {percent(share, 1)}"))
    return found


def _variance_of_cost(sums: PeriodSums) -> float:
    """Return the variance of the mean cost of a request."""
    mean = sums.cost / sums.requests
    return max(sums.cost_squares / sums.requests - mean * mean, 0.0) / sums.requests


def _ratio(value: float, other: float) -> float:
    low, high = sorted((value, other))
    return math.inf if low <= 0 < high else high / low if low > 0 else 1.0


def _apart(difference: float, variance: float) -> bool:
    return abs(difference) > _Z * math.sqrt(variance)


@dataclass(frozen=True, slots=True)
class SurfaceComparison:
    """What moved on a surface, since when in Unix seconds, and the change just before, if one is known."""

    figures: Sequence[FigureMoved]
    since_s: float
    change: StandingMark | None

    def need(self, surface: str) -> Need:
        """Return the warning that this surface is not as it was, with the figures and what to do."""
        texts = ", ".join(figure.text for figure in self.figures)
        todo = "No change of its policy is known just before: look at prices, prompts, backends and verifiers."
        if self.change is not None:
            todo = f"Since {self.change.text}. Take it back, or see its requests before and after."
        what = f"{surface} is not as it was in the hours before: {texts}."
        return Need("warn", what, self.since_s, todo, f"/surfaces/{surface}")


def compared_hours(
    surface: str,
    rows: Sequence[Mapping[str, Any]],
    earlier: Mapping[str, Any] | None,
    marks: Sequence[StandingMark],
    from_ms: int,
    span_ms: int,
) -> SurfaceComparison | None:
    """Return what moved on a surface; None where nothing did.

    `rows` are its buckets of the span, `earlier` its row of BEFORE, `marks` all changes that are known.
    """
    width_s = span_ms / BUCKETS / 1000
    own = sorted((mark for mark in marks if mark.surface in ("", surface)), key=lambda mark: mark.at_s, reverse=True)
    at = {mark: math.ceil((mark.at_s - from_ms / 1000) / width_s) for mark in own}
    changes = [mark for mark in own if mark.kind == "policy" and 0 < at[mark] < BUCKETS]
    for split, change in (*((at[mark], mark) for mark in changes), (0, None), (2 * BUCKETS // 3, None)):
        old = [row for row in rows if row["bucket"] < split - (change is not None)]  # the change's own bucket is both
        new = [row for row in rows if row["bucket"] >= split]
        figures = moved_figures(PeriodSums.of(new), PeriodSums.of([*old, *([] if earlier is None else [earlier])]))
        if figures:
            since_s = from_ms / 1000 + split * width_s if change is None else change.at_s
            before = (mark for mark in own if since_s - BEFORE_S / 6 <= mark.at_s <= since_s + width_s)
            return SurfaceComparison(figures, since_s, change or next(before, None))
    return None


def unjudged_need(surface: str, rows: Sequence[Mapping[str, Any]], verifiers: Sequence[str], why: str) -> Need | None:
    """Return what is to be said where a policy names verifiers, and most drafts were judged by none of them."""
    sums = PeriodSums.of(rows)
    if not verifiers or sums.drafts < _FEWEST or 2 * sums.unjudged <= sums.drafts:
        return None
    what = (
        f"{surface}: nobody judged {sums.unjudged:,.0f} of {sums.drafts:,.0f} drafts, though its policy asks "
        f"{' and '.join(verifiers)}{f' ({why})' if why else ''}."
    )
    todo = "`no_signal` decides these: see a request's attempt for who was skipped, and why."
    return Need("warn", what, None, todo, f"/requests?surface={surface}")


def gone(
    surface: str,
    rows: Sequence[Mapping[str, Any]],
    earlier: Mapping[str, Any] | None,
    marks: Sequence[StandingMark],
    from_ms: int,
    span_ms: int,
) -> Iterator[Need]:
    """Yield a warning if a surface has lost its traffic, by its rate in the hours before and early in the span."""
    if earlier is None or earlier["slots"] < _STEADY_SLOTS:
        return
    width_s = span_ms / BUCKETS / 1000
    late = [row for row in rows if row["bucket"] >= BUCKETS - _LATELY]
    lately = sum(row["requests"] for row in late)
    came = earlier["requests"] + sum(row["requests"] for row in rows) - lately
    seconds = (from_ms - earlier["first_ms"]) / 1000 + (BUCKETS - _LATELY) * width_s
    expected = came / seconds * _LATELY * width_s
    if expected < _EXPECTED or lately > expected / 10:
        return
    last = max((row["bucket"] for row in rows if row["bucket"] < BUCKETS - _LATELY), default=-1)
    since_s = from_ms / 1000 + (last + 1) * width_s
    change = max((one for one in marks if one.surface in ("", surface) and abs(one.at_s - since_s) < 2 * width_s + 60),
                 key=lambda mark: mark.at_s, default=None)  # fmt: skip
    what = (
        f"{surface}: {lately:,.0f} requests in the last {_LATELY * width_s / 60:,.0f} min, where {expected:,.0f} came "
        "in such a time before."
    )
    todo = "See whether its clients are up, and reach the gateway."
    if change is not None:
        todo = f"Just before: {change.text}. {todo}"
    yield Need("warn", what, since_s, todo, f"/surfaces/{surface}")
