"""Decide which answers may be stored, and plan the storing: the entry and its index operations. No I/O.

An answer may be stored if a client that asks the same would not prefer a new one: every requested choice is there and
ended by `stop`, has text, is no refusal, was not cut by a content filter, and calls no tool (unless the policy stores
tool calls). It must also conform to the clients' types, because a replay cannot be retried. The gateway judges how it
was produced.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from cache.entry import CacheEntry, IndexRecord, StoredAnswer, encode
from cache.planning.eligibility import LONGEST_QUESTION, longest_kept
from cache.scopes.scope import Caps, Registry, put
from cache.store.base import Operation, Release, Store, StoreUnavailable

if TYPE_CHECKING:
    from cache.index import SemanticIndex, Vector
    from cache.planning.plan import CachePlan
    from cache.store.base import Command, Operation
    from policies.caching import CachePolicy

MAX_BODY_BYTES: Final = 1 << 20
_TEXTS: Final = ("id", "model", "system_fingerprint", "service_tier")
_REASONING: Final = ("reasoning_content", "reasoning")
_MESSAGE_TEXTS: Final = ("content", *_REASONING)
_TEXT_OR_NONE: Final = frozenset({str, NoneType})


def why_not_kept(completion: Mapping[str, Any], choices_asked: int = 1, *, tool_calls: bool = False) -> str:
    """Return why an answer must not be cached, or ''. With `tool_calls`, complete tool calls may be cached too."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        return "no_choices"
    if completion.get("error"):
        return "error"
    if len(choices) != choices_asked:
        return "choices"
    if not _is_plain(completion):
        return "malformed"
    if (filters := completion.get("prompt_filter_results")) and _filtered(filters):
        return "content_filter"
    for place, choice in enumerate(choices):
        if reason := _why_not_this(choice, place, tool_calls):
            return reason
    return ""


def _is_plain(completion: Mapping[str, Any]) -> bool:
    """Return whether the fields around the choices, where present, have the types that clients expect."""
    return (
        completion.get("object") in (None, "chat.completion")
        and _TEXT_OR_NONE.issuperset(map(type, map(completion.get, _TEXTS)))
        and _is_count(completion.get("created"))
        and _is_usage(completion.get("usage"))
    )


def _is_usage(usage: Any) -> bool:
    if usage is None:
        return True
    if not isinstance(usage, dict):
        return False
    tokens_in, tokens_out = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return type(tokens_in) is int and tokens_in >= 0 and type(tokens_out) is int and tokens_out >= 0


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _why_not_this(choice: Any, place: int, tool_calls: bool) -> str:
    if not isinstance(choice, dict) or not isinstance(message := choice.get("message") or {}, dict):
        return "malformed"
    if choice.get("index", place) != place or message.get("role", "assistant") != "assistant":
        return "malformed"
    finish = choice.get("finish_reason")
    if finish != "stop" and not (tool_calls and finish == "tool_calls"):
        return f"finish: {finish}" if isinstance(finish, str | NoneType) else "malformed"
    if message.get("refusal"):
        return "refusal"
    if (filters := choice.get("content_filter_results")) and _filtered(filters):
        return "content_filter"
    if not isinstance(choice.get("logprobs"), dict | NoneType):
        return "malformed"
    if not _TEXT_OR_NONE.issuperset(map(type, map(message.get, _MESSAGE_TEXTS))):
        return "malformed"
    if message.get("function_call"):
        return "tool_calls"
    if message.get("tool_calls"):
        return _why_not_these(message["tool_calls"]) if tool_calls else "tool_calls"
    content = message.get("content")
    return "" if finish == "stop" and content and content.strip() else "empty"


def _why_not_these(calls: Any) -> str:
    """Return why tool calls must not be cached, or '': each needs an id, a name and a JSON object as arguments."""
    return "" if isinstance(calls, list) and all(map(_is_call, calls)) else "malformed"


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not _is_text(call.get("id")) or not _is_text(function.get("name")):
        return False
    try:
        return isinstance(orjson.loads(function.get("arguments") or ""), dict)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _filtered(results: Any) -> bool:
    """Return whether a provider's filter removed something (Azure's `content_filter_results`, of choice or prompt)."""
    if isinstance(results, list):
        return any(_filtered(result.get("content_filter_results")) for result in results if isinstance(result, dict))
    if not isinstance(results, dict):
        return False
    return any(isinstance(result, dict) and result.get("filtered") is True for result in results.values())


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
    findable: bool = False
    """Whether the answer is to be added to the index too; set with `made`."""


