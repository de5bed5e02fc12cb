"""The Redis rows of the fault table that show at the store itself: R1, R2, R3, R4, R5, R6, R8."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from cache.redis_store import RedisStore
from cache.store import Append, StoreUnavailable, Write
from tests.support.redis_script import scripted_redis
from tests.support.store import LocalStore, free_port, local_store
from tests.support.waiting import until


async def reason(store: RedisStore, key: str = "k") -> str:
    """Why a read failed, or '' if it did not."""
    try:
        await store.get(key)
    except StoreUnavailable as error:
        return error.reason
    return ""


async def test_r1_down_at_start_then_up() -> None:
    """A store that is down at start is said to be, costs nothing, and is used as soon as it is there."""
    server = LocalStore(port=free_port())
    store = RedisStore.from_url(server.url)
    with pytest.raises(StoreUnavailable, match="refused"):
        await store.ping()
    assert store.state().status == "degraded"
    assert store.state().reason == "refused"
    assert await reason(store) == "open"
    server.start()
    try:
        await until(lambda: store.state().status == "ok", 5, "the store's return")
        assert await reason(store) == ""
    finally:
        await store.aclose()
        server.close()


async def test_r2_killed_mid_run_and_restarted() -> None:
    """A crash costs five quick failures, then nothing; one probe a second finds the store again."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        await store.apply([Write("k", b"v", 60)])
        server.stop()
        assert await reason(store) in {"lost", "refused"}
        assert [await reason(store) for _ in range(4)] == ["refused"] * 4
        assert [await reason(store) for _ in range(100)] == ["open"] * 100
        server.start()
        await until(lambda: store.state().status == "ok", 5, "the store's return")
        await store.apply([Write("k", b"v2", 60)])
        assert await store.get("k") == b"v2"
        await store.aclose()


async def test_r2_frozen_mid_run() -> None:
    """A silent store costs each request a short wait until the breaker opens, then nothing, and one task probes."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        await store.apply([Write("k", b"v", 60)])
        server.freeze()
        try:
            began = time.perf_counter()
            assert [await reason(store) for _ in range(5)] == ["timeout"] * 5
            assert time.perf_counter() - began < 5 * 0.05 + 0.2
            began = time.perf_counter()
            assert [await reason(store) for _ in range(1000)] == ["open"] * 1000
            assert time.perf_counter() - began < 0.5
            probes = [task for task in asyncio.all_tasks() if task.get_name() == "store-probe"]
            assert len(probes) == 1
            await until(lambda: store.failures["timeout"] >= 6, 5, "a probe")
            assert store.state().status == "degraded"
        finally:
            server.thaw()
        await until(lambda: store.state().status == "ok", 5, "the store's return")
        assert await store.get("k") == b"v"
        await store.aclose()


async def test_r2_a_follower_sees_the_freeze_too() -> None:
    """A blocking read of a frozen store ends with an error of its own, and never opens the requests' breaker."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        server.freeze()
        try:
            with pytest.raises(StoreUnavailable, match="timeout"):
                await store.after("s", "0", 10, 50)
            assert store.state().status == "ok"
        finally:
            server.thaw()
            await store.aclose()


async def test_r3_a_store_that_is_always_slow_is_left_alone() -> None:
    """Answers that come after the budget count as failures, and probes are held to the same budget."""
    async with scripted_redis(b"$-1\r\n", delay_s=0.04) as server:
        store = RedisStore.from_url(server.url)
        assert [await reason(store) for _ in range(6)] == ["timeout"] * 5 + ["open"]
        server.delay_s, server.reply = 0.0, b"+PONG\r\n"
        await until(lambda: store.state().status == "ok", 5, "the store's return")
        await store.aclose()


async def test_r3_our_own_lag_is_not_the_store_s() -> None:
    """A reply that waits in the socket while the event loop is busy is still read."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        await store.apply([Write("k", b"v", 60)])
        for _ in range(8):
            reading = asyncio.create_task(store.get("k"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            time.sleep(0.03)
            assert await reading == b"v"
        assert not store.failures
        await store.aclose()


async def test_r4_full_memory_stops_writes_and_not_reads() -> None:
    """At maxmemory reads go on; the first refused write rests all writes for 30 s, counted."""
    now = [1000.0]
    with local_store("--maxmemory 3mb --maxmemory-policy noeviction") as server:
        store = RedisStore.from_url(server.url, clock=lambda: now[0])
        await store.apply([Write("k", b"v", 600)])

        async def write(value: bytes) -> str:
            try:
                await store.apply([Write(f"big:{random.random()}", value, 600), Append("s", value, 10)])
            except StoreUnavailable as error:
                return error.reason
            return ""

        while await write(b"x" * 100_000) == "":
            pass
        assert store.failures["full"] == 1
        assert await write(b"tiny") == "full"
        assert store.failures["full"] == 2
        assert await store.get("k") == b"v"
        assert store.state().reason == "full"
        now[0] += 31
        assert store.state().status == "ok"
        await store.aclose()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("-LOADING Valkey is loading the dataset in memory", "loading"),
        ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown"),
        ("-MOVED 3999 127.0.0.1:6381", "moved"),
        ("-ASK 3999 127.0.0.1:6381", "moved"),
        ("-CLUSTERDOWN The cluster is down", "clusterdown"),
        ("-NOAUTH Authentication required.", "auth"),
        ("-WRONGPASS invalid username-password pair or user is disabled.", "auth"),
        ("-NOPERM this user has no permissions to run the 'get' command", "auth"),
        ("-ERR max number of clients reached", "max_clients"),
        ("-NOSCRIPT No matching script.", "error"),
        ("-ERR something new", "error"),
        ("-READONLY You can't write against a read only replica.", "readonly"),
        ("gibberish", "error"),
    ],
)
async def test_r5_every_class_of_error_is_mapped_and_counted(said: str, expected: str) -> None:
    """Whatever the server answers, the caller sees one exception with a stable word, and five in a row open."""
    async with scripted_redis(said.encode() + b"\r\n") as server:
        store = RedisStore.from_url(server.url)
        assert [await reason(store) for _ in range(6)] == [expected] * 5 + ["open"]
        assert store.failures[expected] == 5
        await store.aclose()


async def test_r5_a_failover_drops_the_connections() -> None:
    """READONLY means the address now leads to a replica: the next write dials, and so resolves, anew."""
    async with scripted_redis(b"-READONLY You can't write against a read only replica.\r\n") as server:
        store = RedisStore.from_url(server.url)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="readonly"):
                await store.apply([Write("k", b"v", 1)])
        assert server.connections >= 3
        await store.aclose()


async def test_r8_a_cancelled_read_never_hands_its_reply_to_the_next_reader() -> None:
    """Thousands of reads cancelled at random moments: every read that completes has its own key's value."""
    keys = [f"k{i}" for i in range(50)]
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        await store.apply([Write(key, f"value of {key}".encode() * 50, 600) for key in keys])
        wrong: list[tuple[str, bytes | None]] = []
        done = cancelled = 0

        async def read(key: str) -> None:
            nonlocal done
            value = await store.get(key)
            done += 1
            if value != f"value of {key}".encode() * 50:
                wrong.append((key, value))

        chance = random.Random(7)
        for _ in range(250):
            tasks = [asyncio.create_task(read(chance.choice(keys))) for _ in range(16)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.6:
                    task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                cancelled += isinstance(result, asyncio.CancelledError)
        assert wrong == []
        assert cancelled > 1000
        assert done > 1000
        assert set(store.failures) <= {"busy"}
        await store.aclose()
