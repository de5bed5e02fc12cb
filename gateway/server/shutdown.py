"""How a server process stops.

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
import signal
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from gateway.config.schema import Limits
from gateway.server.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    import socket

    from gateway.request.load_shedding import LoadShedder

_FORCED_S: Final = 2.0


def shared_with_server(gate: LoadShedder, limits: Limits) -> dict[str, Any]:
    """What the application hands to the server, and to its connections, by way of the lifespan's state."""
    return {"gate": gate, "limits": limits, "connections": ConnectionLimits(limits.connections, limits.silent)}


class Server(uvicorn.Server):
    """uvicorn's, but for how it stops."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._signals: set[int] = set()

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
            self._take_no_more()

    def _take_no_more(self) -> None:
        """Have uvicorn close the listeners at its next tick, a tenth of a second later at most."""
        self.should_exit = True

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
