"""Metrics of the GenAI conventions, before a collector that decodes what it is sent."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.otlp import part
from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.sink import Telemetry
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.requests_made import failed
from tests.gateway.telemetry.waiting import eventually
from tests.parts.otlp.collector import Collector, points_of

CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "anthropic",
    "gen_ai.request.model": "claude-haiku-5-5",
}
CALL |= {"server.address": "api.anthropic.com", "server.port": 443, "tierline.tier": "hosted"}
BOUNDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]


def called(error: str = "", **more: Any) -> tuple[Trace, Ledger]:
    """A streamed request that called one model for 0.5 s."""
    trace = Trace(names.REQUEST)
    call = names.of_call("hosted", "anthropic", "claude-haiku-5-5", "https://api.anthropic.com/v1")
    counts = {names.GEN_AI_TOKENS_IN: 1200, names.GEN_AI_TOKENS_OUT: 40, names.TTFT: 150.0}
    hop = trace.begin(names.ATTEMPT, {**call, names.TIER: "hosted", **counts, **more})
    hop.end(error)
    hop.end_ns = hop.start_ns + 500_000_000
    trace.root.end()
    times = {"ttft_ms": 160.0, "total_ms": 520.0, "tpot_ms": 9.0}
    return trace, Ledger("req-1", surface="chat", path="direct", status=200, stream=True, **times)


def telemetry(store: RedisStore, metrics: PrometheusMetrics, **more: Any) -> Telemetry:
    meter = part.meter(metrics.telemetry_dropped)
    assert meter is not None
    made = Telemetry(store, keep=0, exporter=None, metrics=metrics, meter=meter, **more)
    made.start()
    return made


async def test_each_call_and_request_is_measured(store: RedisStore, collector: Collector) -> None:
    """With the names, the required attributes and the buckets of the conventions; of requests that no trace is kept of,
    too."""
    recording = telemetry(store, PrometheusMetrics(), sample=0.0)
    for _ in range(3):
        recording.record(*called())
    recording.record(*called(error="upstream_timeout", **{names.USAGE_ESTIMATED: True}))
    await recording.aclose()
    duration = points_of(collector.metrics, "gen_ai.client.operation.duration")
    assert [(said, point.count) for said, point in duration] == [
        (CALL, 3),
        ({**CALL, "error.type": "upstream_timeout"}, 1),
    ]
    assert list(duration[0][1].explicit_bounds) == BOUNDS and duration[0][1].sum == pytest.approx(1.5)
    tokens = {said.pop("gen_ai.token.type"): (said, point) for said, point in points_of(collector.metrics, TOKENS)}
    assert {kind: (said, point.sum, point.count) for kind, (said, point) in tokens.items()} == {
        "input": (CALL, 3600, 3),
        "output": (CALL, 120, 3),
    }, "an estimate is no usage"
    ((said, first),) = points_of(collector.metrics, "gen_ai.client.operation.time_to_first_chunk")
    assert (said, first.count) == (CALL, 4)
    for name, total in (("request.duration", 2.08), ("time_to_first_token", 0.64), ("time_per_output_token", 0.036)):
        ((said, point),) = points_of(collector.metrics, f"gen_ai.server.{name}")
        assert said == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tierline",
            "gen_ai.request.model": "chat",
            "tierline.path": "direct",
        }
        assert (point.count, point.sum) == (4, pytest.approx(total))


TOKENS = "gen_ai.client.token.usage"


async def test_they_are_the_figures_of_slash_metrics(store: RedisStore, collector: Collector) -> None:
    metrics = PrometheusMetrics()
    recording = telemetry(store, metrics)
    recording.record(*called())
    recording.record(*failed())
    await recording.aclose()
    points = points_of(collector.metrics, "gen_ai.server.request.duration")
    ours = value_of(metrics.render(), "tierline_request_duration_seconds_sum")
    assert len(points) == 2 and points[1][0]["error.type"] == "upstream_unreachable"
    assert sum(point.sum for _, point in points) == pytest.approx(ours)


async def test_workers_are_told_apart(store: RedisStore, collector: Collector) -> None:
    """Sums of several processes would else overwrite each other."""
    for _ in range(2):
        recording = telemetry(store, PrometheusMetrics())
        recording.record(*called())
        await recording.aclose()
    first, second = collector.metric_resources[0], collector.metric_resources[-1]
    assert first["service.name"] == "tierline" and first["service.instance.id"] != second["service.instance.id"]


async def test_recording_waits_for_nothing(
    store: RedisStore, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a thread's work; a collector that hangs or refuses costs metrics, which are counted, and no request."""
    collector.behaviour = "refuse"
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    metrics = PrometheusMetrics()
    recording = telemetry(store, metrics)
    assert "tierline.otlp.metrics" in {thread.name for thread in threading.enumerate()}
    recording.record(*called())
    lost = "tierline_telemetry_dropped_total"
    await eventually(lambda: value_of(metrics.render(), lost, reason="metrics_export_failed") >= 1)
    collector.behaviour = "hang"
    await recording.aclose()


@pytest.mark.parametrize(("variable", "value"), [("OTEL_METRICS_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true")])
def test_metrics_can_be_switched_off(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    """By themselves, while spans go on."""
    monkeypatch.setenv(variable, value)
    assert part.meter(PrometheusMetrics().telemetry_dropped) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", collector.url)
    assert part.meter(PrometheusMetrics().telemetry_dropped) is None


def test_metrics_go_to_an_endpoint_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one for spans, none are sent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:9/v1/metrics")
    assert part.meter(PrometheusMetrics().telemetry_dropped) is not None
    assert part.spans(PrometheusMetrics().telemetry_dropped) is None
