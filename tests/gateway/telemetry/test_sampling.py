from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision

from gateway.telemetry import names
from gateway.telemetry.ledger import Ledger
from gateway.telemetry.sampling import bound_of, environment_sampler, kept_for
from gateway.telemetry.trace import Trace

_WELL = {"ttft_p50": False, "tpot_p50": False, "gap_p50": False, "ttft_p99": True, "deadline": True}


@pytest.mark.parametrize(
    ("ledger", "kept"),
    [
        ({"status": 200, "path": "direct", "slo": _WELL}, ""),
        ({"status": 200, "path": "cache-exact"}, ""),
        ({"status": 400, "error": "invalid_json"}, ""),
        ({"status": 499, "error": "client_gone"}, ""),
        ({"status": 502, "error": "upstream_unreachable"}, "error"),
        ({"status": 200, "error": "upstream_truncated", "path": "direct"}, "error"),
        ({"status": 200, "error": "client_cancel", "path": "direct"}, ""),
        ({"status": 200, "path": "escalated"}, "escalated"),
        ({"status": 200, "path": "degraded"}, "degraded"),
        ({"status": 200, "path": "direct", "arm": "control"}, "canary"),
        ({"status": 200, "path": "direct", "arm": "shadow"}, "shadow"),
        ({"status": 200, "path": "direct", "arm": "playground"}, "playground"),
        ({"status": 200, "path": "direct", "slo": _WELL | {"ttft_p99": False}}, "slow"),
    ],
)
def test_what_is_worth_a_look_is_kept(ledger: dict[str, Any], kept: str) -> None:
    """Whatever the rate: errors of ours, escalations, canaries, and what missed an objective but a median."""
    assert kept_for(Trace(names.REQUEST, sampled_below=0), Ledger("r", **ledger)) == kept
    assert kept_for(Trace(names.REQUEST), Ledger("r", **ledger)) == "head"


def test_a_rate_keeps_that_share_and_the_same_traces_everywhere() -> None:
    """By the trace id alone: what 1% keeps, 10% keeps too."""
    traces = [Trace(names.REQUEST, sampled_below=bound_of(0.1)) for _ in range(4000)]
    kept = [trace for trace in traces if trace.sampled]
    assert 300 < len(kept) < 500
    few = bound_of(0.01)
    assert {trace.trace_id for trace in traces if trace.trace_id % 2**64 < few} <= {trace.trace_id for trace in kept}
    assert not Trace(names.REQUEST, sampled_below=bound_of(0.0)).sampled and Trace(names.REQUEST).sampled


@pytest.mark.parametrize("argument", ["0.25", "0", "1", "", "nonsense", "nan", "-1", "2"])
@pytest.mark.parametrize(
    "name", ["", "traceidratio", "ParentBased_TraceIdRatio", "always_off", "parentbased_always_on"]
)
def test_the_environment_is_read_as_the_sdk_does(name: str, argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told to backends is what is exported, whatever is written there."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name or "always_on")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    follows, below = environment_sampler()
    assert follows == name.lower().startswith("parentbased")
    sampler = TracerProvider(shutdown_on_exit=False).sampler
    for trace_id in (1, 1 << 62, (1 << 62) - 1, 3 << 62, (1 << 64) - 1, (5 << 64) + 7):
        exported = sampler.should_sample(None, trace_id, "request").decision is Decision.RECORD_AND_SAMPLE
        assert (trace_id % 2**64 < below) == exported
