"""How new connections are accepted while the event loop is busy, and how long they took to be answered."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from gateway.parts.metrics.metrics import untimed
from gateway.request.load_shedding import LoadShedder
from gateway.server.connection_limits import ConnectionLimits
from gateway.server.http_protocol import HttpProtocol
from gateway.server.listeners import Listener

CONNECTIONS = 200
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def listening() -> Any:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS + 1)) as made:
        yield made


def connected(listening: socket.socket, count: int) -> list[socket.socket]:
    return [socket.create_connection(listening.getsockname(), 5) for _ in range(count)]


async def turns_until(done: Callable[[], bool]) -> int:
    """How many turns of the loop pass until it is so."""
    turns = 0
    while not done():
        turns += 1
        assert turns < 100_000
        await asyncio.sleep(0)
    return turns


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs it on the loop that the gateway has."""
    uvloop.run(main())


class Taken(asyncio.Protocol):
    """A connection that is noted."""

    def __init__(self, seen: list[Taken]) -> None:
        self._seen = seen
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._seen.append(self)


def test_connections_made_at_once_are_accepted_within_a_few_turns(listening: socket.socket) -> None:
    """The last of many does not wait for as many turns; those not yet accepted are counted."""

    async def main() -> None:
        seen: list[Taken] = []
        clients = connected(listening, CONNECTIONS)
        listener = Listener(listening, lambda _: Taken(seen))
        assert listener.waiting() == CONNECTIONS
        assert await turns_until(lambda: len(seen) == CONNECTIONS) <= 20
        assert listener.waiting() == 0
        listener.close()
        for one in seen:
            one.transport.abort()
        for client in clients:
            client.close()

    run(main)


def test_what_is_accepted_by_the_close_is_served_and_no_more_is_accepted(listening: socket.socket) -> None:
    """`wait_closed` returns when every accepted connection has its protocol; the next one is refused."""

    async def main() -> None:
        seen: list[Taken] = []
        address = listening.getsockname()
        clients = connected(listening, 5)
        listener = Listener(listening, lambda _: Taken(seen))
        await turns_until(lambda: listener.waiting() == 0)
        listener.close()
        await listener.wait_closed()
        assert len(seen) == 5
        late = socket.create_connection(address, 5)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(seen) == 5
        listening.close()
        assert listener.waiting() == 0
        with socket.socket() as refused:
            assert refused.connect_ex(address) != 0
        for one in seen:
            one.transport.abort()
        for client in (*clients, late):
            client.close()

    run(main)


def test_two_listeners_share_a_socket(listening: socket.socket) -> None:
    """As two workers do: what one has accepted the other does not wait for, and each connection has one protocol."""

    async def main() -> None:
        seen: list[Taken] = []
        with listening.dup() as other:
            listeners = [Listener(each, lambda _: Taken(seen)) for each in (listening, other)]
            clients = connected(listening, 150)
            await turns_until(lambda: len(seen) == 150)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert len(seen) == 150
            for listener in listeners:
                listener.close()
            for one in seen:
                one.transport.abort()
        for client in clients:
            client.close()

    run(main)


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not say when it received what")
def test_the_time_to_the_first_byte_begins_when_the_request_arrives(listening: socket.socket) -> None:
    """A connection that was not accepted, and a request that was not read, while the loop was busy, waited as long."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main() -> None:
        new, kept = times = untimed(), untimed()
        shared = {"gate": LoadShedder(10), "connections": ConnectionLimits(10, 10.0), "first_bytes": times}
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        config.load()

        def protocol_of(connection: socket.socket) -> HttpProtocol:
            protocol = HttpProtocol(config, ServerState(), shared)
            protocol.connection = connection
            return protocol

        listener = Listener(listening, protocol_of)
        (client,) = connected(listening, 1)
        for got, waits_s in ((new, 0.3), (kept, 0.2), (kept, 0.0)):
            got[:] = untimed()
            client.sendall(GET)
            time.sleep(waits_s)  # the loop is busy
            await turns_until(lambda: sum(got[:-1]) == 1)  # noqa: B023
            assert waits_s - 0.02 <= got[-1] < waits_s + 0.15
            client.recv(1000)
        assert sum(new[:-1]) == 1
        listener.close()
        client.close()

    run(main)
