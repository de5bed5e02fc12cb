"""One request, top to bottom. This is the story of Tierline, in the order in which it happens.

     1. middleware   request id, key -> tenant, body within its limit; the root span opens
     2. route        bytes -> a checked body, once
     3. context      tenant + surface -> policy, features, deadline (`gateway.http.build_context`)
     4. `answer`     calls everything below, in order
     5. cache.exact  have we answered just this? then at once: no embedding, no model
        cache.follow is it being answered right now? then that answer is shared (`gateway.caching.coalescing`)
     6. embed        the vector that the semantic cache and the classifier share
     7. cache.semantic   have we answered this by another name?
     8. route        how hard is it, and which tiers should try? `routing.decide`, pure
     9. attempt      one call; good enough, or the next tier, while the budget allows: `routing.cascade` decides
    10. reply        JSON or server-sent events (`gateway.http.responses`)
    11. afterwards   cache write, ledger, trace (`gateway.caching.write_behind`)

`routing` and `cache` meet here and nowhere else.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from cache.entry import Hit
from cache.planning.plan import CachePlan
from gateway.accounting.charges import settle
from gateway.caching.embedding import Vector
from gateway.caching.lookups import exact, keeping_of, plan_of, semantic
from gateway.caching.replay import replay
from gateway.cascade.attempt import AttemptResult, JsonAnswer
from gateway.cascade.client_errors import no_tier
from gateway.cascade.runner import CascadeRun
from gateway.cascade.streaming import LiveStream
from gateway.errors import CacheOnlyMiss
from gateway.request.context import RequestContext
from gateway.request.reply import Reply
from gateway.steps import Steps
from gateway.telemetry import names
from gateway.telemetry.trace import Hop
from routing.decide import Decision, NoTierError, TierHealth, decide, rule_values
from routing.difficulty.model import Difficulty
from routing.tokens import room_needed

log = logging.getLogger("tierline.pipeline")

_KEPT_PATHS: Final = frozenset({"direct", "escalated", "hedged"})
"""Answers that came about as the policy wanted: no other is kept for others."""


async def answer(ctx: RequestContext, steps: Steps) -> Reply:
    """The reply to one request; raises ApiError. See the module's docstring."""
    plan = await plan_of(ctx, steps)
    turn = steps.coalescer.turn(ctx, plan)
    joins = turn is not None and turn.joins
    if not joins and (hit := await exact(ctx, steps, plan, turn)):
        return replay(ctx, hit)
    if turn is None:
        found = await _found_or_made(ctx, steps, plan)
    else:
        found = await turn.answer(lambda aboard: _found_or_made(aboard, steps, plan))
    return replay(ctx, found) if isinstance(found, Hit) else found


async def _found_or_made(ctx: RequestContext, steps: Steps, plan: CachePlan) -> Reply | Hit:
    """What the semantic cache has, or else an answer of the models."""
    why_not_semantic = plan.why_not_semantic()
    vector = await _embed(ctx, steps, semantic=not why_not_semantic)
    run: CascadeRun | None = None
    if vector is not None and not why_not_semantic:
        run = _begun_early(ctx, steps, vector)
        if hit := await semantic(ctx, steps, plan, vector, run):
            return hit
    if ctx.options.cache.only_if_cached:
        raise CacheOnlyMiss("There is no stored answer to this request.")
    return await _made(ctx, steps, plan, vector, run)


async def _made(
    ctx: RequestContext, steps: Steps, plan: CachePlan, vector: Vector | None, run: CascadeRun | None = None
) -> Reply:
    """The models' answer. `run`: a cascade that has begun."""
    if run is None:
        run = _routed(ctx, steps, vector)
        ctx.client.watch()
    return _reply(ctx, steps, plan, vector, await _cascade(ctx, run))


async def _embed(ctx: RequestContext, steps: Steps, *, semantic: bool) -> Vector | None:
    """The request's vector where anything needs it. Without one, exact caching and the policy's default still work."""
    if not (semantic or _classified(ctx)):
        return None
    hop = ctx.trace.begin(names.EMBED, {names.GEN_AI_OPERATION: "embeddings"})
    hop.attributes[names.GEN_AI_REQUEST_MODEL] = steps.embedding.embedder.name
    try:
        vector = await steps.embedding.vector(ctx.features.text, ctx.budget_s())
    except TimeoutError:
        hop.end("timeout")
        return None
    except Exception:  # (an encoder may fail in any way; the request must not)
        log.exception("the embedding of request %s failed", ctx.request_id)
        hop.end("embedding_failed")
        return None
    hop.end()
    return vector


def _classified(ctx: RequestContext) -> bool:
    """Whether there is anything for the classifier to decide."""
    return ctx.policy.route.classifier != "none" and len(ctx.ladder()) > 1


def _begun_early(ctx: RequestContext, steps: Steps, vector: Vector) -> CascadeRun | None:
    """The cascade with its first attempt under way, where the policy wants that during the lookup and it is free."""
    if not ctx.policy.escalate.speculate.during_lookup or ctx.options.cache.only_if_cached:
        return None
    run = _routed(ctx, steps, vector)
    ctx.client.watch()
    if steps.tiers[run.first_tier].free:
        run.begin()
    return run


