"""The store, as the rest of Tierline sees it: a few verbs over a Redis-protocol server.

Every verb raises StoreUnavailable, and nothing else, when the server is down, slow, full or confused; callers treat
that as a miss. `cache.store.redis_store` is the one implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class StoreUnavailable(Exception):
    """The store did not do it. `reason` is a stable word for spans and metrics: timeout, refused, full, disk, ..."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StoreState:
    """What `/readyz` says of the store."""

    status: Literal["ok", "degraded", "unconfigured"]
    reason: str = ""
    nodes: int = 0
    """How many servers it is: more than one in a Redis Cluster, which is as well as the worst of them."""


@dataclass(frozen=True, slots=True)
class Write:
    """One value to keep for `ttl_s` seconds."""

    key: str
    value: bytes
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Append:
    """One entry at the end of a stream that keeps about its latest `keep` entries."""

    stream: str
    value: bytes
    keep: int


@dataclass(frozen=True, slots=True)
class Command:
    """Any other command, by its words."""

    words: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What was found; where nothing was, who holds the lease now, None if nobody can."""

    value: bytes | None
    holder: bytes | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Who has a lease now, and whether there is a value under the key it was looked at together with."""

    holder: bytes
    written: bool


@dataclass(frozen=True, slots=True)
class VectorAdd:
    """One element of a vector set (Redis 8), whose cap and expiry are kept in a sorted set beside it.

    Elements that have expired go, and where more than `most` are left, those that expire first. The element stays
    `ttl_s` seconds, both sets as long as the longest of theirs. `vector` is little-endian float32; both keys must lie
    in one slot; `now_s` is the writer's clock.
    """

    key: str
    order: str
    element: bytes
    vector: bytes
    now_s: float
    ttl_s: float
    most: int


@dataclass(frozen=True, slots=True)
class VectorDrop:
    """One element of a vector set, and of the sorted set beside it, to remove."""

    key: str
    order: str
    element: bytes


@dataclass(frozen=True, slots=True)
class IndexDocument:
    """A hash for the query engine to index, kept for `ttl_s` seconds."""

    key: str
    fields: tuple[tuple[bytes, bytes], ...]
    ttl_s: float


IndexOperation = Append | VectorAdd | VectorDrop | IndexDocument
Operation = Write | Command | IndexOperation


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """The `k` elements of one vector set that are nearest to a vector, little-endian float32."""

    key: str
    vector: bytes
    k: int


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """The `k` documents nearest to a vector, of those with this `tag` (hex), with the named fields."""

    index: str
    tag: str
    vector: bytes
    k: int
    fields: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DocumentIndex:
    """What the query engine indexes: the hashes under `prefix`, by a tag and a vector of so many dimensions."""

    name: str
    prefix: str
    dimension: int


class Store(Protocol):
    """See the module's docstring. All verbs are coroutines that never block the event loop."""

    async def get(self, key: str) -> bytes | None: ...

    async def delete(self, key: str) -> None: ...

    async def apply(self, operations: Sequence[Operation]) -> None:
        """Carries the operations out in one round trip, each kind in order, appends after all others.

        "index" is the reason when all went well but what a semantic index asked for.
        """

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        """The replies to commands carried out in one round trip, as they come; within a lookup's time, or `limit_s`."""

    async def commands(self, names: Sequence[str]) -> frozenset[str]:
        """Those of the named commands that the server has."""

    async def similar(self, query: VectorQuery) -> list[tuple[bytes, float]]:
        """(element, cosine), nearest first; none of a set that is not there. "index" when the server will not."""

    async def define(self, index: DocumentIndex) -> None:
        """Sees to it that the query engine has this index. "index" when the server will not."""

    async def matching(self, query: DocumentQuery) -> list[tuple[Mapping[bytes, bytes], float]]:
        """(fields, cosine), nearest first. "index" when the server will not."""

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        """(id, value) of the newest entries, newest first; `before` (exclusive) pages back."""

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """(id, value) of the entries after `last_id` ("0" is the beginning), oldest first, waiting up to `block_ms`."""

    async def look(self, key: str, lease: str, holder: bytes, ttl_s: float) -> Look:
        """What lies under `key`; where nothing does, takes the lease at once, unless it is held. Both in one slot.

        A server that may not write (a full one, a replica) is read all the same: then nobody holds the lease.
        """

    async def claim(self, lease: str, holder: bytes, ttl_s: float, beside: str) -> Claim:
        """Takes the lease unless somebody has it, and looks whether `beside`, a key of its slot, has a value."""

    async def renew(self, lease: str, holder: bytes, ttl_s: float) -> None:
        """Has the lease last from now, if this holder still has it."""

    async def release(self, leases: Sequence[tuple[str, bytes]]) -> None:
        """Gives up each (lease, holder), if the holder still has it."""

    async def publish(self, stream: str, values: Sequence[bytes], ttl_s: float) -> None:
        """Appends the values to a stream that is gone so many seconds after the last of them."""

    async def ping(self) -> None: ...

    def state(self) -> StoreState: ...

    async def aclose(self) -> None: ...
