"""Between steps 9 and 10: turn a served answer into the reply, with the cache write that it leaves for step 11."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cache.entry import StoredAnswer
from cache.pending import Pending
from cache.planning.plan import NO_DEMANDS, CachePlan
from cache.write import CacheWrite, PendingWrite
from gateway.cascade.runner import Served
from gateway.cascade.streaming import LiveStream
from gateway.chat.evidence import evidence_of
from gateway.request.context import RequestContext
from gateway.request.reply import Reply
from routing.confidence.judge import structural_fault
from routing.embedding.embedder import Vector


def reply_with(
    request: RequestContext, plan: CachePlan, vector: Vector | None, served: Served, pending: Pending
) -> Reply:
    """Return the reply of a served answer. One that is to be stored answers equal requests as soon as it is whole,
    from `pending`.
    """
    answer = served.answer
    wanted = served.keep and plan.write and not plan.reason
    if isinstance(answer, LiveStream):
        write = _pending_write(request, plan, vector, answer.remember() if wanted else None)
        if write is not None:
            answer.on_whole = partial(pending.add, write)
        return Reply(events=answer.events(), write=write, stream=answer)
    completion = answer.value
    write = _pending_write(request, plan, vector, (lambda: completion) if wanted and answer.sound else None)
    if write is not None:
        pending.add(write)
    return Reply(body=answer.body, write=write)


def _pending_write(
    request: RequestContext,
    plan: CachePlan,
    vector: Vector | None,
    completion: Callable[[], Mapping[str, Any] | None] | None,
) -> PendingWrite | None:
    """Return the write of an answer, to be put together once it has ended; None for one that is not to be stored."""
    if completion is None:
        return None
    ledger, root = request.ledger, request.trace.root

    def make() -> CacheWrite | None:
        value = completion()
        if value is None:
            return None
        ttft_s = ledger.ttft_ms / 1000 if ledger.stream and ledger.ttft_ms is not None else None
        answer = StoredAnswer(
            value,
            ledger.tier,
            ledger.backend,
            ledger.model,
            ledger.confidence,
            ledger.cost_usd,
            ttft_s,
            _tokens_per_s(ledger.answer_tokens_out or ledger.tokens_out, ttft_s, root.seconds),
        )
        contested = not plan.read or request.clamp is not None or plan.demands is not NO_DEMANDS
        return CacheWrite(plan, answer, vector, contested, _fault_of(request, value))

    return PendingWrite(plan, make)


def _tokens_per_s(tokens: int, ttft_s: float | None, total_s: float) -> float | None:
    """Return the pace of a stream after its first token; the request's cost may not be final yet."""
    if ttft_s is None or tokens < 2 or total_s <= ttft_s:
        return None
    return (tokens - 1) / (total_s - ttft_s)


def _fault_of(request: RequestContext, completion: Mapping[str, Any]) -> str:
    """Return what is wrong with a whole answer, or ''. The judge has not seen all of it: of a stream it saw the first
    tokens, and the last tier's answer it does not judge.
    """
    for choice in completion["choices"]:
        evidence = evidence_of(
            {"choices": [choice]}, wants_json=request.features.wants_json, own_limit=request.own_limit
        )
        if fault := structural_fault(evidence, request.policy.escalate):
            return fault
    return ""
