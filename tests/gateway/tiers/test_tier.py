"""A tier: which of its endpoints gets a request, and what routing may know of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container

import pytest

from gateway.backends.base import BadStatus, Saturated, Unreachable
from gateway.tiers import Endpoint, Slot, SlotRequest, Tier
from tests.gateway.tiers.endpoints import BATCH, CHAT, Clock, endpoint_of, fail, unconfigured


def pair(clock: Clock, **changes: object) -> tuple[Endpoint, Endpoint, Tier]:
    a, b = endpoint_of(clock, "a", **changes), endpoint_of(clock, "b", **changes)
    return a, b, Tier("pair", [a, b], clock)


async def chosen(tier: Tier, failed: Container[Endpoint] = (), times: int = 20) -> set[Endpoint]:
    """Which endpoints so many requests go to, one at a time."""
    found = set()
    for _ in range(times):
        slot = await tier.acquire(CHAT, failed)
        slot.free()
        found.add(slot.endpoint)
    return found


async def test_the_last_endpoint_is_asked_though_it_fails(clock: Clock, endpoint: Endpoint) -> None:
    """A tier of nothing but failing endpoints says so to routing, and still gives one when it is asked."""
    fail(endpoint, *[Unreachable()] * 5)
    tier = Tier("local", [endpoint], clock)
    assert tier.health().failing
    assert await chosen(tier) == {endpoint}
    fail(endpoint, BadStatus(401))
    assert not tier.health().failing
    with pytest.raises(Saturated):
        await tier.acquire(CHAT)


async def test_goes_to_the_less_loaded_that_is_available(clock: Clock) -> None:
    """All of them get some while they are equal, the less loaded one otherwise, never one that is full or rests."""
    a, b, tier = pair(clock)
    assert await chosen(tier) == {a, b}
    a.take()
    assert await chosen(tier) == {b}
    b.take()
    b.take()
    assert await chosen(tier) == {a}
    fail(a, BadStatus(401))
    with pytest.raises(Saturated):
        await tier.acquire(SlotRequest("chat", wait_s=0.01, max_waiting=5))


async def test_goes_to_one_that_has_not_failed(clock: Clock) -> None:
    """An endpoint that failed the same request is asked again only when no other can be."""
    a, b, tier = pair(clock)
    b.take()
    assert await chosen(tier, [a]) == {b}
    b.take()
    assert await chosen(tier, [a]) == {a}


async def test_a_slow_endpoint_gets_little(clock: Clock) -> None:
    """It is not ejected: live latency keeps all but a few calls away from it while the others have room."""
    a, b, tier = pair(clock, max_in_flight=20)
    for endpoint, seconds in ((a, 0.2), (b, 2.0)):
        for _ in range(50):
            slot = endpoint.take(CHAT)
            slot.called_at = clock.now - seconds
            slot.began()
            slot.succeeded()
    assert await chosen(tier) == {a}
    assert (a.unavailable(), b.unavailable()) == ("", "")


async def test_waits_where_the_wait_is_shortest(clock: Clock) -> None:
    """With all of them full a request joins the line of the one that it expects to have a place first."""
    a, b, tier = pair(clock, max_in_flight=1)
    slots = {}
    for endpoint, seconds in ((a, 9.0), (b, 1.0)):
        slot = endpoint.take(CHAT)
        clock.now += seconds
        slot.free()
        slots[endpoint] = endpoint.take(CHAT)
    waiting = asyncio.create_task(tier.acquire(CHAT))
    await asyncio.sleep(0)
    assert (a.queue.size, b.queue.size) == (0, 1)
    slots[b].free()
    assert (await waiting).endpoint is b


async def full_pair(clock: Clock, *, waits: int) -> tuple[Tier, list[Slot], list[asyncio.Task[Slot]]]:
    """Return a tier of two endpoints of one taken slot each; so many requests wait at the first, a second apart."""
    waiting: Counter[str] = Counter()
    a, b = (endpoint_of(clock, name, waiting, max_in_flight=1) for name in ("a", "b"))
    tier = Tier("hosted", [a, b], clock)
    slots = [a.take(CHAT), b.take(CHAT)]
    tasks = []
    for _ in range(waits):
        tasks.append(asyncio.create_task(a.wait(CHAT)))
        await asyncio.sleep(0)
        clock.now += 1.0
    return tier, slots, tasks


async def test_the_longest_waiter_goes_first_wherever_it_waits(clock: Clock) -> None:
    """A slot that becomes free at one endpoint goes to who waits at another, before who came later."""
    tier, (at_a, at_b), (eldest, second) = await full_pair(clock, waits=2)
    youngest = asyncio.create_task(at_b.endpoint.wait(CHAT))
    await asyncio.sleep(0)
    at_b.free()
    slot = await eldest
    assert slot.endpoint is at_b.endpoint
    slot.free()
    assert (await second).endpoint is at_b.endpoint
    at_a.free()
    assert (await youngest).endpoint is at_a.endpoint
    assert [endpoint.queue.size for endpoint in tier.endpoints] == [0, 0]


async def test_who_comes_goes_behind_who_waits_at_an_endpoint_that_is_back(clock: Clock) -> None:
    """When an endpoint may be called again, its first slot is for those who wait at its siblings, not for newcomers."""
    tier, (_, at_b), (eldest,) = await full_pair(clock, waits=1)
    at_b.endpoint.breaker.pause(1.0, "busy", clock.now)
    at_b.free()
    await asyncio.sleep(0)
    assert not eldest.done()
    clock.now += 2.0
    at_b.endpoint.well_again(clock.now, clock.now, retry=False)
    newcomer = asyncio.create_task(tier.acquire(CHAT))
    await asyncio.sleep(0)
    assert (await eldest).endpoint is at_b.endpoint
    assert not newcomer.done()
    newcomer.cancel()
    await asyncio.wait([newcomer])


async def test_a_retry_waits_where_it_is(clock: Clock) -> None:
    """A request that one endpoint has failed is not handed back to it when a slot there becomes free."""
    tier, (at_a, at_b), _ = await full_pair(clock, waits=0)
    retry = asyncio.create_task(at_a.endpoint.wait(CHAT, retry=True))
    await asyncio.sleep(0)
    at_b.free()
    await asyncio.sleep(0)
    assert not retry.done()
    at_a.free()
    assert (await retry).endpoint is at_a.endpoint
    assert tier.endpoints[1].in_flight == 0


async def test_a_batch_request_does_not_pass_those_in_line(clock: Clock, endpoint: Endpoint) -> None:
    """A place that is reserved is not taken by the next batch request either."""
    tier = Tier("local", [endpoint_of(clock, max_in_flight=10)], clock)
    for slot in [await tier.acquire(CHAT) for _ in range(10)]:
        slot.free()
    first = await tier.acquire(BATCH)
    waiting = [asyncio.create_task(tier.acquire(BATCH)) for _ in range(3)]
    await asyncio.sleep(0)
    interactive = await tier.acquire(CHAT)
    first.free()
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert done == {waiting[0]}
    interactive.free()
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)


async def test_a_conversation_stays_where_it_was(clock: Clock) -> None:
    """With `sticky` all requests of one conversation go to one endpoint, those of many to all."""
    endpoints = [endpoint_of(clock, name, max_in_flight=50) for name in ("a", "b", "c")]
    tier = Tier("sticky", endpoints, clock, "sticky")
    homes: list[set[Endpoint]] = []
    for affinity in range(1, 40):
        slots: list[Slot] = [await tier.acquire(SlotRequest("chat", affinity=affinity)) for _ in range(4)]
        homes.append({slot.endpoint for slot in slots})
        for slot in slots:
            slot.free()
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == set(endpoints)


async def test_a_retry_is_free_towards_a_backend_that_is_well(clock: Clock) -> None:
    """Towards any other a few are allowed, then none until the requests of ten seconds pay for them."""
    a, b, tier = pair(clock)
    for _ in range(100):
        assert tier.may_retry([a])
    b.well = False
    assert [tier.may_retry([a]) for _ in range(4)] == [True, True, True, False]
    clock.now += 11
    for _ in range(100):
        (await tier.acquire(CHAT)).free()
    assert sum(tier.may_retry([a]) for _ in range(50)) == 10


def test_health_of_a_tier(clock: Clock) -> None:
    """A tier is available while one endpoint is, can what all its endpoints can, and counts the configured ones."""
    a = endpoint_of(clock, "a", capabilities=["tools", "json"])
    b = endpoint_of(clock, "b", capabilities=["tools", "vision"])
    c = unconfigured(clock, "c")
    tier = Tier("hosted", [a, b, c], clock)
    assert (tier.health().unavailable, tier.health().endpoints) == ("", 2)
    assert tier.health().capabilities == {"tools", "n", "prompt_cache_key"}
    fail(a, BadStatus(401))
    assert tier.health().unavailable == ""
    fail(b, BadStatus(429, retry_after_s=9))
    assert tier.health().unavailable
    assert tier.pause_s() == 9
    assert Tier("alone", [c], clock).health().unavailable == "unconfigured: no key"
    assert Tier("alone", [c], clock).pause_s() is None


async def test_health_says_what_the_next_call_may_expect(clock: Clock) -> None:
    """The forecast is of the fastest endpoint, with what its line adds now."""
    a, b, tier = pair(clock, max_in_flight=1, queue={"wait": "60s"})
    for endpoint, seconds in ((a, 0.2), (b, 2.0)):
        for _ in range(30):
            slot = endpoint.take(CHAT)
            clock.now += seconds
            slot.began()
            slot.succeeded()
    forecast = tier.health(100).forecast
    assert forecast is not None
    assert forecast.ttft_s == pytest.approx(0.2, rel=0.06)
    assert forecast.queue_s == 0
    a.take(CHAT)
    b.take(CHAT)
    waiting = [asyncio.create_task(a.wait(CHAT)) for _ in range(4)]
    await asyncio.sleep(0)
    forecast = tier.health(100).forecast
    assert forecast is not None
    assert forecast.queue_s == pytest.approx(1.0, rel=0.1)
    assert forecast.ttft_s == pytest.approx(1.2, rel=0.1)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_a_tier_that_nobody_calls_is_tried_now_and_then(clock: Clock) -> None:
    """A forecast that keeps everyone away would never be proved wrong: some requests are not told of it."""
    a, _, tier = pair(clock)
    (await tier.acquire(CHAT)).free()
    assert all(tier.health().forecast for _ in range(100))
    clock.now += 6
    assert sum(tier.health().forecast is None for _ in range(100)) in (4, 5)
    assert not a.unavailable()
