"""What keeping an answer takes: whether it may be kept, and then the entry and what the index adds to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import orjson

from cache import answers
from cache.codec import IndexRecord, encode
from cache.entry import Answer, CacheEntry
from cache.fingerprint import Fingerprint
from cache.index import Vector
from cache.plan import CachePlan
from cache.registry import Registry
from cache.shelf import Caps, put
from cache.store import Command, IndexOperation, Operation
from policies.caching import CachePolicy


@dataclass(slots=True)
class Keep:
    """An answer to keep, under the plan of the request it answers, with the vector of its question if there is one."""

    plan: CachePlan
    answer: Answer
    vector: Vector | None = None
    contested: bool = False
    """The request passed over what is stored, so a better answer may be there."""
    fault: str = ""
    """What the caller found wrong with the whole answer; such a one is not kept."""
    lease: str = ""
    """The key of the lease under which it was made: with the answer written, it is not needed any more."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What one answer takes: `operations` for the store, `record` for this worker's index; or why it is `refused`."""

    operations: tuple[Operation, ...] = ()
    record: IndexRecord | None = None
    refused: str = ""


class Keeper:
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

    def prepared(self, keep: Keep) -> Prepared:
        """What it takes to keep this answer, or why it is not kept."""
        plan, answer = keep.plan, keep.answer
        reason = plan.reason or ("" if plan.write else "no-store") or keep.fault
        reason = reason or answers.why_not_kept(
            answer.completion, plan.body.get("n") or 1, tool_calls=plan.policy.store_tool_calls
        )
        if not reason and plan.tags is not None and plan.tags.versions is None:
            # What it was drawn from may have changed since the model was asked: nobody can tell.
            reason = "tags"
        if reason or plan.keys is None:
            return Prepared(refused=reason or "policy")
        body = orjson.dumps(answer.completion)
        if len(body) > self._largest:
            return Prepared(refused="size")
        findable = keep.vector is not None and self.usable(keep.vector) and not plan.why_not_semantic()
        return self._kept(keep, plan.keys, body, keep.vector if findable else None)

    def _kept(self, keep: Keep, keys: Fingerprint, body: bytes, vector: Vector | None) -> Prepared:
        """The entry, for as long as any cache may serve it, and with a vector what makes it findable too."""
        plan, answer = keep.plan, keep.answer
        now = self._clock()
        exact, semantic = plan.policy.exact, plan.policy.semantic if vector is not None else None
        ttl = max(exact.ttl if exact else 0.0, semantic.ttl if semantic else 0.0)
        if ttl <= 0:
            return Prepared(refused="policy")
        entry = CacheEntry(
            body=body,
            tier=answer.tier,
            backend=answer.backend,
            model=answer.model,
            surface=plan.surface,
            policy=plan.label,
            confidence=answer.confidence,
            created_at=now,
            expires_at=now + ttl,
            question=keys.question or "",
            cost_usd=answer.cost_usd,
            ttft_s=answer.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tags=(plan.tags.versions or ()) if plan.tags is not None else (),
        )
        kept = self.shelved(plan, entry, ttl, keep.lease)
        if semantic is None or vector is None:
            return Prepared(kept)
        data = np.asarray(vector, "<f4").tobytes()
        record = IndexRecord(keys.partition, keys.key, entry.question, now + semantic.ttl, data)
        return Prepared((*kept, *self._operations(record)), record)

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
