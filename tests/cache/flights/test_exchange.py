from __future__ import annotations

import asyncio
import time

from cache.flights.exchange import Publisher
from cache.flights.single_flight import Flight
from cache.store.base import NoStore


async def test_a_publisher_that_is_dismissed_before_it_has_begun_leaves_the_flight() -> None:
    """Another worker can ask and take it back in one page of the stream; the flight then has its own readers only."""
    flight = Flight("key", time.monotonic() + 60.0, full_deadline=True)
    reader, emptied = flight.subscribe(), []
    flight.on_empty = lambda: emptied.append(True)
    publisher = Publisher(NoStore(), lambda _: b"", flight)
    publisher.wanted("another worker's flight")
    publisher.gone("another worker's flight")
    await asyncio.wait({publisher.task})
    assert flight.readers == 1
    reader.leave()
    assert emptied
