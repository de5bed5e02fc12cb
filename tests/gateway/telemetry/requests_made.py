"""Finished requests, as the pipeline would hand them to telemetry."""

from __future__ import annotations

from typing import Any

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop, RemoteParent, Trace


def escalated(request_id: str = "req-1", **ledger: Any) -> tuple[Trace, Ledger]:
    """A streamed request that missed both caches, was not trusted to the local tier's answer, and went to hosted."""
    trace = Trace(names.REQUEST, RemoteParent(0xABC, 0xDEF))
    _hop(trace, names.CACHE_EXACT, {names.CACHE_OUTCOME: "miss"})
    _hop(trace, names.EMBED, {names.GEN_AI_REQUEST_MODEL: "static-256"})
    nearest = {names.NEIGHBOUR: "e41", names.SIMILARITY: 0.8123, detail.MIN_SIMILARITY: 0.92}
    _hop(trace, names.CACHE_SEMANTIC, {names.CACHE_OUTCOME: "miss", **nearest})
    decided = {names.DECISION: ["local", "hosted"], names.REASON: "p_adequate >= 0.7", detail.BUDGET_LEFT: 7990.0}
    decided |= {detail.KIND: "chat", detail.QUANTILE: 0.62}
    _hop(
        trace,
        names.ROUTE,
        {**decided, detail.DIFFICULTY: 0.31, detail.P_ADEQUATE: 0.82, detail.IN_DOMAIN: True},
    )
    _hop(trace, names.ATTEMPT, _attempt(1, "local", "smollm2", "low_confidence", 0.41))
    _hop(trace, names.ATTEMPT, _attempt(2, "hosted", "openai", "accepted", 0.91))
    _hop(trace, names.CACHE_WRITE, {names.CACHE_OUTCOME: "written"})
    trace.root.end()
    record: dict[str, Any] = {
        "tenant": "acme", "surface": "chat", "policy": "chat@3f2a91c", "requested_model": "chat", "stream": True,
        "status": 200, "path": "escalated", "tier": "hosted", "backend": "openai", "model": "gpt-4o-mini",
        "attempts": 2, "tokens_in": 240, "tokens_out": 66, "cost_usd": 0.0003, "wasted_usd": 0.0001,
        "ttft_ms": 120.0, "total_ms": 900.0, "overhead_ms": 0.7,
    }  # fmt: skip
    return trace, Ledger(request_id, **(record | ledger))


def failed(
    request_id: str = "req-2", status: int = 502, error: str = "upstream_unreachable", surface: str = "chat"
) -> tuple[Trace, Ledger]:
    """A request whose only attempt could not connect."""
    trace = Trace(names.REQUEST)
    hop = trace.begin(names.ATTEMPT, {names.TIER: "local", names.BACKEND: "smollm2", names.OUTCOME: "retryable"})
    hop.end(error)
    trace.root.end(error)
    return trace, Ledger(request_id, surface=surface, status=status, attempts=1, total_ms=5.0, error=error)


def _attempt(number: int, tier: str, backend: str, outcome: str, confidence: float) -> dict[str, Any]:
    judged = {names.CONFIDENCE: confidence, detail.MIN_CONFIDENCE: 0.62, names.TOKENS_JUDGED: 24}
    judged |= {names.CONFIDENCE_BASIS: "calibrated", names.CONFIDENCE_HEAD: "0123456789ab"}
    called = {names.UPSTREAM_STATUS: 200, names.TIMEOUT: 7000.0, detail.BUDGET_LEFT: 7100.0, names.COST: 0.0001}
    who = {names.ATTEMPT_NUMBER: number, names.TIER: tier, names.BACKEND: backend, names.OUTCOME: outcome}
    return {**who, **judged, **called, names.GEN_AI_FINISH: ["stop"], names.CLIENT_RETRY: None}


def _hop(trace: Trace, name: str, attributes: dict[str, Any]) -> Hop:
    hop = trace.begin(name, attributes)
    hop.end()
    return hop
