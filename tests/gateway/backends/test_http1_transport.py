"""What Http1Transport does beyond the contract of all transports: idle connections, closing, endless replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from gateway.backends import http1_transport
from gateway.backends.base import InvalidReply, Response, Unreachable
from gateway.backends.http1_transport import Http1Transport
from tests.support.raw_upstream import raw_upstream
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import eventually

HEADERS = {"Content-Type": "application/json"}
ASK = b'{"messages":[{"role":"user","content":"hi"}]}'
ASK_STREAM = b'{"stream":true,"messages":[{"role":"user","content":"hi"}]}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

Make = Callable[..., Http1Transport]


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The server's loop, and the one of commands and tests."""
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make transports to a base URL, and close them at the end."""
    made: list[Http1Transport] = []

    def transport(url: str, max_in_flight: int = 10) -> Http1Transport:
        url = f"{url}/chat/completions"
        made.append(Http1Transport(url, max_in_flight=max_in_flight, connect_timeout_s=2, max_reply=1 << 20))
        return made[-1]

    yield transport
    for one in made:
        await one.aclose()


async def whole(transport: Http1Transport) -> bytes:
    async with asyncio.timeout(5):
        response = await transport.send(HEADERS, ASK)
        body = await response.read()
        response.close()
        return body


async def test_an_idle_connection_is_closed_in_time(
    make: Make, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each after its own time, be there others in use; the next call makes a new one."""
    monkeypatch.setattr(http1_transport, "_KEEPALIVE_S", 0.2)
    transport = make(upstream.url)
    await asyncio.gather(*(whole(transport) for _ in range(3)))
    opened = upstream.connections
    for _ in range(10):
        await whole(transport)
        await asyncio.sleep(0.05)
    assert upstream.connections == opened  # the one that is used goes on
    await eventually(lambda: upstream.open_connections == 1, what="the others are closed")
    await eventually(lambda: upstream.open_connections == 0, what="and then the last one")
    await whole(transport)
    assert upstream.connections == opened + 1


async def test_the_connection_used_last_is_used_next(make: Make, upstream: Upstream) -> None:
    """So that those that a burst has needed can go idle."""
    upstream.default = Reply(before_headers_s=0.05)
    transport = make(upstream.url)
    await asyncio.gather(*(whole(transport) for _ in range(3)))
    assert upstream.connections == 3
    upstream.close_idle()
    await eventually(lambda: upstream.open_connections == 0, what="all are closed")
    for _ in range(3):
        await whole(transport)
    assert upstream.connections == 4


async def test_closing_ends_every_call(make: Make, upstream: Upstream) -> None:
    """One that is read, one that waits for its head and one for a place fail; so does a later one."""
    upstream.queue(Reply(fault=Fault.HANG_AFTER_HEADERS), Reply(fault=Fault.HANG_BEFORE_HEADERS))
    transport = make(upstream.url, max_in_flight=2)
    response = await transport.send(HEADERS, ASK_STREAM)
    calls: list[asyncio.Task[Response] | asyncio.Task[bytes]] = [asyncio.create_task(response.chunk())]
    calls += [asyncio.create_task(transport.send(HEADERS, ASK)) for _ in range(2)]
    await eventually(lambda: len(upstream.requests) == 2, what="two calls")
    await asyncio.sleep(0.02)
    await transport.aclose()
    async with asyncio.timeout(1):
        for call in calls:
            with pytest.raises(Unreachable):
                await call
        with pytest.raises(Unreachable):
            await transport.send(HEADERS, ASK)
    await eventually(lambda: upstream.open_connections == 0, what="the upstream sees us leave")


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n" * 4000] * 64,
        [CHUNKED + b"2\r\nhi\r\n0\r\n", *[b"X-Sum: 1\r\n" * 6000] * 64],
        [CHUNKED + b"2;", *[b"x" * 65536] * 64],
    ],
    ids=["interim responses", "trailers", "a chunk's extension"],
)
async def test_what_is_no_body_has_an_end(make: Make, parts: list[bytes]) -> None:
    """A server that goes on sending what is not passed on is dropped, and its place is free."""
    with raw_upstream(*parts, 20.0) as server:
        transport = make(server.url, max_in_flight=1)
        for _ in range(2):
            with pytest.raises(InvalidReply):
                await whole(transport)


async def test_an_upgrade_that_nobody_asked_for(make: Make) -> None:
    """It is no reply, and no interim response either."""
    for head in (b"101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x", b"101 What", b"099 Less"):
        reply = b"HTTP/1.1 " + head + b"\r\n\r\n"
        with raw_upstream(reply, keep_open=True) as server, pytest.raises(InvalidReply):
            await whole(make(server.url))


async def test_what_came_before_a_broken_chunk_can_be_read(make: Make) -> None:
    """In the same packet too; then the reader hears that the rest is missing."""
    with raw_upstream(CHUNKED + b"2\r\nhi\r\nzz\r\n", keep_open=True) as server:
        response = await make(server.url).send(HEADERS, ASK)
        assert await response.chunk() == b"hi"
        with pytest.raises(Unreachable):
            await response.chunk()
        response.close()


async def test_many_calls_over_few_connections(make: Make, upstream: Upstream) -> None:
    """200 calls at once over three places: each has its own answer, and nobody waits for ever."""
    upstream.default = Reply(body=b"{}")
    transport = make(upstream.url, max_in_flight=3)
    assert await asyncio.gather(*(whole(transport) for _ in range(200))) == [b"{}"] * 200
    assert upstream.connections <= 3
