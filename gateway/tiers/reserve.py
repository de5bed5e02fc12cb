"""The places that batch calls leave free: as many as interactive traffic needed lately and does not hold now. Pure.

A place that a batch call holds is gone for as long as its answer takes, so waiting until interactive requests come
would be too late for those. A backend that carries interactive calls in waves keeps room for the next wave; one that
has had none for some ten seconds is all for batch. However it is, batch may hold one place in twenty, and one at least.
"""

from __future__ import annotations

_WINDOW_S = 5.0
_FLOOR = 0.05


class Reserve:
    """The most interactive calls in flight at once during the last 10 to 15 seconds, in three windows."""

    __slots__ = ("_before", "_long_before", "_now", "_turns_at")

    def __init__(self) -> None:
        self._now = self._before = self._long_before = 0
        self._turns_at = 0.0

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
        passed = 1 + int((now - self._turns_at) / _WINDOW_S)
        recent = (self._now, self._before) if passed == 1 else (0, self._now) if passed == 2 else (0, 0)
        self._now, (self._before, self._long_before) = 0, recent
        self._turns_at += passed * _WINDOW_S


def floor_of(capacity: int) -> int:
    """The places that batch may always hold."""
    return max(1, int(capacity * _FLOOR))