def _routed(ctx: RequestContext, steps: Steps, vector: Vector | None) -> CascadeRun:
    """The cascade of this request, decided and not begun."""
    tokens_in, batch = ctx.features.approx_tokens, ctx.policy.load.priority == "batch"
    health = {name: steps.tiers[name].health(tokens_in, batch=batch) for name in ctx.policy.ladder}
    hop = ctx.trace.begin(names.ROUTE)
    difficulty: Difficulty | None = None
    if vector is not None and _classified(ctx):
        difficulty = steps.classifier.assess(vector, ctx.features)
        _describe_difficulty(ctx, hop, difficulty)
    decision = _decided(ctx, steps, hop, difficulty, health)
    both = ctx.policy.escalate.speculate.both
    asks_both = both is not None and both.holds(rule_values(difficulty, ctx.features, ctx.budget_s()))
    return CascadeRun(ctx, steps, decision, health, _priors(ctx, difficulty), both=asks_both)


def _decided(
    ctx: RequestContext,
    steps: Steps,
    hop: Hop,
    difficulty: Difficulty | None,
    health: Mapping[str, TierHealth],
) -> Decision:
    left = ctx.left()
    largest = max((one.context or 0 for one in health.values()), default=0)
    try:
        decision = decide(
            ctx.policy,
            difficulty,
            ctx.features,
            health,
            left.total_s,
            ctx.clamp,
            ttft_s=left.ttft_s,
            holdout=_held_out(ctx, hop, health),
            room=room_needed(ctx.body, largest) if largest else 0,
        )
    except NoTierError as error:
        hop.attributes[names.REASON] = str(error)
        hop.end("no_tier")
        raise no_tier(error, [steps.tiers[name] for name in ctx.policy.ladder]) from error
    hop.attributes[names.DECISION] = list(decision.tiers)
    hop.attributes[names.REASON] = decision.reason + (f"; {decision.stand_in}" if decision.stand_in else "")
    hop.attributes[names.BUDGET_LEFT] = round(left.total_s * 1000, 1)
    forecast = health[decision.tiers[0]].forecast
    if forecast is not None and forecast.known:
        hop.attributes[names.FORECAST_TTFT] = round(forecast.ttft_s * 1000, 1)
    hop.end()
    return decision


def _held_out(ctx: RequestContext, hop: Hop, health: Mapping[str, TierHealth]) -> bool:
    """Whether chance sends this request to the strongest tier, so that the others can be measured against it."""
    ladder = ctx.policy.ladder
    if not ctx.policy.holdout or ctx.clamp is not None or len(ladder) < 2 or health[ladder[-1]].unavailable:
        return False
    drawn = hop.attributes[names.HOLDOUT] = random.random() < ctx.policy.holdout  # noqa: S311
    return drawn


def _describe_difficulty(ctx: RequestContext, hop: Hop, difficulty: Difficulty) -> None:
    hop.attributes[names.IN_DOMAIN] = difficulty.in_domain
    hop.attributes[names.CLASSIFIER] = difficulty.model_version
    if difficulty.in_domain:
        hop.attributes[names.DIFFICULTY] = round(difficulty.score, 4)
        hop.attributes[names.P_ADEQUATE] = round(difficulty.p_adequate, 4)
        ctx.ledger.difficulty = difficulty.score


def _priors(ctx: RequestContext, difficulty: Difficulty | None) -> Mapping[str, float]:
    """How likely each tier is right before it has answered, where the classifier knows: the heads start from that."""
    if difficulty is None or not difficulty.in_domain:
        return {}
    tiers = ctx.policy.tiers
    return {name: difficulty.p_right_of(position, len(tiers)) for position, name in enumerate(tiers)}


async def _cascade(ctx: RequestContext, run: CascadeRun) -> Served:
    """The cascade's answer; raises ApiError when there is none."""
    served: AttemptResult | None = None
    try:
        served = await run.served()
        return _served(ctx, served)
    finally:
        await run.aclose()
        settle(ctx, served.attempt.number if served is not None else None)


@dataclass(frozen=True, slots=True)
class Served:
    """The answer that goes out, and whether it may be kept for others."""

    answer: JsonAnswer | LiveStream
    keep: bool


def _served(ctx: RequestContext, tried: AttemptResult) -> Served:
    if tried.answer is None or tried.endpoint is None:
        raise AssertionError("the cascade serves only what is in hand")
    ledger = ctx.ledger
    ledger.tier = tried.attempt.tier
    ledger.backend = tried.endpoint.config.name
    ledger.model = tried.endpoint.config.model
    ledger.confidence = tried.outcome.confidence
    # Under a clamp the tier that answers may be one that nobody judged and that others would not have stopped at.
    settled = tried.attempt.judged or ctx.clamp is None or tried.attempt.tier == ctx.policy.ladder[-1]
    accepted = tried.outcome.kind == "accepted"
    return Served(tried.answer, keep=accepted and settled and ledger.path in _KEPT_PATHS)


def _reply(ctx: RequestContext, steps: Steps, plan: CachePlan, vector: Vector | None, served: Served) -> Reply:
    """The reply of an answer. One that is to be kept answers equal requests from the moment it is whole."""
    found = served.answer
    wanted = served.keep and plan.write and not plan.reason
    if isinstance(found, LiveStream):
        keeping = keeping_of(ctx, plan, vector, found.remember() if wanted else None)
        if keeping is not None:
            found.on_whole = partial(steps.cache.pending.add, keeping)
        return Reply(events=found.events(), keeping=keeping, stream=found)
    value = found.value
    keeping = keeping_of(ctx, plan, vector, (lambda: value) if wanted and found.sound else None)
    if keeping is not None:
        steps.cache.pending.add(keeping)
    return Reply(body=found.body, keeping=keeping)
