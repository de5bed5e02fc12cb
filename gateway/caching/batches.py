"""Work through a queue in the background, batch by batch: what is left to do after replies, for many at once."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_BATCH: Final = 32
"""Most items of one batch."""
_CLOSE_S: Final = 1.0
"""Most seconds for the rest of the queue when the process stops."""


class BatchTask(Generic[T]):
    """One task, and its queue. A subclass appends to `_queue`, sets `_waiting`, and bounds what it appends."""

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        """Prepare the task of this name. It waits `linger_s` seconds for others after the first item of a batch."""
        self._name = name
        self._linger_s = linger_s
        self._queue: deque[T] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _finish(self, batch: list[T]) -> None:
        """Do the work of a batch. It must not raise: the batches after it would be lost."""

    def start(self) -> None:
        """Start the task on the running event loop."""
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def aclose(self) -> None:
        """Finish what is queued, within a time limit, and stop."""
        self._closing = True
        self._waiting.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            self._task.cancel()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._waiting.wait()
            if self._linger_s and not self._closing:
                await asyncio.sleep(self._linger_s)
            self._waiting.clear()
            while self._queue:
                await self._finish([self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))])
