"""Write lines to a file descriptor without blocking the caller: a bounded queue and one writing thread.

`logging.handlers.QueueListener` also has a writing thread, but waits for it without a time limit when it stops.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

_MOST: Final = 1024
_NOTICE_EVERY_S: Final = 1.0

T = TypeVar("T")


class LineWriter(Generic[T]):
    """Queue items from any thread and write each as a line. Call `close`, or queued items are lost at exit."""

    def __init__(self, descriptor: int, render: Callable[[T], bytes], notice: Callable[[int], bytes]) -> None:
        """Start the writing thread.

        `render` makes an item's line, in that thread; `notice` makes the line that reports how many lines were dropped.
        The descriptor is written to directly: a thread that hangs in a Python stream object holds its lock, and the
        interpreter could then not exit.
        """
        self._descriptor = descriptor
        self._render = render
        self._notice = notice
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self._refused = 0
        self._failed = 0
        self._noticed = 0
        self._notice_at = 0.0
        self._thread = threading.Thread(target=self._run, name="tierline.lines", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of lines dropped because the queue was full or writing failed."""
        return self._refused + self._failed

    def put(self, item: T) -> None:
        """Queue an item, or drop and count it if 1,024 are waiting. Never blocks, never raises."""
        if self._queue.qsize() >= _MOST:
            self._refused += 1
        else:
            self._queue.put(item)

    def close(self, limit_s: float = 1.0) -> None:
        """Write what is queued, for at most `limit_s` seconds, and end the thread."""
        self._queue.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._write(self._render(item))
            except Exception:  # noqa: BLE001  (a full disk, a terminal that is gone, an item that cannot be rendered)
                self._failed += 1
            else:
                self._report()

    def _report(self) -> None:
        """Write a notice of the dropped lines now that writing works again; at most once a second."""
        missing, now = self.dropped - self._noticed, time.monotonic()
        if missing and (now >= self._notice_at or self._queue.empty()):
            self._noticed, self._notice_at = self.dropped, now + _NOTICE_EVERY_S
            self._write(self._notice(missing))

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process that shares the descriptor has made it so
                select.select((), (self._descriptor,), ())
