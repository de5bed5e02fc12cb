"""Export finished traces as OpenTelemetry spans by OTLP, over HTTP or gRPC. Imported only when an endpoint is set.

opentelemetry-sdk batches and sends in a thread of its own; the OTEL_* variables have the meaning that it documents
(endpoint, protocol, headers, timeout, compression, OTEL_BSP_*, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES). Of what
telemetry records (`telemetry.sampling`), OTEL_TRACES_SAMPLER may leave out more; where it is not set, all of that is
exported, whatever the caller's sampled flag says. A collector that is down, hanging or slow affects no request: the
number of unsent spans is bounded, lost traces are counted, and `aclose` gives up after a few seconds.

A span has the name of its hop, but for the request, which the HTTP conventions name by method and route, and the call
of a model, which the GenAI conventions name by operation and model; `tierline.hop` has the hop's name on every span.
Where texts are captured, the request and the calls that answered it have them as `gen_ai.input.messages` and
`gen_ai.output.messages`, in the JSON of the GenAI conventions: of the input, the question that was asked last.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_EXPORTER_OTLP_PROTOCOL,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from gateway.parts.otlp import span_names
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.trace import Hop, Trace
from gateway.version import version

Dropped = Callable[[str, int], None]
"""Called with a reason, one of a fixed set of words, and the number of traces lost; may be called from any thread."""

_HTTP: Final = "http/protobuf"
_CLOSE_S: Final = 2.0
_SWITCH_S: Final = 0.0005
_SPANS_WAITING: Final = 8192  # about a thousand requests
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)
_ERROR: Final = Status(StatusCode.ERROR)
_KINDS: Final = {
    names.REQUEST: SpanKind.SERVER,
    names.ATTEMPT: SpanKind.CLIENT,
    names.SAMPLE: SpanKind.CLIENT,
    names.JUDGE: SpanKind.CLIENT,
}


class OtlpUnavailable(ValueError):
    """The environment asks for a way of export that is not there; the message says what to do."""


def watched_exporter(signal: Literal["trace", "metric"], on_end: Callable[[Any, bool], object]) -> Any:
    """Return the exporter of the protocol that the environment names, HTTP by default. Raises OtlpUnavailable.

    It tells, in its thread, of each batch that it is done with, and whether that was sent.
    """
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}S_PROTOCOL"
    if not os.environ.get(variable):
        variable = OTEL_EXPORTER_OTLP_PROTOCOL
    protocol = os.environ.get(variable) or _HTTP
    if protocol not in (_HTTP, "grpc"):
        raise OtlpUnavailable(f"{variable} is {protocol!r}; write {_HTTP} or grpc")
    try:
        package = importlib.import_module(f"opentelemetry.exporter.otlp.proto.{protocol.partition('/')[0]}")
        module = importlib.import_module(f"{package.__name__}.{signal}_exporter")
    except ImportError as error:
        raise OtlpUnavailable(
            f"{variable} is grpc, which needs the extra otlp-grpc: pip install 'tierline[otlp-grpc]' ({error})"
        ) from None
    exporting: Any = getattr(module, "OTLPSpanExporter" if signal == "trace" else "OTLPMetricExporter")

    class Watched(exporting):  # type: ignore[misc]
        def export(self, batch: Any, *given: Any, **more: Any) -> Any:
            sent = False
            try:
                result = super().export(batch, *given, **more)
                sent = result.name == "SUCCESS"
            finally:
                on_end(batch, sent)
            return result

    return Watched()


async def closed_in_time(close: Callable[[], object]) -> bool:
    """Run what sends what is left, in a thread; return whether it ended within 2 seconds."""
    # The SDK's own limit is 30 s. An executor's thread will not do: the interpreter waits for those when it exits.
    loop, closed = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        close()
        with contextlib.suppress(RuntimeError):  # the loop did not wait for this thread and is closed
            loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=run, name="tierline.otlp.close", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closed.wait(), _CLOSE_S)
    return closed.is_set()


class OtlpSpans:
    """Export spans over OTLP, as a `gateway.telemetry.sink.Exporter`. Make one per worker process, after any fork."""

    def __init__(self, dropped: Dropped) -> None:
        """Open the exporter that the environment asks for. Raises OtlpUnavailable."""
        # The exporter's thread encodes in pure Python; at the default interval it may hold up the event loop for 5 ms.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))
        provider = TracerProvider(resource=resource_with(), shutdown_on_exit=False)  # reads OTEL_TRACES_SAMPLER*
        self._resource = provider.resource
        self._sampler = provider.sampler
        self._scope = InstrumentationScope("tierline", version())
        self._limit = int(os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE, _SPANS_WAITING))
        self._exporter = watched_exporter("trace", self._ended)
        self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._limit)
        self._handed_over = self._finished = 0
        self._dropped = dropped

    def export(self, trace: Trace, ledger: Ledger) -> None:
        """Pass a finished trace to the SDK if it is sampled and the queue has room; never blocks.

        The client's sampled flag counts only with a sampler that is set to go by it: see `telemetry.trace`.
        """
        sampling = self._sampler.should_sample(_context(trace), trace.trace_id, trace.root.name)
        if sampling.decision is not Decision.RECORD_AND_SAMPLE:
            return
        # A full processor queue would drop its oldest spans uncounted, and leave incomplete traces.
        if self._handed_over - self._finished + len(trace.hops) > self._limit:
            self._dropped("export_queue_full", 1)
            return
        self._handed_over += len(trace.hops)
        for span in self._spans(trace, ledger):
            self._processor.on_end(span)

    def _ended(self, spans: Sequence[ReadableSpan], sent: bool) -> None:
        self._finished += len(spans)
        if not sent:
            self._dropped("export_failed", sum(span.kind is SpanKind.SERVER for span in spans))

    async def aclose(self) -> None:
        """Send what is left, for at most 2 seconds."""
        if not await closed_in_time(self._processor.shutdown):
            self._exporter.shutdown()

    def _spans(self, trace: Trace, ledger: Ledger) -> list[ReadableSpan]:
        root = trace.root
        offset = trace.started_unix_ns - root.start_ns
        state = TraceState.from_header([trace.tracestate]) if trace.tracestate else None
        contexts = [SpanContext(trace.trace_id, trace.span_id(hop), False, _SAMPLED, state) for hop in trace.hops]
        texts = _texts(trace, ledger)
        caller = SpanContext(trace.trace_id, trace.parent_id, True, _SAMPLED) if trace.parent_id else None
        return [
            ReadableSpan(
                name=_name(hop, trace, is_root=hop is root),
                context=context,
                parent=contexts[0] if hop is not root else caller,
                resource=self._resource,
                attributes=_attributes(hop, trace, ledger, texts, is_root=hop is root),
                kind=_KINDS.get(hop.name, SpanKind.INTERNAL),
                # By convention a server span is in error for 5xx only, not for a caller's mistake.
                status=_ERROR if (ledger.status >= 500 if hop is root else hop.error) else _UNSET,
                start_time=offset + hop.start_ns,
                end_time=offset + (hop.end_ns or root.end_ns),
                instrumentation_scope=self._scope,
            )
            for hop, context in zip(trace.hops, contexts, strict=True)
        ]


def _context(trace: Trace) -> Context | None:
    """Return the caller's span as the parent that a sampler goes by; None where it does not."""
    if trace.caller_sampled is None:
        return None
    caller = SpanContext(trace.trace_id, trace.parent_id, True, TraceFlags(trace.caller_sampled))
    return set_span_in_context(NonRecordingSpan(caller), Context())


