"""The Redis rows of the fault table that show at the store itself: R1 to R6, R8, R10 to R12."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import numpy as np
import pytest
import redis

from cache.response_cache import ResponseCache
from cache.store.base import Append, StoreUnavailable, Write
from cache.store.redis_node import Node
from cache.store.redis_store import RedisStore
from gateway.config.addresses import open_store
from tests.cache.samples import Facts, answer, body, policy
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED, LocalStore, free_port, local_store
from tests.support.wait import eventually


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
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
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
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
        await store.apply([Write("k", b"v2", 60)])
        assert await store.get("k") == b"v2"
        await store.aclose()


async def test_r2_frozen_mid_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent store costs each request a short wait until the breaker opens, then nothing, and one task probes."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        await store.apply([Write("k", b"v", 60)])
        pings, ping = list[float](), Node.ping

        async def counted(node: Node) -> None:
            pings.append(time.monotonic())
            await ping(node)

        monkeypatch.setattr(Node, "ping", counted)
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
            await eventually(lambda: len(pings) >= 2, 10, "a second probe after one that failed")
            assert store.state().status == "degraded"
        finally:
            server.thaw()
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
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
    async with scripted_redis(b"$-1\r\n", delay_s=0.5) as server:
        store = RedisStore.from_url(server.url)
        assert [await reason(store) for _ in range(6)] == ["timeout"] * 5 + ["open"]
        server.delay_s, server.reply = 0.0, b"+PONG\r\n"
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
        await store.aclose()


async def test_r3_a_connection_that_opens_slowly_is_there_for_the_next_request() -> None:
    """A request waits no longer for it than for a reply; signing in goes on, and one connection serves both."""
    async with scripted_redis(b"+OK\r\n", delay_s=0.1) as server:
        store = RedisStore.from_url(server.url.replace("//", "//:secret@"))
        assert await reason(store) == "timeout"
        idle = store._nodes.any()._connections._idle
        await eventually(lambda: idle, 5, "the connection")
        server.delay_s = 0.0
        assert await store.get("k") == b"OK"
        assert server.connections == 1
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
        assert store.state().status == "ok"
        await store.aclose()


async def test_r4_full_memory_stops_writes_and_not_reads() -> None:
    """At maxmemory reads go on; the first refused write rests all writes for 30 s, whatever room there is."""
    now = [1000.0]
    with local_store("--maxmemory 3mb --maxmemory-policy noeviction") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED, clock=lambda: now[0])
        await store.apply([Write("k", b"v", 600)])

        async def write(value: bytes) -> str:
            try:
                await store.apply([Write(f"big:{random.random()}", value, 600), Append("s", value, 10)])
            except StoreUnavailable as error:
                return error.reason
            return ""

        while await write(b"x" * 100_000) == "":
            pass
        with redis.Redis(port=server.port) as administrator:
            administrator.config_set("maxmemory", 0)
        assert await write(b"tiny") == "full"
        assert await store.get("k") == b"v"
        assert store.state().reason == "full"
        now[0] += 31
        assert store.state().reason == "full"
        assert await write(b"tiny") == ""
        assert store.state().status == "ok"
        await store.aclose()


async def test_r4_a_full_disk_stops_writes_and_not_reads() -> None:
    """A server that cannot save is read, whatever it says to PING; it is said to refuse writes until it takes one."""
    now = [1000.0]
    with local_store("--save 3600 1") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED, clock=lambda: now[0])
        await store.apply([Write("k", b"v", 600)])
        with redis.Redis(port=server.port) as administrator:
            server.lose_disk()
            for write in (Write("k2", b"v", 600), Append("s", b"v", 10)):
                with pytest.raises(StoreUnavailable, match="disk"):
                    await store.apply([write])
                assert [await reason(store) for _ in range(6)] == [""] * 6
                now[0] += 31
            await store.ping()
            assert (store.state().reason, await store.get("k")) == ("disk", b"v")
            administrator.config_set("stop-writes-on-bgsave-error", "no")
        now[0] += 31
        assert store.state().reason == "disk"
        await store.apply([Write("k2", b"v", 600)])
        assert store.state().status == "ok"
        await store.aclose()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("-LOADING Valkey is loading the dataset in memory", "loading"),
        ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown"),
        ("-MOVED 3999 127.0.0.1:1", "refused"),
        ("-ASK 3999 127.0.0.1:1", "refused"),
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
async def test_r5_every_class_of_error_is_mapped_and_counts_as_a_failure(said: str, expected: str) -> None:
    """Whatever the server answers, the caller sees one exception with a stable word, and five in a row open."""
    async with scripted_redis(said.encode() + b"\r\n") as server:
        store = open_store(server.url, slack=UNHURRIED)
        assert [await reason(store) for _ in range(6)] == [expected] * 5 + ["open"]
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
        began = time.monotonic()
        while min(done, cancelled) < 2000:
            assert time.monotonic() - began < 60
            tasks = [asyncio.create_task(read(chance.choice(keys))) for _ in range(16)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            for task in tasks:
                if chance.random() < 0.6:
                    task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                cancelled += isinstance(result, asyncio.CancelledError)
        assert wrong == []
        await store.aclose()


FACTS = Facts()
VECTOR = np.array([1, 0, 0, 0], np.float32)


@pytest.mark.parametrize("damage", ["garbage", "truncated", "flipped", "foreign", "another kind"])
async def test_r6_a_damaged_entry_is_a_miss_and_is_deleted(damage: str) -> None:
    """Whatever lies under a key and is not the entry written for it is never served; it is deleted and counted."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        cache = ResponseCache(store, embedder_name="e", dimension=4)
        plan = cache.plan(body("Where is Rome?"), policy(), "t", FACTS)
        other = cache.plan(body("Where is Oslo?"), policy(), "t", FACTS)
        await cache.write(plan, answer())
        await cache.write(other, answer("In Norway."))
        assert plan.keys is not None and other.keys is not None
        key, whole = plan.keys.key, await store.get(plan.keys.key)
        assert whole is not None
        if damage == "another kind":
            await store.delete(key)
            await store.apply([Append(key, b"x", 10)])
        else:
            bad = {
                "garbage": b"\x80\x04cposix\nsystem\n",
                "truncated": whole[:-1],
                "flipped": whole[:-3] + b"!" + whole[-2:],
                "foreign": await store.get(other.keys.key) or b"",
            }[damage]
            await store.apply([Write(key, bad, 60)])
        lookup = await cache.exact(plan)
        assert (lookup.outcome, lookup.reason, lookup.hit) == ("miss", "corrupt", None)
        await cache.aclose()
        assert await store.get(key) is None
        assert (await cache.exact(plan)).reason == "absent"
        await store.aclose()


