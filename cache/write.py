"""Plan the storing of an answer: whether it may be stored, its entry, and its index operations. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import orjson

from cache import answers
from cache.entry import CacheEntry, IndexRecord, StoredAnswer, encode
from cache.index import Vector
from cache.planning.eligibility import LONGEST_QUESTION
from cache.planning.plan import CachePlan
from cache.scopes.scope import Registry
from cache.scopes.shelf import Caps, put
from cache.store.base import Command, IndexOperation, Operation
from policies.caching import CachePolicy


@dataclass(slots=True)
class CacheWrite:
    """An answer to store, with the plan of its request and, if there is one, the vector of its question."""

    plan: CachePlan
    answer: StoredAnswer
    vector: Vector | None = None
    contested: bool = False
    """The request bypassed the stored entry, so a better answer may be stored already."""
    fault: str = ""
    """A fault of the answer found by the caller; a faulty answer is not stored."""
    lease: str = ""
    """Key of the lease under which it was produced; it is deleted with the write."""
    made: CacheEntry | str | None = None
    """Result of `WritePlanner.entry`, once it was called."""


class PendingWrite:
    """A finished answer that is to be stored. `keep` builds the write once, for storing or for an equal request that
    arrives before it is stored.
    """

    __slots__ = ("_keep", "_make", "plan")

    def __init__(self, plan: CachePlan, make: Callable[[], CacheWrite | None]) -> None:
        """Take the function that builds the write. It returns None for an answer not worth storing, and may raise."""
        self.plan = plan
        self._make: Callable[[], CacheWrite | None] | None = make
        self._keep: CacheWrite | None = None

    def keep(self) -> CacheWrite | None:
        """Return the result of `make`, computed once. Call it only after the answer has ended."""
        if self._make is not None:
            self._keep = self._make()
            self._make = None
        return self._keep


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """The write of one answer: `operations` for the store, `record` for this worker's index; or why it is `refused`."""

    operations: tuple[Operation, ...] = ()
    record: IndexRecord | None = None
    refused: str = ""


class WritePlanner:
    """Turns answers into store operations. `operations` returns those that add a record to the index.

    `caps` bound each scope; `largest` is the maximum number of bytes of one answer.
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
        """Return whether a vector has this index's dimension, is finite and not zero."""
        # NaN and infinity show in the scalar product.
        return vector.shape == (self._dimension,) and 0.0 < float(vector @ vector) < math.inf

    def entry(self, keep: CacheWrite) -> CacheEntry | str:
        """Return the entry for this answer, or why it is not stored; computed once."""
        if keep.made is None:
            keep.made = self._made(keep)
        return keep.made

    def _made(self, keep: CacheWrite) -> CacheEntry | str:
        """Build the entry, with the longest lifetime that any of the caches allows."""
        plan, answer = keep.plan, keep.answer
        reason = plan.reason or ("" if plan.write else "no-store") or keep.fault
        reason = reason or answers.why_not_kept(
            answer.completion, plan.body.get("n") or 1, tool_calls=plan.policy.store_tool_calls
        )
        if not reason and plan.tags is not None and plan.tags.versions is None:
            # Without the versions nobody can tell whether a source has changed since the model was called.
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
            question=(plan.keys.question or "")[:LONGEST_QUESTION],  # longer ones are not looked up semantically
            cost_usd=answer.cost_usd,
            ttft_s=answer.ttft_s,
            tokens_per_s=answer.tokens_per_s,
            tags=(plan.tags.versions or ()) if plan.tags is not None else (),
        )

    def _findable(self, keep: CacheWrite) -> bool:
        """Return whether the answer is to be added to the index too."""
        return keep.vector is not None and self.usable(keep.vector) and not keep.plan.why_not_semantic()

    def prepared(self, keep: CacheWrite) -> PlannedWrite:
        """Return the operations that store this answer and, with a vector, index it; or why it is refused."""
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
        """Return the operations that store an entry under the plan's exact key for `left_s` seconds.

        They also delete the `lease` under which it was produced. Empty for a plan without keys.
        """
        if plan.keys is None or plan.scope is None:
            return ()
        key = plan.keys.key
        write = put(key, encode(key, entry), left_s, entry.created_at, self._caps, entry.origin, lease)
        return *self.registry.enter(plan.scope, longest_ttl(plan.policy)), write


def longest_ttl(policy: CachePolicy) -> float:
    """Return the maximum lifetime of an entry under this policy in seconds."""
    return max(policy.exact.ttl if policy.exact else 0.0, policy.semantic.ttl if policy.semantic else 0.0)
