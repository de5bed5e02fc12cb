"""Export the metrics of OpenTelemetry's GenAI conventions by OTLP, where the environment sets an endpoint for them.

They are made of the hops and the ledger that `/metrics` counts, of every request, in a thread of their own:
`gen_ai.client.*` of each call of a model, `gen_ai.server.*` of each request. opentelemetry-sdk sends them each
OTEL_METRIC_EXPORT_INTERVAL (60 s).
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

from gateway.parts.otlp import span_names
from gateway.parts.otlp.spans import Dropped, closed_in_time, resource_with, watched_exporter
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Trace
from gateway.version import version

_FILE: Final = Path(__file__).parent / "gen_ai_metrics.json"
_INTERVAL_S: Final = 0.5
_MOST_WAITING: Final = 8192
_OF_CALL: Final = (
    *(names.GEN_AI_OPERATION, names.GEN_AI_PROVIDER, names.GEN_AI_REQUEST_MODEL),
    *(names.SERVER_ADDRESS, names.SERVER_PORT, names.TIER),
)
_TOKENS: Final = (("input", names.GEN_AI_TOKENS_IN), ("output", names.GEN_AI_TOKENS_OUT))
_OF_REQUEST: Final = {
    "gen_ai.server.request.duration": "total_ms",
    "gen_ai.server.time_to_first_token": "ttft_ms",
    "gen_ai.server.time_per_output_token": "tpot_ms",
}
"""Metrics of a request, with the ledger's field of each, in milliseconds."""


class OtlpMetrics:
    """Export the metrics of one worker process. Make one after any fork."""

    def __init__(self, dropped: Dropped) -> None:
        """Open the exporter that the environment asks for. Raises OtlpUnavailable."""
        exporter = watched_exporter("metric", lambda _, sent: None if sent else dropped("metrics_export_failed", 1))
        resource = resource_with({"service.instance.id": str(uuid.uuid4())})  # workers' sums are added up
        readers = [PeriodicExportingMetricReader(exporter)]
        self._provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        meter, defined = self._provider.get_meter("tierline", version()), orjson.loads(_FILE.read_bytes())["histograms"]
        self._histograms = {name: meter.create_histogram(name, **options) for name, options in defined.items()}
        self._dropped = dropped
        self._waiting: deque[tuple[Trace, Ledger]] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierline.otlp.metrics", daemon=True)
        self._thread.start()

    def export(self, trace: Trace, ledger: Ledger) -> None:
        """Count a finished request, which no longer changes, soon; never block."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((trace, ledger))
        else:
            self._dropped("metrics_queue_full", 1)

    async def aclose(self) -> None:
        """Send what is left, for at most 2 seconds."""
        self._ended.set()
        await closed_in_time(self._thread.join)

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._count()
        self._count()
        self._provider.shutdown()

    def _count(self) -> None:
        while self._waiting:
            for name, value, attributes in _measured(*self._waiting.popleft()):
                self._histograms[name].record(value, attributes)


def _measured(trace: Trace, ledger: Ledger) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """Yield the name, the value and the attributes of what is measured of one request and its calls."""
    for hop in trace.hops:
        attributes = hop.attributes
        if names.GEN_AI_OPERATION not in attributes:
            continue
        call = {name: attributes[name] for name in _OF_CALL if attributes.get(name) is not None}
        error = {span_names.ERROR_TYPE: hop.error} if hop.error else {}
        yield "gen_ai.client.operation.duration", ((hop.end_ns or hop.start_ns) - hop.start_ns) / 1e9, {**call, **error}
        if (ttft_ms := attributes.get(names.TTFT)) is not None:
            yield "gen_ai.client.operation.time_to_first_chunk", ttft_ms / 1000, call
        for kind, name in () if attributes.get(names.USAGE_ESTIMATED) else _TOKENS:  # no estimates, by the conventions
            if (count := attributes.get(name)) is not None:
                yield "gen_ai.client.token.usage", count, {**call, "gen_ai.token.type": kind}
    named = {
        names.GEN_AI_REQUEST_MODEL: ledger.surface,
        span_names.PATH: ledger.path,
        span_names.ERROR_TYPE: ledger.error,
    }
    request = {names.GEN_AI_OPERATION: "chat", names.GEN_AI_PROVIDER: "tierline"}
    request |= {name: value for name, value in named.items() if value}
    for name, field in _OF_REQUEST.items():
        if (value := getattr(ledger, field)) is not None:
            yield name, value / 1000, request
