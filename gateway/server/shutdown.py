"""How a server process stops, and the rounds it makes until then.

    SIGTERM      /readyz says 503 at once, but for `limits.drain` newcomers are still taken, since those who send them
                 learn of it late. Then as SIGINT.
    SIGINT       No newcomers. What is in flight has `limits.finish` to end by itself; what has not by then is told
                 `draining`: a stream in an error event, its last.
    once more    The same signal again: what is in flight is told so at once, and the exit code is 130.

A terminal's Ctrl-C reaches every process of a group, and a parent may say the same again in its own words (SIGTERM): so
only the same signal counts as once more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from gateway.config.schema import Limits
from gateway.server.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    import socket

    from gateway.request.load_shedding import LoadShedder

_FORCED_S: Final = 2.0
_SWEEP_EVERY: Final = 5


def shared_with_server(gate: LoadShedder, limits: Limits) -> dict[str, Any]:
    """What the application hands to the server, and to its connections, by way of the lifespan's state."""
    return {"gate": gate, "limits": limits, "connections": ConnectionLimits(limits.connections, limits.silent)}


class Server(uvicorn.Server):
    """uvicorn's, but for how it stops."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals: set[int] = set()
        self._takes_until = math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM."""
        if sig in self._signals:
            self.should_exit = self.force_exit = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._cut_off)
        self._signals.add(sig)
        if not self.started:
            self.should_exit = True
            return
        self.lifespan.state["gate"].drain()
        if sig == signal.SIGTERM:
            self._takes_until = min(self._takes_until, time.monotonic() + self.lifespan.state["limits"].drain)
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn: ten times a second; True ends the taking of newcomers."""
        if counter % _SWEEP_EVERY == 0 and self._loop is not None:
            self.lifespan.state["connections"].sweep(self._loop.time())
        return await super().on_tick(counter) or time.monotonic() >= self._takes_until

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the listeners, waits for what is in flight within its limit, and cuts off what is left."""
        timer = asyncio.get_running_loop().call_later(self.lifespan.state["limits"].finish, self._cut_off)
        await super().shutdown(sockets)
        timer.cancel()
        if self.force_exit:  # uvicorn leaves the application out then; what it has to write down is soon written
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FORCED_S):
                    await self.lifespan.shutdown()

    def _cut_off(self) -> None:
        for task in list(self.server_state.tasks):
            task.cancel()
