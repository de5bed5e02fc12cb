"""Serve one process, and stop it in steps.

    SIGTERM      /readyz answers 503 at once; new connections are still accepted for `limits.drain` seconds, because
                 load balancers notice late. Then as SIGINT.
    SIGINT       No new connections. Requests in progress have `limits.finish` seconds to finish; those that have not
                 by then end with the error `draining`, which is the last event of a stream.
    repeated     The same signal again: requests in progress end with `draining` at once, and the exit code is 130.

Only the same signal counts as repeated: a terminal's Ctrl-C sends SIGINT to all processes of a group, and a parent may
send its children SIGTERM as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from types import FrameType
from typing import Final

import uvicorn

from gateway.server.http_protocol import HttpProtocol
from gateway.server.listeners import Listener

_FORCED_S: Final = 2.0
"""Longest time for what telemetry has queued, where the server was told twice to stop."""
_DATE_S: Final = 1.0


class Server(uvicorn.Server):
    """Serve one process like uvicorn, but stop as the module's docstring describes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._signals: set[int] = set()
        self._listeners: list[Listener] = []
        self._woken = asyncio.Event()

    async def main_loop(self) -> None:
        """Return once the server is to stop; until then bring the Date header up to date every second."""
        loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            timer = loop.call_later(_DATE_S, self._woken.set)
            await self._woken.wait()
            timer.cancel()
            self._woken.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM. uvicorn installs this from inside its event loop, so there always is one."""
        loop = asyncio.get_running_loop()
        again = sig in self._signals
        self._signals.add(sig)
        if self.started:
            self.lifespan.state["gate"].drain()
        if again:
            self.force_exit = True
            loop.call_soon_threadsafe(self._cut_off)
        if self.started and sig == signal.SIGTERM and not again:
            # A signal handler may interrupt the loop anywhere, so it leaves the timer to the loop's next turn.
            loop.call_soon_threadsafe(loop.call_later, self.lifespan.state["limits"].drain, self._take_no_more)
        else:
            self.should_exit = True
            loop.call_soon_threadsafe(self._woken.set)

    def _take_no_more(self) -> None:
        """Have `main_loop` end, after which uvicorn closes the listeners."""
        self.should_exit = True
        self._woken.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and accept connections from these sockets."""
        await super().startup([])
        self._listeners = [Listener(each, self._protocol_of) for each in sockets or ()]
        for public in self._listeners[:1]:  # the other one, if any, is the admin port's
            self.lifespan.state["gate"].accept_queue = public.waiting

    def _protocol_of(self, connection: socket.socket) -> HttpProtocol:
        protocol = HttpProtocol(self.config, self.server_state, self.lifespan.state)
        if hasattr(socket, "TCP_INFO"):
            protocol.connection = connection
        return protocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners, wait for the requests in progress up to `limits.finish`, and cancel the rest."""
        for listener in self._listeners:
            listener.close()
            await listener.wait_closed()  # uvicorn closes the connections that it knows
        timer = asyncio.get_running_loop().call_later(self.lifespan.state["limits"].finish, self._cut_off)
        await super().shutdown(sockets)
        timer.cancel()
        if self.force_exit:  # uvicorn then skips the application's shutdown, which writes what telemetry has queued
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FORCED_S):
                    await self.lifespan.shutdown()

    def _cut_off(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()
