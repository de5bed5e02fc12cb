"""An event loop in a thread of its own, for the servers of tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Run coroutines of the test's thread on another one.

    The loop is made when it starts, not when the server is: one that is made and never entered leaves no open socket.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def start(self) -> None:
        """Start the thread. Its loop is asyncio's own, whatever the loop of the test is."""
        self._loop = asyncio.SelectorEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns there; raise TimeoutError after 10 seconds."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def stop(self) -> None:
        """End the thread and close its loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
