"""Offer the cache to the gateway's pipeline: plan once, look up exactly, look up by meaning, write afterwards.

    plan      pure: may this request be answered from the cache, and under which keys?
    exact     one GET, or none if the answer is pending (`cache.read`). No embedding, no model.
    search    the nearest stored questions of the same partition -> rule, verifier: may one mean the same?
    match     what that leaves open -> cross-encoder; then the surface's threshold -> one GET
    write     one round trip: the entry, and the index record that makes its question findable

No failure of the store, no corrupt entry and no bad vector raises here: they are outcomes. A lookup waits for the store
no longer than the store client's limit (20 ms), and not at all while its breaker is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from cache.entry import NO_DEMANDS, CacheEntry, Hit, Kind, Lookup, StoredAnswer, WriteOutcome, id_of
from cache.index import Neighbour, NewIndex, Vector, new_replica
from cache.planning import eligibility
from cache.planning.plan import CachePlan, Planner
from cache.read import EntryReader, Pending, Read, unanswered
from cache.scopes.scope import ENTRY, SCHEMA, Caps, Generations
from cache.semantic.hit_bound import complaint_of
from cache.semantic.matcher import Candidates, SemanticMatcher, missed, with_neighbour
from cache.store.base import Store, StoreUnavailable
from cache.text.conversation import readable
from cache.write import MAX_BODY_BYTES, CacheWrite, DelayedWrites, PlannedWrite, WritePlanner
from policies.value_type import from_fields

if TYPE_CHECKING:
    from cache.semantic.cross_encoder import PairQueue, TurnByTurn
    from cache.semantic.decision import PairScorer
    from cache.semantic.hit_bound import HitBound
    from policies.model import Policy

log = logging.getLogger("tierline.cache")
_OF_THE_REQUEST: Final = frozenset({"tier", "max-age", "min-fresh", "min-similarity", "in_doubt"})
"""Reasons against a stored answer that hold for one request only."""

_MAX_CHORES = 1_000
_lookup: Final = from_fields(Lookup)
_hit: Final = from_fields(Hit)
_NO_TEAMS: Mapping[str, str] = {}
_SLICE: Final = 4


class ResponseCache:
    """The response cache. `clock` is the wall clock in seconds since 1970. Call `start` before use, `aclose` after."""

    def __init__(
        self,
        store: Store,
        *,
        embedder_name: str,
        dimension: int,
        secret: bytes = b"",
        longest_question: int = eligibility.LONGEST_QUESTION,
        index: NewIndex = new_replica,
        teams: Mapping[str, str] = _NO_TEAMS,
        caps: Caps | None = None,
        largest: int = MAX_BODY_BYTES,
        verifier: PairScorer | None = None,
        cross_encoder: PairQueue | None = None,
        turn_by_turn: TurnByTurn | None = None,
        cosine_weight: float = 0.0,
        bound: HitBound | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a cache for vectors of this encoder.

        `longest_question` is the number of characters of a text that its vector certainly covers. `teams` maps tenants
        to teams. `caps` bound each scope, `largest` the bytes of one answer. Without a `verifier` the guards take its
        place, without a `cross_encoder` it decides alone; `cosine_weight` is that of the cosine beside its
        score. Without `turn_by_turn` texts are compared whole; with a cross-encoder there has to be one.
        Without a `bound` every surface keeps its initial threshold.
        """
        embedder = f"{embedder_name}/{dimension}"
        caps = caps or Caps()
        self._store = store
        self._clock = clock
        self._cross_encoder = cross_encoder
        self.bound = bound
        self.index = index(store, f"tierline:{SCHEMA}:index:{embedder}", dimension, clock)
        self._generations = Generations(store)
        by_turns = cross_encoder is not None
        self._planner = Planner(secret, embedder, longest_question, teams, self._generations.of, by_turns=by_turns)
        self.plan = self._planner.plan
        self.scopes, self.secret = self._planner.scopes, self._planner.secret
        """Prefixes of keys by owner and policy, and the key of the hashes in them, for what else is kept by scope."""
        self._keeper = WritePlanner(self.index, dimension, clock, caps, largest)
        self.pending = Pending(store, self._keeper)
        self._entries = EntryReader(store, self._keeper.registry, self.pending, clock, self._later)
        self._candidates = SemanticMatcher(self.index, verifier, cross_encoder, bound, cosine_weight, turn_by_turn)
        self.respaced = self._candidates.respaced
        self._chores: set[asyncio.Task[None]] = set()
        self.delayed = DelayedWrites(store, self._keeper.registry.forget)
        self._upkeep: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Determine which index the store supports, and start the background tasks."""
        await self._generations.refresh()
        await self.index.start()
        self._upkeep = [
            asyncio.create_task(self._generations.run(), name="cache-generations"),
        ]
        if self._cross_encoder is not None:
            self._cross_encoder.start()
        if self.bound is not None:
            self._upkeep.append(asyncio.create_task(self.bound.run(), name="cache-bound"))

    async def aclose(self) -> None:
        """Close the index and wait for pending writes. The caller closes the store."""
        for task in self._upkeep:
            task.cancel()
        if self.bound is not None:
            await self.bound.aclose()
        if self._cross_encoder is not None:
            self._cross_encoder.close()
        await self.delayed.aclose()
        await self.index.aclose()
        await asyncio.gather(*self._upkeep, *self._chores, return_exceptions=True)

    async def exact(self, plan: CachePlan, allowed_tiers: Set[str] | None = None, read: Read | None = None) -> Lookup:
        """Return the answer to exactly this request. One of a tier that is not in `allowed_tiers` is a miss.

        `read` replaces the store's GET, so that another command can share the round trip.
        """
        exact = plan.policy.exact
        if plan.keys is None or not plan.read or exact is None:
            if plan.tags is not None and plan.write:
                with contextlib.suppress(StoreUnavailable):
                    await self._entries.versions(plan)
            return Lookup("bypass", reason=plan.reason or ("policy" if plan.read else "no-cache"))
        entry = await self._entries.under(plan, plan.keys.key, exact.ttl, allowed_tiers, read)
        if isinstance(entry, Lookup):
            return entry
        hit = self._hit("exact", plan.keys.key, entry, None, entry.score)
        return _lookup(("hit", hit, "", None, None, None, None, "", None, 0.0, 0, ()))

    async def semantic(
        self,
        plan: CachePlan,
        vector: Vector,
        allowed_tiers: Set[str] | None = None,
        *,
        needed: bool = False,
        left_s: float = math.inf,
    ) -> Lookup:
        """Return the answer to another question with the same meaning: `search`, then `match`."""
        found = await self.search(plan, vector)
        return await self.match(plan, found, allowed_tiers, needed=needed, left_s=left_s)

    async def search(self, plan: CachePlan, vector: Vector) -> Candidates | Lookup:
        """Return the stored questions that may mean the same, or the result of the lookup if there can be none.

        `vector` is this question's, of norm 1. Calls no model.
        """
        why_not = plan.why_not_semantic() or ("" if plan.read else "no-cache")
        keys = plan.keys
        if why_not or plan.policy.semantic is None or keys is None or keys.question is None:
            return Lookup("bypass", reason=why_not)
        if not self._keeper.usable(vector):
            return Lookup("error", reason="vector")
        try:
            return await self._candidates.search(keys, vector, plan.policy)
        except StoreUnavailable as error:
            return unanswered(error)

    async def match(
        self,
        plan: CachePlan,
        candidates: Candidates | Lookup,
        allowed_tiers: Set[str] | None = None,
        *,
        needed: bool = False,
        left_s: float = math.inf,
    ) -> Lookup:
        """Return the answer of the best of `candidates` if it may be served.

        Unless `needed`, a sampled request is answered by a model all the same, to compare the two answers. `left_s` is
        the time left for the request in seconds; the cross-encoder takes no longer.
        """
        semantic, keys = plan.policy.semantic, plan.keys
        if isinstance(candidates, Lookup):
            return candidates
        if semantic is None or keys is None or keys.question is None:
            return Lookup("bypass")
        passed: Lookup | None = None
        longest_s = math.inf
        while True:
            best = await self._candidates.check(candidates, keys.question, semantic, left_s)
            certain = needed or not plan.write or allowed_tiers is not None or plan.demands is not NO_DEMANDS
            refused = self._candidates.refused(plan, semantic, best, certain=certain, again=passed is not None)
            near, verdict = best.near, best.verdict
            if near is None or refused:
                return passed or missed(refused, best)
            if near.similarity < plan.demands.min_similarity:
                entry: CacheEntry | Lookup = Lookup("miss", reason="min-similarity")
            else:
                entry = await self._entries.under(plan, near.key, semantic.ttl, allowed_tiers)
            if isinstance(entry, CacheEntry) and entry.question != near.question:
                entry = Lookup("miss", reason="index_disagrees")
            if isinstance(entry, CacheEntry):
                longest_s = eligibility.longest_kept(plan.policy, plan.body, plan.facts)
                if self._clock() - entry.created_at < longest_s:
                    break
                entry = Lookup("miss", reason="in_doubt")
            if entry.reason in {"absent", "expired", "corrupt", "index_disagrees"}:
                with contextlib.suppress(StoreUnavailable):
                    await self.index.forget(keys.partition, near)
            passed = passed or with_neighbour(best, entry)
            # An answer that only this request may not have hides those of the neighbours behind it.
            others = (
                self._candidates.without(candidates, near, keys.question, semantic)
                if entry.reason in _OF_THE_REQUEST
                else None
            )
            if others is None:
                return passed
            candidates, left_s = others, left_s - best.checked.waited_s
        if plan.write and allowed_tiers is None and plan.demands is NO_DEMANDS:
            # A restricted request may have missed a better answer under the exact key: it must not overwrite that.
            self._back_fill(
                plan, near, verdict.score, entry, min(semantic.ttl, longest_s), in_doubt=longest_s < math.inf
            )
        hit = self._hit("semantic", near.key, entry, near.similarity, verdict.score)
        return with_neighbour(best, Lookup("hit", hit))

    async def write(self, plan: CachePlan, answer: StoredAnswer, vector: Vector | None = None) -> WriteOutcome:
        """Store a good answer, with its question's `vector` also in the index. Call it after the reply is sent."""
        return (await self.write_all([CacheWrite(plan, answer, vector)]))[0]

    async def write_all(self, keeps: Sequence[CacheWrite], at_once: int = _SLICE) -> list[WriteOutcome]:
        """Store several answers in one round trip; return the outcome of each, in order.

        `at_once` are prepared in one turn of the event loop, at some 30 us each: a request that comes meanwhile waits.
        """
        prepared: list[PlannedWrite] = []
        for number, keep in enumerate(keeps):
            if number and number % at_once == 0:
                await asyncio.sleep(0)
            refused = await self._outranked(keep, keeps[:number]) if keep.contested else ""
            prepared.append(PlannedWrite(refused=refused) if refused else self._prepared(keep))
        if self.bound is not None:
            for keep in keeps:
                question = keep.plan.keys.question if keep.plan.keys is not None else None
                for sample in () if keep.fault else keep.plan.drawn:
                    self.bound.compare(sample, keep.answer.completion, readable(question or ""))
        failure = await self._applied(prepared)
        reasons = [write.refused or failure for write in prepared]
        return [WriteOutcome(not reason, reason) for reason in reasons]

    async def _outranked(self, keep: CacheWrite, before: Sequence[CacheWrite]) -> str:
        """Return why an answer may not take the stored one's place, which may be of a stronger tier; '' if it may.

        `before` are the answers that are written before it: the store does not have them yet. A store that does not
        say what it has keeps it.
        """
        if keep.plan.keys is None:
            return ""
        key = keep.plan.keys.key
        same = (write for write in before if write.plan.keys is not None and write.plan.keys.key == key)
        if any(keep.plan.outranks(write.answer.tier, keep.answer.tier) for write in same):
            return "weaker"
        plan = replace(keep.plan, demands=NO_DEMANDS, tags=None)
        entry = await self._entries.under(plan, key, math.inf, None)
        if isinstance(entry, CacheEntry):
            return "weaker" if keep.plan.outranks(entry.tier, keep.answer.tier) else ""
        return "" if entry.outcome == "miss" else entry.reason or entry.outcome

    def _prepared(self, keep: CacheWrite) -> PlannedWrite:
        try:
            return self._keeper.prepared(keep)
        except Exception:
            # The answer is unvalidated JSON from a backend: one malformed answer must not prevent the others' writes.
            log.exception("an answer could not be prepared for the cache")
            return PlannedWrite(refused="malformed")

    async def _applied(self, prepared: Sequence[PlannedWrite]) -> str:
        """Execute the writes and add the records to this worker's index; return the store's failure reason, or ''."""
        operations = [operation for write in prepared for operation in write.operations]
        if not operations:
            return ""
        try:
            await self._store.apply(operations)
        except StoreUnavailable as error:
            if error.reason != "index":
                self._keeper.registry.forget()
                return error.reason
            # The answers are stored and exact lookups find them; only the index failed.
            self.index.refused(str(error))
            return ""
        for write in prepared:
            if write.record is not None:
                self.index.current.kept(write.record)
        return ""

    def _back_fill(
        self, plan: CachePlan, near: Neighbour, score: float, entry: CacheEntry, ttl_s: float, *, in_doubt: bool
    ) -> None:
        """Store a semantic hit under the exact key too, for its remaining lifetime: a copy never lives longer.

        A lease that is released after this is gone only when the copy is there.
        """
        expires_at = min(entry.expires_at, entry.created_at + ttl_s)
        left = expires_at - self._clock()
        if left > 0:
            own = plan.tags.versions or () if plan.tags is not None else ()
            copy = entry._replace(
                expires_at=expires_at,
                similarity=near.similarity,
                score=score,
                origin=near.key.rpartition(ENTRY)[2],
                tags=tuple(sorted({**dict(own), **dict(entry.tags)}.items())),
                in_doubt=in_doubt or entry.in_doubt,
            )
            self.delayed.add(self._keeper.shelved(plan, copy, left))

    def complain(self, policy: Policy, sender: str, request_id: str, score: float) -> None:
        """Record the complaint of a tenant, or of a team as `TENANT/TEAM`, that a hit with this score was wrong.

        Repeated complaints about the same request have no effect.
        """
        semantic = policy.cache.semantic
        if semantic is not None:
            owner = self._planner.scopes.of(sender, policy).owner
            complaint = complaint_of(sender.partition("/")[0], request_id, score, owner)
            self._candidates.complain(policy.surface, semantic, complaint)

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        """Run a small store task off the request's path; it is dropped when too many are waiting."""
        if len(self._chores) >= _MAX_CHORES:
            chore.close()
            return
        task = asyncio.create_task(self._quietly(chore))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
        task.add_done_callback(lambda _: chore.close())  # one that is cancelled before it begins does not await it

    async def _quietly(self, chore: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(StoreUnavailable):
            await chore

    def _hit(self, kind: Kind, key: str, entry: CacheEntry, similarity: float | None, score: float | None) -> Hit:
        return _hit((kind, entry, id_of(key), max(0.0, self._clock() - entry.created_at), similarity, score))
