"""The connections to one server: a bounded set, taken for one exchange at a time, safe to be cancelled at any await.

A connection left in the middle of an exchange is never used again: its next reply would be somebody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

MAX_CONNECTIONS = 256
"""To one server, for exchanges that end at once."""
MAX_BLOCKING = 16
"""Beside them, for commands that may wait."""
_MAX_DIALLING = 16
"""A cold burst would otherwise spend its time on hundreds of handshakes at once, and fail them all."""


class AllInUse(Exception):
    """No connection is free and no more may be made: an error, never a wait."""


class Wire(Protocol):
    """What is used of a connection here; redis-py's are such."""

    socket_timeout: float | None

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> Any: ...
    async def can_read(self) -> bool: ...
    async def disconnect(self, nowait: bool = False) -> None: ...


W = TypeVar("W", bound=Wire)


class WirePool(Generic[W]):
    """A bounded set of connections. One that was left in the middle of an exchange is never used again."""

    def __init__(self, dial: Callable[[], W], most: int) -> None:
        self._make = dial
        self._most = most
        self._count = 0
        self._idle: list[W] = []
        self._dialling: set[asyncio.Task[W]] = set()
        self._closed = False

    async def take(self) -> W:
        """A connected connection, for one exchange. AllInUse at once when all are in use or being made."""
        while self._idle:
            connection = self._idle.pop()
            # Unread bytes or an end of file: it is out of step, or the server has gone since.
            if connection.is_connected and not await connection.can_read():
                return connection
            await self._drop(connection)
        if self._count >= self._most or len(self._dialling) >= _MAX_DIALLING:
            raise AllInUse
        self._count += 1
        return await self._wait_for(asyncio.get_running_loop().create_task(self._dial()))

    async def give_back(self, connection: W, *, clean: bool) -> None:
        """Ends an exchange; `clean` when every reply was read."""
        if clean and connection.is_connected and not self._closed:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def drop_idle(self) -> None:
        """Forgets the connections at hand, so that the next ones resolve the address anew."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def aclose(self) -> None:
        """Closes what is idle now, and everything else as it comes back."""
        self._closed = True
        if self._dialling:
            await asyncio.wait(tuple(self._dialling))
        await self.drop_idle()

    async def _drop(self, connection: W) -> None:
        self._count -= 1
        await connection.disconnect(nowait=True)

    async def _dial(self) -> W:
        connection = self._make()
        try:
            await connection.connect()
        except BaseException:
            await self._drop(connection)
            raise
        # From here on one deadline spans each whole exchange; redis-py would arm two timers and a task for each.
        connection.socket_timeout = None
        return connection

    async def _wait_for(self, dialling: asyncio.Task[W]) -> W:
        """The dialled connection. Who cannot wait leaves it to the next: else a slow handshake would never end."""
        self._dialling.add(dialling)
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            dialling.add_done_callback(self._adopt)
            raise
        finally:
            if dialling.done():
                self._dialling.discard(dialling)

    def _adopt(self, dialling: asyncio.Task[W]) -> None:
        self._dialling.discard(dialling)
        if not dialling.cancelled() and dialling.exception() is None:
            self._idle.append(dialling.result())
