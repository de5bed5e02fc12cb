"""The client of one request: noticing that it has left, so that nothing goes on working for nobody.

A server cancels no handler when its client hangs up: someone has to be listening for `http.disconnect`. Listening takes
a task, which costs 15 us, so it begins only once an answer has taken a moment; who left before is noticed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

_PATIENCE_S: Final = 0.02


class ClientGone(Exception):
    """The client left before it had sent its whole request."""


class Receive(Protocol):
    """ASGI's receive."""

    async def __call__(self) -> Any: ...


class Client:
    """Watches one connection. Once watched, a client that leaves cancels the task that answers it; `gone` tells why."""

    __slots__ = ("_answering", "_listening", "_receive", "_timer", "absent", "gone", "on_left", "stall_s")

    def __init__(self, receive: Receive, stall_s: float) -> None:
        """`stall_s`: how long the client may leave what it was sent unread before it is given up for gone."""
        self._receive = receive
        self.stall_s = stall_s
        self._answering: asyncio.Task[Any] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.gone = False
        """It has left, and the task that answers it was cancelled."""
        self.absent = False
        """It has left, and the task goes on for others who wait for the same answer."""
        self.on_left: Callable[[], bool] | None = None
        """Asked when the client leaves; True has the task go on without it, for others who wait for the same."""

    def watch(self) -> None:
        """Begins to watch, on behalf of the running task. Call it before the first thing worth cancelling."""
        if self._timer is None:
            self._answering = asyncio.current_task()
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._listen)

    def drop(self) -> None:
        """Gives the client up for gone: it has not read what it was sent for too long."""
        self._left()

    def unwatch(self) -> None:
        """Stops watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
        # What is over must not hold its task, nor the task this: collecting garbage stops every stream.
        self._answering = self._listening = self._timer = self.on_left = None

    def _listen(self) -> None:
        self._listening = asyncio.create_task(self._until_gone())

    async def _until_gone(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._left()

    def _left(self) -> None:
        if self.on_left is not None and self.on_left():
            self.absent = True
            return
        self.gone = True
        if self._answering is not None:
            self._answering.cancel()
