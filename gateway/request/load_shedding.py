"""The gate: how many requests a worker takes in hand, decided before a byte of their bodies is read.

What waits for a backend stands in that backend's line, under its surface's limits. The gate is for what would break the
worker itself: more requests than it can hold, or an event loop that no longer keeps up, for then everybody's first
token is late. A refusal costs next to nothing, so refusing is how the loop catches up. And it is for memory, which is
given up in steps: first answers are no longer kept, then connections no longer wait for another request, and at last
newcomers are refused, so that the streams that are under way are the last to end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.errors import Overloaded, retry_after
from gateway.request.memory import used_share

_EVERY_S: Final = 0.05
_LOOKS: Final = 4
MOST_LAG_S: Final = 0.1
"""By so much the loop may be late, again and again, until newcomers are refused."""

KEEP_ANSWERS_BELOW: Final = 0.85
KEEP_ALIVE_BELOW: Final = 0.92
TAKE_BELOW: Final = 0.95
"""Shares of the memory, of what the process may have, from which each of these is given up."""
_MEMORY_EVERY: Final = 20
"""One look at the clock in so many is one at the memory too: once a second."""


class LoadShedder:
    """One worker's. `enter` and `leave` around every request; `start` on the event loop, or nothing is looked at.

    `memory` tells the share of it that is in use.
    """

    def __init__(self, most: int, memory: Callable[[], float] | None = None) -> None:
        self.in_hand = 0
        self.draining = False
        self.keeps_alive = True
        """Whether a connection may stay open for another request."""
        self.keeps_answers = True
        """Whether answers may be kept for the cache."""
        self.memory = 0.0
        """The share of the memory in use, when last looked at."""
        self._memory = used_share() if memory is None else memory
        self._looks = 0
        self._lags = deque([0.0] * _LOOKS, _LOOKS)
        self._most = most
        self._due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lag_s(self) -> float:
        """How late the loop has come to each of its last few looks at the clock, at least: one long stop is no lag."""
        return min(self._lags)

    def start(self) -> None:
        """Begins to look at the loop's lag."""
        self._loop = asyncio.get_running_loop()
        self._wait()

    def stop(self) -> None:
        """Ends that."""
        if self._timer is not None:
            self._timer.cancel()

    def drain(self) -> None:
        """The process is to stop: newcomers are still served, but no connection waits for another request."""
        self.draining = True
        self.keeps_alive = False

    def enter(self) -> None:
        """Counts a request in; it is to be counted out again even if it is then refused."""
        self.in_hand += 1

    def leave(self) -> None:
        """Counts it out."""
        self.in_hand -= 1

    def check(self) -> None:
        """Raises Overloaded for a request that is one too many."""
        if self.in_hand > self._most:
            raise Overloaded(f"This gateway has {self._most} requests in hand.", headers=retry_after(1))
        if self.memory >= TAKE_BELOW:
            raise Overloaded("This gateway is short of memory.", headers=retry_after(5))
        if self.lag_s > MOST_LAG_S:
            raise Overloaded("This gateway is behind with its work.", headers=retry_after(1))

    def _wait(self) -> None:
        if self._loop is not None:
            self._due = self._loop.time() + _EVERY_S
            self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        if self._loop is not None:
            self._lags.append(self._loop.time() - self._due)
            if self._looks % _MEMORY_EVERY == 0:
                self._look_at_memory()
            self._looks += 1
            self._wait()

    def _look_at_memory(self) -> None:
        self.memory = self._memory()
        self.keeps_answers = self.memory < KEEP_ANSWERS_BELOW
        self.keeps_alive = not self.draining and self.memory < KEEP_ALIVE_BELOW