class PendingWrite:
    """A finished answer that is to be stored. `keep` builds the write once, for storing or for an equal request that
    arrives before it is stored.
    """

    __slots__ = ("_keep", "_make", "plan")

    def __init__(self, plan: CachePlan, make: Callable[[], CacheWrite | None]) -> None:
        """Hold the function that builds the write; it may raise, and returns None for an answer that must not be
        stored.
        """
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
    """Turn answers into store operations, with those that add a record to the `index`.

    `caps` bound each scope; `largest` is the maximum number of bytes of one answer.
    """

    def __init__(
        self,
        index: SemanticIndex,
        dimension: int,
        clock: Callable[[], float],
        caps: Caps,
        largest: int,
    ) -> None:
        self._index = index
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
        reason = reason or why_not_kept(
            answer.completion, plan.body.get("n") or 1, tool_calls=plan.policy.store_tool_calls
        )
        if not reason and plan.tags is not None and plan.tags.versions is None:
            # Without the versions, a change of a source since the model was called could not be detected.
            reason = "tags"
        if reason or plan.keys is None:
            return reason or "policy"
        completion = answer.completion
        # The id and the time come first: each hit has its own.
        text = orjson.dumps({"id": completion.get("id"), "created": completion.get("created"), **completion})
        body = bytes(memoryview(text))  # a copy, since orjson leaves the room in the result that it kept to grow
        if len(body) > self._largest:
            return "size"
        keep.findable = keep.vector is not None and self.usable(keep.vector) and not plan.why_not_semantic()
        exact, semantic = plan.policy.exact, plan.policy.semantic if keep.findable else None
        ttl = max(exact.ttl if exact else 0.0, semantic.ttl if semantic else 0.0)
        if ttl <= 0:
            return "policy"
        longest = longest_kept(plan.policy, plan.body, plan.facts)
        ttl = min(ttl, longest)
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
            dropped=answer.dropped,
            tags=(plan.tags.versions or ()) if plan.tags is not None else (),
            in_doubt=longest < math.inf,
        )

    def prepared(self, keep: CacheWrite) -> PlannedWrite:
        """Return the operations that store this answer and, with a vector, index it; or why it is refused."""
        entry, plan = self.entry(keep), keep.plan
        if isinstance(entry, str):
            return PlannedWrite(refused=entry)
        kept = self.shelved(plan, entry, entry.expires_at - entry.created_at, keep.lease)
        keys, semantic = plan.keys, plan.policy.semantic
        if keys is None or semantic is None or keep.vector is None or not keep.findable:
            return PlannedWrite(kept)
        data = np.asarray(keep.vector, "<f4").tobytes()
        until = min(entry.expires_at, entry.created_at + semantic.ttl)
        record = IndexRecord(keys.partition, keys.key, entry.question, until, data)
        return PlannedWrite((*kept, *self._index.current.operations(record)), record)

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


_DELAY_S: Final = 0.005
_MOST_WRITES: Final = 1_000


class DelayedWrites:
    """Collect small writes that no request waits for, and send those of a few milliseconds in one round trip.

    One batch is sent after the other, and in each the leases are released after its writes. So a worker that finds a
    lease gone also finds what was written before its release. One for a worker; close it after use.
    """

    def __init__(self, store: Store, lost: Callable[[], None] | None = None) -> None:
        """Send writes in the background; `lost` is called when some were dropped, or refused by the store."""
        self._store = store
        self._lost = lost
        self._writes: list[Operation] = []
        self._releases: list[Release] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, operations: Sequence[Operation]) -> None:
        """Send operations soon; they are dropped when too many are waiting, or if the store fails."""
        if len(self._writes) < _MOST_WRITES:
            self._writes += operations
            if self._task is None:
                self._start()
        elif self._lost is not None:
            self._lost()

    def release(self, lease: str, holder: bytes) -> None:
        """Release a lease soon, if the holder still has it: after the operations that were added before."""
        self._releases.append(Release(lease, holder))
        if self._task is None:
            self._start()

    async def aclose(self) -> None:
        """Send what is waiting."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tierline.delayed_writes")

    async def _run(self) -> None:
        try:
            await asyncio.sleep(_DELAY_S)
            while self._writes or self._releases:
                await self._send()
        finally:
            self._task = None

    async def _send(self) -> None:
        writes, self._writes = self._writes, []
        releases, self._releases = self._releases, []
        if writes:
            try:
                await self._store.apply([*writes, *releases])
            except StoreUnavailable:
                if self._lost is not None:
                    self._lost()
            else:
                return
        # A store that refuses writes, such as a full one, still releases leases.
        if releases:
            with contextlib.suppress(StoreUnavailable):
                await self._store.apply(releases)
