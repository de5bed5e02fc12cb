"""Limit an endpoint's calls in flight by slots, and queue the requests that wait for one.

Interactive requests go ahead of batch ones, first come first served within each class. A free slot goes to the request
that has waited longest at any endpoint of the tier (`Endpoint.admit`). A batch request gets at least every twentieth
free slot, unless batch calls already hold their share of the slots (see `routing.load.limits`). Each surface's policy
limits how many of its requests wait and for how long: `load.max_waiting` and `load.max_wait`. A backend's `queue` in
the config, if set, is a hard cap on all surfaces together. When that cap is reached, an interactive request replaces
the youngest batch request, except that one queue position in twenty stays for batch.

Each call's outcome is reported to its slot. Only a failure that is the endpoint's own fault may eject it, because that
affects all requests:

never called (every endpoint was full)                    no
an error about this request alone (`gateway.backends.blame`)  no
a prompt longer than the model's context                  no
a text that repeats itself                                no: the model wrote it
the request's deadline passed while tokens still arrived  no
the time that the request gave the call ran out           yes, if the backend was silent for its config's `patience`;
                                                          else no: short timeouts of one client or surface must not
                                                          eject a backend for all others
anything else                                             yes
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Literal, NamedTuple

from gateway.backends.base import (
    BackendError,
    BadStatus,
    BudgetSpent,
    DeadlinePassed,
    Degenerate,
    Saturated,
)

if TYPE_CHECKING:
    from gateway.tiers.endpoint import Endpoint

EVERY = 20
"""While interactive requests wait too, one in this many free slots goes to a batch request."""


class SlotRequest(NamedTuple):
    """Ask a tier for one slot, for one call.

    `wait_s` is the longest wait in seconds; `max_waiting` is how many requests of its surface may wait in this worker;
    `tokens_in` is the length of the prompt. `affinity` is the key for sticky selection, a hash of the tenant and the
    beginning of the conversation; 0 for none. Only backends of these `models` give it a slot; None for any.
    """

    surface: str = ""
    priority: Literal["interactive", "batch"] = "interactive"
    wait_s: float = 0.0
    max_waiting: int = 0
    tokens_in: int = 0
    affinity: int = 0
    stream: bool = False
    models: frozenset[str] | None = None


class Waiter:
    """One queued request. Its future gets the slot, or a Saturated error. `since` is when it joined."""

    __slots__ = ("ask", "future", "retry", "since")

    def __init__(self, ask: SlotRequest, since: float, future: asyncio.Future[Slot], *, retry: bool) -> None:
        self.ask = ask
        self.since = since
        self.retry = retry
        self.future = future


class SlotQueue:
    """Hold the queued requests of one endpoint, at most `length` of them (None: no cap).

    `surfaces` counts each surface's queued requests over all queues of the worker.
    """

    __slots__ = ("_batch", "_interactive", "_kept", "_length", "_passed_over", "_surfaces", "size")

    def __init__(self, length: int | None, surfaces: Counter[str]) -> None:
        self._length = sys.maxsize if length is None else length
        self._kept = self._length // EVERY
        self._surfaces = surfaces
        self._interactive: OrderedDict[Waiter, None] = OrderedDict()
        self._batch: OrderedDict[Waiter, None] = OrderedDict()
        self._passed_over = 0
        self.size = 0
        """The number of queued requests."""

    @property
    def interactive(self) -> int:
        """The number of queued interactive requests."""
        return len(self._interactive)

    @property
    def batch(self) -> int:
        """The number of queued batch requests."""
        return len(self._batch)

    @property
    def any_waits(self) -> bool:
        """Whether any request of the worker waits in any queue. Cheap to read."""
        return bool(self._surfaces)

    @property
    def batch_is_due(self) -> bool:
        """Whether a batch request has been passed over so often that the next free slot is its own."""
        return bool(self._batch) and self._passed_over >= EVERY - 1

    def first(self) -> Waiter | None:
        """Return the interactive request that has waited longest; None if none waits."""
        while self._interactive and (first := next(iter(self._interactive))).future.done():
            self.leave(first)  # cancelled, but its task has not run since to leave the queue itself
        return next(iter(self._interactive), None)

    def ahead_of(self, *, batch: bool) -> int:
        """Return how many slots would go to others before a request that joined the queue now gets one."""
        if not batch:
            return len(self._interactive)
        return min(len(self._interactive) + len(self._batch), (len(self._batch) + 1) * EVERY - 1)

    def join(self, ask: SlotRequest, now: float, retry_after_s: float, *, retry: bool = False) -> Waiter:
        """Queue a request. Raises Saturated, with `retry_after_s` as its hint, when the queue has no room for it."""
        if self._surfaces[ask.surface] >= ask.max_waiting:
            raise Saturated(f"{ask.max_waiting} requests of {ask.surface} wait already", retry_after_s)
        batch = ask.priority == "batch"
        if self.size >= self._length - (0 if batch else max(0, self._kept - len(self._batch))):
            if batch or len(self._batch) <= self._kept:
                raise Saturated(f"{self.size} requests wait already", retry_after_s)
            youngest = next(reversed(self._batch))
            self.turn_away(youngest, Saturated("an interactive request took its place in the queue", retry_after_s))
        waiter = Waiter(ask, now, asyncio.get_running_loop().create_future(), retry=retry)
        (self._batch if batch else self._interactive)[waiter] = None
        self.size += 1
        self._surfaces[ask.surface] += 1
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a request from the queue; do nothing if it has left already."""
        waiting = self._batch if waiter.ask.priority == "batch" else self._interactive
        if waiting.pop(waiter, waiter) is None:
            self.size -= 1
            surface = waiter.ask.surface
            self._surfaces[surface] -= 1
            if not self._surfaces[surface]:
                del self._surfaces[surface]

    def turn_away(self, waiter: Waiter, error: Saturated) -> None:
        """Remove a request from the queue and fail it with `error`."""
        self.leave(waiter)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def turn_all_away(self, error: Saturated) -> None:
        """Remove all requests from the queue and fail each with `error`."""
        for waiter in [*self._interactive, *self._batch]:
            self.turn_away(waiter, error)

    def next(self, *, batch_may: bool) -> Waiter | None:
        """Remove and return the request that gets the next free slot.

        None if only batch requests wait and `batch_may` says that none of them may have it.
        """
        self.first()
        while self._batch and (first := next(iter(self._batch))).future.done():
            self.leave(first)
        if batch_may and self._batch and (self.batch_is_due or not self._interactive):
            self._passed_over = 0
            return self._first_of(self._batch)
        return self.take_first() if self._interactive else None

    def take_first(self) -> Waiter:
        """Remove and return the interactive request that has waited longest. Call it where `first` returned one."""
        self._passed_over += bool(self._batch)
        return self._first_of(self._interactive)

    def _first_of(self, waiting: OrderedDict[Waiter, None]) -> Waiter:
        first = next(iter(waiting))
        self.leave(first)
        return first


