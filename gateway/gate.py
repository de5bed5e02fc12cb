"""The gate: how many requests a worker takes in hand, decided before a byte of their bodies is read.

What waits for a backend stands in that backend's line, under its surface's limits. The gate is for what would break the
worker itself: more requests than it can hold, or an event loop that no longer keeps up, for then everybody's first
token is late. A refusal costs next to nothing, so refusing is how the loop catches up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gateway.errors import Overloaded
from gateway.failures import retry_after

_EVERY_S: Final = 0.05
_LOOKS: Final = 4
MOST_LAG_S: Final = 0.1
"""By so much the loop may be late, again and again, until newcomers are refused."""


class Gate:
    """One worker's. `enter` and `leave` around every request; `start` on the event loop, or lag is not looked at."""

    def __init__(self, most: int) -> None:
        self.in_hand = 0
        self.draining = False
        self.keeps_alive = True
        """Whether a connection may stay open for another request."""
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
        if self.lag_s > MOST_LAG_S:
            raise Overloaded("This gateway is behind with its work.", headers=retry_after(1))

    def _wait(self) -> None:
        if self._loop is not None:
            self._due = self._loop.time() + _EVERY_S
            self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        if self._loop is not None:
            self._lags.append(self._loop.time() - self._due)
            self._wait()
