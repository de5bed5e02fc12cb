"""Stop a server process in steps, and check its connections while it runs.

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
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from gateway.server.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    import socket

    from gateway.config.schema import Limits
    from gateway.request.load_shedding import LoadShedder

_FORCED_S: Final = 2.0


def shared_with_server(gate: LoadShedder, limits: Limits) -> dict[str, Any]:
    """Return the lifespan state through which the application gives the server its load shedding and limits."""
    return {"gate": gate, "limits": limits, "connections": ConnectionLimits(limits.connections, limits.silent)}


class Server(uvicorn.Server):
    """Serve like uvicorn, but stop as the module's docstring describes."""

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
        """Close the listeners, wait for the requests in progress up to `limits.finish`, and cancel the rest."""
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
