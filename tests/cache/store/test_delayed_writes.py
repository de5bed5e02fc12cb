from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from cache.store.base import Command, Operation, Release, Write
from cache.store.redis_nodes import Nodes
from cache.store.redis_store import RedisStore
from cache.write import DelayedWrites
from tests.support.store import UNHURRIED, LocalStore, local_store


class GatedStore(RedisStore):
    """A store whose writes wait until they may pass."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes)
        self.batches: list[Sequence[Operation]] = []
        self.may_pass = asyncio.Event()

    async def apply(self, operations: Sequence[Operation]) -> None:
        self.batches.append(operations)
        await self.may_pass.wait()
        await super().apply(operations)


def name() -> str:
    return f"test:{{{secrets.token_hex(8)}}}"


async def test_a_lease_is_released_after_the_writes_before_it(valkey: LocalStore) -> None:
    """In the batch of those writes, or in a later one, which waits for the earlier."""
    store = GatedStore.from_url(valkey.url, slack=UNHURRIED)
    assert isinstance(store, GatedStore)
    delayed = DelayedWrites(store)
    key, lease, late = name(), name(), name()
    for each in (lease, late):
        await store.claim(each, b"one", 60, key)
    write = Write(key, b"v", 60)
    delayed.release(lease, b"one")
    delayed.add([write])
    async with asyncio.timeout(30):
        while not store.batches:
            await asyncio.sleep(0.001)
    delayed.release(late, b"one")
    await asyncio.sleep(0.05)  # ten times as long as writes are collected
    assert store.batches == [[write, Release(lease, b"one")]]
    store.may_pass.set()
    await delayed.aclose()
    assert store.batches[1:] == [[Release(late, b"one")]]
    assert [await store.get(each) for each in (key, lease, late)] == [b"v", None, None]
    await store.aclose()


async def test_a_full_store_releases_leases() -> None:
    """It refuses the writes before them, and gets no more writes for a while."""
    with local_store() as full:
        store = RedisStore.from_url(full.url, slack=UNHURRIED)
        delayed = DelayedWrites(store)
        leases = [name(), name()]
        for lease in leases:
            await store.claim(lease, b"one", 60, lease)
        await store.ask([Command((b"CONFIG", b"SET", b"maxmemory", b"1"))])
        for lease in leases:
            delayed.add([Write(name(), b"v", 60)])
            delayed.release(lease, b"one")
            await delayed.aclose()
            assert await store.get(lease) is None
        assert store.state().reason == "full"
        await store.aclose()
