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
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from gateway.backends.base import Refusal

State = Literal["closed", "open", "half_open"]
Cause = Literal["pause", "key", "quota", "model", "failing"]
REFUSALS: Final[Mapping[Cause, Refusal]] = {"key": "key", "quota": "quota", "model": "model"}
"""The causes that last until somebody mends them, by what the backend refuses, or lacks."""

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
        """What the endpoint refuses, `key` or `quota`, or lacks, its `model`; '' for an ejection of another cause."""
        return REFUSALS.get(self.cause, "")


class Breaker:
    """Hold the ejection state of one endpoint. All times are seconds of one monotonic clock.

    `ejection` is the one in force or waiting for its probe call; None while closed.
    """

    __slots__ = ("_closed_at", "_ejected_s", "_ended", "_in_a_row", "_level", "_probes", "ejection", "paused_until")

    def __init__(self) -> None:
        self.ejection: Ejection | None = None
        self.paused_until = 0.0
        self._probes = 0
        self._in_a_row = 0
        self._ended = _Ended()
        self._level = 0
        self._ejected_s = 0.0
        self._closed_at = 0.0

    def state(self, now: float) -> State:
        """Return the state, as in the diagram in the module's docstring."""
        if self.ejection is None:
            return "closed"
        return "open" if now < self.ejection.until else "half_open"

    def reason(self, now: float) -> str:
        """Return why no call may go out now; '' if one may."""
        if self.ejection is None or (now >= self.ejection.until and not self._probes):
            return ""
        return self.ejection.reason

    def failing(self, now: float) -> bool:
        """Return whether it is ejected for failed calls and no requested pause is still running."""
        return self.ejection is not None and self.ejection.cause == "failing" and now >= self.paused_until

    def pause_s(self, now: float) -> float | None:
        """Return the seconds left of a pause that the backend asked for; None if there is none."""
        left = self.paused_until - now
        return left if left > 0 else None

    def enter(self) -> bool:
        """Record that a call goes out; return whether it probes an ejected endpoint: `leave_probe` ends that."""
        probe = self.ejection is not None
        self._probes += probe
        return probe

    def leave_probe(self) -> None:
        """Record that a probe has ended."""
        self._probes -= 1

    def answered(self, called_at: float, now: float) -> None:
        """Record that a call made at `called_at` has begun to answer, which ends the ejection.

        A call from before the ejection does not end it, and none ends a pause that is still running.
        """
        if self.ejection is not None and called_at >= self.ejection.began and now >= self.paused_until:
            self.close(now)

    def succeeded(self, called_at: float, now: float) -> None:
        """Record that a call was answered to its end."""
        self._ended.add(now, failed=False)
        if self.ejection is not None:
            self.answered(called_at, now)
        if self.ejection is None:
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
        ejection = self.ejection
        probed = ejection is not None and ejection.cause == "failing" and called_at >= ejection.began
        if self._in_a_row >= _IN_A_ROW or probed:
            self._eject(f"failing ({error}, {self._in_a_row} in a row)", now, alone=alone)
        elif ended >= _ENOUGH_CALLS and 2 * failed >= ended:
            self._eject(f"failing ({error}, {failed} of {ended} calls)", now, alone=alone)

    def begin(self, cause: Cause, seconds: float, reason: str, now: float, status: int = 0) -> None:
        """Begin an ejection. The longer of two prevails; `began` stays that of the one under way."""
        ejection = self.ejection
        if ejection is not None and now + seconds <= ejection.until:
            return
        under_way = ejection is not None and now < ejection.until
        began = ejection.began if ejection and under_way else now
        self.ejection = Ejection(cause, reason, began, now + seconds, status=status)

    def pause(self, seconds: float, reason: str, now: float, status: int = 429) -> None:
        """Eject the endpoint for the `seconds` that its backend asked for."""
        self.paused_until = max(self.paused_until, now + seconds)
        self.begin("pause", seconds, reason, now, status)

    def cut(self, until: float) -> None:
        """Let an ejection for failed calls end by `until` at the latest: the tier has no other available endpoint."""
        if self.ejection is not None and self.ejection.cause == "failing" and self.ejection.until > until:
            self.ejection = replace(self.ejection, until=until)

    def rekeyed(self, now: float) -> None:
        """End an ejection for a refused key, as another is sent from now on: the next call is a probe."""
        if self.ejection is not None and self.ejection.cause == "key" and self.ejection.until > now:
            self.ejection = replace(self.ejection, until=now)

    def close(self, now: float) -> None:
        """End the ejection."""
        self.ejection = None
        self._closed_at = now
        self._ended = _Ended()  # the failures that led to this ejection must not count towards the next one

    def _eject(self, reason: str, now: float, *, alone: bool) -> None:
        if self.ejection is None and self._ejected_s:
            self._level = max(0, self._level - int((now - self._closed_at) / self._ejected_s))
        first, most = (_ALONE_S, _ALONE_MOST_S) if alone else (_EJECTED_S, _EJECTED_MOST_S)
        self._ejected_s = min(most, first * 2.0**self._level)
        self._level = min(self._level + 1, 16)
        self.begin("failing", self._ejected_s, reason, now)


class _Ended:
    """Count the calls that ended, and that failed, in the last ten seconds: a ring of whole seconds."""

    __slots__ = ("_all", "_failed", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._all = [0] * _WINDOW_S
        self._failed = [0] * _WINDOW_S

    def add(self, now: float, *, failed: bool) -> None:
        if int(now) != self._second:
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
