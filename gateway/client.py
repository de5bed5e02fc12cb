"""The client of one request: noticing that it has left, so that nothing goes on working for nobody.

A server cancels no handler when its client hangs up: someone has to be listening for `http.disconnect`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> Any: ...


class Client:
    """Watches one connection. Once watched, a client that leaves cancels the task that answers it; `gone` tells why."""

    __slots__ = ("_receive", "_watch", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watch: asyncio.Task[None] | None = None
        self.gone = False

    def watch(self) -> None:
        """Begins to listen, on behalf of the running task. Call it before the first thing worth cancelling."""
        if self._watch is None:
            task = asyncio.current_task()
            if task is None:
                raise RuntimeError("a client is watched from the task that answers it")
            self._watch = asyncio.create_task(self._listen(task))

    def unwatch(self) -> None:
        """Stops listening."""
        if self._watch is not None:
            self._watch.cancel()

    async def _listen(self, answering: asyncio.Task[Any]) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self.gone = True
        answering.cancel()
