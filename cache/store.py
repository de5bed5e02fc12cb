"""The store, as the rest of Tierline sees it: a few verbs over a Redis-protocol server.

Every verb raises StoreUnavailable, and nothing else, when the server is down, slow, full or confused; callers treat
that as a miss. `cache.redis_store` is the one implementation, and the only file that imports redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class StoreUnavailable(Exception):
    """The store did not do it. `reason` is a stable word for spans and metrics: timeout, refused, full, open, ..."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class StoreState:
    """What `/readyz` says of the store."""

    status: Literal["ok", "degraded", "unconfigured"]
    reason: str = ""


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
class Claim:
    """Who has a lease now, and whether there is a value under the key it was looked at together with."""

    holder: bytes
    written: bool


class Store(Protocol):
    """See the module's docstring. All verbs are coroutines that never block the event loop."""

    async def get(self, key: str) -> bytes | None: ...

    async def delete(self, key: str) -> None: ...

    async def apply(self, operations: Sequence[Write | Append]) -> None:
        """Carries the operations out in one round trip, in order."""

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        """(id, value) of the newest entries, newest first; `before` (exclusive) pages back."""

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        """(id, value) of the entries after `last_id` ("0" is the beginning), oldest first, waiting up to `block_ms`."""

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
