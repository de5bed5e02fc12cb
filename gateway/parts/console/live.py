"""Send a page's changing part to every browser that shows it: made once for all of them, at most four times a second.

While nobody looks, nothing is made. A browser that is slower than the updates gets the newest one only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from gateway.parts.console.records import Records

log = logging.getLogger("tierline.console")

_LEAST_S: Final = 0.25
_SHARE: Final = 25.0
"""An update that takes long to make is made the more seldom: at most a twenty-fifth of the time goes into it."""
_AFTER_ERROR_S: Final = 5.0
_IDLE_S: Final = 15.0
"""Without new requests a comment is sent this often, so that a connection that is gone is noticed."""


class LiveUpdates:
    """The updates of one page, by what it shows, such as its time span."""

    def __init__(self, archive: Records, make: Callable[[str], Awaitable[str]]) -> None:
        """`make` returns the HTML of the changing part for one key."""
        self._archive = archive
        self._make = make
        self._feeds: dict[str, _Feed] = {}

    async def updates(self, key: str) -> AsyncIterator[bytes]:
        """Yield server-sent events for as long as the browser listens."""
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(self._archive, self._make, key)
        try:
            with feed.watched():
                yield b": connected\n\n"
                seen = feed.number
                while True:
                    event = await feed.after(seen)
                    seen = feed.number
                    yield event
        finally:
            if not feed.is_watched:
                self._feeds.pop(key, None)  # there may be as many keys as pages that are open


class _Feed:
    """One part, made again when requests have come, while somebody watches."""

    def __init__(self, archive: Records, make: Callable[[str], Awaitable[str]], key: str) -> None:
        self._archive = archive
        self._make = make
        self._key = key
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._event = b""
        self._made = asyncio.Event()
        self.number = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Make updates for as long as the block runs, in one task for all watchers."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"console.live.{self._key}")
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._task.cancel()
                self._task = None

    @property
    def is_watched(self) -> bool:
        """Whether anybody waits for its updates."""
        return self._watchers > 0

    async def after(self, number: int) -> bytes:
        """Return the newest event, once there is one after `number`; a comment if none comes for a while."""
        if self.number == number:
            made = self._made
            try:
                async with asyncio.timeout(_IDLE_S):
                    await made.wait()
            except TimeoutError:
                return b": nothing new\n\n"
        return self._event

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not await self._archive.wait_for_requests(_IDLE_S):
                continue
            began = loop.time()
            try:
                html = await self._make(self._key)
            except Exception:
                log.exception("the update of %s could not be made; trying on", self._key)
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            self._event = b"".join(b"data: " + line.encode() + b"\n" for line in html.splitlines() if line) + b"\n"
            self.number += 1
            made, self._made = self._made, asyncio.Event()
            made.set()
            await asyncio.sleep(max(_LEAST_S, (loop.time() - began) * _SHARE))
