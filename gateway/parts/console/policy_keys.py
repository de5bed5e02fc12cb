"""Name the keys of a policy that a hop rests on: what decided it, why it ran at all, and what bounded it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from routing.cascade import REJECTED

_HELD_MS: Final = 20.0
"""A stream that was held back for less after its first token was not held up by it."""


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """A dotted key of a policy, such as `slo.deadline`, that ruled a hop, and in words how."""

    key: str
    what: str
    ms: float | None = None
    """How long the hop waited for it; None where it is no wait."""


def policy_keys(hop: Mapping[str, Any], *, to_first_token: bool) -> Iterator[PolicyKey]:
    """Yield the keys that a recorded hop rests on, the one that decided it first, and what it waited for longest last.

    `to_first_token`: whether the request had a limit for its first token, which then bounds it before its deadline.
    """
    attributes = hop["attributes"]
    if clause := attributes.get(names.CLAUSE):
        yield PolicyKey(clause, "decided by")
    if clause := attributes.get(detail.RACE_CLAUSE):
        yield PolicyKey(clause, "it ran because of")
    if clause := attributes.get(detail.STAND_IN_CLAUSE):
        yield PolicyKey(clause, "the tier that was wanted would have missed")
    limit = "slo.ttft.p99" if to_first_token else "slo.deadline"
    outcome = attributes.get(names.OUTCOME)
    if attributes.get(detail.NEXT_LATE) and outcome in REJECTED:
        yield PolicyKey(limit, "the next tier would have missed")
    if hop["error"] == "upstream_timeout":
        yield PolicyKey(_bound_of(attributes, limit), "it was given up by")
    waits = []
    if queued_ms := attributes.get(names.QUEUE):
        waits.append(PolicyKey("load.max_wait", "it waited for a place, as it may", queued_ms))
    verdict_ms, first_ms = attributes.get(detail.VERDICT_AT), attributes.get(names.TTFT)
    if verdict_ms is not None and first_ms is not None:
        held_ms = verdict_ms - (queued_ms or 0.0) - first_ms
        if held_ms >= _HELD_MS:
            waits.append(
                PolicyKey(
                    "escalate.stream.hold_tokens",
                    "it was held back, for hold_tokens or hold_max, whichever came first",
                    held_ms,
                )
            )
    yield from sorted(waits, key=lambda wait: wait.ms or 0.0)


def _bound_of(attributes: Mapping[str, Any], limit: str) -> str:
    """Return what bounded an attempt: where that was less than the time left, an earlier end of drafts or streams."""
    timeout_ms, left_ms = attributes.get(names.TIMEOUT), attributes.get(detail.BUDGET_LEFT)
    if timeout_ms is None or left_ms is None or timeout_ms > left_ms - 1:
        return "slo.deadline"
    return limit if limit != "slo.deadline" else "slo.total.p95"
