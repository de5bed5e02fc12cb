"""How new connections are taken while the event loop is busy."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import uvicorn
import uvloop

from gateway.server.server import Server


def test_a_turn_of_the_loop_takes_several_new_connections() -> None:
    """With one a turn, the last of many would wait for as many turns; the listener closes with all its descriptors."""
    turns, seen = 0, list[int]()

    class Taken(asyncio.Protocol):
        def __init__(self, **_: Any) -> None:
            pass

        def connection_made(self, transport: Any) -> None:
            seen.append(turns)
            transport.close()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is made")

    async def run() -> None:
        nonlocal turns
        listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        address = listening.getsockname()
        config = uvicorn.Config(app, http=Taken, lifespan="off", log_config=None)  # type: ignore[arg-type]
        config.load()
        server = Server(config)
        server.lifespan = config.lifespan_class(config)
        clients = [socket.create_connection(address) for _ in range(160)]
        await server.startup([listening])
        while len(seen) < 160:
            turns += 1
            await asyncio.sleep(0)
        for one in server.servers:
            one.close()
            await one.wait_closed()
        listening.close()
        for client in clients:
            client.close()
        await asyncio.sleep(0.05)
        with socket.socket() as late:
            assert late.connect_ex(address) != 0

    uvloop.run(run())
    assert max(Counter(seen).values()) >= 4
