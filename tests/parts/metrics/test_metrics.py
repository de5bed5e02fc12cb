from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from cache.semantic.hit_bound import SurfaceState
from cache.store.base import NoStore, StoreState
from gateway.parts.access.metrics import LimitMetrics
from gateway.parts.access.quotas.accounts import Account
from gateway.parts.access.quotas.alerts import BudgetAlerts
from gateway.parts.access.quotas.terms import OwnerKind
from gateway.parts.hit_audits.metrics import AuditMetrics
from gateway.parts.metrics.metric_set import (
    DURATION_BUCKETS,
    GAP_BUCKETS,
    MOST,
    OVERHEAD_BUCKETS,
    TPOT_BUCKETS,
    TTFT_BUCKETS,
)
from gateway.parts.metrics.metrics import BackendState, PrometheusMetrics
from gateway.request.load_shedding import LoadShedder
from gateway.telemetry import names
from gateway.telemetry.ledger import CallAccount
from policies.model import Slo
from policies.quantities import OF_STAGES
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.support.metrics import every_metric

Read = Callable[..., float]


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics()


@pytest.fixture
def read(metrics: PrometheusMetrics) -> Read:
    return lambda name, **labels: value_of(metrics.render(), f"tierline_{name}", **labels)


def test_a_request_is_counted_in_all_its_parts(metrics: PrometheusMetrics, read: Read) -> None:
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
    assert read("not_good_total") == 0
    assert read("wasted_usd_total", surface="chat") == pytest.approx(0.0001)


def test_a_request_that_got_nowhere_has_labels_too(metrics: PrometheusMetrics, read: Read) -> None:
    """What a failed request lacks is labelled `none`, and a first byte that never came is not observed."""
    metrics.observe(*failed())
    assert read("requests_total", path="none", tier="none", status="502") == 1
    assert read("ttft_seconds_count") == 0


def test_negative_usage_is_not_taken(metrics: PrometheusMetrics, read: Read) -> None:
    """A backend that reports negative tokens does not break the counters."""
    metrics.observe(*escalated(tokens_out=-5, cost_usd=-1.0))
    assert read("tokens_total", direction="out") == 0
    assert read("requests_total") == 1


def test_reloads_drops_and_requests_in_flight(metrics: PrometheusMetrics, read: Read) -> None:
    """Reloads count by result, drops by reason, and the gauge follows requests in and out."""
    metrics.policy_reloaded(True)
    metrics.policy_reloaded(False)
    metrics.policy_reloaded(False)
    metrics.telemetry_dropped("export_failed", 7)
    gate = LoadShedder(10)
    gate.in_hand = 1
    metrics.watch_gate(gate)
    assert (read("policy_reloads_total", outcome="applied"), read("policy_reloads_total", outcome="refused")) == (1, 2)
    assert read("telemetry_dropped_total", reason="export_failed") == 7
    assert read("in_flight") == 1


def test_shared_answers_are_counted_by_how_that_ended(metrics: PrometheusMetrics, read: Read) -> None:
    """A request that read another's answer, and one whose flight was lost."""
    for end in ("done", "done", "lost"):
        trace, ledger = escalated()
        trace.begin(names.CACHE_FOLLOW, {names.CACHE_OUTCOME: end}).end()
        metrics.observe(trace, ledger)
    assert (read("coalesced_total", outcome="done"), read("coalesced_total", outcome="lost")) == (2, 1)


def test_the_store_gauge_follows_the_store(metrics: PrometheusMetrics, read: Read) -> None:
    """Exactly one state is 1, and it is the one the store is in when the text is made."""
    state = StoreState("ok")
    metrics.watch_store(lambda: state)
    assert (read("store_state", state="ok"), read("store_state")) == (1, 1)
    state = StoreState("degraded", "timeout")
    assert (read("store_state", state="degraded"), read("store_state")) == (1, 1)


def test_nothing_a_client_wrote_becomes_a_label(metrics: PrometheusMetrics) -> None:
    """Request ids, tenants and model names stay out of the text: labels are few, and tell nothing."""
    metrics.observe(*escalated("canary-id", tenant="canary-tenant", requested_model="canary-model"))
    assert b"canary" not in metrics.render()


_WORKER = """
import sys
from gateway.parts.metrics.metrics import PrometheusMetrics
from tests.gateway.telemetry.requests_made import escalated
metrics = PrometheusMetrics()
metrics.watch(lambda: metrics.in_flight.set(1))
for _ in range(3):
    metrics.observe(*escalated())
metrics.flush()
metrics.refresh()
print("ready", flush=True)
sys.stdin.readline()
sys.stdout.write(metrics.render().decode())
"""
_SUPERVISOR = "import sys; from gateway.parts.metrics import part; part.WorkerMetrics(3).lost(int(sys.argv[1]))"


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
    assert value_of(text, "tierline_workers_lost_total") == 1
    assert value_of(text, "tierline_workers_configured") == 3


