"""Pool the connections to one server: bounded, used for one exchange at a time, safe to be cancelled at any await.

A connection that was abandoned during an exchange is never reused: its next reply would belong to another request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

MAX_CONNECTIONS = 256
"""Maximum connections to one server for commands that do not block."""
MAX_BLOCKING = 16
"""Maximum additional connections for commands that block."""
_MAX_DIALLING = 16
"""Maximum simultaneous connection attempts: hundreds of handshakes at once would all be too slow."""


class AllInUse(Exception):
    """No connection is free and no more may be opened. Raised at once; callers never wait for one."""


class Wire(Protocol):
    """The part of a connection that is used here."""

    @property
    def usable(self) -> bool:
        """False once the connection is lost, or has unread bytes: it is out of step with its server then."""

    async def disconnect(self) -> None:
        """Close the connection without waiting."""


W = TypeVar("W", bound=Wire)


class WirePool(Generic[W]):
    """A bounded pool of connections. One that was abandoned during an exchange is never reused."""

    def __init__(self, dial: Callable[[], Awaitable[W]], most: int) -> None:
        """`dial` returns a new connection, or leaves nothing open."""
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
            if connection.usable:
                return connection
            await self._drop(connection)
        if self._count >= self._most or len(self._dialling) >= _MAX_DIALLING:
            raise AllInUse
        self._count += 1
        return await self._wait_for(asyncio.get_running_loop().create_task(self._dial()))

    async def give_back(self, connection: W, *, clean: bool) -> None:
        """End an exchange; `clean` when every reply was read."""
        if clean and connection.usable and not self._closed:
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
        await connection.disconnect()

    async def _dial(self) -> W:
        try:
            return await self._make()
        except BaseException:
            self._count -= 1
            raise

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