def _name(hop: Hop, trace: Trace, *, is_root: bool) -> str:
    if is_root and trace.route:
        return f"POST {_route(trace.route)}"
    operation = hop.attributes.get(names.GEN_AI_OPERATION)
    return f"{operation} {hop.attributes.get(names.GEN_AI_REQUEST_MODEL, '')}".rstrip() if operation else hop.name


def _route(path: str) -> str:
    """Return the path of an endpoint with a placeholder for each part that tells requests apart."""
    parts = path.split("/")
    return "/".join("{id}" if any(map(str.isdigit, part)) and part != "v1" else part[:64] for part in parts[:8])


def _texts(trace: Trace, ledger: Ledger) -> dict[str, str]:
    """Return the messages in and out, as JSON by the GenAI conventions; those alone that are captured."""
    attributes = trace.root.attributes
    texts: dict[str, str] = {}
    if (prompt := attributes.get(names.PROMPT)) is not None:
        texts[span_names.GEN_AI_INPUT] = _message("user", prompt)
    if answer := attributes.get(names.ANSWER):
        finish = next((call.finish for call in reversed(ledger.calls) if call.finish), "stop")
        texts[span_names.GEN_AI_OUTPUT] = _message("assistant", answer, finish_reason=finish)
    return texts


def _message(role: str, text: str, **more: str) -> str:
    return orjson.dumps([{"role": role, "parts": [{"type": "text", "content": text}], **more}]).decode()


def resource_with(more: Mapping[str, str] = MappingProxyType({})) -> Resource:
    """Return who exports: the name and the version, what the environment says, and `more`."""
    configured = OTELResourceDetector().detect().attributes
    return Resource.create({"service.name": "tierline", "service.version": version(), **more, **configured})


def _attributes(hop: Hop, trace: Trace, ledger: Ledger, texts: Mapping[str, str], *, is_root: bool) -> dict[str, Any]:
    """Return the hop's attributes that have a value, its error, and, for the root span, the ledger's fields.

    The call of a model has its conversation, too, what was asked of it, and of a stream the time to the first chunk.
    """
    attributes = {name: value for name, value in hop.attributes.items() if value is not None and value != []}
    attributes[span_names.HOP] = hop.name
    if hop.error:
        attributes[span_names.ERROR_TYPE] = hop.error
    if ledger.conversation and (is_root or names.GEN_AI_OPERATION in attributes):
        attributes[span_names.GEN_AI_CONVERSATION] = ledger.conversation
    if (ttft_ms := hop.attributes.get(names.TTFT)) is not None and names.GEN_AI_OPERATION in attributes:
        attributes[span_names.GEN_AI_FIRST_CHUNK] = ttft_ms / 1000
    if hop.name == names.ATTEMPT and names.GEN_AI_OPERATION in attributes:
        attributes |= trace.asked
        if not trace.captures:
            attributes.pop(names.GEN_AI_STOP, None)  # texts of the client
        attributes[span_names.GEN_AI_STREAM] = ledger.stream
        if attributes.get(names.ATTEMPT_NUMBER) in (ledger.served or ()):
            attributes |= texts
        elif span_names.GEN_AI_INPUT in texts:
            attributes[span_names.GEN_AI_INPUT] = texts[span_names.GEN_AI_INPUT]
    if (written := attributes.get(names.GEN_AI_TOKENS_CACHE_WRITE)) is not None:
        attributes[span_names.GEN_AI_CACHE_CREATION] = written
    if is_root:
        attributes |= texts
        if trace.route:
            attributes |= {span_names.HTTP_METHOD: "POST", span_names.HTTP_ROUTE: _route(trace.route)}
        for name, field in span_names.OF_LEDGER.items():
            value = getattr(ledger, field)
            if value is not None and value != "":
                attributes[name] = value
    return attributes
