"""Step 11: what happens once the reply is out. Cache write, ledger, trace. None of it can fail or delay a request.

The queue is bounded; when it is full the cache write is dropped and counted, and the request is recorded all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.trace import Trace

_QUEUE: Final = 1024
_AT_ONCE: Final = 16

Write = Callable[[], Awaitable[tuple[str, str]]]
"""A cache write still to be made; gives its outcome, and the reason of one that was refused."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request whose reply is out."""

    trace: Trace
    ledger: Ledger
    write: Write | None = None


class Afterwards:
    """One background task that finishes finished requests."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._queue: deque[Finished] = deque()
        self._waiting = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, finished: Finished) -> None:
        """Takes a finished request. Never blocks, never raises."""
        if finished.write is None:
            self._telemetry.record(finished.trace, finished.ledger)
        elif len(self._queue) >= _QUEUE:
            hop = finished.trace.begin(names.CACHE_WRITE, {names.CACHE_OUTCOME: "dropped"})
            hop.end("queue_full")
            self._telemetry.record(finished.trace, finished.ledger)
        else:
            self._queue.append(finished)
            self._waiting.set()

    def start(self) -> None:
        """Starts the task, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.afterwards")

    async def aclose(self, patience_s: float = 1.0) -> None:
        """Finishes what is queued, within a time limit, and stops."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._drain()
        for finished in self._queue:
            self._telemetry.record(finished.trace, finished.ledger)

    async def _run(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            await self._drain()

    async def _drain(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(_AT_ONCE, len(self._queue)))]
            await asyncio.gather(*map(self._finish, batch))

    async def _finish(self, finished: Finished) -> None:
        if finished.write is not None:
            hop = finished.trace.begin(names.CACHE_WRITE)
            outcome, reason = await finished.write()
            hop.attributes[names.CACHE_OUTCOME] = outcome
            hop.attributes[names.CACHE_REASON] = reason
            hop.end()
        self._telemetry.record(finished.trace, finished.ledger)
