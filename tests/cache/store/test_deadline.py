from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from cache.store.base import StoreUnavailable
from cache.store.connections import Deadline
from cache.store.redis_store import RedisStore
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED, local_store


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets that do not block."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    yield near, far
    near.close()
    far.close()


@pytest.mark.parametrize("busy_s", [0.0205, 0.0215, 0.03, 0.06])
async def test_a_reply_that_came_in_time_is_read_however_long_the_loop_was_busy(
    pair: tuple[socket.socket, socket.socket], busy_s: float
) -> None:
    """The limit is over when the loop gets to its sockets, a moment or long ago; the reply is there."""
    near, far = pair
    loop = asyncio.get_running_loop()
    with Deadline(0.02):
        reading = asyncio.ensure_future(loop.sock_recv(near, 1))
        await asyncio.sleep(0)
        far.send(b"x")
        time.sleep(busy_s)
        assert await reading == b"x"


async def test_an_exchange_of_several_turns_of_a_busy_loop_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    """As the opening of a connection does: each of its replies comes at once, and the loop is busy before each."""
    near, far = pair
    loop = asyncio.get_running_loop()
    with Deadline(0.02):
        for _ in range(5):
            reading = asyncio.ensure_future(loop.sock_recv(near, 1))
            await asyncio.sleep(0)
            far.send(b"x")
            loop.call_soon(time.sleep, 0.03)
            await reading


async def test_a_peer_that_is_silent_costs_the_limit(pair: tuple[socket.socket, socket.socket]) -> None:
    """Without a reply the limit holds, and a loop that stays busy does not put it off for ever."""
    near, _ = pair
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    with pytest.raises(TimeoutError), Deadline(0.02):
        await loop.sock_recv(near, 1)
    assert 0.02 <= time.perf_counter() - began < 0.2

    def block() -> None:
        time.sleep(0.01)
        timers[0] = loop.call_soon(block)

    timers = [loop.call_soon(block)]
    try:
        began = time.perf_counter()
        with pytest.raises(TimeoutError), Deadline(0.02):
            await loop.sock_recv(near, 1)
        assert time.perf_counter() - began < 2
    finally:
        timers[0].cancel()


@pytest.mark.parametrize("busy_s", [0.0205, 0.03, 0.06])
async def test_an_open_connection_waits_as_patiently(busy_s: float) -> None:
    """The reply to a look-up has come while the loop was busy for longer than the limit."""
    with local_store() as there:
        hurried = RedisStore.from_url(there.url)
        async with asyncio.timeout(30):
            while True:  # opening a connection may take longer than a look-up may
                try:
                    await hurried.get("k")
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
        for _ in range(5):
            looking = asyncio.ensure_future(hurried.get("k"))
            await asyncio.sleep(0)
            time.sleep(busy_s)
            assert await looking is None
        await hurried.aclose()


async def test_an_open_connection_to_a_silent_server_costs_the_limit() -> None:
    """A look-up that is not answered fails, and the next one has a connection of its own."""
    async with scripted_redis(b"$-1\r\n") as script:
        store = RedisStore.from_url(script.url, slack=UNHURRIED / 4)
        assert await store.get("k") is None
        script.delay_s = 1.5
        with pytest.raises(StoreUnavailable, match="timeout"):
            await store.get("k")
        script.delay_s = 0.0
        assert await store.get("k") is None
        assert script.connections == 2
        await store.aclose()
