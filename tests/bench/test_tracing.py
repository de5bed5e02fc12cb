from __future__ import annotations

from pathlib import Path

import pytest

from gateway.parts.reasons import details
from gateway.telemetry import names
from tests.bench.collector import run
from tests.bench.tracing import OTHERS_READ, on_path, request_trace


async def test_a_request_pays_for_few_attributes(tmp_path: Path) -> None:
    """On its path an escalated stream sets at most fifty, most of which the ledger reads; the rest come after it."""
    trace, _ = await request_trace(tmp_path)
    on = [name for hop in trace.hops for name in hop.attributes]
    assert len(trace.hops) == 8 and len(on) <= 50
    described = names.of_call("", "", "", "http://host:1").keys()
    assert len([name for name in on if name not in OTHERS_READ and name not in described]) <= 12
    recorded, sampled_out = on_path(trace, rounds=3, times=50)
    assert recorded.median_us > 0 and sampled_out.median_us < recorded.median_us
    details.complete(trace)
    assert sum(len(hop.attributes) for hop in trace.hops) > len(on) + 40


@pytest.mark.long
def test_bad_collectors_cost_no_request(tmp_path: Path) -> None:
    """Frozen, full or refusing: no request is lost, and the gateway stops within 5 s."""
    failed, _ = run(("none", "frozen", "full", "refusing"), 100, 2, tmp_path)
    assert not failed
