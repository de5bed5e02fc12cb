from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from cache.store.redis_store import RedisStore
from gateway.parts.measures import reader
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.otlp import part, span_names
from gateway.telemetry import names
from gateway.telemetry.sink import Telemetry
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.gateway.telemetry.waiting import eventually
from tests.parts.otlp.collector import Collector, GrpcCollector, attributes_of
from tests.support.app import in_process
from tests.support.store import LocalStore
from tests.support.upstream import Upstream


def _telemetry(store: RedisStore) -> Telemetry:
    metrics = PrometheusMetrics()
    exporter = part.spans(metrics.telemetry_dropped)
    assert exporter is not None
    telemetry = Telemetry(store, keep=10, exporter=exporter, metrics=metrics)
    telemetry.start()
    return telemetry


async def test_a_trace_arrives_as_spans(store: RedisStore, collector: Collector) -> None:
    """A collector gets one span per hop, in the caller's trace, under the root, with kinds, times and attributes."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    telemetry.record(trace, ledger)
    await eventually(lambda: len(collector.spans) == len(trace.hops))
    await telemetry.aclose()
    spans = sorted(collector.spans, key=lambda span: int.from_bytes(span.span_id, "big"))
    root = next(span for span in spans if span.name == names.REQUEST)
    assert {span.trace_id for span in spans} == {(0xABC).to_bytes(16, "big")}
    assert root.parent_span_id == (0xDEF).to_bytes(8, "big") and root.kind == Span.SPAN_KIND_SERVER
    for hop in trace.hops[1:]:
        span = next(span for span in spans if span.span_id == trace.span_id(hop).to_bytes(8, "big"))
        assert (span.name, span.parent_span_id) == (hop.name, root.span_id)
        expected = Span.SPAN_KIND_CLIENT if hop.name == names.ATTEMPT else Span.SPAN_KIND_INTERNAL
        assert span.kind == expected
        assert span.end_time_unix_nano - span.start_time_unix_nano == hop.end_ns - hop.start_ns
    assert root.start_time_unix_nano == trace.started_unix_ns
    said = attributes_of(root)
    assert (
        said[span_names.REQUEST_ID] == "req-1"
        and said[span_names.STATUS] == 200
        and said[span_names.PATH] == "escalated"
    )
    attempt = attributes_of(next(span for span in spans if span.name == names.ATTEMPT))
    assert attempt[names.CONFIDENCE] == 0.41 and names.CLIENT_RETRY not in attempt


async def test_the_resource_says_who_we_are(
    store: RedisStore, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """service.name is tierline unless OTEL_SERVICE_NAME says otherwise, and the version goes along."""
    for configured, expected in ((None, "tierline"), ("edge-router", "edge-router")):
        if configured:
            monkeypatch.setenv("OTEL_SERVICE_NAME", configured)
        telemetry = _telemetry(store)
        telemetry.record(*escalated())
        await telemetry.aclose()
        assert collector.resources[-1]["service.name"] == expected
        assert collector.resources[-1]["service.version"]


async def test_errors_are_told_apart(store: RedisStore, collector: Collector) -> None:
    """Our fault puts the root span in error, a caller's mistake does not; both carry error.type."""
    telemetry = _telemetry(store)
    telemetry.record(*failed("ours", 502, "upstream_unreachable"))
    telemetry.record(*failed("theirs", 400, "invalid_json"))
    await telemetry.aclose()
    roots = {attributes_of(span)[span_names.REQUEST_ID]: span for span in collector.spans if span.name == names.REQUEST}
    assert roots["ours"].status.code == Status.STATUS_CODE_ERROR
    assert roots["theirs"].status.code == Status.STATUS_CODE_UNSET
    assert attributes_of(roots["theirs"])[span_names.ERROR_TYPE] == "invalid_json"
    attempt = next(span for span in collector.spans if span.name == names.ATTEMPT)
    assert attempt.status.code == Status.STATUS_CODE_ERROR


