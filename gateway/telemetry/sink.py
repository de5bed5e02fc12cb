"""Record finished requests by a background task: what they cost, in the metrics, the store and the span exporter.

It takes them in batches: what is done for one request at a time, between others, takes twice as long. Metrics that are
shown have all requests that are over: those that wait are counted first.

Nothing here can fail or delay a request. The queue is bounded: what does not fit, and what the exporter does not take,
is dropped and counted in `tierline_telemetry_dropped_total`. The task decides whose hops are recorded
(`telemetry.sampling`), has added what decided each, and has texts redacted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from cache.store.base import Store
from gateway.parts.standard import one
from gateway.telemetry import names
from gateway.telemetry.ledger import ChargedAccounts, DecisionEncoder, Ledger, RecordWriter, ledger_blob
from gateway.telemetry.sampling import HEAD, bound_of, environment_sampler, kept_for

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.trace import Trace

_log = logging.getLogger("tierline.telemetry")

_QUEUE: Final = 2048  # finished requests waiting; about 4 kB each
_BATCH: Final = 32  # records per round trip
_LEAST_SLICE: Final = 4
_LARGEST_SLICE: Final = 32
_PART: Final = 8
_INTERVAL_S: Final = 0.05
_FLUSH_S: Final = 5.0
"""Seconds after which the metrics take over what was counted. The more requests of one surface come meanwhile, the less
each costs."""
_CLOSE_S: Final = 1.5
MOST_CHARS: Final = 16_384
"""Characters of a prompt or an answer that are recorded where texts are captured."""


def slice_of(waiting: int) -> int:
    """Return how many of `waiting` items to work on in one turn of the event loop, at about 60 us each.

    A request that comes meanwhile waits no longer. The more items wait, the more are taken: the fuller the loop, the
    fewer turns it has in a second, and slices of one size would fall behind until the queue is full.
    """
    return max(_LEAST_SLICE, min(waiting // _PART, _LARGEST_SLICE))


class Exporter(Protocol):
    """Exports finished requests. The sink of telemetry calls it off the path of requests."""

    def export(self, trace: Trace, ledger: Ledger) -> None:
        """Accept a finished request, or drop and count it; never block, never raise."""

    async def aclose(self) -> None:
        """Send what is left, within 2 seconds."""


class Redactor(Protocol):
    """Removes from captured texts what must not be kept, before they are stored or exported; never raises."""

    async def kept_of(self, text: str) -> str | None:
        """Return what may be kept of a text; None if that is not known."""

    async def redact(self, traces: Sequence[Trace]) -> None:
        """Replace the captured texts of requests by what may be kept of them; remove them if that is not known."""


@one("records")
def record_writer(
    store: Store,
    keep: int,
    decisions: DecisionEncoder | None,
    dropped: Callable[[str, int], None],
    accounts: ChargedAccounts | None,
) -> RecordWriter:
    """Return what writes records to the store; without, none is written."""
    return RecordWriter()


class Telemetry:
    """Record each finished request once, by `record`. The worker's assembly starts and closes it."""

    def __init__(
        self,
        store: Store,
        *,
        keep: int,
        exporter: Exporter | None,
        metrics: Metrics,
        decisions: DecisionEncoder | None = None,
        complete: Callable[[Trace], None] | None = None,
        log_request: Callable[[Trace, Ledger], None] | None = None,
        sample: float = 1.0,
        redactor: Redactor | None = None,
        meter: Exporter | None = None,
        accounts: ChargedAccounts | None = None,
    ) -> None:
        """Store about the latest `keep` requests; 0 stores none. Without `decisions` they are not recorded.

        `complete` adds to the hops that are recorded what decided each. `log_request` writes a request's line to the
        log; it must not block. `sample` is the share of traces whose hops are recorded in any case. Captured texts are
        stored and exported as `redactor` leaves them. `accounts` are those that requests are charged to.
        """
        self.metrics = metrics
        self.sampled_below = bound_of(sample)
        """Bound for the low 64 bits of the trace ids that head sampling keeps."""
        self.follows_callers, exported_below = environment_sampler()
        """Whether a caller's sampled flag decides what is exported."""
        self.told_below = min(self.sampled_below, exported_below)
        """Bound for the low 64 bits of the trace ids that backends are told are recorded."""
        self._redactor = redactor
        self._exporter = exporter
        self.exports = exporter is not None
        """Whether spans are exported."""
        self._meter = meter
        self._log_request = log_request
        self._decisions = decisions
        self._complete = complete or _nothing
        self._writer = record_writer(store, keep, self._decisions, metrics.telemetry_dropped, accounts)
        self.settle: Callable[[Trace, Ledger], None] | None = None
        """Fills in what a finished request cost, if that is not known yet."""
        metrics.count_waiting = self._count_waiting
        self._queue: deque[tuple[Trace, Ledger]] = deque()
        self._taken: Sequence[tuple[Trace, Ledger]] = ()
        """What was taken from the queue last."""
        self._waiting = asyncio.Event()
        self._full = asyncio.Event()
        self._closing = False
        self._flush: asyncio.TimerHandle | None = None
        self._logged: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def failing(self) -> str:
        """Reason why the store did not take the last records; '' if it did."""
        return self._writer.failing

    def record(self, trace: Trace, ledger: Ledger, *, counted: bool = True) -> None:
        """Queue a finished request: for the metrics, unless it is not to be `counted`, the store and the exporter.

        Ends its root hop if that is still open; after that the trace and the ledger must not change. Call it on the
        event loop's thread, once, after the reply.
        """
        if not trace.root.end_ns:
            trace.root.end(ledger.error)
        if not counted:
            trace.counted = True
        elif self._flush is None and self.metrics.observe is not None:
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush_metrics)
        if len(self._queue) >= _QUEUE:
            self._count(trace, ledger)
            self.metrics.telemetry_dropped("queue_full")
            self._writer.charge(ledger)
            self._waiting.set()
            return
        self._queue.append((trace, ledger))
        if len(self._queue) == 1:
            self._waiting.set()
        elif len(self._queue) == _BATCH:
            self._full.set()

    def _count(self, trace: Trace, ledger: Ledger) -> None:
        """Settle what a finished request cost, and update the metrics with it, each once."""
        if not trace.settled and self.settle is not None:
            self.settle(trace, ledger)
        if trace.counted:
            return
        trace.counted = True
        if (observe := self.metrics.observe) is not None:
            try:
                observe(trace, ledger)
            except Exception:  # noqa: BLE001  (such as a value of a wrong type: the reply has gone out)
                self._dropped("uncountable", trace)

    def _count_waiting(self) -> Iterator[None]:
        for number, finished in enumerate((*self._taken, *self._queue)):
            self._count(*finished)
            if number % _LARGEST_SLICE == _LARGEST_SLICE - 1:
                yield

    async def redacted(self, text: str) -> str | None:
        """Return what may be kept of a text that a client sent to be kept; None if redaction failed."""
        return text if self._redactor is None else await self._redactor.kept_of(text)

    def start(self) -> None:
        """Start the background task on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.telemetry")

    async def aclose(self) -> None:
        """Pass on what is queued and close the exporter, each within a time limit; at most 5 s in all."""
        self._closing = True
        self._waiting.set()
        self._full.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._task, _CLOSE_S)
            if left := len(self._queue) + self._writer.waiting:
                self.metrics.telemetry_dropped("shutdown", left)
        for provider in (self._exporter, self._meter):
            if provider is not None:
                await provider.aclose()
        for _ in self._count_waiting():
            pass
        if self._flush is not None:
            self._flush.cancel()
        self.metrics.flush()

    def _flush_metrics(self) -> None:
        self._flush = None
        self._flush_slice(chain(self._count_waiting(), self.metrics.flush_slices()))

    def _flush_slice(self, slices: Iterator[None]) -> None:
        for _ in slices:
            asyncio.get_running_loop().call_soon(self._flush_slice, slices)
            return

    async def _run(self) -> None:
        while self._queue or not self._closing:
            if (pause_s := self._writer.pause_s) is None:
                await self._waiting.wait()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._waiting.wait()
            if not self._closing and len(self._queue) < _BATCH:
                self._full.clear()
                timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._full.set)
                await self._full.wait()
                timer.cancel()
            await self._writer.write()
            for left in range(len(self._queue), 0, -_BATCH):  # what comes meanwhile waits for others again
                self._taken = [self._queue.popleft() for _ in range(min(_BATCH, left))]
                await self._pass_on(self._taken)
                self._taken = ()
            if not self._queue:
                self._waiting.clear()
        await self._writer.write(now=True)

    async def _pass_on(self, batch: Sequence[tuple[Trace, Ledger]]) -> None:
        records: list[bytes] = []
        if self._redactor is not None:
            await self._redact(self._redactor, batch)
        size = slice_of(len(batch) + len(self._queue))
        for start in range(0, len(batch), size):
            if start:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self.metrics.telemetry_dropped("shutdown", len(records) + len(batch) - start)
                    raise
            for trace, ledger in batch[start : start + size]:
                self._count(trace, ledger)
            for trace, ledger in batch[start : start + size]:
                if self._log_request is not None:
                    self._log_request(trace, ledger)
                try:
                    self._take(trace, ledger, records)
                except Exception:  # noqa: BLE001  (one trace that cannot be encoded must not end the background task)
                    self._dropped("unserialisable", trace)
        if records:
            self._writer.add(records)
        await self._writer.write()

    async def _redact(self, redactor: Redactor, batch: Sequence[tuple[Trace, Ledger]]) -> None:
        """Complete the hops that are recorded, and have texts redacted, which may not be seen before."""
        for trace, ledger in batch:
            self._count(trace, ledger)
            try:
                if kept_for(trace, ledger):
                    if trace.captures:
                        _add_texts(trace)
                    self._complete(trace)
            except Exception:  # noqa: BLE001  (one trace that cannot be completed must not end the background task)
                self._dropped("uncompleted", trace)
        await redactor.redact([trace for trace, _ in batch])

    def _take(self, trace: Trace, ledger: Ledger, records: list[bytes]) -> None:
        """Export one finished request, and add its record to `records`, and its charge to what is written with them."""
        if ledger.accounts:
            self._writer.charge(ledger)
        ledger.kept = HEAD if trace.sampled else kept_for(trace, ledger)
        if ledger.kept:
            if self._redactor is None:
                if trace.captures:
                    _add_texts(trace)
                self._complete(trace)
            if self._exporter is not None:
                self._exporter.export(trace, ledger)
        if self._meter is not None:
            self._meter.export(trace, ledger)
        if self._writer.keep:
            records.append(ledger_blob(trace, ledger, self._decisions))

    def _dropped(self, reason: str, trace: Trace) -> None:
        self.metrics.telemetry_dropped(reason)
        if reason not in self._logged:
            self._logged.add(reason)
            _log.exception("telemetry: %s, trace %032x (logged once; each is counted)", reason, trace.trace_id)


def _nothing(_: Trace) -> None:
    pass


def _add_texts(trace: Trace) -> None:
    attributes = trace.root.attributes
    if names.PROMPT in attributes:
        attributes[names.PROMPT] = attributes[names.PROMPT][:MOST_CHARS]
    if trace.answer is not None and (answer := trace.answer()):
        attributes[names.ANSWER] = answer[:MOST_CHARS]
