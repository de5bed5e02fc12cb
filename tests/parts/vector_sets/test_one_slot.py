"""The cache's keys on a Redis Cluster: all that one request touches lies in one slot."""

from __future__ import annotations

import secrets

from cache.store.redis_store import RedisStore
from gateway.parts.fleet.cluster import slot_of
from gateway.parts.vector_sets.part import VectorSetIndex
from tests.parts.vector_sets.rig import partition_of, record


async def test_every_key_of_a_scope_lies_in_one_slot() -> None:
    """An entry, and the vector set of its partition with what lies beside it, of any partition.

    That a server counts slots as `slot_of` does, the tests of the store's nodes show.
    """
    store = RedisStore.from_url("redis://127.0.0.1:9")
    sets = VectorSetIndex(store)
    scope = secrets.token_hex(8)
    keys: set[str] = set()
    for number in range(5):
        one = record(number, partition_of(scope))
        keys.add(one.key)
        for operation in sets.operations(one):
            keys |= {key.decode() for key in operation.words[3:5]}
    assert len(keys) == 15
    assert len({slot_of(key.encode()) for key in keys}) == 1
    await store.aclose()
