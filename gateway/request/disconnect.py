"""Notice that the client of a request has disconnected, and cancel the task that answers it.

An ASGI server does not cancel a handler when its client disconnects: the application has to receive `http.disconnect`.
That takes a task, which costs 15 us, so listening begins only 20 ms after the request; an earlier disconnect is noticed
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

_PATIENCE_S: Final = 0.02


class ClientGone(Exception):
    """Raised when the client disconnected before it had sent its whole request."""


class Receive(Protocol):
    """ASGI's `receive` callable."""

    async def __call__(self) -> Any: ...


class Client:
    """Watch the client of one request; when it disconnects, set `gone` and cancel the task that answers it."""

    __slots__ = ("_answering", "_listening", "_receive", "_timer", "absent", "gone", "on_left", "stall_s")

    def __init__(self, receive: Receive, stall_s: float) -> None:
        """Watch through `receive`. `stall_s` is how long the client may leave sent data unread before it is dropped."""
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
        """Called when the client disconnects; True lets the task continue, because other requests share its answer."""

    def watch(self) -> None:
        """Begin to watch for the running task. Call it before the first step that is worth cancelling."""
        if self._timer is None:
            self._answering = asyncio.current_task()
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_S, self._listen)

    def drop(self) -> None:
        """Treat the client as disconnected: it has not read what it was sent for too long."""
        self._left()

    def unwatch(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
        # Break the reference cycle between this object and its task: garbage collections pause every stream.
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
