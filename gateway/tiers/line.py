"""The line in front of an endpoint that carries all it may: who waits, and who gets the place that becomes free.

Interactive requests go ahead of batch ones, first come first served within each. A batch request gets at least every
twentieth place that becomes free. A full line takes an interactive request in place of its youngest batch request.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.backends.base import Saturated

if TYPE_CHECKING:
    from gateway.tiers.slot import Slot

_PASSED_OVER_MOST = 19


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants of a tier: one place for one call.

    `wait_s` is how long it may wait for it at most, in seconds; `max_waiting` how many requests of its surface may wait
    in this worker. `affinity` is a hash of the tenant and of the conversation's beginning, 0 for none.
    """

    surface: str = ""
    priority: Literal["interactive", "batch"] = "interactive"
    wait_s: float = 0.0
    max_waiting: int = 0
    tokens_in: int = 0
    affinity: int = 0
    stream: bool = False


class Waiter:
    """One request in line. Its future gets the slot, or Saturated."""

    __slots__ = ("ask", "future", "retry", "since")

    def __init__(self, ask: Ask, since: float, future: asyncio.Future[Slot], *, retry: bool) -> None:
        self.ask = ask
        self.since = since
        self.retry = retry
        self.future = future


class Line:
    """At most `length` waiters. `surfaces` counts those of each surface, in all lines of the worker together."""

    __slots__ = ("_batch", "_interactive", "_length", "_passed_over", "_surfaces", "size")

    def __init__(self, length: int, surfaces: Counter[str]) -> None:
        self._length = length
        self._surfaces = surfaces
        self._interactive: OrderedDict[Waiter, None] = OrderedDict()
        self._batch: OrderedDict[Waiter, None] = OrderedDict()
        self._passed_over = 0
        self.size = 0
        """How many wait."""

    def ahead_of(self, *, batch: bool) -> int:
        """How many a newcomer would have ahead of it."""
        return len(self._interactive) + (len(self._batch) if batch else 0)

    def join(self, ask: Ask, now: float, retry_after_s: float, *, retry: bool = False) -> Waiter:
        """The newcomer's place in line. Raises Saturated, with this hint, when there is none for it."""
        if self._surfaces[ask.surface] >= ask.max_waiting:
            raise Saturated(f"{ask.max_waiting} requests of {ask.surface} wait already", retry_after_s)
        if self.size >= self._length:
            if ask.priority == "batch" or not self._batch:
                raise Saturated(f"{self.size} requests wait already", retry_after_s)
            youngest = next(reversed(self._batch))
            self.turn_away(youngest, Saturated("an interactive request took its place in line", retry_after_s))
        waiter = Waiter(ask, now, asyncio.get_running_loop().create_future(), retry=retry)
        (self._batch if ask.priority == "batch" else self._interactive)[waiter] = None
        self.size += 1
        self._surfaces[ask.surface] += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """It waits no longer; nothing happens when it has left already."""
        line = self._batch if waiter.ask.priority == "batch" else self._interactive
        if line.pop(waiter, waiter) is None:
            self.size -= 1
            surface = waiter.ask.surface
            self._surfaces[surface] -= 1
            if not self._surfaces[surface]:
                del self._surfaces[surface]

    def turn_away(self, waiter: Waiter, error: Saturated) -> None:
        """It leaves without a place."""
        self.leave(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def turn_all_away(self, error: Saturated) -> None:
        """Everybody leaves without a place."""
        for waiter in [*self._interactive, *self._batch]:
            self.turn_away(waiter, error)

    def next(self, *, batch_may: bool) -> Waiter | None:
        """Who gets a place that became free, out of line by then; None leaves it free.

        Unless `batch_may`, a batch request gets it only when as many as may be were given past it.
        """
        for line in (self._interactive, self._batch):
            while line and (first := next(iter(line))).future.done():
                self.leave(first)  # cancelled, and not run since
        if self._batch and (self._passed_over >= _PASSED_OVER_MOST or (batch_may and not self._interactive)):
            self._passed_over = 0
            return self._first_of(self._batch)
        self._passed_over += bool(self._batch)
        return self._first_of(self._interactive) if self._interactive else None

    def _first_of(self, line: OrderedDict[Waiter, None]) -> Waiter:
        first = next(iter(line))
        self.leave(first)
        return first
