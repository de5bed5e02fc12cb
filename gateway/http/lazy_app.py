"""Build an application on its first request, in a thread, so that requests under way go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


class LazyApp:
    """The ASGI application that `build` returns; it is called once, and again only if it failed."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self._building: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if self._building is None or (self._building.done() and _failed(self._building)):
            self._building = asyncio.create_task(asyncio.to_thread(self._build), name="tierline.cold_routes")
        app = await asyncio.shield(self._building)
        await app(scope, receive, send)


def _failed(building: asyncio.Task[Any]) -> bool:
    return building.cancelled() or building.exception() is not None
