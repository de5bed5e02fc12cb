"""Say in what state a worker's backends are, and take in what sibling workers say of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from gateway.tiers.breaker import Breaker, Cause, Ejection

if TYPE_CHECKING:
    from gateway.tiers import Endpoint

_CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_LONGEST_HEARD_S: Final = 300.0
_LONGEST_REASON: Final = 200


class Brief(NamedTuple):
    """What a worker has told of a backend's state, but for the values that change with time alone."""

    in_flight: int
    waiting: int
    ejection: tuple[str, str] | None
    """Its cause and reason; None without one that this worker made."""
    limited: bool
    """Whether calls wait for the provider's quota."""


IDLE: Final = Brief(0, 0, None, limited=False)


def is_pressing(endpoint: Endpoint, told: Brief) -> bool:
    """Return whether siblings should know how it differs from what they were told before the next heartbeat.

    That is an ejection or its end, a quota that is used up, and the load of a backend that is more than half full, as
    others' share of it changes.
    """
    ejection = endpoint.breaker.ejection
    mine = None if ejection is None or ejection.heard_from else (ejection.cause, ejection.reason)
    if mine != told.ejection or endpoint.quota.tight != told.limited:
        return True
    in_flight = endpoint.in_flight
    return (in_flight != told.in_flight and 2 * max(in_flight, told.in_flight) > endpoint.capacity) or (
        endpoint.queue.size != told.waiting
    )


def rests(endpoint: Endpoint) -> bool:
    """Whether it is idle: no call, ejection, quota to wait for, or latency to report. Cheap to read."""
    return (
        not endpoint.in_flight
        and not endpoint.queue.size
        and endpoint.breaker.ejection is None
        and not endpoint.quota.tight
        and not endpoint.latency.has_news
    )


def report_of(endpoint: Endpoint, now: float) -> dict[str, Any]:
    """Return the report for sibling workers as JSON-serialisable values.

    It holds the load, the ejection if this worker made it, and the latencies observed since the last report.
    """
    endpoint.share(now)
    ejection = endpoint.breaker.ejection
    return {
        "in_flight": endpoint.in_flight,
        "waiting": endpoint.queue.size,
        "ejection": None if ejection is None else ejection_report(ejection, now),
        "quota_s": endpoint.quota.own_wait_s(now) if endpoint.quota.tight else 0.0,
        "idle_s": endpoint.forecasts.idle_s(now),
        "latency": endpoint.latency.report(now),
    }


def take_in(endpoint: Endpoint, worker: str, state: Mapping[str, Any], now: float) -> None:
    """Take in a sibling worker's report (see `report_of`) on the same backend."""
    in_flight = state.get("in_flight")
    if isinstance(in_flight, int) and in_flight >= 0:
        endpoint.calls_limit.heard(worker, in_flight, now)
    ejection = ejection_from(state.get("ejection"), now)
    if ejection is not None or endpoint.breaker.ejection is not None:
        before = endpoint.breaker.ejection
        hear_ejection(endpoint.breaker, worker, ejection, now)
        endpoint.reject_queued(before is None, now)
        endpoint.note_refusal(own=False)
    idle_s = state.get("idle_s")
    if isinstance(idle_s, int | float):
        endpoint.forecasts.answered(now - idle_s)
    if quota_s := state.get("quota_s"):
        endpoint.quota.pause(quota_s, now)
    latency = state.get("latency")
    if isinstance(latency, Mapping):
        endpoint.latency.hear(latency, now)
    endpoint.share(now)


def ejection_report(ejection: Ejection, now: float) -> dict[str, Any] | None:
    """Return the report for sibling workers; None if the ejection came from one, because it must not be echoed.

    An ejection whose time is over is reported (`left_s` 0) until a call succeeds: siblings take a report without an
    ejection to mean that the endpoint has recovered.
    """
    if ejection.heard_from:
        return None
    left_s = max(0.0, ejection.until - now)
    return {"cause": ejection.cause, "reason": ejection.reason, "left_s": left_s, "status": ejection.status}


def ejection_from(report: object, now: float) -> Ejection | None:
    """Return the ejection in a sibling's report, at most 300 s long; None if it has no valid one."""
    if not isinstance(report, Mapping):
        return None
    cause = next((cause for cause in _CAUSES if cause == report.get("cause")), None)
    reason, left_s, status = report.get("reason"), report.get("left_s"), report.get("status")
    if cause is None or not isinstance(reason, str) or not isinstance(left_s, int | float) or not left_s >= 0:
        return None
    shown = "".join(filter(str.isprintable, reason[:_LONGEST_REASON]))
    until = now + min(left_s, _LONGEST_HEARD_S)
    return Ejection(cause, shown, now, until, status=status if type(status) is int else 0)


def hear_ejection(breaker: Breaker, worker: str, ejection: Ejection | None, now: float) -> None:
    """Adopt the ejection in a sibling worker's report; None ends one that came from the same worker."""
    if ejection is None:
        if breaker.ejection is not None and breaker.ejection.heard_from == worker:
            breaker.paused_until = 0.0
            breaker.close(now)
        return
    if ejection.until <= now or (breaker.ejection is not None and breaker.ejection.until >= ejection.until):
        return  # it is over or shorter than ours; a report that is over does not mean that the endpoint is well
    if ejection.cause == "pause":
        breaker.paused_until = max(breaker.paused_until, ejection.until)
    breaker.ejection = replace(ejection, heard_from=worker)
