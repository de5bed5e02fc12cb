"""What workers tell each other of a backend that they all call: pure parts; how it travels is no matter here.

`max_in_flight` holds for all workers together. Each may have an equal part of it, and more while the others leave some
unused: whatever they reported last is theirs. Reports are late by up to a second, so the sum can be over the limit for
that long, by what several workers grab at once; the adaptive limit and the backend's own 429 are the stop for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gateway.tiers.breaker import Cause, Ejection

_ALIVE_S = 3.0
_LONGEST_REST_S = 300.0
_CAUSES: Mapping[object, Cause] = {cause: cause for cause in get_args(Cause)}


class Peers:
    """The sibling workers' calls in flight at one backend, and what that leaves for this one."""

    __slots__ = ("_heard", "_most", "share")

    def __init__(self, most: int) -> None:
        self._most = most
        self._heard: dict[str, tuple[float, int]] = {}
        self.share = most
        """How many calls this worker may have in flight."""

    def heard(self, worker: str, state: Mapping[str, Any], now: float) -> None:
        """A sibling's report has come."""
        in_flight = state.get("in_flight")
        if isinstance(in_flight, int) and in_flight >= 0:
            self._heard[worker] = (now, in_flight)

    def count(self, now: float) -> None:
        """Works out the share anew; who has said nothing for three seconds is gone."""
        self._heard = {name: (at, n) for name, (at, n) in self._heard.items() if now - at <= _ALIVE_S}
        part = -(-self._most // (len(self._heard) + 1))
        self.share = max(part, self._most - sum(n for _, n in self._heard.values()))


def rest_told(rest: Ejection | None, now: float) -> dict[str, Any] | None:
    """A rest as siblings are told of it; None for one that we heard of ourselves, lest it echo for ever.

    One whose time is over is told too, until a call has shown that the endpoint is well: without a word of it the
    siblings would take it for well and send all they have.
    """
    if rest is None or rest.heard_from:
        return None
    left_s = max(0.0, rest.until - now)
    return {"cause": rest.cause, "reason": rest.reason, "left_s": left_s, "status": rest.status}


def rest_of(state: Mapping[str, Any], now: float) -> Ejection | None:
    """The rest in a sibling's report. What does not look like one is none."""
    told = state.get("rest")
    if not isinstance(told, Mapping):
        return None
    cause, reason, left = _CAUSES.get(told.get("cause")), told.get("reason"), told.get("left_s")
    if cause is None or not isinstance(reason, str) or not isinstance(left, int | float) or not left >= 0:
        return None
    status = told.get("status")
    return Ejection(cause, reason, now, now + min(left, _LONGEST_REST_S), status=status if type(status) is int else 0)
