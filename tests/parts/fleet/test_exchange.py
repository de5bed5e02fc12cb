from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from cache.flights import Flight, Landing
from cache.store.base import NoStore
from cache.store.redis_store import RedisStore
from cache.write import DelayedWrites
from gateway.errors import ApiError, InternalError, InvalidRequest, Overloaded, retry_after
from gateway.parts.fleet.exchange import FlightExchange, Leases, Publisher, _packed, _unpacked, can_serve
from tests.cache.test_flights import DONE, HEAD, all_of, flight
from tests.support.wait import eventually


async def test_a_publisher_that_is_dismissed_before_it_has_begun_leaves_the_flight() -> None:
    """Another worker can ask and take it back in one page of the stream; the flight then has its own readers only."""
    flight = Flight("key", time.monotonic() + 60.0, full_deadline=True)
    reader, emptied = flight.subscribe(), []
    flight.on_empty = lambda: emptied.append(True)
    publisher = Publisher(NoStore(), flight)
    publisher.wanted("another worker's flight")
    publisher.gone("another worker's flight")
    await asyncio.wait({publisher.task})
    assert flight.readers == 1
    reader.leave()
    assert emptied


def exchange(store: RedisStore) -> FlightExchange:
    one = FlightExchange(store, DelayedWrites(store))
    one.start()
    return one


async def pair(
    store: RedisStore, key: str
) -> tuple[FlightExchange, Flight, FlightExchange, Flight, asyncio.Task[None]]:
    """A flight with the lease, and another worker's that reads along."""
    maker, other = exchange(store), exchange(store)
    await asyncio.sleep(0.1)
    made, copy = flight(key), flight(key)
    copy.ident = f"other-{copy.ident}"
    assert (await maker.leases.claim(made, f"{key}:x")).lease is not None
    async with asyncio.timeout(30):
        while (theirs := (await other.leases.claim(copy, f"{key}:x")).theirs) is None:
            other.leases.release(copy)
    assert can_serve(theirs, time.monotonic() + 100)
    return maker, made, other, copy, asyncio.create_task(other.relay(copy, theirs))


def key() -> str:
    return f"test:{{{time.monotonic_ns()}}}"


async def test_another_worker_reads_along(store: RedisStore) -> None:
    """What came before it asked, what comes after, and the end, in order; the head with it."""
    maker, made, other, copy, relaying = await pair(store, key())
    made.begin(HEAD)
    reader = copy.subscribe()
    for number in range(200):
        made.add(b"data: %d\n\n" % number)
        await asyncio.sleep(0.0005)
    made.land(DONE)
    assert await all_of(reader) == b"".join(b"data: %d\n\n" % n for n in range(200))
    await relaying
    assert (copy.head, copy.landing) == (HEAD, DONE)
    await maker.aclose()
    await other.aclose()


async def test_a_failure_and_a_break_are_told_too(store: RedisStore) -> None:
    """With the error as it was packed, or the word of what broke it."""
    maker, made, other, copy, relaying = await pair(store, key())
    made.land(Landing("failed", error=InvalidRequest("why")))
    await relaying
    assert copy.landing is not None
    assert (copy.landing.end, str(copy.landing.error)) == ("failed", "why")
    await maker.aclose()
    await other.aclose()
    maker, made, other, copy, relaying = await pair(store, key())
    made.begin(HEAD)
    made.land(Landing("broken", "upstream_truncated"))
    await relaying
    assert copy.landing == Landing("broken", "upstream_truncated")
    await maker.aclose()
    await other.aclose()


async def test_readers_elsewhere_keep_a_flight_going_until_they_leave(store: RedisStore) -> None:
    """The maker's own readers may all have left; when the last one elsewhere leaves too, the flight ends at once."""
    maker, made, other, copy, relaying = await pair(store, key())
    emptied: list[float] = []
    made.on_empty = lambda: emptied.append(time.monotonic())
    subscription = made.subscribe()
    made.begin(HEAD)
    await eventually(lambda: made.readers == 2, 5, "the publisher")
    subscription.leave()
    await eventually(lambda: copy.head is not None, 5, "the copy's head")
    assert not emptied
    relaying.cancel()
    await eventually(lambda: bool(emptied), 1, "the end")
    await maker.aclose()
    await other.aclose()


async def test_a_lease_outlives_the_publication(store: RedisStore) -> None:
    """The write of the answer may come first, and must not make its readers elsewhere give it up for lost."""
    maker, made, other, copy, relaying = await pair(store, key())
    made.begin(HEAD)
    made.add(b"data: 1\n\n")
    await eventually(lambda: copy.head is not None, 5, "the copy's head")
    made.add(b"data: 2\n\n")
    made.land(DONE)
    assert maker.lease_of(made) == ""
    maker.release(made)
    assert await store.get(f"{made.key}:l") is not None
    await relaying
    assert (copy.events(), copy.landing) == ([b"data: 1\n\n", b"data: 2\n\n"], DONE)
    async with asyncio.timeout(30):
        while await store.get(f"{made.key}:l") is not None:
            await asyncio.sleep(0.01)
    await maker.aclose()
    await other.aclose()


async def test_whose_maker_is_gone_is_lost(store: RedisStore) -> None:
    """Its lease runs out, or was given up without a word."""
    maker, made, other, copy, relaying = await pair(store, key())
    maker.leases.gone(made)
    await store.delete(f"{made.key}:l")
    await asyncio.wait_for(relaying, 5)
    assert copy.landing == Landing("lost")
    await maker.aclose()
    await other.aclose()


@pytest.mark.parametrize("settle", [Leases.release, lambda *_: None], ids=["released", "closed"])
async def test_a_lease_is_given_back(store: RedisStore, settle: Callable[[Leases, Flight], None]) -> None:
    """At the flight's end, or at the worker's."""
    one = exchange(store)
    made = flight(key())
    await one.leases.claim(made, "x{}")
    settle(one.leases, made)
    await one.aclose()
    assert await store.get(f"{made.key}:l") is None


@pytest.mark.parametrize(
    "error", [InvalidRequest("no", code="c", param="p"), Overloaded("busy", headers=retry_after(3)), ValueError("ours")]
)
def test_an_error_reaches_the_readers_of_other_workers(error: Exception) -> None:
    """Status, texts and headers are the same; a fault of the gateway's own says nothing of itself."""
    read = _unpacked(_packed(error))
    sent = error if isinstance(error, ApiError) else InternalError()
    assert (read.status, read.body(), read.headers) == (sent.status, sent.body(), sent.headers)


@pytest.mark.parametrize("packed", [b"", b"{}", b"[1]", b"[]"])
def test_what_is_no_error_is_refused(packed: bytes) -> None:
    """It comes from a store that others write to."""
    with pytest.raises((ValueError, TypeError)):
        _unpacked(packed)
