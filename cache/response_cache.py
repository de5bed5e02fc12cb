"""The cache, as the gateway's pipeline uses it: plan once, look up exactly, look up by meaning, write afterwards.

    plan      pure: may this request be answered from the cache, and under which keys?
    exact     one GET, or none where the answer waits for the store (`cache.pending`). No embedding, no model.
    semantic  the nearest kept questions of the same partition -> score -> guards -> one GET
    write     one round trip: the entry, and what makes its question findable

Nothing here raises for what a store, an entry or a vector may do to us: those are outcomes. A lookup waits for the
store no longer than its client does (20 ms), and not at all once its breaker is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import orjson

from cache import answers
from cache.administration import Administration, Found, id_of
from cache.entry import CacheEntry, Hit, Kind, Lookup, StoredAnswer, WriteOutcome
from cache.index import Choice, ChosenIndex, Neighbour, Vector
from cache.pending import Pending
from cache.planning import eligibility
from cache.planning.plan import NO_DEMANDS, CachePlan, Demands, Planner
from cache.read import EntryReader, Read, unanswered
from cache.risk.audit import Audits
from cache.risk.control import Complaint
from cache.scopes.generations import Generations
from cache.scopes.scope import SCHEMA
from cache.scopes.shelf import ENTRY, Caps
from cache.semantic.cross_encoder import SecondOpinion, TextPairScorer
from cache.semantic.decision import PairScorer
from cache.semantic.matcher import SemanticMatcher, beside, missed
from cache.store.base import Store, StoreUnavailable
from cache.write import CacheWrite, PlannedWrite, WritePlanner
from policies.model import Policy

log = logging.getLogger("tierline.cache")

_MAX_CHORES = 1_000
_TIDY_S = 3_600.0
_CAPS = Caps()
_NO_TEAMS: Mapping[str, str] = {}


class ResponseCache:
    """See the module's docstring. `clock` is the wall clock, in seconds since 1970. `start` it, and close it."""

    def __init__(
        self,
        store: Store,
        *,
        embedder_name: str,
        dimension: int,
        secret: bytes = b"",
        longest_question: int = eligibility.LONGEST_QUESTION,
        index: Choice = "auto",
        teams: Mapping[str, str] = _NO_TEAMS,
        caps: Caps = _CAPS,
        largest: int = answers.MAX_BODY_BYTES,
        verifier: PairScorer | None = None,
        cross_encoder: TextPairScorer | None = None,
        audits: Audits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`longest_question`: how many characters of a text its vector is certain to cover. `teams`: see `Scopes`.

        `caps` bound each scope, `largest` is the most bytes of one answer. Without a `verifier` the guards decide;
        without `audits` every surface keeps the threshold it starts from. Policies may ask the `cross_encoder`.
        """
        embedder = f"{embedder_name}/{dimension}"
        self._store = store
        self._clock = clock
        self._opinion = None if cross_encoder is None else SecondOpinion(cross_encoder)
        self.audits = audits
        self.index = ChosenIndex(store, f"tierline:{SCHEMA}:index:{embedder}", dimension, choice=index, clock=clock)
        self._generations = Generations(store)
        self._planner = Planner(secret, embedder, longest_question, teams, self._generations.of)
        self.administration = Administration(store, clock)
        self._keeper = WritePlanner(self.index.operations, dimension, clock, caps, largest)
        self.pending = Pending(store, self._keeper)
        self._entries = EntryReader(store, self._keeper.registry, self.pending, clock, self._later)
        self._candidates = SemanticMatcher(self.index, verifier, self._opinion, audits)
        self._chores: set[asyncio.Task[None]] = set()
        self._upkeep: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Finds out which index the store can carry, and begins to keep up with it."""
        await self._generations.refresh()
        await self.index.start()
        self._upkeep = [
            asyncio.create_task(self._generations.run(), name="cache-generations"),
            asyncio.create_task(self._tidied(), name="cache-tidy"),
        ]
        if self.audits is not None:
            self._upkeep.append(asyncio.create_task(self.audits.run(), name="cache-audits"))

    async def aclose(self) -> None:
        """Closes the index, and waits for what is still being written. The store is the caller's to close."""
        for task in self._upkeep:
            task.cancel()
        if self.audits is not None:
            await self.audits.aclose()
        if self._opinion is not None:
            self._opinion.close()
        await self.index.aclose()
        await asyncio.gather(*self._upkeep, *self._chores, return_exceptions=True)

    def plan(
        self,
        body: Mapping[str, Any],
        policy: Policy,
        tenant: str,
        facts: eligibility.RequestFacts,
        *,
        model: str | None = None,
        read: bool = True,
        write: bool = True,
        demands: Demands = NO_DEMANDS,
        tags: Sequence[str] = (),
    ) -> CachePlan:
        """What may be done for one checked request. `model`, when given, counts in the keys instead of the body's.

        `read` False is a client's no-cache, `write` False its no-store; `tags` name what its answer is drawn from.
        """
        return self._planner.plan(
            body, policy, tenant, facts, model=model, read=read, write=write, demands=demands, tags=tags
        )

    async def exact(self, plan: CachePlan, allowed_tiers: Set[str] | None = None, read: Read | None = None) -> Lookup:
        """The answer to this very request. One of a tier that is not in `allowed_tiers` is a miss.

        `read` stands for the store's own GET, where something else is to be done in the same round trip.
        """
        exact = plan.policy.exact
        if plan.keys is None or not plan.read or exact is None:
            if plan.tags is not None and plan.write:
                with contextlib.suppress(StoreUnavailable):
                    await self._entries.versions(plan)
            return Lookup("bypass", reason=plan.reason or ("policy" if plan.read else "no-cache"))
        found = await self._entries.under(plan, plan.keys.key, exact.ttl, allowed_tiers, read)
        if isinstance(found, Lookup):
            return found
        return Lookup("hit", self._hit("exact", plan.keys.key, found, score=found.score))

    async def semantic(
        self,
        plan: CachePlan,
        vector: Vector,
        allowed_tiers: Set[str] | None = None,
        *,
        needed: bool = False,
        left_s: float = math.inf,
    ) -> Lookup:
        """The answer to another question that means the same. `vector` is this question's, of unit length.

        Where it is not `needed`, chance may have it that the request is answered afresh all the same, and compared.
        `left_s`: what is left of its time; a cross-encoder draws on it.
        """
        why_not = plan.why_not_semantic() or ("" if plan.read else "no-cache")
        semantic, keys = plan.policy.semantic, plan.keys
        if why_not or semantic is None or keys is None or keys.question is None:
            return Lookup("bypass", reason=why_not)
        if not self._keeper.usable(vector):
            return Lookup("error", reason="vector")
        try:
            near, verdict = await self._candidates.best(keys, vector, plan.policy, left_s)
        except StoreUnavailable as error:
            return unanswered(error)
        certain = needed or not plan.write or allowed_tiers is not None or plan.demands is not NO_DEMANDS
        refused = self._candidates.refused(plan, semantic, near, verdict, certain=certain)
        if near is None or refused:
            return missed(refused, near, verdict)
        if near.similarity < plan.demands.min_similarity:
            return missed("min-similarity", near, verdict)
        found = await self._entries.under(plan, near.key, semantic.ttl, allowed_tiers)
        if isinstance(found, CacheEntry) and found.question != near.question:
            found = Lookup("miss", reason="index_disagrees")
        if isinstance(found, Lookup):
            if found.reason in {"absent", "expired", "corrupt", "index_disagrees"}:
                with contextlib.suppress(StoreUnavailable):
                    await self.index.forget(keys.partition, near)
            return beside(near, verdict, found)
        if plan.write and allowed_tiers is None and plan.demands is NO_DEMANDS:
            # Otherwise the exact key may hold a better answer, which this request alone would not have.
            self._later(self._back_fill(plan, near, verdict.score, found, semantic.ttl))
        hit = self._hit("semantic", near.key, found, near.similarity, verdict.score)
        return beside(near, verdict, Lookup("hit", hit))

    async def write(self, plan: CachePlan, answer: StoredAnswer, vector: Vector | None = None) -> WriteOutcome:
        """Keeps a good answer; with its question's `vector`, it is found by meaning too. Call it after the reply."""
        return (await self.write_all([CacheWrite(plan, answer, vector)]))[0]

    async def write_all(self, keeps: Sequence[CacheWrite]) -> list[WriteOutcome]:
        """Keeps several answers in one round trip; the outcome of each, in order."""
        prepared = [
            PlannedWrite(refused="weaker") if keep.contested and await self._outranked(keep) else self._prepared(keep)
            for keep in keeps
        ]
        if self.audits is not None:
            for keep in keeps:
                question = keep.plan.keys.question if keep.plan.keys is not None else None
                for sample in () if keep.fault else keep.plan.drawn:
                    self.audits.compare(sample, keep.answer.completion, question or "")
        failure = await self._applied(prepared)
        reasons = [one.refused or failure for one in prepared]
        return [WriteOutcome(not reason, reason) for reason in reasons]

    async def _outranked(self, keep: CacheWrite) -> bool:
        """Whether a stronger tier's answer is stored still."""
        if keep.plan.keys is None:
            return False
        plan = replace(keep.plan, demands=NO_DEMANDS, tags=None)
        found = await self._entries.under(plan, keep.plan.keys.key, math.inf, None)
        return isinstance(found, CacheEntry) and keep.plan.outranks(found.tier, keep.answer.tier)

    def _prepared(self, keep: CacheWrite) -> PlannedWrite:
        try:
            return self._keeper.prepared(keep)
        except Exception:
            # An answer is a stranger's JSON. What is odd about one of a batch must not cost the others their place.
            log.exception("an answer could not be prepared for the cache")
            return PlannedWrite(refused="malformed")

    async def _applied(self, prepared: Sequence[PlannedWrite]) -> str:
        """Carries out the writes, then makes them findable here; the reason if the store did not."""
        operations = [operation for one in prepared for operation in one.operations]
        if not operations:
            return ""
        try:
            await self._store.apply(operations)
        except StoreUnavailable as error:
            if error.reason != "index":
                self._keeper.registry.forget()
                return error.reason
            # The answers are kept, and found exactly.
            self.index.refused(str(error))
            return ""
        for one in prepared:
            if one.record is not None:
                self.index.kept(one.record)
        return ""

    async def _back_fill(self, plan: CachePlan, near: Neighbour, score: float, entry: CacheEntry, ttl_s: float) -> None:
        """Puts a semantic hit under the exact key too, for the time it has left: a hit never makes an entry younger."""
        expires_at = min(entry.expires_at, entry.created_at + ttl_s)
        left = expires_at - self._clock()
        if left > 0:
            own = plan.tags.versions or () if plan.tags is not None else ()
            copy = replace(
                entry,
                expires_at=expires_at,
                similarity=near.similarity,
                score=score,
                origin=near.key.rpartition(ENTRY)[2],
                tags=tuple(sorted({**dict(own), **dict(entry.tags)}.items())),
            )
            await self._store.apply(self._keeper.shelved(plan, copy, left))

    async def wrong(self, entry_id: str, tenant: str, surface: str, created_at: float | None = None) -> Found | None:
        """Takes an entry out of service that a tenant of this surface was wrongly given; what it was, if still there.

        With it go its copies, and what it was copied from. One of another `created_at` is another answer by now, and
        stays. Raises StoreUnavailable.
        """
        within = await self.administration.scopes(surface, self._planner.scopes.owners(tenant))
        return await self.administration.remove(entry_id, within, created_at)

    def complain(self, policy: Policy, tenant: str, request_id: str, score: float) -> None:
        """Takes in that another question's answer was wrong, that a tenant's request got at this score.

        Said again of the same request, it changes nothing.
        """
        semantic = policy.cache.semantic
        surface = None if semantic is None else self._candidates.learned(policy.surface, semantic)
        if surface is not None and self.audits is not None:
            request = blake2b(orjson.dumps((tenant, request_id)), digest_size=8).hexdigest()
            owner = self._planner.scopes.of(tenant, policy).owner
            self.audits.complain(surface, Complaint(score, owner, request))

    async def _tidied(self) -> None:
        while True:
            await asyncio.sleep(_TIDY_S * random.uniform(0.5, 1.5))  # noqa: S311  (not all workers at once)
            with contextlib.suppress(StoreUnavailable):
                await self.administration.tidy()

    def _later(self, chore: Coroutine[Any, Any, None]) -> None:
        """Does something small for the store off the request's path; dropped when too much is waiting."""
        if len(self._chores) >= _MAX_CHORES:
            chore.close()
            return
        task = asyncio.create_task(self._quietly(chore))
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _quietly(self, chore: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(StoreUnavailable):
            await chore

    def _hit(
        self, kind: Kind, key: str, entry: CacheEntry, similarity: float | None = None, score: float | None = None
    ) -> Hit:
        return Hit(kind, entry, id_of(key), max(0.0, self._clock() - entry.created_at), similarity, score)
