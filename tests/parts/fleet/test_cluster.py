"""The store on a Redis Cluster of three nodes: each verb reaches the node that has the key, wherever it goes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator

import numpy as np
import pytest

from cache.flights import Lease
from cache.response_cache import ResponseCache
from cache.store.base import Append, Claim, Command, Release, StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from gateway.config.addresses import open_store
from gateway.parts.cache_admin.administration import Administration
from gateway.parts.fleet.cluster import slot_of
from gateway.parts.fleet.exchange import keep_leases, publish_frames
from tests.cache.samples import Facts, answer, body, policy
from tests.support.cluster import SLOTS, Cluster, cluster_of
from tests.support.redis8 import Unavailable, redis8
from tests.support.store import UNHURRIED
from tests.support.wait import eventually, until

ITALY, SAME = "What is the capital of Italy?", "what's the capital of Italy"
VECTOR = np.array([1, 0, 0, 0], np.float32)


@pytest.fixture(scope="module", params=["valkey", "redis8"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    try:
        command = redis8() if request.param == "redis8" else None
    except Unavailable as why:
        pytest.skip(str(why))
    with cluster_of(command) as made:
        yield made


def name(on: int | None = None, cluster: Cluster | None = None) -> str:
    """A key of nobody else's, on one of the nodes."""
    while True:
        made = f"test:{{{secrets.token_hex(8)}}}"
        if cluster is None or on is None or cluster.owner(made) == on:
            return made


@contextlib.asynccontextmanager
async def store_at(url: str) -> AsyncIterator[RedisStore]:
    store = open_store(url, slack=UNHURRIED)
    yield store
    await store.aclose()


def test_slots_are_those_of_the_server(cluster: Cluster) -> None:
    """With and without braces, odd ones too."""
    for key in ("", "k", "tierline:c3:scopes", "a{b}c", "a{}c", "a{b", "{b}{c}", "a}b{c}", "ü{é}", "{{a}}"):
        assert cluster.clients[0].execute_command("CLUSTER", "KEYSLOT", key) == slot_of(key.encode()) < SLOTS


def evicted(cluster: Cluster) -> list[int]:
    return [client.info("stats")["evicted_keys"] for client in cluster.clients]


async def test_memory_is_that_of_the_smallest_node_and_evictions_are_all(cluster: Cluster) -> None:
    """A tenant's keys of one kind are on one node, so the smallest counts; one without a limit is not the smallest."""
    writes = [Write(name(place, cluster), b"x" * 100_000, 60) for place in [0, 1] * 200]
    async with store_at(cluster.urls[0]) as store:
        await store.ping()
        before = await store.memory()
        assert before.limit == 0
        try:
            for place, megabytes in ((0, 9), (1, 12)):
                cluster.clients[place].config_set("maxmemory", megabytes << 20)
                cluster.clients[place].config_set("maxmemory-policy", "volatile-lfu")
            assert (await store.memory()).limit == 9 << 20
            for write in writes:
                await store.apply([write])
            low, after, high = evicted(cluster), await store.memory(), evicted(cluster)
            assert min(low[:2]) > 0
            assert sum(low) <= after.evicted - before.evicted <= sum(high)
            cluster.clients[1].config_set("maxmemory-policy", "allkeys-lru")
            assert (await store.memory()).policy == "allkeys-lru"
        finally:
            for client in cluster.clients:
                client.config_set("maxmemory", 0)
                client.config_set("maxmemory-policy", "noeviction")
            for write in writes:
                await store.delete(write.key)


async def test_every_key_is_found_by_way_of_any_node(cluster: Cluster) -> None:
    """Whether the cluster was asked for at start or is found out by the first MOVED; in pipelines of mixed keys too."""
    keys = [name(place % 3, cluster) for place in range(30)]
    for url in cluster.urls:
        for pings in (True, False):
            async with store_at(url) as store:
                if pings:
                    await store.ping()
                    assert (store.state().status, store.state().nodes) == ("ok", 3)
                await store.apply([Write(key, key.encode(), 60) for key in keys])
                assert [await store.get(key) for key in keys] == [key.encode() for key in keys]
                asked = await store.ask([Command((b"GET", key.encode())) for key in keys], 5.0)
                assert asked == [key.encode() for key in keys]
                await store.delete(keys[0])
                assert await store.get(keys[0]) is None
                await eventually(lambda store=store: store.state().nodes == 3, what="the map of slots")


