"""The places that batch calls leave free: as many as interactive traffic needed lately and does not hold now. Pure.

A place that a batch call holds is gone for as long as its answer takes, so waiting until interactive requests come
would be too late for those. How far back "lately" goes is a matter of how long calls take: in the time of a few of them
interactive traffic shows what it needs, and when it has gone all is for batch. However it is, batch may hold one place
in twenty, rounded up.
"""

from __future__ import annotations

import math

_SHORTEST_WINDOW_S, _LONGEST_WINDOW_S = 1.0, 5.0
_CALLS = 3
_FLOOR = 0.05
_REMEMBERED_S = 2.0


class Reserve:
    """The most interactive calls in flight at once during the last three windows, each of the length of a few calls."""

    __slots__ = ("_before", "_long_before", "_now", "_turns_at", "_window_s")

    def __init__(self) -> None:
        self._now = self._before = self._long_before = 0
        self._turns_at = 0.0
        self._window_s = _SHORTEST_WINDOW_S

    def calls_take(self, seconds: float) -> None:
        """How long a call holds its place, on average."""
        self._window_s = min(_LONGEST_WINDOW_S, max(_SHORTEST_WINDOW_S, _CALLS * seconds))

    def entered(self, interactive: int, now: float) -> None:
        """So many interactive calls are in flight, after one more went out."""
        if now >= self._turns_at:
            self._turn(now)
        self._now = max(self._now, interactive)

    def admits_batch(self, capacity: int, interactive: int, batch: int, now: float) -> bool:
        """Whether one more batch call may go out, beside so many that are in flight."""
        free = capacity - interactive - batch
        return free > 0 and (batch < floor_of(capacity) or free > self.kept(interactive, now))

    def kept(self, interactive: int, now: float) -> int:
        """How many places are kept free now."""
        if now >= self._turns_at:
            self._turn(now)
        return max(0, max(self._now, self._before, self._long_before) - interactive)

    def _turn(self, now: float) -> None:
        passed = 1 + int((now - self._turns_at) / self._window_s)
        recent = (self._now, self._before) if passed == 1 else (0, self._now) if passed == 2 else (0, 0)
        self._now, (self._before, self._long_before) = 0, recent
        self._turns_at += passed * self._window_s


class Grants:
    """How many places a second batch requests in line have been given lately: what those behind them may expect.

    While none waits none is given, which says nothing: the rate is only measured while some do, and begins with the one
    that the calls under way let expect. It is remembered for the time of a few calls, for places come free in waves.
    """

    __slots__ = ("_at", "_rate", "_remembered_s")

    def __init__(self) -> None:
        self._rate = math.inf
        self._at = -math.inf
        self._remembered_s = _REMEMBERED_S

    def calls_take(self, seconds: float) -> None:
        """How long a call holds its place, on average."""
        self._remembered_s = max(_REMEMBERED_S, _CALLS * seconds)

    def begin(self, expected: float, now: float) -> None:
        """One waits where none did; so many places a second should come free. What was measured just before holds."""
        if math.isinf(self._rate) or now - self._at > self._remembered_s:
            self._rate = expected
        self._at = now

    def granted(self, expected: float, now: float) -> None:
        """One has got its place."""
        if math.isinf(self._rate):
            self.begin(expected, now)
        self._rate = self.per_second(now) + 1 / self._remembered_s
        self._at = now

    def per_second(self, now: float) -> float:
        """The rate, each grant counting for less as it grows old; infinite until a call has ended."""
        return self._rate if math.isinf(self._rate) else self._rate * math.exp((self._at - now) / self._remembered_s)


def floor_of(capacity: int) -> int:
    """The places that batch may always hold."""
    return math.ceil(capacity * _FLOOR)
