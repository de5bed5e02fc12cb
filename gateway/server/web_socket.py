"""Extend uvicorn's WebSocket protocol: requests in progress are finished before a server that stops closes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Handle one connection."""

    when_lost: Callable[[], None] | None = None
    """Called at its end."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def shutdown(self) -> None:
        """Read no more, as the server stops; the application closes the connection after the request in progress."""
        message: Any = {"type": "websocket.stop"}
        self.queue.put_nowait(message)
