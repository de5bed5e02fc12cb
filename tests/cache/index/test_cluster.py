"""The cache's keys on a Redis Cluster of three nodes: all that one request touches lies in one slot."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from cache.index import QueryEngineIndex, VectorSetIndex
from cache.store.base import IndexDocument, VectorAdd
from cache.store.redis_store import RedisStore
from tests.cache.index.rig import DIMENSION, partition_of, record
from tests.support.cluster import Cluster, cluster_of
from tests.support.store import UNHURRIED, LocalStore


@pytest.fixture(scope="module")
def cluster(redis8: LocalStore) -> Iterator[Cluster]:
    with cluster_of(redis8.command) as made:
        yield made


async def test_every_key_of_a_scope_lies_in_one_slot(cluster: Cluster) -> None:
    """An entry, the vector set of its partition with what lies beside it, and its document, of any partition."""
    store = RedisStore.from_url(cluster.urls[0], slack=UNHURRIED)
    sets, documents = VectorSetIndex(store), QueryEngineIndex(store, "tierline:test:q", DIMENSION)
    scope = secrets.token_hex(8)
    keys: set[str] = set()
    for number in range(5):
        one = record(number, partition_of(scope))
        keys.add(one.key)
        for operation in (*sets.operations(one), *documents.operations(one)):
            if isinstance(operation, VectorAdd):
                keys |= {operation.key, operation.order}
            else:
                assert isinstance(operation, IndexDocument)
                keys.add(operation.key)
    assert len(keys) == 20
    assert len({cluster.clients[0].execute_command("CLUSTER", "KEYSLOT", key) for key in keys}) == 1
    await store.aclose()
