from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache.store.base import StoreState
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount
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


def test_shared_answers_are_counted_by_how_that_ended(metrics: Metrics, read: Read) -> None:
    """A request that read another's answer, and one whose flight was lost."""
    for end in ("done", "done", "lost"):
        trace, ledger = escalated()
        trace.begin(names.CACHE_FOLLOW, {names.CACHE_OUTCOME: end}).end()
        metrics.observe(trace, ledger)
    assert (read("coalesced_total", outcome="done"), read("coalesced_total", outcome="lost")) == (2, 1)


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
    text = workers[1].communicate("\n", timeout=60)[0].encode()
    workers[2].communicate("\n", timeout=60)
    assert value_of(text, "tierline_requests_total") == 9
    assert value_of(text, "tierline_ttft_seconds_count") == 9
    assert value_of(text, "tierline_in_flight") == 2


def _called(tier: str, number: int, *, wasted: bool, queue_ms: float = 0.0) -> CallAccount:
    return CallAccount(number, tier, tier, "m", "accepted", 100, 20, False, 0.0, wasted, queue_ms, None, 50.0)


def test_money_and_time_are_counted(metrics: Metrics, read: Read) -> None:
    """Wasted tokens by tier, the counterfactual, the pace, the queues, and each objective met or missed."""
    calls = [_called("local", 1, wasted=True, queue_ms=30.0), _called("hosted", 2, wasted=False)]
    figures = {"counterfactual_usd": 0.002, "tpot_ms": 20.0, "slo": {"deadline": True, "ttft_p95": False}}
    metrics.observe(*escalated(calls=calls, **figures))
    assert read("wasted_tokens_total", surface="chat", tier="local") == 120
    assert read("wasted_tokens_total", surface="chat", tier="hosted") == 0
    assert read("counterfactual_usd_total", surface="chat") == pytest.approx(0.002)
    assert read("tpot_seconds_sum", surface="chat", tier="hosted") == pytest.approx(0.02)
    assert read("queue_seconds_sum", tier="local") == pytest.approx(0.03)
    assert read("queue_seconds_count", tier="hosted") == 1
    assert read("slo_total", surface="chat", objective="deadline", met="yes") == 1
    assert read("slo_total", surface="chat", objective="ttft_p95", met="no") == 1


@pytest.mark.parametrize(("outcome", "served", "counted"), [("accepted", (2,), "won"), ("lost", (1,), "lost")])
def test_a_hedge_has_won_or_lost(
    metrics: Metrics, read: Read, outcome: str, served: tuple[int, ...], counted: str
) -> None:
    """The second attempt of a race is counted by how it ended, the first one not at all."""
    trace, ledger = escalated(served=served)
    trace.hops[-2].attributes.update({names.HEDGE: True, names.OUTCOME: outcome})
    metrics.observe(trace, ledger)
    assert (read("hedges_total", surface="chat", outcome=counted), read("hedges_total")) == (1, 1)


def test_shed_requests_are_counted(metrics: Metrics, read: Read) -> None:
    """By the hop that turned one away; else its backends were full, or the gate refused it unread."""
    overloaded: dict[str, Any] = {"status": 503, "error": "server_is_overloaded"}
    trace, ledger = failed(**overloaded)
    trace.begin(names.HOP_SHED, {names.REASON: "queue_full: 256 are waiting"}).end()
    metrics.observe(trace, ledger)
    metrics.observe(*failed(**overloaded))
    metrics.observe(*failed())
    metrics.observe(*failed(**overloaded, surface=""))
    assert read("shed_total", surface="chat", reason="queue_full") == 1
    assert read("shed_total", surface="chat", reason="backends_full") == 1
    assert read("shed_total", surface="none", reason="gate") == 1
    assert read("shed_total") == 3
