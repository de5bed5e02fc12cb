"""A store under Sentinel: the master is found, and followed when another takes its place; real servers on sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cache.store.base import StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from gateway.config.addresses import open_store
from tests.support.app import in_process
from tests.support.sentinel import MASTER, OF_SENTINELS, OF_SERVERS, Watched, watched
from tests.support.store import UNHURRIED
from tests.support.upstream import Upstream
from tests.support.wait import eventually


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as made:
        yield made


@pytest.fixture
async def store(servers: Watched) -> AsyncIterator[RedisStore]:
    opened = open_store(servers.url, slack=UNHURRIED)
    yield opened
    await opened.aclose()


async def answers(store: RedisStore) -> bool:
    """Whether it takes a write."""
    try:
        await store.apply([Write("after", b"2", 60)])
    except StoreUnavailable:
        return False
    return True


async def test_writes_go_to_the_master_that_a_sentinel_names(servers: Watched, store: RedisStore) -> None:
    """Though the first of the Sentinels does not answer; each has its own password."""
    await store.ping()
    await store.apply([Write("key", b"1", 60)])
    assert await store.get("key") == b"1"
    assert servers.client(0).get("key") == b"1"
    assert store.where == f"{MASTER} of 127.0.0.1:9,127.0.0.1:{servers.port}"


async def test_a_master_that_changes_places_is_followed(servers: Watched, store: RedisStore) -> None:
    """Where both servers go on, the writes that the old master refuses lead to the new one."""
    await store.apply([Write("before", b"1", 60)])
    servers.fail_over()
    assert not await answers(store)
    async with asyncio.timeout(15):  # until the Sentinel has done with the failover, its lists have the old one
        while not await answers(store):
            await asyncio.sleep(0.02)
    assert servers.client(1).get("after") == b"2"
    assert await store.get("before") == b"1"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (OF_SENTINELS, "wrong", "auth"),
        (OF_SERVERS, "wrong", "auth"),
        (f"/{MASTER}/", "/unknown/", "no_master"),
    ],
    ids=["a Sentinel's password", "the master's password", "the master's name"],
)
async def test_why_a_store_under_sentinel_is_not_reached(servers: Watched, old: str, new: str, reason: str) -> None:
    """The reason says which of the config's words is wrong."""
    store = open_store(servers.url.replace(old, new), slack=UNHURRIED)
    with pytest.raises(StoreUnavailable) as refused:
        await store.ping()
    assert refused.value.reason == reason
    assert "wrong" not in str(refused.value)
    await store.aclose()


async def test_requests_go_on_while_the_master_is_replaced(
    servers: Watched, upstream: Upstream, tmp_path: Path
) -> None:
    """None fails; the cache is away for the while, says so, and comes back with the new master and its answers."""
    async with in_process(
        tmp_path / "gateway", upstream.url, settings={"store": {"url": "${STORE}"}}, env={"STORE": servers.url}
    ) as app:
        await app.ask("hello")
        await app.kept("hello")
        replica = servers.client(1)
        await eventually(lambda: bool(replica.keys("*:x:*")), 10, "the replica's copy")
        servers.servers[0].stop()
        paths, seen = [], set()
        async with asyncio.timeout(20):
            while servers.master() != servers.servers[1].port or paths[-1] != "cache-exact":
                reply = await app.ask("hello")
                assert reply.status_code == 200
                paths.append(reply.headers["x-tierline-path"])
                seen.add((await app.get("/readyz")).json()["store"]["status"])
                await asyncio.sleep(0.05)
        assert "direct" in paths
        assert "degraded" in seen
        assert (await app.get("/readyz")).json()["store"]["status"] == "ok"
        await app.ask("a new one")
        await app.kept("a new one")


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://localhost:26379",
        "redis+sentinel:///main",
        "redis+sentinel://a:1,/main",
        "redis+sentinel://a:port/main",
        "redis+sentinel://a:1/main/zero",
        "redis+sentinel://a:1/main?no_such_option=1",
        "unix+sentinel://a:1/main",
    ],
)
def test_a_url_that_names_no_master_is_refused(url: str) -> None:
    """With the form that it should have, and without the URL, which may hold a password."""
    with pytest.raises(ValueError, match=r"redis\+sentinel://HOST:PORT,HOST:PORT/MASTER") as refused:
        open_store(url)
    assert url not in str(refused.value)


async def test_tls_is_spoken_to_a_sentinel_too() -> None:
    """With `rediss+sentinel://` no password goes over the network before a handshake."""
    began: list[bytes] = []

    async def sentinel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.append(await reader.read(64))
        writer.close()

    server = await asyncio.start_server(sentinel, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        store = open_store(f"rediss+sentinel://:one@127.0.0.1:{port}/main?sentinel_password=two", slack=UNHURRIED)
        with pytest.raises(StoreUnavailable) as refused:
            await store.ping()
        await store.aclose()
    assert refused.value.reason == "no_master"
    assert began and began[0][:2] == b"\x16\x03"  # a record of TLS that begins a handshake
