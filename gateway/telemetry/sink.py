"""Where finished requests go: metrics at once, then, from one background task, the store and the span exporter.

Nothing here can fail or delay a request. The queue is bounded: what does not fit, and what the store or the exporter
does not take, is dropped and counted in `tierline_telemetry_dropped_total`, never retried into a backlog.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cache.store.base import Command, Store, StoreUnavailable
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import STREAM, encode
from gateway.telemetry.trace import Trace

_log = logging.getLogger("tierline.telemetry")

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_QUEUE: Final = 2048  # finished requests waiting; about 4 kB each
_BATCH: Final = 16  # per round trip; more would hold the event loop longer than a request should wait
# One reply for all: to read each costs as much as a tenth of a request.
_APPEND: Final = b"""
for i = 2, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', ARGV[i]) end
return #ARGV - 1
"""
_INTERVAL_S: Final = 0.05
_CLOSE_S: Final = 1.5


class SpanSink(Protocol):
    """Something that takes finished traces elsewhere; see `telemetry.otlp`."""

    def export(self, trace: Trace, ledger: Ledger) -> None:
        """Takes the trace, or drops and counts it; never blocks, never raises."""

    async def aclose(self) -> None:
        """Sends what is left, within 3 seconds."""


def exporter_from_environment(metrics: Metrics) -> SpanSink | None:
    """The OTLP exporter if the environment names an endpoint; without one, opentelemetry is not imported (12 MB)."""
    if (
        not any(os.environ.get(name) for name in _ENDPOINTS)
        or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    ):
        return None
    from gateway.telemetry.otlp import OtlpSpans

    return OtlpSpans(metrics.telemetry_dropped)


class Telemetry:
    """Takes every finished request once, by `record`. Made, started and closed by the worker's assembly."""

    def __init__(
        self,
        store: Store,
        *,
        keep: int,
        exporter: SpanSink | None,
        metrics: Metrics,
        log_request: Callable[[Trace, Ledger], None] | None = None,
    ) -> None:
        """`keep` is about how many of the latest requests the store holds; 0 keeps none.

        `log_request` writes a request's line into the log; it must not block.
        """
        self.metrics = metrics
        self.failing = ""
        """Why the store did not take the last traces; '' when it did."""
        self._store = store
        self._keep = keep
        self._exporter = exporter
        self._log_request = log_request
        self._queue: deque[tuple[Trace, Ledger]] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._said: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        metrics.watch_store(store.state)

    def record(self, trace: Trace, ledger: Ledger) -> None:
        """Takes a finished request, of which nothing will change any more; ends its root hop if that is still open.

        Updates the metrics and queues the rest. Call it on the event loop's thread, once, after the reply.
        """
        trace.root.end(ledger.error)
        try:
            self.metrics.observe(trace, ledger)
        except Exception:  # noqa: BLE001  (of a wrong type, say; the reply has gone out and must not suffer for it)
            self._dropped("uncountable", trace)
        if len(self._queue) >= _QUEUE:
            self.metrics.telemetry_dropped("queue_full")
            return
        self._queue.append((trace, ledger))
        self._waiting.set()

    def start(self) -> None:
        """Starts the background task, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.telemetry")

    async def aclose(self) -> None:
        """Passes on what is queued and closes the exporter, each within a time limit; 5 s at most in all."""
        self._closing = True
        self._waiting.set()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, _CLOSE_S)
            except TimeoutError:
                self.metrics.telemetry_dropped("shutdown", len(self._queue))
        if self._exporter is not None:
            await self._exporter.aclose()
        self.metrics.flush()

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._waiting.wait()
            if not self._closing:
                await asyncio.sleep(_INTERVAL_S)
            self._waiting.clear()
            while self._queue:
                await self._pass_on([self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))])
            self.metrics.flush()

    async def _pass_on(self, batch: list[tuple[Trace, Ledger]]) -> None:
        records: list[bytes] = []
        for trace, ledger in batch:
            if self._log_request is not None:
                self._log_request(trace, ledger)
            try:
                if self._exporter is not None:
                    self._exporter.export(trace, ledger)
                if self._keep:
                    records.append(encode(trace, ledger))
            except Exception:  # noqa: BLE001  (one trace that cannot be written must not end telemetry for all)
                self._dropped("unserialisable", trace)
        if not records:
            return
        append = Command((b"EVAL", _APPEND, b"1", STREAM.encode(), b"%d" % self._keep, *records))
        try:
            await self._store.apply([append])
            self.failing = ""
        except StoreUnavailable as down:
            self.failing = down.reason
            self.metrics.telemetry_dropped(f"store_{down.reason}", len(records))
        except asyncio.CancelledError:
            self.metrics.telemetry_dropped("shutdown", len(records))
            raise

    def _dropped(self, reason: str, trace: Trace) -> None:
        self.metrics.telemetry_dropped(reason)
        if reason not in self._said:
            self._said.add(reason)
            _log.exception("telemetry: %s, trace %032x (said once, counted always)", reason, trace.trace_id)
