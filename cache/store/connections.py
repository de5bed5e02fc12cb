"""Pool the connections to one server: bounded, used for one exchange at a time, safe to be cancelled at any await.

A connection that was abandoned during an exchange is never reused: its next reply would belong to another request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

MAX_CONNECTIONS = 256
"""Maximum connections to one server for commands that do not block."""
MAX_BLOCKING = 16
"""Maximum additional connections for commands that block."""
_MAX_DIALLING = 16
"""Maximum simultaneous connection attempts: hundreds of handshakes at once would all be too slow."""


class AllInUse(Exception):
    """No connection is free and no more may be opened. Raised at once; callers never wait for one."""


class Wire(Protocol):
    """The part of a connection that is used here; redis-py's connections implement it."""

    socket_timeout: float | None

    @property
    def is_connected(self) -> bool: ...
    async def connect(self) -> Any: ...
    async def can_read(self) -> bool: ...
    async def disconnect(self, nowait: bool = False) -> None: ...


W = TypeVar("W", bound=Wire)


class WirePool(Generic[W]):
    """A bounded pool of connections. One that was abandoned during an exchange is never reused."""

    def __init__(self, dial: Callable[[], W], most: int) -> None:
        self._make = dial
        self._most = most
        self._count = 0
        self._idle: list[W] = []
        self._dialling: set[asyncio.Task[W]] = set()
        self._closed = False

    async def take(self) -> W:
        """Return a connected connection for one exchange. Raises AllInUse at once if the limit is reached."""
        while self._idle:
            connection = self._idle.pop()
            # Readable means unread bytes or an end of file: it is out of sync, or the server has closed it.
            if connection.is_connected and not await connection.can_read():
                return connection
            await self._drop(connection)
        if self._count >= self._most or len(self._dialling) >= _MAX_DIALLING:
            raise AllInUse
        self._count += 1
        return await self._wait_for(asyncio.get_running_loop().create_task(self._dial()))

    async def give_back(self, connection: W, *, clean: bool) -> None:
        """End an exchange; `clean` when every reply was read."""
        if clean and connection.is_connected and not self._closed:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def drop_idle(self) -> None:
        """Close the idle connections, so that new ones resolve the address again."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def aclose(self) -> None:
        """Close idle connections now, and others when they are given back."""
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
        # From here on one deadline covers each whole exchange; redis-py would create two timers and a task for each.
        connection.socket_timeout = None
        return connection

    async def _wait_for(self, dialling: asyncio.Task[W]) -> W:
        """Return the new connection. If cancelled, it goes to the pool, so that slow handshakes still complete."""
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
