"""A store of one server, where nothing reaches one of several: those are refused, in words that say what they need."""

from __future__ import annotations

import pytest

from cache.store.base import Append, StoreUnavailable
from cache.store.redis_store import RedisStore
from tests.support.ports import free_port
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED, LocalStore, local_store

LACKING = "several servers need the other part"


async def test_a_redirection_to_another_server_is_an_error_that_says_what_it_needs() -> None:
    """For every kind of exchange; from then on the store is degraded."""
    async with scripted_redis(b"-MOVED 7 10.0.0.1:6379\r\n") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED, lacking=LACKING)
        for asked in (
            store.get("k"),
            store.delete("k"),
            store.apply([Append("s", b"1", 10)]),
            store.after("s", "0", 1, 0),
        ):
            with pytest.raises(StoreUnavailable, match=LACKING) as refused:
                await asked
            assert refused.value.reason == "moved"
        assert (store.state().status, store.state().reason) == ("degraded", LACKING)
        await store.aclose()


async def test_the_health_check_tells_a_cluster_from_a_server(valkey: LocalStore) -> None:
    """Before a key is asked for; a single server is none."""
    single = RedisStore.from_url(valkey.url, slack=UNHURRIED, lacking=LACKING)
    await single.ping()
    assert single.state().status == "ok"
    await single.aclose()
    with local_store(f"--cluster-enabled yes --cluster-port {free_port()}") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED, lacking=LACKING)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=LACKING):
                await store.ping()
        assert store.state().status == "degraded"
        await store.aclose()


def test_sentinels_are_refused() -> None:
    """Without the URL, which may hold a password."""
    with pytest.raises(ValueError, match=f"^{LACKING}$"):
        RedisStore.from_url("redis+sentinel://:canary@a:1/main", lacking=LACKING)
