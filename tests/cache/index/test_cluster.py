"""The cache's keys on a Redis Cluster of three nodes: all that one request touches lies in one slot."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

import pytest
import redis

from cache.index import QueryEngineIndex, VectorSetIndex
from cache.redis_store import RedisStore
from cache.store import Document, VectorAdd, Write
from gateway.supervisor.state import free_port
from tests.cache.index.rig import DIMENSION, partition_of, record, unit
from tests.support.store import LocalStore
from tests.support.wait import until

SLOTS = 16_384
BOUNDS = ((0, 5460), (5461, 10_922), (10_923, SLOTS - 1))


@pytest.fixture(scope="module")
def cluster(redis8: LocalStore) -> Iterator[list[redis.Redis]]:
    """Three nodes that know each other, each with a third of the slots."""
    nodes: list[redis.Redis] = []
    with contextlib.ExitStack() as stack:
        buses = [free_port() for _ in BOUNDS]
        for (first, last), bus in zip(BOUNDS, buses, strict=True):
            options = f"--cluster-enabled yes --cluster-port {bus} --cluster-node-timeout 5000"
            server = LocalStore(options, command=redis8.command)
            stack.callback(server.close)
            server.start()
            node = redis.Redis(port=server.port)
            stack.callback(node.close)
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            nodes.append(node)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", _port(node), bus)
        for node in nodes:
            until(lambda node=node: b"cluster_state:ok" in node.execute_command("CLUSTER", "INFO"), 30, "the cluster")
        yield nodes


def _port(node: redis.Redis) -> int:
    return int(node.connection_pool.connection_kwargs["port"])


def _slot(node: redis.Redis, key: str) -> int:
    return int(node.execute_command("CLUSTER", "KEYSLOT", key))


async def test_every_key_of_a_scope_lies_in_one_slot(cluster: list[redis.Redis]) -> None:
    """An entry, the vector set of its partition with what lies beside it, and its document, of any partition."""
    store = RedisStore.from_url(f"redis://127.0.0.1:{_port(cluster[0])}")
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
                assert isinstance(operation, Document)
                keys.add(operation.key)
    assert len(keys) == 20
    assert len({_slot(cluster[0], key) for key in keys}) == 1
    await store.aclose()


async def test_entries_and_their_vectors_are_kept_on_every_node(cluster: list[redis.Redis]) -> None:
    """What goes in one round trip is taken whole by the node that has the scope's slot, the script included."""
    for node, (first, last) in zip(cluster, BOUNDS, strict=True):
        partition = next(partition for partition in iter(partition_of, "") if first <= _slot(node, partition) <= last)
        store = RedisStore.from_url(f"redis://127.0.0.1:{_port(node)}")
        index = VectorSetIndex(store)
        one = record(1, partition)
        await store.apply([Write(one.key, b"entry", 60), *index.operations(one)])
        (near,) = await index.nearest(partition, unit(1), 5)
        assert (near.key, await store.get(near.key)) == (one.key, b"entry")
        await index.forget(partition, near)
        assert await index.nearest(partition, unit(1), 5) == []
        await store.aclose()
