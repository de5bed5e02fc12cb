from __future__ import annotations

import asyncio
import time

from cache.flights import AnswerHead, Flight, Flights, Landing, Subscription

HEAD = AnswerHead("req-1", True, "direct", "local", "one", "small", 0.9)
DONE = Landing("done")


def flight(key: str = "k", full_deadline: bool = True, most_bytes: int = 1 << 20) -> Flight:
    return Flight(key, time.monotonic() + 10, full_deadline=full_deadline, most_bytes=most_bytes)


async def all_of(subscription: Subscription) -> bytes:
    read = b""
    while await subscription.more():
        read += b"".join(subscription.take())
    return read


async def test_everybody_gets_the_whole_answer_whenever_they_come() -> None:
    """Who comes in the middle gets what came so far, then the rest, and who comes after the end gets all of it."""
    one = flight()
    early = asyncio.create_task(all_of(one.subscribe()))
    one.begin(HEAD)
    for number in range(50):
        one.add(b"%d," % number)
        await asyncio.sleep(0)
    middle = asyncio.create_task(all_of(one.subscribe()))
    await asyncio.sleep(0)
    one.add(b"end")
    one.land(DONE)
    late = await all_of(one.subscribe())
    assert await early == await middle == late == b"".join(b"%d," % n for n in range(50)) + b"end"


async def test_one_who_leaves_harms_nobody_and_the_last_ends_it() -> None:
    """A reader's cancellation is its own; only when nobody is left is whoever makes the answer told."""
    one = flight()
    emptied = []
    one.on_empty = lambda: emptied.append(one.left_as)
    subscriptions = [one.subscribe() for _ in range(3)]
    readers = [asyncio.create_task(all_of(subscription)) for subscription in subscriptions]
    await asyncio.sleep(0)
    readers[0].cancel()
    subscriptions[0].leave("first")
    one.add(b"x")
    await asyncio.sleep(0)
    assert not emptied
    one.land(DONE)
    assert await asyncio.gather(*readers[1:]) == [b"x", b"x"]
    subscriptions[1].leave("second")
    subscriptions[2].leave("third")
    assert not emptied  # it had landed

    other = flight()
    other.on_empty = lambda: emptied.append(other.left_as)
    subscription = other.subscribe()
    subscription.leave("gone")
    subscription.leave("again")
    assert emptied == ["gone"]


async def test_a_slow_reader_slows_nobody_and_a_lone_one_slows_the_maker() -> None:
    """The maker goes no further ahead than what the quickest takes; one that waits for the whole is no brake at all."""
    one = flight(most_bytes=1 << 30)
    quick, _slow = one.subscribe(), one.subscribe()
    for _ in range(4):
        one.add(b"x" * 65_536)
    making = asyncio.create_task(one.room())
    await asyncio.sleep(0)
    assert not making.done()
    while quick.take():
        pass
    await making
    one.add(b"x" * 200_000)
    whole = asyncio.create_task(one.subscribe().landed())
    await asyncio.sleep(0)
    await one.room()
    one.land(DONE)
    assert await whole == DONE


async def test_a_flight_that_has_carried_too_much_takes_nobody_else_and_forgets_what_is_read() -> None:
    """Its readers get all of it nevertheless."""
    flights = Flights()
    one = flight(most_bytes=1_000)
    flights.launch(one)
    subscription = one.subscribe()
    read = b""
    for number in range(300):
        one.add(b"%010d" % number)
        read += b"".join(subscription.take())
    assert flights.joinable("k", 0) is None
    assert len(one.events()) < 150
    assert read == b"".join(b"%010d" % number for number in range(300))


async def test_a_hurried_flight_takes_only_the_more_hurried() -> None:
    """Who has more time than the answer's maker would be cut off too soon. Until it departs it may be given more."""
    flights = Flights()
    now = time.monotonic()
    one = Flight("k", now + 1, full_deadline=False)
    flights.launch(one)
    assert flights.joinable("k", now + 5) is one
    one.subscribe(now + 5)
    assert one.deadline == now + 5
    one.started = True
    assert flights.joinable("k", now + 5) is one
    assert flights.joinable("k", now + 6) is None
    one.land(Landing("failed"))
    assert flights.joinable("k", now + 1) is None


async def test_a_wish_for_an_early_first_token_waits_for_nobody_slower() -> None:
    """It joins who is due as early, or what has begun; without such a wish anybody is joined."""
    now = time.monotonic()
    calm, due = flight(), Flight("k", now + 10, full_deadline=True, first_due=now + 1)
    assert not calm.takes(now + 1, now + 0.5)
    assert not due.takes(now + 1, now + 0.5)
    assert due.takes(now + 1, now + 2)
    assert due.takes(now + 1)
    calm.begin(HEAD)
    assert calm.takes(now + 1, now + 0.5)


async def test_a_nudged_reader_stops_waiting() -> None:
    """Wherever it waits; its own deadline is nobody else's."""
    for wait in (Subscription.begun, Subscription.more, Subscription.landed):
        subscription = flight().subscribe()
        waiting = asyncio.create_task(wait(subscription))  # type: ignore[arg-type, var-annotated]
        await asyncio.sleep(0)
        subscription.nudge()
        assert not await waiting


async def test_a_landed_flight_is_read_to_its_end_after_a_nudge() -> None:
    """A reader whose time is up as the answer lands gets the last event, which says how the answer ended."""
    one = flight()
    one.begin(HEAD)
    subscription = one.subscribe()
    one.add(b"error")
    one.land(Landing("broken", "deadline_exceeded"))
    subscription.nudge()
    assert await all_of(subscription) == b"error"