def _called(tier: str, number: int, *, wasted: bool, queue_ms: float = 0.0) -> CallAccount:
    return CallAccount(number, tier, tier, "m", "accepted", 100, 20, False, 0.0, wasted, queue_ms, None, 50.0)


def test_money_and_time_are_counted(metrics: PrometheusMetrics, read: Read) -> None:
    """Wasted tokens by tier, the counterfactual, the pace, the queues, and each objective met or missed."""
    calls = [_called("local", 1, wasted=True, queue_ms=30.0), _called("hosted", 2, wasted=False)]
    met = {"deadline": True, "ttft_p95": False}
    figures = {"counterfactual_usd": 0.002, "tpot_ms": 20.0, "gap_ms": 300.0, "slo": met}
    metrics.observe(*escalated(calls=calls, **figures))
    assert read("wasted_tokens_total", surface="chat", tier="local") == 120
    assert read("wasted_tokens_total", surface="chat", tier="hosted") == 0
    assert read("counterfactual_usd_total", surface="chat") == pytest.approx(0.002)
    assert read("tpot_seconds_sum", surface="chat", tier="hosted") == pytest.approx(0.02)
    assert read("gap_seconds_sum", surface="chat", tier="hosted") == pytest.approx(0.3)
    assert read("queue_seconds_sum", tier="local") == pytest.approx(0.03)
    assert read("queue_seconds_count", tier="hosted") == 1
    for objective, misses in (("deadline", 0), ("ttft_p95", 1)):
        assert read("slo_requests_total", surface="chat", objective=objective) == 1
        assert read("slo_misses_total", surface="chat", objective=objective) == misses


@pytest.mark.parametrize(("outcome", "served", "counted"), [("accepted", (2,), "won"), ("lost", (1,), "lost")])
def test_a_hedge_has_won_or_lost(
    metrics: PrometheusMetrics, read: Read, outcome: str, served: tuple[int, ...], counted: str
) -> None:
    """The second attempt of a race is counted by how it ended, the first one not at all."""
    trace, ledger = escalated(served=served)
    trace.hops[-2].attributes.update({names.HEDGE: True, names.OUTCOME: outcome})
    metrics.observe(trace, ledger)
    assert (read("hedges_total", surface="chat", outcome=counted), read("hedges_total")) == (1, 1)


def test_shed_requests_are_counted(metrics: PrometheusMetrics, read: Read) -> None:
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


def _refusing(backend: str) -> list[BackendState]:
    return [BackendState(backend, backend, False, 0, 0, 1, {}, refuses=True)]


