"""What keeping an answer takes: whether it may be kept, and then the entry and what the index adds to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import orjson

from cache import answers
from cache.codec import IndexRecord, encode
from cache.entry import CacheEntry, StoredAnswer
from cache.index import Vector
from cache.planning.eligibility import LONGEST_QUESTION
from cache.planning.plan import CachePlan
from cache.scopes.registry import Registry
from cache.scopes.shelf import Caps, put
from cache.store.base import Command, IndexOperation, Operation
from policies.caching import CachePolicy


@dataclass(slots=True)
class CacheWrite:
    """An answer to keep, under the plan of the request it answers, with the vector of its question if there is one."""

    plan: CachePlan
    answer: StoredAnswer
    vector: Vector | None = None
    contested: bool = False
    """The request passed over what is stored, so a better answer may be there."""
    fault: str = ""
    """What the caller found wrong with the whole answer; such a one is not kept."""
    lease: str = ""
    """The key of the lease under which it was made: with the answer written, it is not needed any more."""
    made: CacheEntry | str | None = None
    """Filled in by `WritePlanner.entry`."""


class PendingWrite:
    """An answer that has ended and is to be kept. `keep` puts it together once, for the write or for a request that
    asks the same before it is written.
    """

    __slots__ = ("_keep", "_make", "plan")

    def __init__(self, plan: CachePlan, make: Callable[[], CacheWrite | None]) -> None:
        """`make` returns None for an answer that turned out not to be worth keeping; it may raise."""
        self.plan = plan
        self._make: Callable[[], CacheWrite | None] | None = make
        self._keep: CacheWrite | None = None

    def keep(self) -> CacheWrite | None:
        """What `make` gives, the same at every call. Not to be called before the answer has ended."""
        if self._make is not None:
            self._keep = self._make()
            self._make = None
        return self._keep


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """What one answer takes: `operations` for the store, `record` for this worker's index; or why it is `refused`."""

    operations: tuple[Operation, ...] = ()
    record: IndexRecord | None = None
    refused: str = ""


class WritePlanner:
    """Prepares answers for the store. `operations` are what the index has to make a record findable.

    `caps` bound each scope, `largest` is the most bytes of one answer.
    """

    def __init__(
        self,
        operations: Callable[[IndexRecord], tuple[IndexOperation, ...]],
        dimension: int,
        clock: Callable[[], float],
        caps: Caps,
        largest: int,
    ) -> None:
        self._operations = operations
        self._caps = caps
        self._largest = largest
        self.registry = Registry(clock)
        self._dimension = dimension
        self._clock = clock

    def usable(self, vector: Vector) -> bool:
        """Whether a vector is one of this index's, and points somewhere."""
        # What is not a number, or no end of one, shows in the product.
        return vector.shape == (self._dimension,) and 0.0 < float(vector @ vector) < math.inf

    def entry(self, keep: CacheWrite) -> CacheEntry | str:
        """The entry that this answer makes, the same at every call, or why it is not kept."""
        if keep.made is None:
            keep.made = self._made(keep)
        return keep.made

    def _made(self, keep: CacheWrite) -> CacheEntry | str:
        """The entry, to live as long as any cache may serve it."""
        plan, answer = keep.plan, keep.answer
        reason = plan.reason or ("" if plan.write else "no-store") or keep.fault
        reason = reason or answers.why_not_kept(
            answer.completion, plan.body.get("n") or 1, tool_calls=plan.policy.store_tool_calls
        )
        if not reason and plan.tags is not None and plan.tags.versions is None:
            # What it was drawn from may have changed since the model was asked: nobody can tell.
            reason = "tags"
        if reason or plan.keys is None:
            return reason or "policy"
        body = orjson.dumps(answer.completion)
        if len(body) > self._largest:
            return "size"
        exact, semantic = plan.policy.exact, plan.policy.semantic if self._findable(keep) else None
        ttl = max(exact.ttl if exact else 0.0, semantic.ttl if semantic else 0.0)
        if ttl <= 0:
            return "policy"
        now = self._clock()
        return CacheEntry(
            body=body,
            tier=answer.tier,
            backend=answer.backend,
            model=answer.model,
            surface=plan.surface,
            policy=plan.label,
            confidence=answer.confidence,
            created_at=now,
            expires_at=now + ttl,
            question=(plan.keys.question or "")[:LONGEST_QUESTION],  # a longer one is never looked for by its meaning
            cost_usd=answer.cost_usd,
            ttft_s=answer.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tags=(plan.tags.versions or ()) if plan.tags is not None else (),
        )

    def _findable(self, keep: CacheWrite) -> bool:
        """Whether the answer is to be found by its question's vector too."""
        return keep.vector is not None and self.usable(keep.vector) and not keep.plan.why_not_semantic()

    def prepared(self, keep: CacheWrite) -> PlannedWrite:
        """What it takes to keep this answer, and with a vector to make it findable too; or why it is not kept."""
        entry, plan = self.entry(keep), keep.plan
        if isinstance(entry, str):
            return PlannedWrite(refused=entry)
        kept = self.shelved(plan, entry, entry.expires_at - entry.created_at, keep.lease)
        keys, semantic = plan.keys, plan.policy.semantic
        if keys is None or semantic is None or keep.vector is None or not self._findable(keep):
            return PlannedWrite(kept)
        data = np.asarray(keep.vector, "<f4").tobytes()
        record = IndexRecord(keys.partition, keys.key, entry.question, entry.created_at + semantic.ttl, data)
        return PlannedWrite((*kept, *self._operations(record)), record)

    def shelved(self, plan: CachePlan, entry: CacheEntry, left_s: float, lease: str = "") -> tuple[Command, ...]:
        """What it takes to put an entry under the exact key of a plan that has keys, for so many seconds.

        The `lease` under which it was made goes with that.
        """
        if plan.keys is None or plan.scope is None:
            return ()
        key = plan.keys.key
        write = put(key, encode(key, entry), left_s, entry.created_at, self._caps, entry.origin, lease)
        return *self.registry.enter(plan.scope, longest_ttl(plan.policy)), write


def longest_ttl(policy: CachePolicy) -> float:
    """Seconds that an entry may live under this policy."""
    return max(policy.exact.ttl if policy.exact else 0.0, policy.semantic.ttl if policy.semantic else 0.0)
