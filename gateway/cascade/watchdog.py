"""The watch over a committed stream: three limits, checked only as often as one of them may have run out.

idle       the backend says nothing, while we wait for it: the call ends, and it is the backend's fault
deadline   the request's time is over: the call ends, and it is nobody's
stall      the client does not read what it was sent: the client is given up for gone
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from gateway.backends.base import BackendError, DeadlinePassed, TimedOut
from gateway.request.context import Client

_LEAST_S: Final = 0.01


class Watchdog:
    """End a stream whose backend is silent, whose deadline has passed, or whose client does not read.

    The stream sets `reading` and `since` itself around each read, as a method call would double what the watch costs.
    The watchdog looks at them only as often as one of its limits may have run out.
    """

    def __init__(self, deadline: float, idle_s: float, give_up: Callable[[BackendError], None], client: Client) -> None:
        self._deadline = deadline
        self._idle_s = idle_s
        self._give_up = give_up
        self._drop_client = client.drop
        self._stall_s = client.stall_s
        self._late = False
        self.reading = False
        """Whether the stream waits for its backend; else it waits for its client."""
        self.since = time.monotonic()
        """Since when it waits for the one or the other, in `time.monotonic()` seconds."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._wait(), self._check)

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()
        self._give_up = self._drop_client = _nobody  # the stream, which holds this, can go without the collector

    def _wait(self) -> float:
        # Waiting for the client may at any moment become waiting for the backend: the smaller limit says when to look.
        limit = self.since + (self._idle_s if self.reading else min(self._idle_s, self._stall_s))
        if not self._late:
            limit = min(limit, self._deadline)
        return max(_LEAST_S, limit - time.monotonic())

    def _check(self) -> None:
        now = time.monotonic()
        silent = now - self.since
        if self.reading and silent >= self._idle_s:
            self._give_up(TimedOut(f"nothing came for {self._idle_s:g} s"))
            return
        if not self.reading and silent >= self._stall_s:
            self._drop_client()
            return
        if now >= self._deadline and not self._late:
            # The client gets the error event after what it has yet to read.
            self._late = True
            self._give_up(DeadlinePassed("the deadline has passed"))
        self._timer = self._loop.call_later(self._wait(), self._check)


def _nobody(*_: object) -> None:
    """Do nothing: the watch is over."""
