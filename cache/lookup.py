"""The cache, as the gateway's pipeline uses it: plan once, look up exactly, look up by meaning, write afterwards.

    plan      pure: may this request be answered from the cache, and under which keys?
    exact     one GET. No embedding, no model.
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
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from cache import eligibility
from cache.codec import CorruptEntry, decode, encode
from cache.decision import choose, decide_by, default_threshold
from cache.entry import Answer, CacheEntry, Hit, Kind, Lookup, Outcome, WriteOutcome
from cache.fingerprint import SCHEMA, Fingerprint
from cache.index import Choice, ChosenIndex, Neighbour, Vector
from cache.keeping import Keep, Keeper, Prepared
from cache.plan import NO_DEMANDS, CachePlan, Demands, Planner
from cache.store import Store, StoreUnavailable, Write
from policies.model import CachePolicy, Policy

log = logging.getLogger("tierline.cache")

_NEIGHBOURS = 5
_MAX_CHORES = 1_000
_OUTCOMES: Mapping[str, Outcome] = {"timeout": "timeout", "open": "open"}


class Cache:
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`longest_question`: how many characters of a text its vector is certain to cover."""
        embedder = f"{embedder_name}/{dimension}"
        self._store = store
        self._clock = clock
        self.index = ChosenIndex(store, f"tierline:{SCHEMA}:index:{embedder}", dimension, choice=index, clock=clock)
        self._planner = Planner(secret, embedder, longest_question)
        self._keeper = Keeper(self.index.operations, dimension, clock)
        self._chores: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Finds out which index the store can carry, and begins to keep up with it."""
        await self.index.start()

    async def aclose(self) -> None:
        """Closes the index, and waits for what is still being written. The store is the caller's to close."""
        await self.index.aclose()
        await asyncio.gather(*self._chores, return_exceptions=True)

    def plan(
        self,
        body: Mapping[str, Any],
        policy: Policy,
        tenant: str,
        facts: eligibility.Facts,
        *,
        model: str | None = None,
        read: bool = True,
        write: bool = True,
        demands: Demands = NO_DEMANDS,
    ) -> CachePlan:
        """What may be done for one checked request. `model`, when given, counts in the keys instead of the body's.

        `read` False is a client's no-cache, `write` False its no-store.
        """
        return self._planner.plan(body, policy, tenant, facts, model=model, read=read, write=write, demands=demands)

    async def exact(self, plan: CachePlan, allowed_tiers: Set[str] | None = None) -> Lookup:
        """The answer to this very request. One of a tier that is not in `allowed_tiers` is a miss."""
        if plan.keys is None or not plan.read:
            return Lookup("bypass", reason=plan.reason or "no-cache")
        if plan.policy.exact is None:
            return Lookup("bypass", reason="policy")
        found = await self._entry(plan.keys.key, plan.policy.exact.ttl, allowed_tiers, plan.demands)
        if isinstance(found, Lookup):
            return found
        return Lookup("hit", self._hit("exact", plan.keys.key, found))

    async def semantic(self, plan: CachePlan, vector: Vector, allowed_tiers: Set[str] | None = None) -> Lookup:
        """The answer to another question that means the same. `vector` is this question's, of unit length."""
        why_not = plan.why_not_semantic() or ("" if plan.read else "no-cache")
        semantic, keys = plan.policy.semantic, plan.keys
        if why_not or semantic is None or keys is None or keys.question is None:
            return Lookup("bypass", reason=why_not)
        if not self._keeper.usable(vector):
            return Lookup("error", reason="vector")
        try:
            near, refused = await self._judge(keys, vector, plan.policy)
        except StoreUnavailable as error:
            return _unanswered(error)
        if near is None or refused:
            return _miss(refused, near)
        if near.similarity < plan.demands.min_similarity:
            return _miss("min-similarity", near)
        found = await self._entry(near.key, semantic.ttl, allowed_tiers, plan.demands)
        if isinstance(found, CacheEntry) and found.question != near.question:
            found = Lookup("miss", reason="index_disagrees")
        if isinstance(found, Lookup):
            if found.reason in {"absent", "expired", "corrupt", "index_disagrees"}:
                with contextlib.suppress(StoreUnavailable):
                    await self.index.forget(keys.partition, near)
            return _beside(near, found)
        if plan.write and allowed_tiers is None and plan.demands is NO_DEMANDS:
            # Otherwise the exact key may hold a better answer, which this request alone would not have.
            self._later(self._back_fill(keys.key, found, semantic.ttl, near.similarity))
        hit = self._hit("semantic", near.key, found, near.similarity)
        return _beside(near, Lookup("hit", hit))

    async def write(self, plan: CachePlan, answer: Answer, vector: Vector | None = None) -> WriteOutcome:
        """Keeps a good answer; with its question's `vector`, it is found by meaning too. Call it after the reply."""
        return (await self.write_all([Keep(plan, answer, vector)]))[0]

    async def write_all(self, keeps: Sequence[Keep]) -> list[WriteOutcome]:
        """Keeps several answers in one round trip; the outcome of each, in order."""
        prepared = [
            Prepared(refused="weaker") if keep.contested and await self._outranked(keep) else self._prepared(keep)
            for keep in keeps
        ]
        failure = await self._applied(prepared)
        reasons = [one.refused or failure for one in prepared]
        return [WriteOutcome(not reason, reason) for reason in reasons]

    async def _outranked(self, keep: Keep) -> bool:
        """Whether a stronger tier's answer is stored still."""
        if keep.plan.keys is None:
            return False
        found = await self._entry(keep.plan.keys.key, math.inf, None, NO_DEMANDS)
        return isinstance(found, CacheEntry) and keep.plan.outranks(found.tier, keep.answer.tier)

    def _prepared(self, keep: Keep) -> Prepared:
        try:
            return self._keeper.prepared(keep)
        except Exception:
            # An answer is a stranger's JSON. What is odd about one of a batch must not cost the others their place.
            log.exception("an answer could not be prepared for the cache")
            return Prepared(refused="malformed")

    async def _applied(self, prepared: Sequence[Prepared]) -> str:
        """Carries out the writes, then makes them findable here; the reason if the store did not."""
        operations = [operation for one in prepared for operation in one.operations]
        if not operations:
            return ""
        try:
            await self._store.apply(operations)
        except StoreUnavailable as error:
            if error.reason != "index":
                return error.reason
            # The answers are kept, and found exactly.
            self.index.refused(str(error))
            return ""
        for one in prepared:
            if one.record is not None:
                self.index.kept(one.record)
        return ""

    async def _entry(
        self, key: str, ttl_s: float, allowed_tiers: Set[str] | None, demands: Demands
    ) -> CacheEntry | Lookup:
        """The entry under `key` when it may be served, else how the lookup ends."""
        try:
            data = await self._store.get(key)
        except StoreUnavailable as error:
            if error.reason == "wrong_type":
                return self._corrupt(key)
            return _unanswered(error)
        if data is None:
            return Lookup("miss", reason="absent")
        try:
            entry = decode(key, data)
        except CorruptEntry:
            return self._corrupt(key)
        now = self._clock()
        left_s = min(entry.expires_at, entry.created_at + ttl_s) - now
        if left_s <= 0:
            return Lookup("miss", reason="expired")
        if demands is not NO_DEMANDS and (unmet := demands.unmet(now - entry.created_at, left_s, entry.similarity)):
            return Lookup("miss", reason=unmet)
        if allowed_tiers is not None and entry.tier not in allowed_tiers:
            return Lookup("miss", reason="tier")
        return entry

    def _corrupt(self, key: str) -> Lookup:
        self._later(self._store.delete(key))
        return Lookup("miss", reason="corrupt")

    async def _judge(self, keys: Fingerprint, vector: Vector, policy: CachePolicy) -> tuple[Neighbour | None, str]:
        """The nearest neighbour that passes the score and every guard, or the nearest of all and why it did not.

        Raises StoreUnavailable where the index lies in the store.
        """
        semantic, question = policy.semantic, keys.question
        if semantic is None or question is None:
            return None, "no_neighbour"
        near = await self.index.nearest(keys.partition, vector, _NEIGHBOURS, semantic.min_similarity)
        # What the index says of a key is not yet proof that the key is in this scope.
        own = [candidate for candidate in near if candidate.key.startswith(keys.scope)]
        chosen = choose(decide_by(semantic), question, [(one.question, one.similarity) for one in own])
        if chosen is None:
            return (near[0], "guard: scope") if near else (None, "no_neighbour")
        place, verdict = chosen
        if verdict.served(default_threshold(semantic)):
            return own[place], ""
        return own[place], verdict.refused or "similarity"

    async def _back_fill(self, key: str, entry: CacheEntry, ttl_s: float, similarity: float) -> None:
        """Puts a semantic hit under the exact key too, for the time it has left: a hit never makes an entry younger."""
        expires_at = min(entry.expires_at, entry.created_at + ttl_s)
        left = expires_at - self._clock()
        if left > 0:
            copy = replace(entry, expires_at=expires_at, similarity=similarity)
            await self._store.apply([Write(key, encode(key, copy), left)])

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

    def _hit(self, kind: Kind, key: str, entry: CacheEntry, similarity: float | None = None) -> Hit:
        return Hit(kind, entry, _entry_id(key), max(0.0, self._clock() - entry.created_at), similarity)


def _unanswered(error: StoreUnavailable) -> Lookup:
    return Lookup(_OUTCOMES.get(error.reason, "error"), reason=error.reason)


def _miss(reason: str, near: Neighbour | None) -> Lookup:
    missed = Lookup("miss", reason=reason)
    return missed if near is None else _beside(near, missed)


def _beside(near: Neighbour, lookup: Lookup) -> Lookup:
    return replace(lookup, neighbour=_entry_id(near.key), question=near.question, similarity=near.similarity)


def _entry_id(key: str) -> str:
    return key.rpartition(":")[2][:12]
