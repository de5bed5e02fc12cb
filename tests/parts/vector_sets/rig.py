"""Records and indexes for the tests of this folder: several workers at one server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cache.entry import IndexRecord
from cache.index import Choice, Neighbour, Vector
from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.parts.vector_sets.part import ChosenIndex
from tests.support.store import UNHURRIED
from tests.support.wait import eventually

DIMENSION = 16
_PATIENCE_S = 10.0


def unit(seed: int) -> Vector:
    """A unit vector in a direction of its own."""
    vector = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return vector / np.linalg.norm(vector)


def partition_of(scope: str = "") -> str:
    """A partition of nobody else's, named as the fingerprint names them."""
    return f"tierline:test:{{{scope or secrets.token_hex(8)}}}:s:{secrets.token_hex(8)}"


def record(number: int, partition: str, ttl_s: float = 600.0, key: str = "") -> IndexRecord:
    """A question of number `number`, in the scope of its partition."""
    scope = partition[: partition.index("}") + 1]
    expires_at = time.time() + ttl_s
    return IndexRecord(
        partition, key or f"{scope}:x:{number}", f"Question {number}?", expires_at, unit(number).tobytes()
    )


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's index, and its store."""

    index: ChosenIndex
    store: RedisStore

    async def keep(self, *records: IndexRecord) -> None:
        """Does what the cache does after a reply; again, where a busy machine was too slow for it."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                await self.store.apply([operation for one in records for operation in self.index.operations(one)])
                break
            except StoreUnavailable as error:
                assert error.reason in ("timeout", "open") and time.monotonic() < deadline, error
                await asyncio.sleep(0.05)
        for one in records:
            self.index.kept(one)

    async def nearest(self, partition: str, number: int, k: int = 5) -> list[Neighbour]:
        """What is nearest to question `number`."""
        return await self.index.nearest(partition, unit(number), k)

    async def finds(self, partition: str, numbers: Sequence[int]) -> bool:
        """Whether each of these questions finds itself."""
        found = [await self.nearest(partition, number, 1) for number in numbers]
        return all(near and near[0].question == f"Question {n}?" for n, near in zip(numbers, found, strict=True))

    async def comes_to_find(self, partition: str, numbers: Sequence[int]) -> None:
        """Waits until it does."""
        deadline = time.monotonic() + _PATIENCE_S
        while not await self.finds(partition, numbers):
            assert time.monotonic() < deadline, "what another worker kept was never found"
            await asyncio.sleep(0.001)


Hire = Callable[[], contextlib.AbstractAsyncContextManager[Worker]]


def hiring(url: str, choice: Choice, entries: int = 1000) -> Hire:
    """What makes workers that share an index at `url`."""
    name = f"tierline:test:index:{secrets.token_hex(8)}"

    @contextlib.asynccontextmanager
    async def hire() -> AsyncIterator[Worker]:
        store = RedisStore.from_url(url, slack=UNHURRIED)
        index = ChosenIndex(store, name, DIMENSION, choice=choice, entries=entries)
        await index.start()
        # A start on a busy machine may be over before the probe is answered.
        await eventually(lambda: index.state().kind is not None, what="the probe")
        yield Worker(index, store)
        await index.aclose()
        await store.aclose()

    return hire
