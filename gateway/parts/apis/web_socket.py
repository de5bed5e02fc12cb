"""Extend uvicorn's WebSocket protocol: bound what a connection holds, and end one that is not read.

uvicorn keeps fragments apart until a message is whole, decodes it, answers pings without limit, and closes a connection
only once all that was written is read. Here a message is collected in one buffer and stays bytes; all that has come and
is not answered yet is counted (`weigh`); of the pings that come while nothing is read, the latest is answered; and what
nobody reads is ended by an abort. Requests in progress are finished before a server that stops closes the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from gateway.server.connection_limits import ConnectionLimits

STOP: Final = "websocket.stop"
"""Message to the application: the server stops; read no more, and close after the request in progress."""
GIVE_WAY: Final = "websocket.give_way"
"""The same: the connection rests, and its place is needed."""
FULL: Final = "websocket.full"
"""The same: there is no room for what comes."""
_EARLY: Final = 64 << 10
"""Most bytes that may come before the connection is accepted, or after its end."""
_CLOSES_S: Final = 2.0
"""How long a client may take to answer a close."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Handle one connection; implements `connection_limits.Connection` as far as it is open already."""

    kept_back = False
    weigh: Callable[[int], bool] | None = None
    """Called with the bytes that came and are not `taken` yet, whenever they change; False refuses what came last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connections: ConnectionLimits = self.app_state["connections"]
        self.close_timeout = _CLOSES_S
        self._message = bytearray()
        """What has come of a message in fragments."""
        self._untaken = 0
        """Bytes of whole messages that are not taken."""
        self._deaf = False
        self._pong = b""

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        self._weigh()

    def handle_text(self, event: Any) -> None:
        """Take a message, or the first fragment of one."""
        if event.fin:
            self._give(bytes(event.data))
        else:
            self._message = bytearray(event.data)

    handle_bytes = handle_text

    def handle_cont(self, event: Any) -> None:
        self._message += event.data
        if event.fin:
            message, self._message = bytes(self._message), bytearray()
            self._give(message)

    def _give(self, message: bytes) -> None:
        if self.close_sent:
            return
        self._untaken += len(message)
        self.queue.put_nowait({"type": "websocket.receive", "bytes": message})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def taken(self, size: int) -> None:
        """Count a message of `size` bytes no more: it is answered, and counted as the body of its request."""
        self._untaken -= size
        self._weigh()

    def _weigh(self) -> None:
        held = len(self.conn.reader.buffer) + len(self._message) + self._untaken
        fits = self.weigh(held) if self.weigh is not None else held <= _EARLY
        if not fits and not self._deaf:
            self._end(FULL)

    def rests(self, *, resting: bool) -> None:
        """Say whether the connection waits for its client's next message: then it may have to give way."""
        self._connections.socket_rests(self, self.loop.time() if resting else None)

    def give_way(self) -> None:
        """Close the connection; see `connection_limits.Connection`."""
        self._end(GIVE_WAY)

    def turn_away(self, *, patient: bool) -> None:
        """Do nothing: an open connection is not turned away."""

    def too_slow(self) -> None:
        """Do nothing: its messages may come as slowly as they do."""

    def no_room(self) -> None:
        """Do nothing: it has no unfinished head."""

    def shutdown(self) -> None:
        """Read no more, as the server stops; the application closes the connection after the request in progress."""
        self._end(STOP)

    def _end(self, why: str) -> None:
        """Drop what has come and is not whole, listen no more, and tell the application why."""
        self._deaf = True
        self._message = bytearray()
        self.conn.reader.buffer.clear()
        message: Any = {"type": why}
        self.queue.put_nowait(message)

    def handle_ping(self) -> None:
        pong = b"".join(self.conn.data_to_send())
        if self.writable.is_set():
            self.transport.write(pong)
        else:
            self._pong = pong

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pong:
            self.transport.write(self._pong)
            self._pong = b""

    async def until_read(self, limit_s: float) -> None:
        """Wait until the client has read what it was sent. One that has not in `limit_s` seconds is cut off.

        So is one whose request ends meanwhile: its next event would be lost.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self.writable.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            self.transport.abort()
            if isinstance(error, asyncio.CancelledError):
                raise

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(_CLOSES_S, self.transport.abort)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(_CLOSES_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.closed(self)
        self._message = bytearray()
        self.conn.reader.buffer.clear()
