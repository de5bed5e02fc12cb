"""Tiny OTLP collectors over real sockets, HTTP and gRPC: they decode what they are sent, or misbehave on request."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Collects spans at `url` while the `with` block runs. `behaviour` may be changed at any time."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.metrics: list[Metric] = []
        self.metric_resources: list[dict[str, Any]] = []
        self.behaviour: Literal["take", "refuse", "hang", "full"] = "take"
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer.behaviour == "hang":
                    outer.released.wait(30)
                if outer.behaviour == "take" and self.path == "/v1/traces":
                    outer.take(ExportTraceServiceRequest.FromString(body))
                if outer.behaviour == "take" and self.path == "/v1/metrics":
                    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                        outer.metric_resources.append(
                            {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                        )
                        outer.metrics += [metric for scope in resource.scope_metrics for metric in scope.metrics]
                self.send_response({"take": 200, "full": 429}.get(outer.behaviour, 400))
                if outer.behaviour == "full":
                    self.send_header("retry-after", "1")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of a request."""
        for resource in request.resource_spans:
            self.resources.append({pair.key: pair.value.string_value for pair in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


def points_of(metrics: list[Metric], name: str) -> list[tuple[dict[str, Any], HistogramDataPoint]]:
    """The points of a histogram, as it was last sent, with their attributes as plain Python values."""
    metric = [one for one in metrics if one.name == name][-1]
    return [(attributes_of(point), point) for point in metric.histogram.data_points]


class GrpcCollector(TraceServiceServicer):
    """The same over gRPC."""

    def __init__(self) -> None:
        self.kept = Collector()
        self.behaviour: Literal["take", "refuse", "hang"] = "take"
        self.released = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_TraceServiceServicer_to_server(self, self._server)
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    @property
    def spans(self) -> list[Span]:
        """The spans that it took."""
        return self.kept.spans

    def Export(  # noqa: N802
        self, request: ExportTraceServiceRequest, context: Any
    ) -> ExportTraceServiceResponse:
        """Take, refuse or hold one request."""
        if self.behaviour == "hang":
            self.released.wait(30)
        if self.behaviour == "refuse":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "refused")
        if self.behaviour == "take":
            self.kept.take(request)
        return ExportTraceServiceResponse()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.stop(None).wait(5)


def attributes_of(span: Span | HistogramDataPoint) -> dict[str, Any]:
    """The attributes of a span or a point as plain Python values."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}
