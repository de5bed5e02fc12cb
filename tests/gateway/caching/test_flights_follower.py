"""A reader of a flight that another request's work feeds."""

from __future__ import annotations

import asyncio
import time

import orjson

from cache.flights import AnswerHead, Flight, Landing
from gateway.caching.flights import Follower
from gateway.request.context import Client, Reply
from tests.support.context import streamed_request
from tests.support.wait import eventually

CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
ERROR = b'data: {"error":{"message":"gone","type":"upstream_error","param":null,"code":"upstream_timeout"}}\n\n'


def reading_of(flight: Flight, client: Client) -> Follower:
    request = streamed_request(client)
    return Follower(request, flight.subscribe(request.deadline), follows=True, last=True)


async def told(*events: bytes, landing: Landing) -> tuple[list[bytes], str]:
    """What a follower's client gets of such a flight, and how its record says that it ended."""
    flight = Flight("key", time.monotonic() + 10, full_deadline=True)
    reading = reading_of(flight, Client(None, 60.0))
    flight.begin(AnswerHead("other", True, "direct", "a", "a", "m"))
    for event in events:
        flight.add(event)
    flight.land(landing)
    seen = [event async for event in reading.rest()]
    reading.close()
    return seen, reading.end


async def test_a_break_is_told_once() -> None:
    """The error event of the request that made the answer is the follower's too, and the only one."""
    seen, end = await told(CHUNK, ERROR, landing=Landing("broken", "upstream_timeout"))
    assert seen == [CHUNK, ERROR]
    assert end == "upstream_timeout"


async def test_a_break_without_a_word_is_told_all_the_same() -> None:
    """A flight that ends in the middle, its maker cut off by a stop, never reads as a whole answer."""
    for landing in (Landing("broken", "drain"), Landing("lost")):
        seen, end = await told(CHUNK, landing=landing)
        assert seen[0] == CHUNK
        assert orjson.loads(seen[1][6:])["error"]["code"] == end == "upstream_truncated"
        assert len(seen) == 2


async def test_a_body_that_never_comes_is_told() -> None:
    """A stream that waits for the body of another worker ends with an error event when that worker is gone."""
    flight = Flight("key", time.monotonic() + 10, full_deadline=True)
    reading = reading_of(flight, Client(None, 60.0))
    flight.begin(AnswerHead("other", False, "direct", "a", "a", "m"))
    reply = await reading.answer()
    assert isinstance(reply, Reply)
    flight.land(Landing("lost"))
    assert reply.events is not None
    (event,) = [event async for event in reply.events]
    reading.close()
    assert orjson.loads(event[6:])["error"]["code"] == reading.end == "upstream_truncated"


async def test_a_backend_that_is_slow_is_no_stall_of_the_client() -> None:
    """A follower that reads all there is waits for more without a limit of its own, and hears how the answer ended."""
    flight, client = Flight("key", time.monotonic() + 10, full_deadline=True), Client(None, 0.05)
    reading = reading_of(flight, client)
    flight.begin(AnswerHead("other", True, "direct", "a", "a", "m"))
    events = reading.rest()
    flight.add(CHUNK)
    assert await anext(events) == CHUNK
    waiting = asyncio.create_task(anext(events, b"no more"))
    await asyncio.sleep(0.2)
    flight.land(Landing("done"))
    assert await waiting == b"no more"
    assert reading.end == "done"
    reading.close()
    assert not client.gone


async def test_a_client_that_does_not_read_is_dropped() -> None:
    """An event that is left unread for as long as the stall limit ends the reading."""
    flight, client = Flight("key", time.monotonic() + 10, full_deadline=True), Client(None, 0.05)
    reading = reading_of(flight, client)
    flight.begin(AnswerHead("other", True, "direct", "a", "a", "m"))
    events = reading.rest()
    flight.add(CHUNK)
    assert await anext(events) == CHUNK
    await eventually(lambda: client.gone, 5, "the drop")
    await events.aclose()
    reading.close()
