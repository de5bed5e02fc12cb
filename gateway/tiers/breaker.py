"""Eject an endpoint after failures, pauses and refusals, and admit it again. No I/O; the clock is passed in (seconds).

    closed ──── trip, pause, refusal ───────> open ──── its time is over ───> half_open
      ^                                        ^                                  │
      │                                        └──────── the probe call fails ────┤
      └─────────── a call made since the ejection began is answered ──────────────┘

closed     calls go out
open       no calls, except when no other endpoint is available and this one was ejected for failed calls (panic mode)
half_open  one probe call at a time

The breaker trips after five failures in a row, or when at least ten calls ended in the last ten seconds and half of
them failed. How long the ejection lasts depends on the tier's other endpoints: if none is available, 1 s, 2 s, 4 s,
then 5 s, so that a recovered backend is used again soon; otherwise 30 s, doubling up to 300 s with repeated ejections
(as in Envoy's outlier detection). The doubling goes back one step for each period, as long as the last ejection,
without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.backends.base import Refusal

State = Literal["closed", "open", "half_open"]
Cause = Literal["pause", "key", "quota", "failing"]
_REFUSALS: Final[Mapping[Cause, Refusal]] = {"key": "key", "quota": "quota"}

_IN_A_ROW = 5
_WINDOW_S = 10
_ENOUGH_CALLS = 10
_ALONE_S, _ALONE_MOST_S = 1.0, 5.0
_EJECTED_S, _EJECTED_MOST_S = 30.0, 300.0


@dataclass(frozen=True, slots=True)
class Ejection:
    """Why and until when an endpoint is not called. `began` and `until` are seconds of the breaker's clock.

    `heard_from` is the sibling worker that reported it, '' if this worker found it; `status` is the HTTP status that
    caused it, 0 if none did.
    """

    cause: Cause
    reason: str
    began: float
    until: float
    heard_from: str = ""
    status: int = 0

    @property
    def refusal(self) -> Refusal:
        """What the endpoint refuses, `key` or `quota`; '' for an ejection of another cause."""
        return _REFUSALS.get(self.cause, "")


class Breaker:
    """Hold the ejection state of one endpoint. All times are seconds of one monotonic clock.

    `rest` is the ejection in force or waiting for its probe call; None while closed.
    """

    __slots__ = ("_closed_at", "_ended", "_in_a_row", "_level", "_paused_until", "_probes", "_rested_s", "rest")

    def __init__(self) -> None:
        self.rest: Ejection | None = None
        self._paused_until = 0.0
        self._probes = 0
        self._in_a_row = 0
        self._ended = _Ended()
        self._level = 0
        self._rested_s = 0.0
        self._closed_at = 0.0

    def state(self, now: float) -> State:
        """Return the state, as in the diagram in the module's docstring."""
        if self.rest is None:
            return "closed"
        return "open" if now < self.rest.until else "half_open"

    def reason(self, now: float) -> str:
        """Return why no call may go out now; '' if one may."""
        if self.rest is None or (now >= self.rest.until and not self._probes):
            return ""
        return self.rest.reason

    def failing(self, now: float) -> bool:
        """Return whether it is ejected for failed calls and no requested pause is still running."""
        return self.rest is not None and self.rest.cause == "failing" and now >= self._paused_until

    def pause_s(self, now: float) -> float | None:
        """Return the seconds left of a pause that the backend asked for; None if there is none."""
        left = self._paused_until - now
        return left if left > 0 else None

    def enter(self) -> bool:
        """Record that a call goes out; return whether it is a probe of an ejected endpoint. `leave` must follow."""
        probe = self.rest is not None
        self._probes += probe
        return probe

    def leave(self, *, probe: bool) -> None:
        """Record that a call has ended."""
        self._probes -= probe

    def answered(self, called_at: float, now: float) -> None:
        """Record that a call made at `called_at` has begun to answer, which ends the ejection.

        A call from before the ejection does not end it, and none ends a pause that is still running.
        """
        if self.rest is not None and called_at >= self.rest.began and now >= self._paused_until:
            self._close(now)

    def succeeded(self, called_at: float, now: float) -> None:
        """Record that a call was answered to its end."""
        self._ended.add(now, failed=False)
        self.answered(called_at, now)
        if self.rest is None:
            self._in_a_row = 0

    def failed(self, error: str, called_at: float, now: float, *, alone: bool) -> None:
        """Record a call that failed by the endpoint's fault, and eject the endpoint if that trips the breaker.

        `alone`: no other endpoint of the tier is available. Failures while the breaker is open do not count.
        """
        if self.state(now) == "open":
            return
        self._ended.add(now, failed=True)
        self._in_a_row += 1
        ended, failed = self._ended.counts(now)
        rest = self.rest
        if self._in_a_row >= _IN_A_ROW or (rest and rest.cause == "failing" and called_at >= rest.began):
            self._eject(f"failing ({error}, {self._in_a_row} in a row)", now, alone=alone)
        elif ended >= _ENOUGH_CALLS and 2 * failed >= ended:
            self._eject(f"failing ({error}, {failed} of {ended} calls)", now, alone=alone)

    def pause(self, seconds: float, reason: str, now: float, status: int = 429) -> None:
        """Eject the endpoint for the `seconds` that its backend asked for."""
        self._paused_until = max(self._paused_until, now + seconds)
        self._begin("pause", seconds, reason, now, status)

    def refuse(self, what: Literal["key", "quota"], seconds: float, reason: str, now: float, status: int) -> None:
        """Eject the endpoint because its backend refused our key, or our account as out of quota."""
        self._begin(what, seconds, reason, now, status)

    def hear(self, worker: str, rest: Ejection | None, now: float) -> None:
        """Adopt the ejection that a sibling worker reports; None ends one that came from the same worker."""
        if rest is None:
            if self.rest is not None and self.rest.heard_from == worker:
                self._paused_until = 0.0
                self._close(now)
            return
        if rest.until <= now or (self.rest is not None and self.rest.until >= rest.until):
            return  # it is over or shorter than ours; a report that is over does not mean that the endpoint is well
        if rest.cause == "pause":
            self._paused_until = max(self._paused_until, rest.until)
        self.rest = replace(rest, heard_from=worker)

    def cut(self, until: float) -> None:
        """Shorten an ejection for failed calls to `until`: the tier has no other available endpoint left."""
        if self.rest is not None and self.rest.cause == "failing" and self.rest.until > until:
            self.rest = replace(self.rest, until=until)

    def _close(self, now: float) -> None:
        self.rest = None
        self._closed_at = now
        self._ended = _Ended()  # the failures that led to this ejection must not count towards the next one

    def _eject(self, reason: str, now: float, *, alone: bool) -> None:
        if self.rest is None and self._rested_s:
            self._level = max(0, self._level - int((now - self._closed_at) / self._rested_s))
        first, most = (_ALONE_S, _ALONE_MOST_S) if alone else (_EJECTED_S, _EJECTED_MOST_S)
        self._rested_s = min(most, first * 2.0**self._level)
        self._level = min(self._level + 1, 16)
        self._begin("failing", self._rested_s, reason, now)

    def _begin(self, cause: Cause, seconds: float, reason: str, now: float, status: int = 0) -> None:
        """Begin an ejection. The longer of two prevails; `began` stays that of the one under way."""
        rest = self.rest
        if rest is not None and now + seconds <= rest.until:
            return
        under_way = rest is not None and now < rest.until
        began = rest.began if rest and under_way else now
        self.rest = Ejection(cause, reason, began, now + seconds, status=status)


class _Ended:
    """Count the calls that ended, and that failed, in the last ten seconds: a ring of whole seconds."""

    __slots__ = ("_all", "_failed", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._all = [0] * _WINDOW_S
        self._failed = [0] * _WINDOW_S

    def add(self, now: float, *, failed: bool) -> None:
        self._forget(now)
        at = self._second % _WINDOW_S
        self._all[at] += 1
        self._failed[at] += failed

    def counts(self, now: float) -> tuple[int, int]:
        self._forget(now)
        return sum(self._all), sum(self._failed)

    def _forget(self, now: float) -> None:
        second = int(now)
        if second == self._second:
            return
        for passed in range(max(self._second + 1, second - _WINDOW_S + 1), second + 1):
            self._all[passed % _WINDOW_S] = self._failed[passed % _WINDOW_S] = 0
        self._second = second
