"""Step 11: what happens once the reply is out. Cache write, ledger, trace. None of it can fail or delay a request.

Answers are kept in batches, one round trip to the store for all that came within a few milliseconds. The queue is
bounded; when it is full the cache write is dropped and counted, and the request is recorded all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from cache.entry import WriteOutcome
from cache.response_cache import ResponseCache
from cache.write import CacheWrite, PendingWrite
from gateway.accounting.finalize import Finalizer
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.trace import Hop, Trace

log = logging.getLogger("tierline.afterwards")

_QUEUE: Final = 1024
_BATCH: Final = 32
_LINGER_S: Final = 0.01
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A request whose reply is out."""

    trace: Trace
    ledger: Ledger
    keeping: PendingWrite | None = None
    shared: Shared | None = None


class Shared(Protocol):
    """An answer that equal requests of other workers share until it is in the cache."""

    lease: str
    """The key of the lease under which it was made, '' if there is none: it goes with the write."""

    def kept(self, *, written: bool) -> None:
        """Told once: the answer is in the cache, and the lease gone; or it will not be."""


@dataclass(slots=True)
class _Postponed:
    """A request whose answer is others' too: its books are closed when both its reply and the answer have ended."""

    finished: Finished | None = None
    concluded: bool = False
    keeping: PendingWrite | None = None
    shared: Shared | None = None


class WriteBehind:
    """One background task that finishes finished requests."""

    def __init__(self, cache: ResponseCache, telemetry: Telemetry, books: Finalizer) -> None:
        self._cache = cache
        self._telemetry = telemetry
        self._books = books
        self._queue: deque[Finished] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._postponed: dict[Trace, _Postponed] = {}

    def postpone(self, trace: Trace) -> None:
        """Has a request's books wait for `conclude`: its client may leave before its answer, which others get, ends."""
        self._postponed[trace] = _Postponed()

    def conclude(self, trace: Trace, keeping: PendingWrite | None, shared: Shared | None = None) -> None:
        """The answer of a request has ended, its reply perhaps not yet, and leaves this for the cache."""
        postponed = self._postponed.get(trace)
        if postponed is None:
            if keeping is None:
                return
            postponed = self._postponed[trace] = _Postponed()
        postponed.concluded, postponed.keeping, postponed.shared = True, keeping, shared
        if postponed.finished is not None:
            self.submit(postponed.finished)

    def submit(self, finished: Finished) -> None:
        """Takes a finished request. Never blocks, never raises."""
        postponed = self._postponed.get(finished.trace)
        if postponed is not None:
            if not postponed.concluded:
                postponed.finished = finished
                return
            del self._postponed[finished.trace]
            finished = Finished(finished.trace, finished.ledger, postponed.keeping, postponed.shared)
        try:
            self._books.close(finished.trace, finished.ledger)
        except Exception:
            log.exception("the books of request %s could not be closed", finished.ledger.request_id)
        if finished.keeping is None:
            self._telemetry.record(finished.trace, finished.ledger)
        elif len(self._queue) >= _QUEUE:
            hop = finished.trace.begin(names.CACHE_WRITE, {names.CACHE_OUTCOME: "dropped"})
            hop.end("queue_full")
            self._record(finished, written=False)
        else:
            self._queue.append(finished)
            self._waiting.set()

    def start(self) -> None:
        """Starts the task, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.afterwards")

    async def aclose(self) -> None:
        """Finishes what is queued, within a time limit, and stops."""
        self._closing = True
        self._waiting.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            self._task.cancel()
        left = [one.finished for one in self._postponed.values() if one.finished is not None]
        for finished in (*self._queue, *left):
            self._record(finished, written=False)

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._waiting.wait()
            if not self._closing:
                await asyncio.sleep(_LINGER_S)
            self._waiting.clear()
            while self._queue:
                await self._finish([self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))])

    async def _finish(self, batch: list[Finished]) -> None:
        written: set[Finished] = set()
        try:
            await self._keep(batch, written)
        except Exception:
            # The replies are out. A bug here may cost these cache writes, but not the records, nor the next batch.
            log.exception("%d cache writes failed", len(batch))
        for finished in batch:
            self._record(finished, written=finished in written)

    async def _keep(self, batch: list[Finished], written: set[Finished]) -> None:
        keeps: list[CacheWrite] = []
        writing: list[tuple[Finished, Hop]] = []
        for finished in batch:
            hop = finished.trace.begin(names.CACHE_WRITE)
            keep = _put_together(finished)
            if keep is None:
                _end(hop, WriteOutcome(False, "unfinished"))
            else:
                keeps.append(keep)
                writing.append((finished, hop))
        for (finished, hop), outcome in zip(writing, await self._cache.write_all(keeps), strict=True):
            _end(hop, outcome)
            if outcome.stored:
                written.add(finished)

    def _record(self, finished: Finished, *, written: bool) -> None:
        self._telemetry.record(finished.trace, finished.ledger)
        if finished.keeping is not None:
            self._cache.pending.done(finished.keeping)
        if finished.shared is not None:
            finished.shared.kept(written=written)


def _put_together(finished: Finished) -> CacheWrite | None:
    """What is to be kept; None for what is not worth it, or cannot be: an answer is a stranger's JSON."""
    try:
        keep = finished.keeping.keep() if finished.keeping is not None else None
    except Exception:
        log.exception("the answer of request %s could not be put together", finished.ledger.request_id)
        return None
    if keep is not None and finished.shared is not None:
        keep.lease = finished.shared.lease
    return keep


def _end(hop: Hop, outcome: WriteOutcome) -> None:
    hop.attributes[names.CACHE_OUTCOME] = "stored" if outcome.stored else "refused"
    if outcome.reason:
        hop.attributes[names.CACHE_REASON] = outcome.reason
    hop.end()
