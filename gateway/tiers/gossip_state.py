"""Compute what workers exchange about a shared backend: shares of `max_in_flight`, and ejections. No I/O.

`max_in_flight` holds for all workers together. Each may use an equal share of it, and more while the others' last
reports leave some unused. Reports are up to a second old, so several workers that raise their use at once can exceed
the limit for that long; the adaptive limit and the backend's own 429 bound that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gateway.tiers.breaker import Cause, Ejection

_LONGEST_REST_S = 300.0
_CAUSES: Mapping[object, Cause] = {cause: cause for cause in get_args(Cause)}


def rest_told(rest: Ejection | None, now: float) -> dict[str, Any] | None:
    """Return an ejection as it is published; None for one learnt from a sibling, which must not be echoed.

    An ejection whose time is over is published (`left_s` 0) until a call succeeds: siblings take a report without
    an ejection to mean that the endpoint has recovered.
    """
    if rest is None or rest.heard_from:
        return None
    left_s = max(0.0, rest.until - now)
    return {"cause": rest.cause, "reason": rest.reason, "left_s": left_s, "status": rest.status}


def rest_of(state: Mapping[str, Any], now: float) -> Ejection | None:
    """Return the ejection in a sibling's report, at most 300 s long; None if it has no valid one."""
    rest = state.get("rest")
    if not isinstance(rest, Mapping):
        return None
    cause, reason, left = _CAUSES.get(rest.get("cause")), rest.get("reason"), rest.get("left_s")
    if cause is None or not isinstance(reason, str) or not isinstance(left, int | float) or not left >= 0:
        return None
    status = rest.get("status")
    return Ejection(cause, reason, now, now + min(left, _LONGEST_REST_S), status=status if type(status) is int else 0)
