"""Follow many requests through `routing.cascade.Cascade` at once: the machine that serves says what each does next.

What the cascade does depends on few things: the decision, whether the request streams, and how each attempt ended. So a
course so far has a number, and the machine is asked once for what follows each, however many requests take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from routing.cascade import Attempt, AttemptOutcome, Cascade, Left, Serve
from routing.decide import Decision, TierHealth
from routing.load.latency import Forecast

if TYPE_CHECKING:
    from gateway.parts.lab.replay.cells import Bools, CellVerdict, Ints
    from policies.model import Policy

PATHS: Final = ("direct", "escalated", "degraded", "fallback", "none")
"""Paths of requests that were followed; `none`: no answer."""
NONE: Final = PATHS.index("none")
GOOD, POOR, FAILURE = range(3)
"""How an attempt ends."""
_ENDS: Final = 6
"""Ways on from a course: three ends of its attempt, each with time for what follows or without."""
_ENOUGH: Final = Left(np.inf)
_TOO_LITTLE: Final = Left(0.5)
_A_SECOND: Final = Forecast(ttft_s=1.0, ttft_p95_s=1.0, whole_s=1.0, queue_s=0.0, known=True)
"""The forecast of every tier: whether it is in time is said by what is left, `_ENOUGH` or `_TOO_LITTLE`."""


class _ReplayedCourse(NamedTuple):
    """A decision, and how the attempts ended so far: each with whether there was time for what follows."""

    number: int
    stream: bool
    ends: tuple[tuple[int, bool], ...] = ()


class Courses:
    """The courses that requests take by one policy. Each array has an element for every course, by its number."""

    def __init__(self, policy: Policy, verdicts: Sequence[CellVerdict], tiers: Sequence[str]) -> None:
        """Follow these verdicts by their numbers; `tiers` are all, in the order of their rows."""
        self._policy = policy
        self._verdicts = verdicts
        self._place: Mapping[str, int] = {name: row for row, name in enumerate(tiers)}
        self._health = {name: TierHealth(name, frozenset(), 1, forecast=_A_SECOND) for name in tiers}
        self._courses: list[_ReplayedCourse] = []
        self._numbers: dict[_ReplayedCourse, int] = {}
        self._next: Ints = np.zeros((0, _ENDS), np.int64)
        self.tier: Ints = np.zeros(0, np.int64)
        """Row of the tier that is called; -1 at the end."""
        self.above: Ints = np.zeros(0, np.int64)
        """Row of the tier that is called if the draft is rejected, and there is time; -1 for none."""
        self.judged: Bools = np.zeros(0, np.bool_)
        self.served: Ints = np.zeros(0, np.int64)
        """At the end, the row of the tier whose answer is served; -1 for none."""
        self.path: Ints = np.zeros(0, np.int64)
        """At the end, the place of its path in PATHS."""
        for number in range(len(verdicts)):  # so that a course that has no end yet is its verdict's number, twice
            for stream in (False, True):
                self._number(_ReplayedCourse(number, stream))

    def begin(self, numbers: Ints, stream: Bools) -> Ints:
        """Return, by its number, the course of each request before its first call, from its verdict's number."""
        return np.asarray(numbers * 2 + stream)

    def after(self, courses: Ints, ends: Ints, in_time: Bools) -> Ints:
        """Return the courses of requests after an attempt of each ended as `ends` says.

        `in_time` says whether the tier above could still answer in time.
        """
        ways = ends * 2 + in_time
        followed: Ints = self._next[courses, ways]
        new = followed < 0
        if not new.any():
            return followed
        for place in np.unique(courses[new] * _ENDS + ways[new]).tolist():
            course, way = divmod(place, _ENDS)
            before = self._courses[course]
            number = self._number(before._replace(ends=(*before.ends, (way // 2, bool(way % 2)))))
            self._next[course, way] = number
        return np.asarray(self._next[courses, ways])

    def _number(self, course: _ReplayedCourse) -> int:
        """Return the number of a course, a new one if it has none."""
        if course not in self._numbers:
            self._numbers[course] = len(self._courses)
            self._courses.append(course)
            tier, judged, served, path = self._ask(course)
            above = -1
            if judged and tier >= 0:
                above, *_ = self._ask(course._replace(ends=(*course.ends, (POOR, True))))
            self.tier, self.above = np.append(self.tier, tier), np.append(self.above, above)
            self.judged, self.served = np.append(self.judged, judged), np.append(self.served, served)
            self.path = np.append(self.path, path)
            self._next = np.append(self._next, np.full((1, _ENDS), -1), axis=0)
        return self._numbers[course]

    def _ask(self, course: _ReplayedCourse) -> tuple[int, bool, int, int]:
        """Return what the machine does then: the tier and whether it is judged, or the tier served and the path."""
        verdict = self._verdicts[course.number]
        if not verdict.tiers:
            return -1, False, -1, NONE
        stand_in = "stands in" if verdict.stands_in else ""
        decision = Decision(verdict.tiers, verdict.fallbacks, "", stand_in, verdict.weaker, verdict.missing)
        machine = Cascade(decision, self._policy, self._health, stream=course.stream)
        attempts: list[Attempt] = []
        step = machine.next(_ENOUGH)
        for end, in_time in course.ends:
            if not isinstance(step, Attempt):
                break
            attempts.append(step)
            left = _ENOUGH if in_time or end != POOR else _TOO_LITTLE
            step = machine.observe(self._outcome(machine, end, left, course)) or machine.next(left)
        if isinstance(step, Attempt):
            return self._place[step.tier], step.judged, -1, NONE
        if isinstance(step, Serve):
            return -1, False, self._place[attempts[step.number - 1].tier], PATHS.index(machine.path)
        return -1, False, -1, NONE

    def _outcome(self, machine: Cascade, end: int, left: Left, course: _ReplayedCourse) -> AttemptOutcome:
        if end == POOR:  # of a stream only where somebody takes over: else it has been sent
            return AttemptOutcome("low_confidence", kept=not course.stream or not machine.takes_over(left))
        return AttemptOutcome("accepted" if end == GOOD else "retryable")
