"""Send a page's changing part to every browser that shows it: made once for all of them, at most four times a second.

While nobody looks, nothing is made. A browser that is slower than the updates gets the newest one only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from starlette.requests import Request

from gateway.parts.console.page import whole_in
from gateway.parts.console.records import Records

log = logging.getLogger("tierline.console")

_LEAST_S: Final = 0.25
_SHARE: Final = 25.0
"""An update that takes long to make is made the more seldom: at most a twenty-fifth of the time goes into it."""
_AFTER_ERROR_S: Final = 5.0
_IDLE_S: Final = 15.0
"""Without new requests a comment is sent this often, so that a connection that is gone is noticed."""


def added_in(request: Request) -> int | None:
    """Return how often requests were added when the page was made that asks for updates; None if it does not say."""
    return whole_in(request.query_params.get("added", ""))


class LiveUpdates:
    """The updates of one page, by what it shows, such as its time span."""

    def __init__(self, archive: Records, make: Callable[[str], Awaitable[str]]) -> None:
        """`make` returns the HTML of the changing part for one key."""
        self._archive = archive
        self._make = make
        self._feeds: dict[str, _Feed] = {}

    async def updates(self, key: str, added: int | None = None) -> AsyncIterator[bytes]:
        """Yield server-sent events for as long as the browser listens.

        `added` is that of the records when the page was made, so that what came since is sent at once; None for now.
        The number of a process that is gone cannot be compared: the page is sent at once.
        """
        newest = self._archive.added
        shown = newest if added is None else added if added <= newest else -1
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = _Feed(self._archive, self._make, key)
        try:
            with feed.watched(shown):
                yield b": connected\n\n"
                while True:
                    shown, event = await feed.after(shown)
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
        self._of = 0
        """Additions of requests that the newest event was made of; before the first, those that all watchers show."""

    @contextlib.contextmanager
    def watched(self, shown: int) -> Iterator[None]:
        """Make updates for as long as the block runs, in one task for all watchers. This one shows `shown`."""
        self._watchers += 1
        if self._task is None or (not self._event and shown < self._of):
            if self._task is not None:
                self._task.cancel()
            self._of = shown
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

    async def after(self, shown: int) -> tuple[int, bytes]:
        """Return the newest event and what it was made of, once that is more than `shown`; a comment after a while."""
        if not self._event or self._of <= shown:
            made = self._made
            try:
                async with asyncio.timeout(_IDLE_S):
                    await made.wait()
            except TimeoutError:
                return shown, b": nothing new\n\n"
        return self._of, self._event

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not await self._archive.wait_for_requests(self._of, _IDLE_S):
                continue
            began, added = loop.time(), self._archive.added
            try:
                html = await self._make(self._key)
            except Exception:
                log.exception("the update of %s could not be made; trying on", self._key)
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            self._event = b"".join(b"data: " + line.encode() + b"\n" for line in html.splitlines() if line) + b"\n"
            self._of = added
            made, self._made = self._made, asyncio.Event()
            made.set()
            await asyncio.sleep(max(_LEAST_S, (loop.time() - began) * _SHARE))
