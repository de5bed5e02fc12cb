"""The store of a deployment that has none: every lookup is a miss, nothing is kept, and `/readyz` says so."""

from __future__ import annotations

from collections.abc import Sequence

from cache.store import Append, Claim, StoreState, StoreUnavailable, Write

_REASON = "unconfigured"


class NoStore:
    """Implements `Store` by having nothing."""

    async def get(self, key: str) -> bytes | None:
        raise StoreUnavailable(_REASON)

    async def delete(self, key: str) -> None:
        raise StoreUnavailable(_REASON)

    async def apply(self, operations: Sequence[Write | Append]) -> None:
        raise StoreUnavailable(_REASON)

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        raise StoreUnavailable(_REASON)

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        raise StoreUnavailable(_REASON)

    async def claim(self, lease: str, holder: bytes, ttl_s: float, beside: str) -> Claim:
        raise StoreUnavailable(_REASON)

    async def renew(self, lease: str, holder: bytes, ttl_s: float) -> None:
        raise StoreUnavailable(_REASON)

    async def release(self, leases: Sequence[tuple[str, bytes]]) -> None:
        raise StoreUnavailable(_REASON)

    async def publish(self, stream: str, values: Sequence[bytes], ttl_s: float) -> None:
        raise StoreUnavailable(_REASON)

    async def ping(self) -> None:
        raise StoreUnavailable(_REASON)

    def state(self) -> StoreState:
        return StoreState("unconfigured", "TIERLINE_STORE_URL is not set")

    async def aclose(self) -> None:
        """Nothing is open."""
