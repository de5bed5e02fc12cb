"""Stand in for the store of a deployment without one: every lookup is a miss, nothing is stored, `/readyz` says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cache.store.base import (
    Claim,
    Command,
    DocumentIndex,
    DocumentQuery,
    Look,
    Operation,
    StoreState,
    StoreUnavailable,
    VectorQuery,
)

_REASON = "unconfigured"


class NoStore:
    """Implements `Store`: every operation raises StoreUnavailable."""

    async def get(self, key: str) -> bytes | None:
        raise StoreUnavailable(_REASON)

    async def delete(self, key: str) -> None:
        raise StoreUnavailable(_REASON)

    async def apply(self, operations: Sequence[Operation]) -> None:
        raise StoreUnavailable(_REASON)

    async def ask(self, commands: Sequence[Command], limit_s: float | None = None) -> list[Any]:
        raise StoreUnavailable(_REASON)

    async def commands(self, names: Sequence[str]) -> frozenset[str]:
        raise StoreUnavailable(_REASON)

    async def similar(self, query: VectorQuery) -> list[tuple[bytes, float]]:
        raise StoreUnavailable(_REASON)

    async def define(self, index: DocumentIndex) -> None:
        raise StoreUnavailable(_REASON)

    async def matching(self, query: DocumentQuery) -> list[tuple[Mapping[bytes, bytes], float]]:
        raise StoreUnavailable(_REASON)

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        raise StoreUnavailable(_REASON)

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        raise StoreUnavailable(_REASON)

    async def look(self, key: str, lease: str, holder: bytes, ttl_s: float) -> Look:
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
        """Do nothing: there is nothing to close."""
