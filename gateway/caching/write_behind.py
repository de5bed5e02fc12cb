"""Step 11: what happens once the reply is out. Cache write, ledger, trace. None of it can fail or delay a request.

Answers are kept in batches, one round trip to the store for all that came within a few milliseconds. The queue is
bounded; when it is full the cache write is dropped and counted, and the request is recorded all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final

from cache.entry import WriteOutcome
from cache.response_cache import ResponseCache
from cache.write import CacheWrite, PendingWrite
from gateway.accounting.finalize import Finalizer
from gateway.request.reply import AnswerEnd, Reply, SharedAnswer
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.trace import Hop, Trace

log = logging.getLogger("tierline.write_behind")

_QUEUE: Final = 1024
_BATCH: Final = 32
_LINGER_S: Final = 0.01
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A request whose reply is out, and what its answer leaves for the store."""

    trace: Trace
    ledger: Ledger
    write: PendingWrite | None = None
    shared: SharedAnswer | None = None


class WriteBehind:
    """One background task that finishes finished requests."""

    def __init__(self, cache: ResponseCache, telemetry: Telemetry, finalizer: Finalizer) -> None:
        self._cache = cache
        self._telemetry = telemetry
        self._finalizer = finalizer
        self._queue: deque[Finished] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._open: dict[AnswerEnd, Finished] = {}  # their answers go on for other readers

    def finish(self, trace: Trace, ledger: Ledger, reply: Reply | None) -> None:
        """Finish one request: its cost, its cache write, its record. The only entry to step 11; never blocks or raises.

        `reply` is None for a request that got none. Where others read the answer too, this waits for the answer's end.
        """
        if reply is None:
            self._take(Finished(trace, ledger))
        elif (end := reply.shared_end) is None:
            self._take(Finished(trace, ledger, reply.write if reply.is_whole() else None))
        elif end.over:
            self._take(Finished(trace, ledger, end.write, end.shared))
        else:
            self._open[end] = Finished(trace, ledger)
            end.then(partial(self._ended, end))

    def _ended(self, end: AnswerEnd) -> None:
        finished = self._open.pop(end, None)
        if finished is not None:
            self._take(Finished(finished.trace, finished.ledger, end.write, end.shared))

    def _settle(self, finished: Finished) -> None:
        try:
            self._finalizer.close(finished.trace, finished.ledger)
        except Exception:
            log.exception("the cost of request %s could not be settled", finished.ledger.request_id)

    def _take(self, finished: Finished) -> None:
        self._settle(finished)
        if finished.write is None:
            self._record(finished, written=False)
        elif len(self._queue) >= _QUEUE:
            hop = finished.trace.begin(names.CACHE_WRITE, {names.CACHE_OUTCOME: "dropped"})
            hop.end("queue_full")
            self._record(finished, written=False)
        else:
            self._queue.append(finished)
            self._waiting.set()

    def start(self) -> None:
        """Starts the task, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.write_behind")

    async def aclose(self) -> None:
        """Finishes what is queued, within a time limit, and stops."""
        self._closing = True
        self._waiting.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSE_S)
            self._task.cancel()
        for finished in self._open.values():
            self._settle(finished)
        for finished in (*self._queue, *self._open.values()):
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
        finally:  # also when the store hangs while the process stops
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
        if finished.write is not None:
            self._cache.pending.done(finished.write)
        if finished.shared is not None:
            finished.shared.stored(written=written)


def _put_together(finished: Finished) -> CacheWrite | None:
    """What is to be kept; None for what is not worth it, or cannot be: an answer is a stranger's JSON."""
    try:
        keep = finished.write.keep() if finished.write is not None else None
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
