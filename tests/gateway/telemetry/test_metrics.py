from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cache.store import StoreState
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.requests_made import escalated, failed

Read = Callable[..., float]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def read(metrics: Metrics) -> Read:
    return lambda name, **labels: value_of(metrics.render(), f"tierline_{name}", **labels)


def test_a_request_is_counted_in_all_its_parts(metrics: Metrics, read: Read) -> None:
    """One finished request moves its counters and histograms, its attempts', its cache's and its money."""
    metrics.observe(*escalated())
    assert read("requests_total", surface="chat", path="escalated", tier="hosted", status="200") == 1
    assert read("request_duration_seconds_bucket", surface="chat", le="1.0") == 1
    assert read("request_duration_seconds_bucket", surface="chat", le="0.5") == 0
    assert read("ttft_seconds_sum", surface="chat") == pytest.approx(0.12)
    assert read("overhead_seconds_sum", path="escalated") == pytest.approx(0.0007)
    assert read("attempts_total", tier="local", backend="smollm2", outcome="low_confidence") == 1
    assert read("attempts_total", tier="hosted", backend="openai", outcome="accepted") == 1
    assert read("cache_lookups_total", hop="cache.exact", outcome="miss") == 1
    assert read("cache_lookups_total", hop="cache.semantic", outcome="miss") == 1
    assert read("cache_writes_total", outcome="written") == 1
    assert read("tokens_total", surface="chat", tier="hosted", direction="in") == 240
    assert read("cost_usd_total", surface="chat", tier="hosted") == pytest.approx(0.0003)
    assert read("wasted_usd_total", surface="chat") == pytest.approx(0.0001)


def test_a_request_that_got_nowhere_has_labels_too(metrics: Metrics, read: Read) -> None:
    """What a failed request lacks is labelled `none`, and a first byte that never came is not observed."""
    metrics.observe(*failed())
    assert read("requests_total", path="none", tier="none", status="502") == 1
    assert read("ttft_seconds_count") == 0


def test_negative_usage_is_not_taken(metrics: Metrics, read: Read) -> None:
    """A backend that reports negative tokens does not break the counters."""
    metrics.observe(*escalated(tokens_out=-5, cost_usd=-1.0))
    assert read("tokens_total", direction="out") == 0
    assert read("requests_total") == 1


def test_reloads_drops_and_requests_in_flight(metrics: Metrics, read: Read) -> None:
    """Reloads count by result, drops by reason, and the gauge follows requests in and out."""
    metrics.policy_reloaded(True)
    metrics.policy_reloaded(False)
    metrics.policy_reloaded(False)
    metrics.telemetry_dropped("export_failed", 7)
    metrics.request_started()
    metrics.request_started()
    metrics.request_ended()
    assert (read("policy_reload_total"), read("policy_reload_failed_total")) == (1, 2)
    assert read("telemetry_dropped_total", reason="export_failed") == 7
    assert read("in_flight") == 1


def test_the_store_gauge_follows_the_store(metrics: Metrics, read: Read) -> None:
    """Exactly one state is 1, and it is the one the store is in when the text is made."""
    state = StoreState("ok")
    metrics.watch_store(lambda: state)
    assert (read("store_state", state="ok"), read("store_state")) == (1, 1)
    state = StoreState("degraded", "timeout")
    assert (read("store_state", state="degraded"), read("store_state")) == (1, 1)


def test_nothing_a_client_wrote_becomes_a_label(metrics: Metrics) -> None:
    """Request ids, tenants and model names stay out of the text: labels are few, and tell nothing."""
    metrics.observe(*escalated("canary-id", tenant="canary-tenant", requested_model="canary-model"))
    assert b"canary" not in metrics.render()


_WORKER = """
import sys
from gateway.telemetry.metrics import Metrics
from tests.gateway.telemetry.requests_made import escalated
metrics = Metrics()
for _ in range(3):
    metrics.observe(*escalated())
metrics.request_started()
metrics.flush()
print("ready", flush=True)
sys.stdin.readline()
sys.stdout.write(metrics.render().decode())
"""
_SUPERVISOR = "import sys; from gateway.telemetry.metrics import worker_died; worker_died(int(sys.argv[1]))"


def test_any_worker_answers_for_all(tmp_path: Path) -> None:
    """With several workers, one's text sums them all; a dead one's gauges go, and what it counted stays."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    workers[0].send_signal(signal.SIGKILL)
    workers[0].wait()
    subprocess.run([sys.executable, "-c", _SUPERVISOR, str(workers[0].pid)], env=environment, check=True)
    text = workers[1].communicate("\n", timeout=20)[0].encode()
    workers[2].communicate("\n", timeout=20)
    assert value_of(text, "tierline_requests_total") == 9
    assert value_of(text, "tierline_ttft_seconds_count") == 9
    assert value_of(text, "tierline_in_flight") == 2
