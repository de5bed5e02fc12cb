"""The keys of a policy that a hop rests on, beside the one that decided it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.console.policy_keys import policy_keys
from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names

DECIDED = {names.CLAUSE: "escalate.when.uncalibrated_below"}


@pytest.mark.parametrize(
    ("attributes", "error", "to_first_token", "keys"),
    [
        (DECIDED, None, True, ["escalate.when.uncalibrated_below"]),
        ({detail.RACE_CLAUSE: "escalate.hedge.after"}, None, True, ["escalate.hedge.after"]),
        ({detail.STAND_IN_CLAUSE: "slo.deadline"}, None, False, ["slo.deadline"]),
        ({**DECIDED, detail.NEXT_LATE: True, names.OUTCOME: "low_confidence"}, None, True,
         [DECIDED[names.CLAUSE], "slo.ttft.p99"]),
        ({**DECIDED, detail.NEXT_LATE: True, names.OUTCOME: "accepted"}, None, True, [DECIDED[names.CLAUSE]]),
        ({names.TIMEOUT: 900.0, detail.BUDGET_LEFT: 2999.0}, "upstream_timeout", True, ["slo.ttft.p99"]),
        ({names.TIMEOUT: 80.0, detail.BUDGET_LEFT: 2999.0}, "upstream_timeout", False, ["slo.total.p95"]),
        ({names.TIMEOUT: 197.5, detail.BUDGET_LEFT: 197.3}, "upstream_timeout", True, ["slo.deadline"]),
        ({names.QUEUE: 12.0}, None, True, ["load.max_wait"]),
        ({detail.VERDICT_AT: 240.0, names.TTFT: 90.0}, None, True, ["escalate.stream.hold_tokens"]),
        ({names.QUEUE: 500.0, detail.VERDICT_AT: 640.0, names.TTFT: 90.0}, None, True,
         ["escalate.stream.hold_tokens", "load.max_wait"]),
        ({detail.VERDICT_AT: 95.0, names.TTFT: 90.0}, None, True, []),
    ],
)  # fmt: skip
def test_a_hop_names_what_it_rests_on(
    attributes: dict[str, Any], error: str | None, keys: list[str], *, to_first_token: bool
) -> None:
    found = list(policy_keys({"attributes": attributes, "error": error}, to_first_token=to_first_token))
    assert [one.key for one in found] == keys
    assert all(one.what for one in found)
