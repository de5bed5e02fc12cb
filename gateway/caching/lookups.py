"""What one request has to do with the cache: its plan, the two lookups, hops of its trace, and what it leaves there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cache.entry import Hit, Lookup, StoredAnswer
from cache.planning.plan import NO_DEMANDS, CachePlan
from cache.write import CacheWrite, PendingWrite
from gateway.caching.coalescer import Turn
from gateway.caching.embedding import Vector
from gateway.caching.replay import said_of
from gateway.cascade.runner import CascadeRun
from gateway.chat.evidence import evidence_of
from gateway.off_loop import off_loop
from gateway.request.context import RequestContext
from gateway.steps import Steps
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from routing.confidence.judge import structural_fault


async def plan_of(ctx: RequestContext, steps: Steps) -> CachePlan:
    """What the cache may do for it. Its keys are hashes of the whole body, so a large one's are made off the loop."""
    plan = partial(
        steps.cache.plan,
        ctx.body,
        ctx.policy,
        ctx.tenant,
        ctx.features,
        model=ctx.policy.surface,
        read=ctx.options.cache.read,
        write=ctx.options.cache.write and steps.gate.keeps_answers,
        demands=ctx.options.cache.demands,
        tags=ctx.options.tags,
    )
    return await off_loop(plan) if ctx.large else plan()


async def exact(ctx: RequestContext, steps: Steps, plan: CachePlan, turn: Turn | None) -> Hit | None:
    """The exact cache's answer; `turn` looks for all who ask the same now."""
    hop = ctx.trace.begin(names.CACHE_EXACT)
    look = partial(steps.cache.exact, plan, ctx.allowed_tiers())
    return _looked_up(hop, await (look() if turn is None else turn.looked_up(look)))


async def semantic(
    ctx: RequestContext, steps: Steps, plan: CachePlan, vector: Vector, run: CascadeRun | None
) -> Hit | None:
    """The semantic cache's answer. An attempt that has begun meanwhile is ended by a hit, as by whatever goes wrong."""
    hop = ctx.trace.begin(names.CACHE_SEMANTIC)
    found: Lookup | None = None
    try:
        needed = ctx.options.cache.only_if_cached
        tiers = ctx.allowed_tiers()
        found = await steps.cache.semantic(plan, vector, tiers, needed=needed, left_s=ctx.budget_s())
    finally:
        if run is not None and (found is None or found.hit is not None):
            await run.aclose()
    if found.score is not None:
        hop.attributes[names.CACHE_SCORE] = found.score
    if found.similarity is not None:
        hop.attributes[names.SIMILARITY] = round(found.similarity, 4)
    if found.neighbour is not None:
        shown = found.question if steps.deployment.telemetry.prompts else found.neighbour
        hop.attributes[names.NEIGHBOUR] = shown
    if ctx.policy.cache.semantic is not None:
        hop.attributes[names.MIN_SIMILARITY] = ctx.policy.cache.semantic.min_similarity
    owner = "" if plan.scope is None else plan.scope.owner
    if steps.cache.audits is not None and (state := steps.cache.audits.in_force(plan.surface, owner)):
        hop.attributes[names.THRESHOLD] = round(state.threshold, 4)
        hop.attributes[names.LABELS] = state.labels
        hop.attributes[names.BREACHED] = state.breached
    return _looked_up(hop, found)


def _looked_up(hop: Hop, found: Lookup) -> Hit | None:
    hop.attributes[names.CACHE_OUTCOME] = found.outcome
    if found.reason:
        hop.attributes[names.CACHE_REASON] = found.reason
    if found.hit is not None:
        hop.attributes.update(said_of(found.hit))
    hop.end()
    return found.hit


def keeping_of(
    ctx: RequestContext,
    plan: CachePlan,
    vector: Vector | None,
    completion: Callable[[], Mapping[str, Any] | None] | None,
) -> PendingWrite | None:
    """What this answer leaves for the cache; None for one that is not to be kept."""
    if completion is None:
        return None
    ledger, root = ctx.ledger, ctx.trace.root

    def keep() -> CacheWrite | None:
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
            _pace(ledger.answer_tokens_out or ledger.tokens_out, ttft_s, root.seconds),
        )
        contested = not plan.read or ctx.clamp is not None or plan.demands is not NO_DEMANDS
        return CacheWrite(plan, answer, vector, contested, _fault_of(ctx, value))

    return PendingWrite(plan, keep)


def _pace(tokens: int, ttft_s: float | None, total_s: float) -> float | None:
    """Tokens a second after the first, of a stream; its books may not be closed yet."""
    if ttft_s is None or tokens < 2 or total_s <= ttft_s:
        return None
    return (tokens - 1) / (total_s - ttft_s)


def _fault_of(ctx: RequestContext, completion: Mapping[str, Any]) -> str:
    """What is wrong with a whole answer. The judge may not have seen it: of a stream it saw the first tokens, of the
    last tier's answer nothing.
    """
    choices = completion["choices"]
    for choice in choices:
        evidence = evidence_of({"choices": [choice]}, wants_json=ctx.features.wants_json, own_limit=ctx.own_limit)
        if fault := structural_fault(evidence, ctx.policy.escalate):
            return fault
    return ""