def test_no_input_makes_more_series_than_a_metric_may_have(
    metrics: PrometheusMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With whatever in every field that a label is made of, the surplus is counted as `other`, and nothing is lost."""
    parts = every_metric(metrics)
    assert max(MOST.values()) <= 1000
    few = {Counter: 8, Histogram: 4, Gauge: 6}
    monkeypatch.setattr("gateway.parts.metrics.metrics.MOST", few)
    requests = 30
    for number in range(requests):
        odd = f'{number}"\n\\\ud800é' * 40
        trace, ledger = escalated(surface=odd, path=odd, tier=odd, backend=odd, slo={odd: False}, error=odd)
        ledger.calls = [replace(_called(odd, 1, wasted=True), backend=odd, outcome="low_confidence", fault=odd)]
        ledger.status = number
        for hop in trace.hops:
            for name in (
                names.CACHE_OUTCOME,
                names.CACHE_REASON,
                names.TIER,
                names.BACKEND,
                names.OUTCOME,
                names.STAGE,
            ):
                hop.attributes[name] = odd
            hop.attributes |= {names.HEDGE: True, names.COST_UNKNOWN: True}
        metrics.observe(trace, ledger)
        metrics.warmed(odd, odd)
        metrics.watch_backends(partial(_refusing, odd))
        parts.sessions.capped(odd, odd, odd)
        parts.limits.refused(odd, odd, odd)
        parts.audits.judged(odd, odd, 0.0)
        parts.trials.compared(odd, odd, 0.0, 0.0)
        parts.trials.shadow_ended(odd, odd, 0.0)
        metrics.telemetry_dropped(odd)
    text = metrics.render()
    for metric in metrics.defined:
        series = len(metric._metrics) if metric._labelnames else 1
        assert series <= few[type(metric)] + 1, metric
    assert value_of(text, "tierline_requests_total") == requests
    assert value_of(text, "tierline_requests_total", surface="other") >= requests - few[Counter]
    assert value_of(text, "tierline_request_duration_seconds_count") == requests
    assert value_of(text, "tierline_attempts_total") == 2 * requests
    assert max(map(len, text.splitlines())) < 2000


def test_breaches_of_the_caches_bound_are_shown_by_language(metrics: PrometheusMetrics, read: Read) -> None:
    """Of all requests and of each language, until it is over; tenants are counted and not named."""
    tenants = {"tenant:acme": True, "tenant:zeta": False}
    states = {"chat": SurfaceState(0.9, 7, False, {"Latin": False, "Han": True}, tenants)}
    AuditMetrics(metrics).watch(lambda: states)
    found = [read("cache_breached", surface="chat", language=name) for name in ("all", "Latin", "Han")]
    assert found == [0, 0, 1]
    assert read("cache_breached_tenants", surface="chat") == 1
    states["chat"] = SurfaceState(0.95, 8, True, {"Latin": False, "Han": False}, {})
    assert read("cache_breached", language="all") == 1 and read("cache_breached", language="Han") == 0
    assert read("cache_breached_tenants", surface="chat") == 0


def test_the_highest_share_of_budgets_is_shown_by_kind_of_owner(metrics: PrometheusMetrics, read: Read) -> None:
    """Names of owners are no labels. A budget of nothing is spent by anything."""
    budgets: list[tuple[OwnerKind, int, int]] = [("key", 3, 10), ("key", 9, 10), ("key", 0, 0), ("team", 12, 10)]
    budgets.append(("user", 1, 0))
    counted = LimitMetrics(metrics)
    alerts = BudgetAlerts(NoStore(), counted.alert, shares=())
    for number, (kind, spent, limit) in enumerate(budgets):
        alerts.note(Account(kind, f"a{number}", "usd", limit), spent)
    counted.watch(alerts.highest)
    assert [read("budget_share", owner=kind) for kind in ("key", "team", "tenant", "user")] == [0.9, 1.2, 0, 1]
    counted.alert("delivered")
    assert read("alerts_total", outcome="delivered") == 1


def test_no_label_is_of_a_client(metrics: PrometheusMetrics) -> None:
    """No metric has a tenant, a key, a request or a model that was asked for as a label."""
    labels = {label for metric in every_metric(metrics).metrics.defined for label in metric._labelnames}
    assert labels == {
        "backend", "cap", "connection", "direction", "group", "hop", "language", "objective", "outcome", "owner",
        "part", "path", "prompt", "reason", "stage", "state", "status", "surface", "tier", "unit", "version",
    }  # fmt: skip


def test_buckets_hold_the_objectives_of_the_shipped_policies() -> None:
    """A share within an objective is read exactly, and the buckets beside it are no more than half as wide again."""
    objectives = 0
    for file in sorted(Path("policies").glob("*.yaml")):
        if file.name.endswith(".test.yaml"):
            continue
        slo = yaml.safe_load(file.read_text()).get("slo")
        limits = {} if slo is None else Slo.model_validate(slo).limits()
        for name, limit in limits.items():
            if name.startswith(OF_STAGES):
                continue  # in no histogram: their requests and misses are counted
            kinds = {"ttft": TTFT_BUCKETS, "tpot": TPOT_BUCKETS, "gap": GAP_BUCKETS}
            buckets = kinds.get(name.partition("_")[0], DURATION_BUCKETS)
            at = buckets.index(limit)
            assert buckets[at] / buckets[at - 1] <= 1.7, name
            objectives += 1
    assert objectives > 20
    assert OVERHEAD_BUCKETS[0] <= 20e-6
    assert sum(bound < 0.001 for bound in OVERHEAD_BUCKETS) >= 6


@pytest.mark.parametrize(
    ("changed", "good"),
    [
        ({}, 1),
        ({"slo": {"deadline": True, "ttft_p95": False, "ttft_p50": False}}, 1),
        ({"slo": {"deadline": True, "ttft_p99": False}}, 0),
        ({"path": "degraded"}, 0),
        ({"fault": "json_schema"}, 0),
        ({"slo": None, "status": 503}, 0),
    ],
)
def test_a_good_request_kept_its_limits_and_was_meant_to_be_served(
    metrics: PrometheusMetrics, read: Read, changed: dict[str, Any], good: int
) -> None:
    """Not one that was late, degraded, structurally invalid or rejected; a p95 is for many requests, not for each."""
    calls = [replace(_called("hosted", 1, wasted=False), fault=changed.pop("fault", ""))]
    metrics.observe(*escalated(**{"slo": {"deadline": True}, "calls": calls, **changed}))
    assert (read("goodput_requests_total"), read("goodput_good_total", tier="hosted")) == (1, good)


def test_a_client_error_has_no_goodput(metrics: PrometheusMetrics, read: Read) -> None:
    """What the client did wrong, or broke off, is not held against us."""
    metrics.observe(*escalated(status=400, slo=None))
    assert read("goodput_requests_total") == 0


@pytest.mark.parametrize(
    ("ledger", "outcome", "held"),
    [
        ({"status": 502, "error": "upstream_http_error", "slo": {}}, "failed", 1),
        ({"status": 503, "error": "server_is_overloaded", "slo": None}, "failed", 1),
        ({"slo": {"deadline": False}}, "late", 1),
        ({"slo": {"deadline": True}, "path": "degraded"}, "poor", 1),
        ({"status": 429, "error": "rate_limit_exceeded", "refused": True, "slo": None}, "refused", 0),
        ({"status": 400, "error": "invalid_json", "slo": None}, "refused", 0),
        ({"status": 499, "error": "client_gone", "slo": None}, "left", 0),
    ],
)
def test_what_is_not_good_is_counted_by_why(
    metrics: PrometheusMetrics, read: Read, ledger: dict[str, Any], outcome: str, held: int
) -> None:
    """A refusal is counted, and in no goodput; a failure is in it, and in no objective that it did not miss."""
    metrics.observe(*escalated(**ledger))
    assert (read("not_good_total", outcome=outcome), read("not_good_total")) == (1, 1)
    assert (read("goodput_requests_total"), read("goodput_good_total")) == (held, 0)
    assert read("slo_misses_total") == (outcome == "late")


def test_what_is_no_chat_is_in_no_goodput(metrics: PrometheusMetrics, read: Read) -> None:
    """Its answers are in none, so neither are its failures."""
    for status, error in ((200, None), (502, "upstream_http_error")):
        metrics.observe(*escalated(surface="chat/embeddings", status=status, error=error, slo=None))
    assert (read("requests_total"), read("goodput_requests_total"), read("not_good_total")) == (2, 0, 0)


def test_tokens_and_dollars_are_of_who_was_called(metrics: PrometheusMetrics, read: Read) -> None:
    """Of an escalated answer that a judge rejected: each provider has its own, which is what it is owed."""
    calls = [
        CallAccount(1, "local", "smollm2", "m", "low_confidence", 40, 9, False, 0.001, True, 0.0, None, 9.0),
        CallAccount(2, "hosted", "openai", "m", "accepted", 50, 20, False, 0.02, False, 0.0, None, 9.0),
        CallAccount(0, "judge", "judge", "m", "judged", 70, 1, False, 0.0005, True, 0.0, None, 9.0),
    ]
    metrics.observe(*escalated(calls=calls, tokens_in=90, tokens_out=29, cost_usd=0.0215))
    for call in calls:
        labels = {"surface": "chat", "tier": call.tier, "backend": call.backend}
        assert read("tokens_total", **labels, direction="in") == call.tokens_in
        assert read("tokens_total", **labels, direction="out") == call.tokens_out
        assert read("cost_usd_total", **labels) == call.cost_usd
    assert read("cost_usd_total") == pytest.approx(0.0215)


def test_the_saving_has_what_its_interval_needs(metrics: PrometheusMetrics, read: Read) -> None:
    """Sums, squares and products, by draw, of streams too whose draft was given up; nothing that has no price."""
    for cost, alone in ((0.5, 2.0), (1.0, 3.0)):
        more = {"answer_estimated": cost > 0.5, "usage_estimated": True}
        metrics.observe(*escalated(cost_usd=cost, counterfactual_usd=alone, holdout=False, **more))
    metrics.observe(*escalated(cost_usd=4.0, counterfactual_usd=4.0, holdout=True))
    for left_out in ({"cost_unknown": True}, {"counterfactual_usd": None}):
        metrics.observe(*escalated(**{"cost_usd": 9.0, "counterfactual_usd": 9.0, "holdout": False, **left_out}))
    routed = {"surface": "chat", "group": "routed"}
    assert read("saving_requests_total", **routed) == 2
    assert read("saving_cost_usd_total", **routed) == 1.5
    assert read("saving_counterfactual_usd_total", **routed) == 5.0
    assert read("saving_cost_usd_squared_total", **routed) == 1.25
    assert read("saving_counterfactual_usd_squared_total", **routed) == 13.0
    assert read("saving_product_usd_squared_total", **routed) == 4.0
    assert read("saving_cost_usd_squared_total", group="held_out") == 16.0


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, "0-255"), (255, "0-255"), (256, "256-1023"), (16384, "16384+"), (None, "unknown")]
)
def test_prompts_are_counted_by_length(metrics: PrometheusMetrics, read: Read, tokens: int | None, bucket: str) -> None:
    """In buckets of tokens; `unknown` where nobody counted them."""
    metrics.observe(*escalated(answer_tokens_in=tokens))
    assert read("request_duration_seconds_count", prompt=bucket) == 1


def test_a_rejected_answer_and_an_unpriced_call_are_counted(metrics: PrometheusMetrics, read: Read) -> None:
    """By the reason of the judge, and by the backend without a price."""
    calls = [replace(_called("local", 1, wasted=True), outcome="low_confidence", fault=fault) for fault in ("", "loop")]
    trace, ledger = escalated(calls=calls)
    trace.hops[-2].attributes[names.COST_UNKNOWN] = True
    metrics.observe(trace, ledger)
    assert read("rejected_answers_total", surface="chat", tier="local", reason="confidence") == 1
    assert read("rejected_answers_total", surface="chat", tier="local", reason="loop") == 1
    assert read("unpriced_calls_total", tier="hosted", backend="openai") == 1


def test_policies_in_force_show_their_objectives(metrics: PrometheusMetrics, read: Read) -> None:
    """Limits and targets of each, a fingerprint, and NaN where a policy has gone."""
    both, one = (SimpleNamespace(by_surface=dict.fromkeys(surfaces, _POLICY)) for surfaces in (("a", "b"), ("a",)))
    policies = SimpleNamespace(notes=("drift: chat.yaml",), failure=None, current=both)
    metrics.watch_policies(policies)  # type: ignore[arg-type]
    assert read("slo_limit_seconds", surface="b", objective="ttft_p95") == 0.4
    assert read("slo_target_ratio", surface="b", objective="deadline") == 0.999
    assert read("policy_fingerprint_lowest", surface="b") == read("policy_fingerprint_highest", surface="b") > 0
    assert (read("policy_drift"), read("policy_refused")) == (1, 0)
    policies.current = one
    assert isnan(read("slo_limit_seconds", surface="b", objective="ttft_p95"))
    assert read("policy_fingerprint_lowest", surface="b") == 0
    assert read("slo_limit_seconds", surface="a", objective="deadline") == 60


_POLICY = SimpleNamespace(label="chat@1", slo=Slo.model_validate({"ttft": {"p95": "400ms"}, "deadline": "60s"}))


def test_a_backend_that_refuses_us_is_shown_until_it_answers(metrics: PrometheusMetrics, read: Read) -> None:
    """One that never did has no series."""
    states = [BackendState("local", name, False, 0, 0, 1, {}, name == "odd") for name in ("odd", "even")]
    metrics.watch_backends(lambda: states)
    assert (read("backend_refuses", backend="odd"), b'refuses{backend="even"}' in metrics.render()) == (1, False)
    states = [state._replace(refuses=False) for state in states]
    assert b'tierline_backend_refuses{backend="odd"} 0.0' in metrics.render()


async def test_gauges_are_read_now_and_then(metrics: PrometheusMetrics, read: Read) -> None:
    """A worker without requests shows its state too."""
    seen = 0

    def state() -> list[BackendState]:
        nonlocal seen
        seen += 1
        return [BackendState("local", "small", True, 3, 2, 4, {"requests": 0.25})]

    metrics.watch_backends(state)
    metrics.serve()
    assert (seen, read("workers")) == (1, 1)
    assert [read(f"backend_{name}", backend="small") for name in ("open", "in_flight", "queued", "capacity")] == [
        1,
        3,
        2,
        4,
    ]
    assert read("backend_headroom_ratio", backend="small", unit="requests") == 0.25
    metrics.stop()
    assert read("workers") == 0


def test_sums_are_taken_over_in_slices() -> None:
    """Of many surfaces no step holds the loop long; what is counted meanwhile is not lost, and the text has all."""
    metrics = PrometheusMetrics()
    for number in range(100):
        metrics.observe(*escalated(surface=f"surface-{number}"))
    slices = metrics.flush_slices()
    next(slices)
    metrics.observe(*escalated(surface="surface-0"))
    assert len([*slices]) > 3
    text = metrics.render()
    for number in range(100):
        labels = {"surface": f"surface-{number}", "path": "escalated", "tier": "hosted", "status": "200"}
        assert value_of(text, "tierline_requests_total", **labels) == (2 if number == 0 else 1)