async def test_streams_and_leases_work_on_every_node(cluster: Cluster) -> None:
    """Followers wait at the node that has their stream; a lease is taken and told beside its value."""
    async with store_at(cluster.urls[0]) as store:
        for place in range(3):
            stream, lease = name(place, cluster), name(place, cluster)
            waiting = asyncio.create_task(store.after(stream, "0", 10, 5000))
            await asyncio.sleep(0.05)
            await store.apply([Write(f"{lease}:x", b"v", 10), Append(stream, b"new", 10)])
            assert [value for _, value in await waiting] == [b"new"]
            assert [value for _, value in await store.latest(stream, 5)] == [b"new"]
            assert await store.claim(lease, b"one", 10, f"{lease}:x") == Claim(b"one", True)
            await keep_leases(store, [Lease(lease, b"one")], 30)
            assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"one"
            await store.apply([Release(lease, b"one"), Release(name((place + 1) % 3, cluster), b"one")])
            assert (await store.claim(lease, b"other", 10, f"{lease}:x")).holder == b"other"
            await publish_frames(store, f"{lease}:f:1", [b"1", b"2"], 10)
            assert [value for _, value in await store.after(f"{lease}:f:1", "0", 10, 0)] == [b"1", b"2"]


async def test_the_cache_works_whole(cluster: Cluster) -> None:
    """What one worker keeps another serves, exactly and by meaning; scopes on all nodes are told and purged."""
    embedder, surface = secrets.token_hex(4), policy()
    async with store_at(cluster.urls[0]) as one, store_at(cluster.urls[1]) as other:
        caches = [ResponseCache(store, embedder_name=embedder, dimension=4) for store in (one, other)]
        for cache in caches:
            await cache.start()
        writer, reader = caches
        kinds = {cache.index.state().kind for cache in caches}
        assert kinds <= {"vector_sets", "replica"}
        tenants = [secrets.token_hex(4) for _ in range(12)]
        for tenant in tenants:
            assert (await writer.write(writer.plan(body(ITALY), surface, tenant, Facts()), answer(), VECTOR)).stored
        for tenant in tenants:
            assert (await reader.exact(reader.plan(body(ITALY), surface, tenant, Facts()))).outcome == "hit"
            async with asyncio.timeout(20):
                while (
                    await reader.semantic(reader.plan(body(SAME), surface, tenant, Facts()), VECTOR)
                ).outcome != "hit":
                    await asyncio.sleep(0.01)
        administration = Administration(other, seen_s=0)
        assert {f"tenant:{tenant}" for tenant in tenants} <= {one.scope.owner for one in await administration.stats()}
        purged = await administration.purge_surface("chat", f"tenant:{tenants[0]}")
        assert (purged.scopes, purged.entries > 0) == (1, True)
        for cache in caches:
            await cache.aclose()


async def test_a_slot_may_move_while_it_is_in_use(cluster: Cluster) -> None:
    """Keys that are on their way are asked for where they are to come (ASK), those that are there where they are."""
    key = name(0, cluster)
    stays = f"{key}:stays"
    async with store_at(cluster.urls[0]) as store:
        await store.ping()
        await store.apply([Write(stays, b"old", 600)])
        cluster.begin_to_move(key, to=1)
        assert await store.get(stays) == b"old"
        await store.apply([Write(key, b"new", 600), Write(name(2, cluster), b"elsewhere", 600)])
        assert [await store.get(key), await store.get(stays)] == [b"new", b"old"]
        cluster.move(key, to=1)
        assert [await store.get(key), await store.get(stays)] == [b"new", b"old"]
        await store.apply([Append(f"{key}:s", b"later", 10)])
        assert [value for _, value in await store.after(f"{key}:s", "0", 5, 0)] == [b"later"]
        assert store.state().status == "ok"


async def test_a_lost_node_costs_its_own_keys_alone() -> None:
    """The others go on, `/readyz` is told, and whoever takes a slot over is asked; its return is noticed."""
    with cluster_of() as cluster:
        mine, theirs = name(0, cluster), name(2, cluster)
        async with store_at(cluster.urls[0]) as store:
            await store.ping()
            await store.apply([Write(mine, b"v", 600), Write(theirs, b"v", 600)])
            cluster.servers[2].stop()
            for _ in range(10):
                with pytest.raises(StoreUnavailable):
                    await store.get(theirs)
                assert await store.get(mine) == b"v"
            assert store.state().status == "degraded"
            cluster.take_over(theirs, by=0)
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(StoreUnavailable):
                        await store.apply([Write(theirs, b"again", 600)])
                        break
                    await asyncio.sleep(0.05)
            assert await store.get(theirs) == b"again"
            cluster.servers[2].start()
            until(cluster.clients[2].ping, 20, "the node")
            await eventually(lambda: store.state().status == "ok", 30, "the node's return")
