"""Record finished requests: in the metrics at once, then in the store and the span exporter by a background task.

Nothing here can fail or delay a request. The queue is bounded: what does not fit, and what the store or the exporter
does not take, is dropped and counted in `tierline_telemetry_dropped_total`, and not retried.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from cache.store.base import Command, Store, StoreUnavailable
from gateway.telemetry.decisions import BASES, DecisionRecorder
from gateway.telemetry.ledger import TRACES, Ledger, encode

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.trace import Trace

_log = logging.getLogger("tierline.telemetry")

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_QUEUE: Final = 2048  # finished requests waiting; about 4 kB each
_BATCH: Final = 16  # records per round trip
_SLICE: Final = 4
"""Records encoded in one turn of the event loop, in about 0.1 ms: a request that comes meanwhile waits no longer."""
# A script gives one reply for the whole batch: reading a reply per record costs a tenth of a request's time each.
_APPEND: Final = b"""
for i = 2, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', ARGV[i]) end
return #ARGV - 1
"""
_INTERVAL_S: Final = 0.05
_CLOSE_S: Final = 1.5


class SpanSink(Protocol):
    """Export finished traces; `telemetry.otlp` implements it."""

    def export(self, trace: Trace, ledger: Ledger) -> None:
        """Accept the trace, or drop and count it; never block, never raise."""

    async def aclose(self) -> None:
        """Send what is left, within 3 seconds."""


def exporter_from_environment(metrics: Metrics) -> SpanSink | None:
    """Return the OTLP exporter if the environment sets an endpoint, else None.

    Without an endpoint, opentelemetry (12 MB of memory) is not imported.
    """
    if (
        not any(os.environ.get(name) for name in _ENDPOINTS)
        or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    ):
        return None
    from gateway.telemetry.otlp import OtlpSpans

    return OtlpSpans(metrics.telemetry_dropped)


class Telemetry:
    """Record each finished request once, by `record`. The worker's assembly starts and closes it."""

    def __init__(
        self,
        store: Store,
        *,
        keep: int,
        exporter: SpanSink | None,
        metrics: Metrics,
        artefacts: Mapping[str, str] = MappingProxyType({}),
        log_request: Callable[[Trace, Ledger], None] | None = None,
    ) -> None:
        """Store about the latest `keep` requests; 0 stores none. `artefacts` are the versions of what decides, by name.

        `log_request` writes a request's line to the log; it must not block.
        """
        self.metrics = metrics
        self.failing = ""
        """Reason why the store did not accept the last traces; '' if it did."""
        self._store = store
        self._keep = keep
        self._exporter = exporter
        self._log_request = log_request
        self._decisions = DecisionRecorder(artefacts)
        self._queue: deque[tuple[Trace, Ledger]] = deque()
        self._waiting = asyncio.Event()
        self._closing = False
        self._logged: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        metrics.watch_store(store.state)

    def record(self, trace: Trace, ledger: Ledger) -> None:
        """Update the metrics with a finished request and queue it for the store and the exporter.

        Ends its root hop if that is still open; after that the trace and the ledger must not change. Call it on the
        event loop's thread, once, after the reply.
        """
        trace.root.end(ledger.error)
        try:
            self.metrics.observe(trace, ledger)
        except Exception:  # noqa: BLE001  (such as a value of a wrong type: the reply has gone out and must not fail)
            self._dropped("uncountable", trace)
        self.keep_uncounted(trace, ledger)

    def keep_uncounted(self, trace: Trace, ledger: Ledger) -> None:
        """Queue a finished request for the store and the exporter alone, as `record` does after the metrics."""
        if len(self._queue) >= _QUEUE:
            self.metrics.telemetry_dropped("queue_full")
            return
        self._queue.append((trace, ledger))
        self._waiting.set()

    def start(self) -> None:
        """Start the background task on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="tierline.telemetry")

    async def aclose(self) -> None:
        """Pass on what is queued and close the exporter, each within a time limit; at most 5 s in all."""
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
            await asyncio.sleep(0)
            self.metrics.flush()

    async def _pass_on(self, batch: list[tuple[Trace, Ledger]]) -> None:
        records: list[bytes] = []
        for number, (trace, ledger) in enumerate(batch, 1):
            if self._log_request is not None:
                self._log_request(trace, ledger)
            try:
                if self._exporter is not None:
                    self._exporter.export(trace, ledger)
                if self._keep:
                    records.append(encode(trace, ledger, self._decisions))
            except Exception:  # noqa: BLE001  (one trace that cannot be encoded must not end the background task)
                self._dropped("unserialisable", trace)
            if number % _SLICE == 0:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self.metrics.telemetry_dropped("shutdown", len(records) + len(batch) - number)
                    raise
        if not records:
            return
        bases = [word for name, blob in self._decisions.due.items() for word in (name.encode(), blob)]
        remember = [Command((b"HSET", BASES.encode(), *bases))] if bases else []
        append = Command((b"EVAL", _APPEND, b"1", TRACES.encode(), b"%d" % self._keep, *records))
        try:
            await self._store.apply([*remember, append])
            self._decisions.written()
            self.failing = ""
        except StoreUnavailable as down:
            self.failing = down.reason
            self.metrics.telemetry_dropped(f"store_{down.reason}", len(records))
        except asyncio.CancelledError:
            self.metrics.telemetry_dropped("shutdown", len(records))
            raise

    def _dropped(self, reason: str, trace: Trace) -> None:
        self.metrics.telemetry_dropped(reason)
        if reason not in self._logged:
            self._logged.add(reason)
            _log.exception("telemetry: %s, trace %032x (logged once; each is counted)", reason, trace.trace_id)
