"""Define the store's interface: a few operations on a Redis-protocol server.

Every method raises StoreUnavailable, and nothing else, when the server is down, slow, full or replies unexpectedly;
callers treat that as a miss. `cache.store.redis_store` implements it; `NoStore` stands in where none is configured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Protocol

from policies.value_type import value_type


def fields_in(reply: Sequence[bytes] | Mapping[bytes, bytes]) -> Mapping[bytes, Any]:
    """Return a hash from its reply: a flat list, or a map in RESP3."""
    return reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))


class StoreUnavailable(Exception):
    """An operation failed. `reason` is a stable word for spans and metrics: timeout, refused, full, disk, ..."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StoreState:
    """The store's state in `/readyz`."""

    status: Literal["ok", "degraded", "unconfigured"]
    reason: str = ""
    nodes: int = 0
    """Number of servers: more than one in a Redis Cluster, whose status is that of its worst server."""


@dataclass(frozen=True, slots=True)
class StoreMemory:
    """What the store says of its memory. Of a cluster: the least limit, `allkeys-...` if a node has it, the sum
    evicted.
    """

    limit: int
    """Bytes; 0: no limit."""
    policy: str
    """Which keys it evicts when it is full: noeviction, volatile-... (those with an expiry), or allkeys-..."""
    evicted: int
    """Number of keys evicted since it started."""


@value_type
class Write:
    """One value to store for `ttl_s` seconds."""

    key: str
    value: bytes
    ttl_s: float


@value_type
class Append:
    """One entry to append to a stream that retains about its latest `keep` entries."""

    stream: str
    value: bytes
    keep: int


@value_type
class Command:
    """A command that none of the other operations covers, as its arguments.

    If it is `optional` and refused, `ask` returns the error as its reply; where `apply` executes it, only the index has
    failed.
    """

    words: tuple[bytes, ...]
    optional: bool = False


@value_type
class Release:
    """A lease to release if `holder` still has it. A server that accepts no writes releases it too."""

    lease: str
    holder: bytes


class Look(NamedTuple):
    """The result of `Store.look`: the key's value; without one, who holds the lease now, None if nobody can take it."""

    value: bytes | None
    holder: bytes | None = None


@value_type
class Claim:
    """The result of `Store.claim`: who holds the lease now, and whether the key checked with it has a value."""

    holder: bytes
    written: bool


IndexOperation = Append | Command
Operation = Write | Command | Release | Append


class Store(Protocol):
    """The store's operations. They are coroutines that never block the event loop."""

    async def get(self, key: str) -> bytes | None: ...

    async def delete(self, key: str) -> None: ...

    async def apply(self, operations: Sequence[Operation]) -> None:
        """Execute the operations in one round trip: each kind in order, releases after writes, and appends after both.

        Raises StoreUnavailable "index" if only optional commands, which are those of a semantic index, failed.
        """

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        """Return the replies to commands executed in one round trip, within a lookup's time limit or `limit_s`.

        Raises StoreUnavailable if any of them is an error, but for those that are `optional`.
        """

    async def commands(self, names: Sequence[str]) -> frozenset[str]:
        """Return those of the named commands that the server supports."""

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        """Return (id, value) of the newest entries, newest first; `before` (exclusive) pages back."""

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """Return (id, value) after `last_id` ("0": from the beginning), oldest first, waiting up to `block_ms`."""

    async def look(self, key: str, lease: str, holder: bytes, ttl_s: float) -> Look:
        """Return the value of `key`; without one, take the lease unless it is held. Both keys must be in one slot.

        A server that cannot write (a full one, a replica) is still read: then no lease is taken.
        """

    async def claim(self, lease: str, holder: bytes, ttl_s: float, beside: str) -> Claim:
        """Take the lease unless it is held, and check whether `beside`, a key in the same slot, has a value."""

    async def ping(self) -> None: ...

    async def memory(self) -> StoreMemory:
        """Return what the store says of its memory; independent of the breaker."""

    def state(self) -> StoreState: ...

    async def aclose(self) -> None: ...


_REASON = "unconfigured"


class NoStore:
    """Raise StoreUnavailable in every operation of `Store`."""

    async def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise StoreUnavailable(_REASON)

    get = delete = apply = ask = commands = latest = after = look = claim = ping = memory = _refuse

    def state(self) -> StoreState:
        return StoreState("unconfigured", "TIERLINE_STORE_URL is not set")

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""
