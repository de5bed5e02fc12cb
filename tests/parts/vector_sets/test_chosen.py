"""Which index is taken, and what happens to the rest of the cache when it cannot be had."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from cache.index import IndexState
from cache.response_cache import ResponseCache
from cache.store.base import Append, StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.parts.vector_sets.part import ChosenIndex
from gateway.seams import index_of
from tests.cache.samples import answer, body, policy
from tests.cache.test_response_cache import FACTS, ITALY, SAME
from tests.parts.vector_sets.rig import hiring, partition_of, record
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.wait import eventually

VECTOR = np.array([1, 0, 0, 0], np.float32)


async def test_plain_servers_get_the_replica(valkey: LocalStore) -> None:
    """They have no vector sets."""
    async with hiring(valkey.url, "auto")() as worker:
        assert worker.index.state().kind == "replica"


async def test_a_server_that_may_not_be_asked_gets_the_replica() -> None:
    """An access list can refuse COMMAND INFO, so that nothing says which indexes the server has."""
    with local_store("--user default on nopass ~* &* +@all -command") as refusing:
        async with hiring(refusing.url, "auto")() as worker:
            assert worker.index.state().kind == "replica"


async def test_a_server_that_may_not_be_asked_for_a_chosen_kind_is_not_said_to_lack_it() -> None:
    """Nothing shows whether it has vector sets; what it says to the question is the reason in the state."""
    with local_store("--user default on nopass ~* &* +@all -command") as refusing:
        store = RedisStore.from_url(refusing.url, slack=UNHURRIED)
        index = ChosenIndex(store, f"test:{secrets.token_hex(4)}", 4, choice="vector_sets")
        await index.start()
        assert index.state().kind is None
        assert "permission" in index.state().reason
        await index.aclose()
        await store.aclose()


async def test_redis_8_gets_vector_sets(redis8: LocalStore) -> None:
    """What lies in the store serves every worker at once."""
    async with hiring(redis8.url, "auto")() as worker:
        assert worker.index.state() == IndexState("vector_sets")


async def test_a_kind_that_the_server_lacks_costs_the_semantic_cache_alone(valkey: LocalStore) -> None:
    """No other kind takes its place unasked; answers are kept and found exactly, and the state says why."""
    store = RedisStore.from_url(valkey.url, slack=UNHURRIED)
    cache = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, index=index_of("vector_sets"))
    await cache.start()
    await eventually(lambda: "server has no" in cache.index.state().reason, what="the probe")
    tenant = secrets.token_hex(4)
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert (await cache.write(plan, answer(), VECTOR)).stored
    assert (await cache.exact(plan)).outcome == "hit"
    assert (await cache.semantic(cache.plan(body(SAME), policy(), tenant, FACTS), VECTOR)).reason == "no_neighbour"
    assert cache.index.state() == IndexState(None, reason="the server has no vector_sets")
    await cache.aclose()
    await store.aclose()


async def test_another_server_behind_the_address_gets_its_own_index(redis8: LocalStore) -> None:
    """A worker that began on a plain server finds and keeps by vector sets after an upgrade, without a restart."""
    partition = partition_of()
    with local_store() as old:
        async with hiring(old.url, "auto")() as worker:
            await worker.keep(record(1, partition))
            assert worker.index.state().kind == "replica"
            old.stop()
            new = LocalStore(port=old.port, command=redis8.command)
            try:
                new.start()
                worker.index.refused("as a server does that lacks a command")
                await eventually(lambda: worker.index.state().kind == "vector_sets", 15, "the new server's index")
                await worker.keep(record(2, partition))
                assert [near.question for near in await worker.nearest(partition, 2)] == ["Question 2?"]
            finally:
                new.close()


async def test_a_refused_search_or_write_is_no_failure_of_the_store(redis8: LocalStore) -> None:
    """An error of the index degrades to exact hits: the breaker does not count it, and the answer is kept."""
    store = RedisStore.from_url(redis8.url, slack=UNHURRIED)
    cache = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, index=index_of("auto"))
    await cache.start()
    tenant = secrets.token_hex(4)
    plan = cache.plan(body(ITALY), policy(), tenant, FACTS)
    assert plan.keys is not None
    await store.apply([Append(f"{plan.keys.partition}:q", b"in the way", 10)])
    for _ in range(10):
        assert (await cache.write(plan, answer(), VECTOR)).stored
        found = await cache.semantic(cache.plan(body(SAME), policy(), tenant, FACTS), VECTOR)
        assert (found.outcome, found.reason) == ("error", "index")
    assert (await cache.exact(plan)).outcome == "hit"
    assert store.state().status == "ok"
    assert "WRONGTYPE" in cache.index.state().reason
    await cache.aclose()
    await store.aclose()


async def test_a_lost_server_is_said_at_once_by_an_index_that_lies_there(redis8: LocalStore) -> None:
    """A search raises what any other verb would; it never waits for longer."""
    with LocalStoreOf(redis8) as server:
        async with hiring(server.url, "vector_sets")() as worker:
            server.stop()
            with pytest.raises(StoreUnavailable):
                await worker.nearest(partition_of(), 1)


class LocalStoreOf:
    """A second server of the same kind, for a test that stops it."""

    def __init__(self, like: LocalStore) -> None:
        self._store = LocalStore(command=like.command)

    def __enter__(self) -> LocalStore:
        self._store.start()
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()
