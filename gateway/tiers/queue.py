"""The line in front of an endpoint that carries all it may: who waits, and who gets the place that becomes free.

Interactive requests go ahead of batch ones, first come first served within each. A batch request gets at least every
twentieth place that becomes free, unless batch calls hold their part of the places already (see `reserve`).

One rule says how many wait and for how long: each surface's policy, by `load.max_waiting` and `load.max_wait`. A
backend's `queue` is a hard cap on all surfaces together, where the config has one. A line that is full by it takes an
interactive request in place of its youngest batch request, but for one place in line in twenty.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.backends.base import Saturated

if TYPE_CHECKING:
    from gateway.tiers.slot import Slot

EVERY = 20
"""A batch request gets one place in so many."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
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

    def __init__(self, ask: SlotRequest, since: float, future: asyncio.Future[Slot], *, retry: bool) -> None:
        self.ask = ask
        self.since = since
        self.retry = retry
        self.future = future


class SlotQueue:
    """At most `length` waiters; None caps nothing. `surfaces` counts each surface's, in all lines of the worker."""

    __slots__ = ("_batch", "_interactive", "_kept", "_length", "_passed_over", "_surfaces", "size")

    def __init__(self, length: int | None, surfaces: Counter[str]) -> None:
        self._length = sys.maxsize if length is None else length
        self._kept = self._length // EVERY
        self._surfaces = surfaces
        self._interactive: OrderedDict[Waiter, None] = OrderedDict()
        self._batch: OrderedDict[Waiter, None] = OrderedDict()
        self._passed_over = 0
        self.size = 0
        """How many wait."""

    @property
    def interactive(self) -> int:
        """How many interactive requests wait."""
        return len(self._interactive)

    @property
    def batch(self) -> int:
        """How many batch requests wait."""
        return len(self._batch)

    def ahead_of(self, *, batch: bool) -> int:
        """How many places must become free before the one that a newcomer would get, as things are now."""
        if not batch:
            return len(self._interactive)
        return min(len(self._interactive) + len(self._batch), (len(self._batch) + 1) * EVERY - 1)

    def join(self, ask: SlotRequest, now: float, retry_after_s: float, *, retry: bool = False) -> Waiter:
        """The newcomer's place in line. Raises Saturated, with this hint, when there is none for it."""
        if self._surfaces[ask.surface] >= ask.max_waiting:
            raise Saturated(f"{ask.max_waiting} requests of {ask.surface} wait already", retry_after_s)
        batch = ask.priority == "batch"
        if self.size >= self._length - (0 if batch else max(0, self._kept - len(self._batch))):
            if batch or len(self._batch) <= self._kept:
                raise Saturated(f"{self.size} requests wait already", retry_after_s)
            youngest = next(reversed(self._batch))
            self.turn_away(youngest, Saturated("an interactive request took its place in line", retry_after_s))
        waiter = Waiter(ask, now, asyncio.get_running_loop().create_future(), retry=retry)
        (self._batch if batch else self._interactive)[waiter] = None
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
        """Who gets a place that became free, out of line by then; None: only batch ones wait, and none may have it."""
        for line in (self._interactive, self._batch):
            while line and (first := next(iter(line))).future.done():
                self.leave(first)  # cancelled, and not run since
        if self._batch and batch_may and (self._passed_over >= EVERY - 1 or not self._interactive):
            self._passed_over = 0
            return self._first_of(self._batch)
        self._passed_over += bool(self._batch)
        return self._first_of(self._interactive) if self._interactive else None

    def _first_of(self, line: OrderedDict[Waiter, None]) -> Waiter:
        first = next(iter(line))
        self.leave(first)
        return first