async def test_the_sampler_of_the_environment_decides(
    store: RedisStore, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_TRACES_SAMPLER=traceidratio exports that share of traces, whole or not at all."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    telemetry = _telemetry(store)
    for number in range(400):
        telemetry.record(*failed(f"r{number}"))
    await telemetry.aclose()
    roots = {span.trace_id for span in collector.spans if span.name == names.REQUEST}
    assert 50 < len(roots) < 160
    assert len(collector.spans) == 2 * len(roots)


@pytest.mark.parametrize(
    ("sampler", "exported", "told"),
    [
        ("", {"recorded", "unrecorded", "root"}, "01 01 01"),
        ("always_on", {"recorded", "unrecorded", "root"}, "01 01 01"),
        ("always_off", set(), "01 00 00"),
        ("traceidratio", set(), "01 00 00"),
        ("parentbased_always_on", {"recorded", "root"}, "01 00 01"),
        ("ParentBased_Always_Off", {"recorded"}, "01 00 00"),
        ("parentbased_traceidratio", {"recorded"}, "01 00 00"),
    ],
)
async def test_the_callers_flag_counts_where_the_sampler_goes_by_it(
    server: LocalStore,
    collector: Collector,
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    exported: set[str],
    told: str,
) -> None:
    """A trace that its caller does not record is not exported then, nor recorded by backends; the store has it.

    What only the gateway would record is told by what it exports; what the caller records goes on behind it.
    """
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    parents = {"recorded": f"00-{7:032x}-{1:016x}-01", "unrecorded": f"00-{8:032x}-{1:016x}-00", "root": ""}
    async with in_process(tmp_path, upstream.url, store_url=server.url) as app:
        for name, parent in parents.items():
            sent = {"x-request-id": name, "x-tierline-cache": "no-store"}
            reply = await app.ask(headers=sent | ({"traceparent": parent} if parent else {}))
            assert reply.status_code == 200, reply.text
        for name in parents:
            async with asyncio.timeout(30):
                while (record := await reader.find(app.steps.store, name)) is None:
                    await asyncio.sleep(0.002)
            assert [hop["name"] for hop in orjson.loads(record)["hops"]].count(names.ATTEMPT) == 1
    roots = [attributes_of(span) for span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert {root[span_names.REQUEST_ID] for root in roots} == exported
    flags = [request.headers["traceparent"][-2:] for request in upstream.requests]
    assert flags == told.split()


async def _worst_pause_ms(stop: asyncio.Event) -> float:
    worst = 0.0
    while not stop.is_set():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        worst = max(worst, time.perf_counter() - began)
    return worst * 1000


@pytest.mark.parametrize("fault", ["hang", "down"])
async def test_p5_a_bad_collector_costs_spans_and_nothing_else(
    store: RedisStore, collector: Collector, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A collector that hangs or is gone: the queue stays bounded, drops are counted, closing takes under 5 s."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    if fault == "down":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    collector.behaviour = "hang"
    telemetry = _telemetry(store)
    stop = asyncio.Event()
    watch = asyncio.create_task(_worst_pause_ms(stop))
    for number in range(600):
        telemetry.record(*escalated(f"r{number}"))
        if number % 20 == 0:
            await asyncio.sleep(0.002)
    await eventually(lambda: value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total") >= 500)
    stop.set()
    assert await watch < 1000  # an export on the event loop would hold it for the exporter's 10 s
    began = time.monotonic()
    await telemetry.aclose()
    assert time.monotonic() - began < 5


async def test_a_collector_that_refuses_is_counted(store: RedisStore, collector: Collector) -> None:
    """Traces a collector does not take are counted as traces, not as spans."""
    collector.behaviour = "refuse"
    telemetry = _telemetry(store)
    for _ in range(3):
        telemetry.record(*escalated())
    await telemetry.aclose()
    assert value_of(telemetry.metrics.render(), "tierline_telemetry_dropped_total", reason="export_failed") == 3


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    """A gateway that exports nothing pays nothing for it: redis-py, which would import it, is kept from that."""
    code = (
        "import sys; from gateway.parts.metrics.metrics import PrometheusMetrics; from gateway.parts.otlp import part;"
        "import cache.store.redis_store;"
        "assert part.spans(PrometheusMetrics().telemetry_dropped) is None; assert 'opentelemetry' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], env={"PATH": "/usr/bin"}, check=True)


@pytest.fixture
def grpc_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[GrpcCollector]:
    with GrpcCollector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield running


async def test_spans_go_over_grpc(store: RedisStore, grpc_collector: GrpcCollector) -> None:
    """The same spans, in one trace, with the state of the client's."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    trace.tracestate = "acme=1"
    telemetry.record(trace, ledger)
    await eventually(lambda: len(grpc_collector.spans) == len(trace.hops))
    await telemetry.aclose()
    assert {span.trace_id for span in grpc_collector.spans} == {(0xABC).to_bytes(16, "big")}
    assert {span.trace_state for span in grpc_collector.spans} == {"acme=1"}
    assert {attributes_of(span)[span_names.HOP] for span in grpc_collector.spans} == {hop.name for hop in trace.hops}


@pytest.mark.parametrize("behaviour", ["hang", "refuse"])
async def test_a_bad_collector_over_grpc_costs_spans_alone(
    store: RedisStore, grpc_collector: GrpcCollector, behaviour: str
) -> None:
    """The records are stored, the spans counted as lost, and the end comes within 5 s."""
    grpc_collector.behaviour = behaviour  # type: ignore[assignment]
    telemetry = _telemetry(store)
    telemetry.record(*escalated("over-grpc"))
    await eventually(lambda: reader.find(store, "over-grpc"))
    began = time.monotonic()
    await telemetry.aclose()
    assert time.monotonic() - began < 5 and not grpc_collector.spans


@pytest.mark.parametrize("protocol", ["grpc", "http/json"])
def test_a_protocol_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """In words that say what to install, or what to write."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", protocol)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    with pytest.raises(ValueError, match=r"extra otlp-grpc.*tierline\[otlp-grpc\]|write http/protobuf or grpc"):
        part.spans(PrometheusMetrics().telemetry_dropped)


async def test_a_models_span_has_the_conventions_name(store: RedisStore, collector: Collector) -> None:
    """Operation and model; the hop's own name is an attribute."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    trace.hops[5].attributes.update(names.of_call("openai", "openai", "gpt-4o-mini", "https://api.example:8443/v1"))
    telemetry.record(trace, ledger)
    await telemetry.aclose()
    (span,) = [span for span in collector.spans if span.name == "chat gpt-4o-mini"]
    said = attributes_of(span)
    assert (said[span_names.HOP], said[names.GEN_AI_PROVIDER]) == (names.ATTEMPT, "openai")
    assert (said[names.SERVER_ADDRESS], said[names.SERVER_PORT]) == ("api.example", 8443)


async def test_a_models_span_has_its_conversation_and_first_chunk(store: RedisStore, collector: Collector) -> None:
    """In the conventions' names and units; the request's span has the conversation, other steps have neither."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    ledger.conversation = "00c0ffee00c0ffee"
    call = trace.hops[5]
    call.attributes.update(names.of_call("openai", "openai", "gpt-4o-mini"))
    call.attributes[names.TTFT] = 250.0
    telemetry.record(trace, ledger)
    await telemetry.aclose()
    spans = [attributes_of(span) for span in collector.spans]
    having = [said[span_names.HOP] for said in spans if said.get("gen_ai.conversation.id") == ledger.conversation]
    models = [said[span_names.HOP] for said in spans if names.GEN_AI_OPERATION in said]
    assert sorted(having) == sorted([names.REQUEST, *models]) and len(having) < len(spans)
    assert [said["gen_ai.response.time_to_first_chunk"] for said in spans if said.get(names.TTFT) == 250.0] == [0.25]


async def test_a_trace_is_told_by_the_conventions(store: RedisStore, collector: Collector) -> None:
    """The request by method and route; with captured texts, question and answer there and on the call that answered."""
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    trace.route, trace.captures = "/v1/responses/resp_0123", True
    trace.asked = names.asked_in(
        {"max_tokens": 64, "temperature": 0.5, "n": 1, "stop": "END", "seed": True, "top_p": "much", "top_k": None}
    )
    trace.root.attributes |= {names.PROMPT: "Who?", names.ANSWER: "Me."}
    ledger.served = (2,)
    for call, model in ((trace.hops[5], "small"), (trace.hops[6], "large")):
        call.attributes.update(names.of_call("openai", "openai", model))
        call.attributes[names.GEN_AI_TOKENS_CACHE_WRITE] = 7
    telemetry.record(trace, ledger)
    await telemetry.aclose()
    said = {span.name: attributes_of(span) for span in collector.spans}
    root, small, large = said["POST /v1/responses/{id}"], said["chat small"], said["chat large"]
    assert (root["http.request.method"], root["http.route"]) == ("POST", "/v1/responses/{id}")
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Who?"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "Me."}], "finish_reason": "stop"}]
    for span in (root, large):
        assert orjson.loads(span["gen_ai.input.messages"]) == asked
        assert orjson.loads(span["gen_ai.output.messages"]) == answer
    assert "gen_ai.output.messages" not in small and "gen_ai.input.messages" in small
    assert (large["gen_ai.request.max_tokens"], large["gen_ai.request.temperature"]) == (64, 0.5)
    assert [one.string_value for one in large["gen_ai.request.stop_sequences"].values] == ["END"]
    assert large["gen_ai.request.stream"] is True
    assert large["gen_ai.usage.cache_creation.input_tokens"] == 7
    assert not {"gen_ai.request.seed", "gen_ai.request.top_p", "gen_ai.request.choice.count"} & large.keys()
    assert not any(name.startswith("gen_ai.") for name in said["route"])


async def test_texts_of_clients_are_sent_only_where_they_are_captured(store: RedisStore, collector: Collector) -> None:
    telemetry = _telemetry(store)
    trace, ledger = escalated()
    trace.asked = names.asked_in({"stop": ["a secret"], "max_tokens": 5})
    trace.hops[6].attributes.update(names.of_call("openai", "openai", "large"))
    telemetry.record(trace, ledger)
    await telemetry.aclose()
    assert not any(b"a secret" in span.SerializeToString() for span in collector.spans)
    assert not any(".messages" in name for span in collector.spans for name in attributes_of(span))
