"""What workers tell each other of their backends through the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import orjson
import pytest

from cache.store.base import Append, NoStore, Store, StoreState, StoreUnavailable, Write
from cache.store.redis_store import RedisStore
from gateway.backends.base import BackendRequest, BadStatus, Completion, EventStream, Truncated
from gateway.config.backends import BackendConfig
from gateway.parts.fleet.gossip import STREAM, Gossip
from gateway.parts.fleet.reports import IDLE, Brief, is_pressing, report_of, take_in
from gateway.tiers import Endpoint, SlotRequest
from tests.support.store import local_store
from tests.support.wait import eventually

_SOON_S = 3.0
"""A third of a second as a rule and one at most, on a machine that does nothing else."""


class Silent:
    """A backend that is never called."""

    async def complete(self, request: BackendRequest) -> Completion:
        raise NotImplementedError

    async def stream(self, request: BackendRequest) -> EventStream:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Nothing is open."""


class Memory(NoStore):
    """A store of one stream in memory, that can be down. Ids are milliseconds, set by `at_ms`."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes]] = []
        self.at_ms = 1_000_000
        self.down = False
        self.refused = 0
        self.followers: set[asyncio.Task[object] | None] = set()

    async def apply(self, operations: Sequence[Write | Append]) -> None:
        self._check()
        for operation in operations:
            assert isinstance(operation, Append) and operation.stream == STREAM and operation.keep == 1000
            self.append(operation.value)

    async def latest(self, stream: str, count: int, before: str | None = None) -> list[tuple[str, bytes]]:
        self._check()
        return self.entries[-count:][::-1]

    async def after(self, stream: str, last_id: str, count: int, block_ms: int) -> list[tuple[str, bytes]]:
        self.followers.add(asyncio.current_task())
        for _ in range(20):
            self._check()
            if later := [entry for entry in self.entries if _order(entry[0]) > _order(last_id)]:
                return later[:count]
            await asyncio.sleep(0.005)
        return []

    def state(self) -> StoreState:
        return StoreState("degraded", "refused") if self.down else StoreState("ok")

    def append(self, value: bytes) -> None:
        self.entries.append((f"{self.at_ms}-{len(self.entries)}", value))

    def _check(self) -> None:
        if self.down:
            self.refused += 1
            raise StoreUnavailable("refused")


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def endpoint(
    url: str = "http://127.0.0.1:9/v1", most: int = 8, clock: Callable[[], float] = time.monotonic
) -> Endpoint:
    return Endpoint(BackendConfig(name="local", base_url=url, model="small", max_in_flight=most), Silent(), clock)


def trip(one: Endpoint) -> None:
    for _ in range(5):
        one.take().failed(Truncated("gone"))
    assert one.unavailable()


@asynccontextmanager
async def exchanging(store: Store, *endpoints: Endpoint) -> AsyncIterator[list[Gossip]]:
    """One worker for each endpoint, all at one store."""
    async with AsyncExitStack() as stack:
        exchanges = [Gossip(store, [one]) for one in endpoints]
        for exchange in exchanges:
            exchange.start()
            stack.push_async_callback(exchange.aclose)
        if isinstance(store, Memory):
            await eventually(lambda: len(store.followers) == len(endpoints), _SOON_S, "followers")
        yield exchanges


async def test_a_sibling_soon_knows_of_an_ejection() -> None:
    """And when the endpoint is found well again, it knows that as soon."""
    one, other = endpoint(), endpoint()
    async with exchanging(Memory(), one, other):
        trip(one)
        await eventually(lambda: "failing" in other.unavailable(), _SOON_S, "the sibling's news")
        await eventually(lambda: not one.unavailable(), _SOON_S, "the end of the ejection")
        slot = one.take()
        slot.began()
        slot.succeeded()
        await eventually(lambda: other.breaker.ejection is None, _SOON_S, "the sibling's good news")


async def test_what_a_backend_refused_with_is_known_to_siblings() -> None:
    """The status goes along, since it decides what a client is told where no endpoint is left."""
    one, other = endpoint(), endpoint()
    async with exchanging(Memory(), one, other):
        one.take().failed(BadStatus(402))
        await eventually(lambda: other.refused == "quota", _SOON_S, "the sibling's news")
        assert other.breaker.ejection is not None
        assert other.breaker.ejection.status == 402


def test_an_ejection_that_is_over_but_not_proven_over_is_still_told() -> None:
    """Else every sibling would send all it has to an endpoint that one of them is just about to try."""
    now = 100.0
    one, other = endpoint(clock=lambda: now), endpoint(clock=lambda: now)
    trip(one)
    take_in(other, "one", report_of(one, now), now)
    assert other.breaker.state(now) == "open"
    now += 2
    take_in(other, "one", report_of(one, now), now)
    assert other.breaker.state(now) == "half_open"
    one.take().began()
    take_in(other, "one", report_of(one, now), now)
    assert other.breaker.state(now) == "closed"


async def test_max_in_flight_is_for_all_workers_together() -> None:
    """What one worker uses another may not; what it leaves unused the other may have."""
    one, other = endpoint(most=8), endpoint(most=8)
    async with exchanging(Memory(), one, other):
        slots = [one.take() for _ in range(6)]
        await eventually(lambda: other.capacity == 4, _SOON_S, "an equal part of the sibling's")
        for slot in slots[2:]:
            slot.free()
        await eventually(lambda: other.capacity == 6, _SOON_S, "more while the first uses less")


async def test_latencies_are_shared() -> None:
    """A worker that has had no call yet knows how fast the backend is."""
    one, other = endpoint(), endpoint()
    async with exchanging(Memory(), one, other):
        for _ in range(30):
            one.take(SlotRequest(tokens_in=10)).began()
        await eventually(
            lambda: other.latency.ttft(0.5, 10, other.now()) is not None, _SOON_S, "the sibling's forecast"
        )


async def test_the_same_name_elsewhere_is_another_backend() -> None:
    """Two deployments at one store that both call a backend `local` have nothing to tell each other."""
    one, other, same = endpoint(), endpoint(url="http://127.0.0.1:8/v1"), endpoint()
    async with exchanging(Memory(), one, other, same):
        trip(one)
        await eventually(lambda: "failing" in same.unavailable(), _SOON_S, "the sibling's news")
        assert not other.unavailable()


async def test_its_own_entries_and_old_ones_are_passed_over() -> None:
    """An echo of our own rest must not prolong it, and one from before the store was slow is no news."""
    store, one = Memory(), endpoint()
    async with exchanging(store, one) as (exchange,):
        slot = one.take()
        await eventually(lambda: bool(store.entries), _SOON_S, "an entry")
        (name,) = orjson.loads(store.entries[0][1])["backends"]
        bad = {name: {"in_flight": 7, "ejection": {"cause": "key", "reason": "no", "left_s": 9}}}
        store.append(orjson.dumps({"v": 2, "worker": exchange.worker, "backends": bad}))
        store.append(orjson.dumps({"v": 2, "worker": "old", "backends": bad}))
        store.at_ms += 2001
        store.append(orjson.dumps({"v": 2, "worker": "new", "backends": {name: {"in_flight": 3}}}))
        await eventually(lambda: one.capacity == 5, _SOON_S, "the new one's word")
        assert not one.unavailable()
        slot.free()


def test_what_changes_others_share_is_told_before_the_next_heartbeat() -> None:
    """The load of a backend that is hardly used can wait; an ejection, and who waits for a full backend, cannot."""
    one = endpoint(most=8)
    slots = [one.take() for _ in range(4)]
    assert not is_pressing(one, IDLE)
    slots.append(one.take())
    assert is_pressing(one, IDLE)
    full = Brief(5, 0, None, limited=False)
    for slot in slots:
        slot.free()
    assert is_pressing(one, full)
    trip(one)
    assert is_pressing(one, IDLE)


async def test_load_reaches_the_stream_once_a_second() -> None:
    """A call now and then costs an entry a second, not four."""
    store, one = Memory(), endpoint()
    async with exchanging(store, one):
        for _ in range(20):
            slot = one.take()
            await asyncio.sleep(0.06)
            slot.free()
        assert len(store.entries) <= 3


async def test_workers_without_news_are_silent() -> None:
    """A gateway at rest writes nothing."""
    store, one = Memory(), endpoint()
    async with exchanging(store, one):
        one.take().free()
        await asyncio.sleep(0.6)
        count = len(store.entries)
        await asyncio.sleep(0.6)
        assert len(store.entries) == count <= 2


HOSTILE = [
    b"",
    b"not json",
    b"[]",
    b"null",
    b'{"v":1,"worker":"x","backends":{}}',
    b'{"v":2,"worker":7,"backends":{}}',
    b'{"v":2,"worker":"x","backends":[]}',
    b'{"v":2,"worker":"' + b"x" * 100_000 + b'","backends":{}}',
    b"[" * 5000,
]
HOSTILE_STATES: list[object] = [
    None,
    7,
    [],
    {"in_flight": -1, "waiting": "9", "ejection": 7, "idle_s": "x", "latency": [], "quota_s": []},
    {"in_flight": 10**15, "waiting": True, "idle_s": -5, "quota_s": -5},
    {"in_flight": 2.5, "idle_s": 1e300, "quota_s": 1e300},
    {"ejection": {"cause": "failing", "reason": "x", "left_s": -1}},
    {"ejection": {"cause": "failing", "reason": "x", "left_s": "9"}},
    {"ejection": {"cause": ["failing"], "reason": "x", "left_s": 9}},
    {"ejection": {"cause": "boredom", "reason": "x", "left_s": 9}},
    {"ejection": {"cause": "failing", "reason": 5, "left_s": 9}},
    {"latency": {"n": [1, "x", 10**18, 10**18, -1, 2]}},
]


async def test_whatever_is_hostile_in_the_stream_changes_nothing_and_stops_nothing() -> None:
    """Wrong types, wrong versions, huge numbers: each is left out, and the next good entry is heard."""
    store, one = Memory(), endpoint()
    async with exchanging(store, one) as (exchange,):
        (name,) = exchange._endpoints
        for value in HOSTILE:
            store.append(value)
        for state in HOSTILE_STATES:
            store.append(orjson.dumps({"v": 2, "worker": "x", "backends": {name: state, "unknown": state}}))
        store.append(orjson.dumps({"v": 2, "worker": "x", "backends": {name: {"in_flight": 3}}}))
        await eventually(lambda: one.capacity == 5, _SOON_S, "a good entry")
        assert not one.unavailable() and one.latency.ttft(0.5, 10, one.now()) is None


async def test_a_reason_cannot_carry_control_characters() -> None:
    """It ends up in /readyz and in logs."""
    store, one = Memory(), endpoint()
    async with exchanging(store, one) as (exchange,):
        (name,) = exchange._endpoints
        rest = {"cause": "failing", "reason": "a\r\nb\x1b[31m" + "c" * 5000, "left_s": 5}
        store.append(orjson.dumps({"v": 2, "worker": "x", "backends": {name: {"ejection": rest}}}))
        await eventually(lambda: bool(one.unavailable()), _SOON_S, "the ejection")
        assert one.unavailable().isprintable() and len(one.unavailable()) <= 200


async def test_when_the_store_comes_back_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """While it is down nothing is logged per attempt, and what changed meanwhile is told afterwards."""
    store, one, other = Memory(), endpoint(), endpoint()
    async with exchanging(store, one, other):
        store.down = True
        slot = one.take()
        await eventually(lambda: store.refused >= 4, 3.0, "attempts")
        assert not caplog.records
        store.down = False
        await eventually(lambda: other.capacity == 7, _SOON_S, "the news")
        slot.free()


async def test_without_a_store_nothing_runs() -> None:
    """There is nobody to tell."""
    before = len(asyncio.all_tasks())
    async with exchanging(NoStore(), endpoint()):
        assert len(asyncio.all_tasks()) == before


async def test_over_a_real_store_a_sibling_soon_knows() -> None:
    """The same through a Valkey."""
    with local_store() as server:
        stores = [RedisStore.from_url(server.url) for _ in range(2)]
        one, other = endpoint(), endpoint()
        async with exchanging(stores[0], one), exchanging(stores[1], other):
            slot = one.take()
            await eventually(lambda: other.capacity == 7, 5.0, "a first word")
            slot.free()
            trip(one)
            await eventually(lambda: "failing" in other.unavailable(), _SOON_S, "the sibling's news")
        for store in stores:
            await store.aclose()