class Slot:
    """Hold a place for one call, and report its outcome to the endpoint.

    `gateway.cascade.call.BackendCall` ends the slot with `succeeded`, `failed`, `lost` or `free`; further calls of
    these change nothing. `queued_s` is how long the request waited for the slot. Latencies are counted from
    `called_at`, after that.
    """

    __slots__ = ("_first_at", "_over", "_probe", "_retry", "ask", "called_at", "endpoint", "queued_s")

    def __init__(
        self, endpoint: Endpoint, ask: SlotRequest, now: float, queued_s: float, *, probe: bool, retry: bool
    ) -> None:
        self.endpoint = endpoint
        self.ask = ask
        self.called_at = now
        self.queued_s = queued_s
        self._first_at: float | None = None
        self._over = False
        self._probe = probe
        self._retry = retry

    @property
    def has_begun(self) -> bool:
        """Whether the first token of a stream has come."""
        return self._first_at is not None

    def began(self) -> None:
        """Note the first token of a stream: the endpoint answers. Whether the call succeeds is seen at its end."""
        if self._over or self._first_at is not None:
            return
        self._first_at = self.endpoint.now()
        self.endpoint.began(self.called_at, self.ask.tokens_in, self._first_at)

    def succeeded(self, tokens_out: int = 0) -> None:
        """End the call with a whole answer, good or not, of `tokens_out` tokens; 0 if that is not known."""
        if self._over:
            return
        now = self.endpoint.now()
        if self._first_at is None:
            self.endpoint.answered(self.called_at, self.ask.tokens_in, now)
        elif tokens_out > 1:
            self.endpoint.latency.observe_tpot((now - self._first_at) / (tokens_out - 1))
        self.endpoint.well_again(self.called_at, now, retry=self._retry)
        self._end(now)

    def failed(self, error: BackendError) -> None:
        """End the call without a whole answer. The module's docstring says when the endpoint is to blame."""
        if self._over:
            return
        now = self.endpoint.now()
        if self.ask.stream and self._first_at is None and isinstance(error, BudgetSpent):
            self._observe_silence(now)  # whatever the cause, the answer would have taken at least this long
        if _is_endpoints_fault(error, self.endpoint.config.patience):
            self.endpoint.failed(error, self.called_at, now, retry=self._retry)
        elif isinstance(error, BadStatus):
            self.endpoint.well_again(self.called_at, now, retry=self._retry)
        self._end(now)

    def lost(self) -> None:
        """End the call because another was faster. If no first token has come, the wait until now counts as latency."""
        if self._over:
            return
        now = self.endpoint.now()
        if self._first_at is None:
            self._observe_silence(now)
        self._end(now)

    def free(self) -> None:
        """End the call without a verdict on the endpoint: it was cancelled, or never made."""
        if not self._over:
            self._end(self.endpoint.now())

    def _observe_silence(self, now: float) -> None:
        self.endpoint.latency.observe_ttft(self.ask.tokens_in, now - self.called_at, now, censored=True)

    def _end(self, now: float) -> None:
        self._over = True
        self.endpoint.leave(self.called_at, now, batch=self.ask.priority == "batch", probe=self._probe)


def _is_endpoints_fault(error: BackendError, patience_s: float) -> bool:
    """Return whether `error` counts against its endpoint, by the table in the module's docstring."""
    if isinstance(error, Saturated | DeadlinePassed | Degenerate):
        return False
    if isinstance(error, BadStatus):
        return not error.about_one_request
    if isinstance(error, BudgetSpent):
        return error.waited_s >= patience_s
    return True