async def test_r10_a_lost_ttl_or_a_skewed_clock_serves_nothing_expired() -> None:
    """The times inside the entry decide, even when the server would keep it for ever."""
    now = [1_000_000.0]
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        cache = ResponseCache(store, embedder_name="e", dimension=4, clock=lambda: now[0])
        plan = cache.plan(body("Where is Rome?"), policy(), "t", FACTS)
        await cache.write(plan, answer(), VECTOR)
        assert plan.keys is not None
        value = await store.get(plan.keys.key)
        await store.apply([Write(plan.keys.key, value or b"", 10**9)])
        assert (await cache.exact(plan)).outcome == "hit"
        now[0] += 24 * 3600
        assert (await cache.exact(plan)).reason == "expired"
        assert (await cache.semantic(plan, VECTOR)).outcome == "miss"
        now[0] -= 48 * 3600
        # A clock behind the writer's: the answer is served, and is no younger than new.
        lookup = await cache.exact(plan)
        assert lookup.hit is not None
        assert lookup.hit.age_s == 0
        await cache.aclose()
        await store.aclose()


async def test_r11_r12_an_emptied_store_and_an_index_that_remembers() -> None:
    """After FLUSHALL only the hit rate falls: a neighbour whose entry is gone is a miss, and is forgotten."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        cache = ResponseCache(store, embedder_name="e", dimension=4)
        await cache.write(cache.plan(body("Where is Rome?"), policy(), "t", FACTS), answer(), VECTOR)
        server.stop()
        server.start()
        with contextlib.suppress(StoreUnavailable):  # the connections at hand are still those to the old server
            await store.ping()
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
        plan = cache.plan(body("where is Rome"), policy(), "t", FACTS)
        assert (await cache.exact(plan)).outcome == "miss"
        assert (await cache.semantic(plan, VECTOR)).reason == "absent"
        assert (await cache.semantic(plan, VECTOR)).reason == "no_neighbour"
        await cache.aclose()
        await store.aclose()


async def test_r2_a_dead_store_is_an_outcome_for_the_cache() -> None:
    """Frozen or gone, every lookup and every write ends with an outcome and never with an exception."""
    with local_store() as server:
        store = RedisStore.from_url(server.url)
        cache = ResponseCache(store, embedder_name="e", dimension=4)
        await cache.start()
        plan = cache.plan(body("Where is Rome?"), policy(), "t", FACTS)
        await cache.write(plan, answer(), VECTOR)
        server.freeze()
        outcomes = [(await cache.exact(plan)).outcome for _ in range(9)]
        # SIGSTOP takes effect a moment after it was sent: the server may still answer one.
        assert outcomes[-8:] == ["timeout"] * 5 + ["open"] * 3 or outcomes == ["timeout"] * 5 + ["open"] * 4
        assert (await cache.semantic(plan, VECTOR)).outcome == "open"
        assert (await cache.write(plan, answer(), VECTOR)).reason == "open"
        server.thaw()
        await eventually(lambda: store.state().status == "ok", 5, "the store's return")
        assert (await cache.exact(plan)).outcome == "hit"
        await cache.aclose()
        await store.aclose()
