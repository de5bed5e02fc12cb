"""Reserve slots of an endpoint for interactive calls: as many as they recently needed and do not hold now. No I/O.

A batch call holds its slot until its answer is complete, so slots must be kept free before interactive requests arrive.
"Recently" is three windows of three mean call lengths each (1 to 5 s a window). Without interactive traffic in that
time, batch may use every slot; it may always hold one slot in twenty, rounded up.
"""

from __future__ import annotations

import math

_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 1.0, 5.0
_CALLS = 3
_FLOOR = 0.05
_REMEMBERED_S = 2.0


class Reserve:
    """Track the most interactive calls in flight at once during the last three windows."""

    __slots__ = ("_before", "_long_before", "_now", "_turns_at", "_window_s")

    def __init__(self) -> None:
        self._now = self._before = self._long_before = 0
        self._turns_at = 0.0
        self._window_s = _SHORTEST_WINDOW_S

    def calls_take(self, seconds: float) -> None:
        """Set the mean time in seconds for which a call holds its slot."""
        self._window_s = min(_LONGEST_WINDOW_S, max(_SHORTEST_WINDOW_S, _CALLS * seconds))

    def entered(self, interactive: int, now: float) -> None:
        """Record that `interactive` calls are in flight, after one more went out."""
        if now >= self._turns_at:
            self._turn(now)
        self._now = max(self._now, interactive)

    def admits_batch(self, capacity: int, interactive: int, batch: int, now: float) -> bool:
        """Return whether one more batch call may go out, given the calls in flight of each class."""
        free = capacity - interactive - batch
        return free > 0 and (batch < floor_of(capacity) or free > self.kept(interactive, now))

    def kept(self, interactive: int, now: float) -> int:
        """Return how many free slots are reserved now, with `interactive` calls in flight."""
        if now >= self._turns_at:
            self._turn(now)
        return max(0, max(self._now, self._before, self._long_before) - interactive)

    def _turn(self, now: float) -> None:
        passed = 1 + int((now - self._turns_at) / self._window_s)
        recent = (self._now, self._before) if passed == 1 else (0, self._now) if passed == 2 else (0, 0)
        self._now, (self._before, self._long_before) = 0, recent
        self._turns_at += passed * self._window_s


class Grants:
    """Measure the rate, in slots a second, at which queued batch requests get slots; it predicts a new one's wait.

    The rate is measured only while batch requests wait, and starts from the one expected by the mean length of a call.
    It decays over the time of three calls (at least 2 s), because slots become free in bursts.
    """

    __slots__ = ("_at", "_rate", "_remembered_s")

    def __init__(self) -> None:
        self._rate = math.inf
        self._at = -math.inf
        self._remembered_s = _REMEMBERED_S

    def calls_take(self, seconds: float) -> None:
        """Set the mean time in seconds for which a call holds its slot."""
        self._remembered_s = max(_REMEMBERED_S, _CALLS * seconds)

    def begin(self, expected: float, now: float) -> None:
        """Start measuring, as the first batch request is queued, from `expected` slots a second.

        A rate measured shortly before is kept instead.
        """
        if math.isinf(self._rate) or now - self._at > self._remembered_s:
            self._rate = expected
        self._at = now

    def granted(self, expected: float, now: float) -> None:
        """Record that a queued batch request got its slot."""
        if math.isinf(self._rate):
            self.begin(expected, now)
        self._rate = self.per_second(now) + 1 / self._remembered_s
        self._at = now

    def per_second(self, now: float) -> float:
        """Return the rate with older grants discounted exponentially; infinite until a call has ended."""
        return self._rate if math.isinf(self._rate) else self._rate * math.exp((self._at - now) / self._remembered_s)


def floor_of(capacity: int) -> int:
    """Return the number of slots that batch calls may always hold: 5% of `capacity`, rounded up."""
    return math.ceil(capacity * _FLOOR)
