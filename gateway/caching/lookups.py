"""Steps 5 and 7: the exact and the semantic lookup of one request, each a hop of its trace."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.caching.replay import hit_attributes
from gateway.off_loop import off_loop
from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.entry import Hit, Lookup
    from cache.planning.plan import CachePlan
    from cache.response_cache import ResponseCache
    from gateway.caching.coalescer import Turn
    from gateway.request.context import RequestContext
    from gateway.request.load_shedding import LoadShedder
    from gateway.telemetry.trace import Hop
    from routing.embedding.embedder import Vector


class EarlyAttempt(Protocol):
    """An attempt that began while the semantic cache is still asked."""

    async def aclose(self) -> None:
        """Cancel it, and book what it cost."""


class ExactLookup:
    """Step 5: what the cache may do for a request, and the stored answer to exactly this one."""

    def __init__(self, cache: ResponseCache, gate: LoadShedder) -> None:
        self._cache = cache
        self._gate = gate

    async def plan(self, request: RequestContext) -> CachePlan:
        """Return what the cache may do. Its keys hash the whole body: those of a large body are made off the loop."""
        plan = partial(
            self._cache.plan,
            request.body,
            request.policy,
            request.tenant,
            request.features,
            model=request.policy.surface,
            read=request.options.cache.read,
            write=request.options.cache.write and self._gate.keeps_answers,
            demands=request.options.cache.demands,
            tags=request.options.tags,
        )
        return await off_loop(plan) if request.large else plan()

    async def find(self, request: RequestContext, plan: CachePlan, turn: Turn | None) -> Hit | None:
        """Return the stored answer. With a `turn` the look is shared by all who ask the same at this moment; where an
        equal request is being answered already, there is nothing to look for.
        """
        if turn is not None and turn.joins:
            return None
        hop = request.trace.begin(names.CACHE_EXACT)
        look = partial(self._cache.exact, plan, request.allowed_tiers())
        return _ended(hop, await (look() if turn is None else turn.look_up(look)))


class SemanticLookup:
    """Step 7: the stored answer to another question that means the same."""

    def __init__(self, cache: ResponseCache, *, show_prompts: bool) -> None:
        """`show_prompts`: the trace shows the neighbour's question, not only the hash that names it."""
        self._cache = cache
        self._show_prompts = show_prompts

    async def find(
        self, request: RequestContext, plan: CachePlan, vector: Vector | None, early: EarlyAttempt | None
    ) -> Hit | None:
        """Return the stored answer; None at once without a vector, or for a request whose meaning no other shares.

        A hit, and whatever goes wrong here, ends the `early` attempt.
        """
        if vector is None or plan.why_not_semantic():
            return None
        hop = request.trace.begin(names.CACHE_SEMANTIC)
        try:
            needed = request.options.cache.only_if_cached
            tiers = request.allowed_tiers()
            lookup = await self._cache.semantic(plan, vector, tiers, needed=needed, left_s=request.budget_s())
            self._describe(hop, request, plan, lookup)
        except BaseException:
            if early is not None:
                await early.aclose()
            raise
        if early is not None and lookup.hit is not None:
            await early.aclose()
        return _ended(hop, lookup)

    def _describe(self, hop: Hop, request: RequestContext, plan: CachePlan, lookup: Lookup) -> None:
        if lookup.score is not None:
            hop.attributes[names.CACHE_SCORE] = lookup.score
        if lookup.similarity is not None:
            hop.attributes[names.SIMILARITY] = round(lookup.similarity, 4)
        if lookup.neighbour is not None:
            hop.attributes[names.NEIGHBOUR] = lookup.question if self._show_prompts else lookup.neighbour
        if request.policy.cache.semantic is not None:
            hop.attributes[names.MIN_SIMILARITY] = request.policy.cache.semantic.min_similarity
        owner = "" if plan.scope is None else plan.scope.owner
        if self._cache.audits is not None and (state := self._cache.audits.in_force(plan.surface, owner)):
            hop.attributes[names.THRESHOLD] = round(state.threshold, 4)
            hop.attributes[names.LABELS] = state.labels
            hop.attributes[names.BREACHED] = state.breached


def _ended(hop: Hop, lookup: Lookup) -> Hit | None:
    hop.attributes[names.CACHE_OUTCOME] = lookup.outcome
    if lookup.reason:
        hop.attributes[names.CACHE_REASON] = lookup.reason
    if lookup.hit is not None:
        hop.attributes.update(hit_attributes(lookup.hit))
    hop.end()
    return lookup.hit
