from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from cache.store.base import Append, StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.wait import until


def name() -> str:
    return f"test:{secrets.token_hex(8)}"


async def test_a_value_comes_back_until_it_is_deleted(store: RedisStore) -> None:
    """Bytes of any kind are kept as they are, and a missing key is None."""
    key, value = name(), bytes(range(256)) * 40
    assert await store.get(key) is None
    await store.apply([Write(key, value, 60)])
    assert await store.get(key) == value
    await store.delete(key)
    assert await store.get(key) is None


async def test_a_value_is_gone_after_its_time(store: RedisStore) -> None:
    """The server forgets a value by itself."""
    key = name()
    await store.apply([Write(key, b"x", 0.02)])
    async with asyncio.timeout(30):
        while await store.get(key) is not None:
            await asyncio.sleep(0.01)


async def test_writes_and_appends_travel_together(store: RedisStore) -> None:
    """One call carries several operations out, and streams are read from either end, in pages."""
    key, stream = name(), name()
    await store.apply([Write(key, b"v", 60), *(Append(stream, b"%d" % i, 1000) for i in range(10))])
    newest = await store.latest(stream, 3)
    assert [value for _, value in newest] == [b"9", b"8", b"7"]
    assert [value for _, value in await store.latest(stream, 2, before=newest[-1][0])] == [b"6", b"5"]
    oldest = await store.after(stream, "0", 4, 0)
    assert [value for _, value in oldest] == [b"0", b"1", b"2", b"3"]
    assert [value for _, value in await store.after(stream, oldest[-1][0], 2, 0)] == [b"4", b"5"]


async def test_a_stream_keeps_about_so_many(store: RedisStore) -> None:
    """Old entries leave; the server trims by whole nodes, so a few more may stay."""
    stream = name()
    for _ in range(10):
        await store.apply([Append(stream, b"x" * 1000, 20) for _ in range(20)])
    assert 20 <= len(await store.latest(stream, 1000)) < 60


async def test_a_follower_waits_longer_than_a_request_may(store: RedisStore) -> None:
    """A blocking read returns with the next entry, and an empty wait is an empty answer, not an error."""
    stream = name()
    assert await store.after(stream, "0", 10, 120) == []
    waiting = asyncio.create_task(store.after(stream, "0", 10, 5000))
    await asyncio.sleep(0.15)
    await store.apply([Append(stream, b"new", 10)])
    assert [value for _, value in await waiting] == [b"new"]


async def test_another_kind_of_value_is_told_apart(store: RedisStore) -> None:
    """A stream where a value was expected is `wrong_type`, and says nothing against the server."""
    stream = name()
    await store.apply([Append(stream, b"x", 10)])
    for _ in range(6):
        with pytest.raises(StoreUnavailable) as caught:
            await store.get(stream)
        assert caught.value.reason == "wrong_type"
    assert store.state().status == "ok"


@pytest.mark.parametrize("reply", [b":1\r\n", b"*1\r\n:1\r\n", b"*1\r\n*1\r\n:7\r\n", b"+OK\r\n"])
async def test_replies_that_make_no_sense_are_errors_of_the_store(reply: bytes) -> None:
    """A server that answers something else than what was asked raises StoreUnavailable and nothing else."""
    async with scripted_redis(reply) as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        for ask in (store.latest("s", 1), store.after("s", "0", 1, 0)):
            with pytest.raises(StoreUnavailable, match="error"):
                await ask
        if reply != b"+OK\r\n":
            with pytest.raises(StoreUnavailable, match="error"):
                await store.get("k")
        await store.aclose()


async def test_a_burst_beyond_the_pool_is_an_error_not_a_wait(valkey: LocalStore) -> None:
    """More requests at once than connections: the rest are told `busy` at once, and nothing worse is said."""
    answered = 0
    async with asyncio.timeout(30):
        while not answered:  # on a machine that does much else, all of a burst may be too late
            store = RedisStore.from_url(valkey.url)
            results = await asyncio.gather(*(store.get(name()) for _ in range(600)), return_exceptions=True)
            reasons = {result.reason for result in results if isinstance(result, StoreUnavailable)}
            assert reasons <= {"busy", "timeout"}
            assert "busy" in reasons
            answered = sum(result is None for result in results)
            await store.aclose()


async def test_credentials_are_never_said() -> None:
    """A password in the URL works, and is in no repr and in no error, wrong or right."""
    with local_store("--requirepass s3cr3t-canary") as server:
        good = RedisStore.from_url(server.url.replace("//", "//:s3cr3t-canary@"), slack=UNHURRIED)
        await good.apply([Write("k", b"v", 60)])
        assert await good.get("k") == b"v"
        await good.aclose()
        for url in (server.url, server.url.replace("//", "//:wrong-canary@")):
            bad = RedisStore.from_url(url, slack=UNHURRIED)
            with pytest.raises(StoreUnavailable) as caught:
                await bad.get("k")
            assert caught.value.reason == "auth"
            assert "canary" not in f"{caught.value!r} {bad!r} {bad.state()} {caught.value.__cause__!r}"
            await bad.aclose()


@pytest.mark.parametrize(
    "url", ["http://canary@x", "redis://:canary/pass@host:6379", "canary", "redis://h:99x", "redis://h?canary=1"]
)
def test_a_bad_url_is_refused_without_being_repeated(url: str) -> None:
    """What is wrong with it is said, what stood in it is not."""
    with pytest.raises(ValueError, match="URL") as caught:
        RedisStore.from_url(url)
    assert "canary" not in str(caught.value)


async def test_the_limits_of_a_url_cannot_be_widened(valkey: LocalStore) -> None:
    """Options in the URL's query do not replace the client's limits."""
    store = RedisStore.from_url(valkey.url + "?socket_timeout=30&protocol=3")
    valkey.freeze()
    try:
        async with asyncio.timeout(1):
            with pytest.raises(StoreUnavailable):
                await store.get("x")
    finally:
        valkey.thaw()
        await store.aclose()


async def written(store: RedisStore) -> bool:
    """Whether it took a value; a server that has only just begun may be late with its first answers."""
    try:
        await store.ping()
        await store.apply([Write("k", b"v", 60)])
    except StoreUnavailable:
        return False
    return True


async def test_a_unix_socket_will_do(tmp_path: object) -> None:
    """unix:// URLs reach a server without TCP."""
    with local_store(f"--unixsocket {tmp_path}/s") as _:
        until(Path(f"{tmp_path}/s").exists, 10, "the socket")
        store = RedisStore.from_url(f"unix://{tmp_path}/s")
        async with asyncio.timeout(30):
            while not await written(store):
                await asyncio.sleep(0.01)
        assert await store.get("k") == b"v"
        await store.aclose()
