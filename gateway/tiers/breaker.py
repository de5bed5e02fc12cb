"""When an endpoint rests, for how long, and how it comes back. Pure: the clock is passed in, in seconds.

    closed ──── trip, pause, refusal ───────> open ──── its time is over ───> half_open
      ^                                        ^                                  │
      │                                        └── the call that tries it fails ──┤
      └─────────────── a call made since the rest began is answered ──────────────┘

closed     calls go out
open       none do; save when nothing else can answer and it rests for its failures alone (the tier's panic mode)
half_open  one call at a time tries it

It trips after five failures in a row, or when at least ten calls of the last ten seconds have ended and half of them
failed. How long it is then ejected for depends on whether others can carry on: alone in its tier 1 s, 2 s, 4 s and 5 s
at most, for recovery must not wait for us; with siblings 30 s, doubling up to 300 s as it is ejected again and again
(what Envoy calls outlier detection). It goes a step back each time that it has been well for as long as it rested.
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
    """Why and until when an endpoint rests. `heard_from` is the worker that found out, empty for this one.

    `status` is the HTTP status that began it; 0 where none did.
    """

    cause: Cause
    reason: str
    began: float
    until: float
    heard_from: str = ""
    status: int = 0

    @property
    def refusal(self) -> Refusal:
        """What of ours the endpoint refuses; empty for a rest of another kind."""
        return _REFUSALS.get(self.cause, "")


class Breaker:
    """The state of one endpoint. Every time is on the same monotonic clock."""

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
        """Where it stands in the picture above."""
        if self.rest is None:
            return "closed"
        return "open" if now < self.rest.until else "half_open"

    def reason(self, now: float) -> str:
        """Why no call may go out now; empty if one may."""
        if self.rest is None or (now >= self.rest.until and not self._probes):
            return ""
        return self.rest.reason

    def failing(self, now: float) -> bool:
        """Whether it rests for its failures alone, and has not asked for a pause that is not over yet."""
        return self.rest is not None and self.rest.cause == "failing" and now >= self._paused_until

    def pause_s(self, now: float) -> float | None:
        """How much is left of a pause that was asked for; None without one."""
        left = self._paused_until - now
        return left if left > 0 else None

    def enter(self) -> bool:
        """A call goes out; whether it is one that tries a rested endpoint. `leave` must follow."""
        probe = self.rest is not None
        self._probes += probe
        return probe

    def leave(self, *, probe: bool) -> None:
        """A call has ended."""
        self._probes -= probe

    def answered(self, called_at: float, now: float) -> None:
        """A call made at `called_at` has begun to answer. One from before a rest does not end it, nor a pause."""
        if self.rest is not None and called_at >= self.rest.began and now >= self._paused_until:
            self._close(now)

    def succeeded(self, called_at: float, now: float) -> None:
        """A call was answered to its end."""
        self._ended.add(now, failed=False)
        self.answered(called_at, now)
        if self.rest is None:
            self._in_a_row = 0

    def failed(self, error: str, called_at: float, now: float, *, alone: bool) -> None:
        """A call failed by the endpoint's fault; `alone`: no sibling can carry on. What fails in a rest is old news."""
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
        """The endpoint asked for a pause."""
        self._paused_until = max(self._paused_until, now + seconds)
        self._begin("pause", seconds, reason, now, status)

    def refuse(self, what: Literal["key", "quota"], seconds: float, reason: str, now: float, status: int) -> None:
        """The endpoint refused our key, or our account for being out of quota."""
        self._begin(what, seconds, reason, now, status)

    def hear(self, worker: str, rest: Ejection | None, now: float) -> None:
        """What a sibling worker found counts like our own; when it finds the endpoint well again, that does too."""
        if rest is None:
            if self.rest is not None and self.rest.heard_from == worker:
                self._paused_until = 0.0
                self._close(now)
            return
        if rest.until <= now or (self.rest is not None and self.rest.until >= rest.until):
            return  # what is over begins nothing, though it is no word of the endpoint being well either
        if rest.cause == "pause":
            self._paused_until = max(self._paused_until, rest.until)
        self.rest = replace(rest, heard_from=worker)

    def cut(self, until: float) -> None:
        """Ends an ejection by then: nobody is left who could carry on without it."""
        if self.rest is not None and self.rest.cause == "failing" and self.rest.until > until:
            self.rest = replace(self.rest, until=until)

    def _close(self, now: float) -> None:
        self.rest = None
        self._closed_at = now
        self._ended = _Ended()  # what led to the rest must not lead to the next one

    def _eject(self, reason: str, now: float, *, alone: bool) -> None:
        if self.rest is None and self._rested_s:
            self._level = max(0, self._level - int((now - self._closed_at) / self._rested_s))
        first, most = (_ALONE_S, _ALONE_MOST_S) if alone else (_EJECTED_S, _EJECTED_MOST_S)
        self._rested_s = min(most, first * 2.0**self._level)
        self._level = min(self._level + 1, 16)
        self._begin("failing", self._rested_s, reason, now)

    def _begin(self, cause: Cause, seconds: float, reason: str, now: float, status: int = 0) -> None:
        """The longer of two rests prevails; `began` stays that of the rest which is under way."""
        rest = self.rest
        if rest is not None and now + seconds <= rest.until:
            return
        under_way = rest is not None and now < rest.until
        began = rest.began if rest and under_way else now
        self.rest = Ejection(cause, reason, began, now + seconds, status=status)


class _Ended:
    """How many calls ended, and how many of them failed, in the last ten seconds: a ring of whole seconds."""

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
