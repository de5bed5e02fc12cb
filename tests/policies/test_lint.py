"""What a policy may say but probably does not mean."""

from __future__ import annotations

import pytest

from policies.errors import dotted
from policies.lint import lint
from policies.loader import read_policy
from tests.policies.conftest import CHAT, Write

START = "start: {local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}"
EXACT = "exact: {ttl: 24h}"


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ([("[local, hosted]", "[hosted]"), (START, "start: {hosted: otherwise}")],
         "escalate.when.confidence_below", "nothing to escalate to"),
        ([("confidence_below: 0.62", "uncalibrated_below: 0.8"), ("[json]}", "[json]}, max_attempts: 1")],
         "escalate.when.uncalibrated_below", "max_attempts"),
        ([("0.62,", "0.62, uncalibrated_below: 0.5,")], "escalate.when.uncalibrated_below", "less than confidence_"),
        ([("0.62, invalid: [json]}", "0}, agreement: {samples: 2}")], "escalate.agreement", "held against nothing"),
        ([("[json]}", "[json]}, max_attempts: 1, agreement: {}")], "escalate.agreement", "no sample is ever drawn"),
        ([("[json]", "[json_schema]")], "escalate.when.invalid", "json is left out"),
        ([("invalid: [json]}", "invalid: [json]}, max_attempts: 1")], "escalate.when.confidence_below", "max_attempts"),
        ([("deadline: 30s", "deadline: 200ms")], "escalate.stream.hold_max", "past its deadline"),
        ([("invalid: [json]}", "invalid: [json]}, stream: {hold_max: 1s}")], "escalate.stream.hold_max", "slo.ttft"),
        ([("exact: {ttl: 24h}", "semantic: {ttl: 6h, min_similarity: 0.9}")], "cache.semantic", "no exact cache"),
        ([(EXACT, f"{EXACT}, semantic: {{ttl: 6h, cross_encoder: {{min_score: 0.9, within: 500ms}}}}")],
         "cache.semantic.cross_encoder.within", "slo.ttft"),
        ([(EXACT, f"{EXACT}, semantic: {{ttl: 6h, cross_encoder: {{min_score: 0}}}}")],
         "cache.semantic.cross_encoder.min_score", "refuses nothing"),
        ([("temperature > 0.3", "otherwise")], "cache.never", "nothing is ever cached"),
        ([(START, "start: {hosted: otherwise, local: stream}")], "route.start.local", "never looked at"),
        ([(START, START + "\n  classifier: none")], "route.start.local", "p_adequate has no value"),
        ([("invalid: [json]}", "invalid: [json]}, max_attempts: 1, hedge: {}")], "escalate.hedge", "nothing ever runs"),
        ([("[local, hosted]", "[hosted]"), (START, "start: {hosted: otherwise}"),
          ("invalid: [json]}", "invalid: [json]}, speculate: {both: stream}")],
         "escalate.speculate.both", "no second one"),
        ([("invalid: [json]}", "invalid: [json]}, speculate: {during_lookup: true}")],
         "escalate.speculate.during_lookup", "no lookup"),
        ([("tiers: [local, hosted]", "tiers: [local, hosted]\nholdout: 50%")], "holdout", "50%"),
        ([("p95: 400ms", "p95: 950ms")], "slo.ttft.p95", "longer than p99"),
        ([("deadline: 30s", "deadline: 600ms")], "slo.ttft.p99", "longer than slo.deadline"),
    ],
)  # fmt: skip
def test_doubtful_rules_are_pointed_out(write: Write, changes: list[tuple[str, str]], key: str, says: str) -> None:
    """Each doubtful rule is named by its key, and the policy loads all the same."""
    found = lint(read_policy(write("chat", CHAT, *changes))[0])
    assert any(dotted(path) == key and says in message for path, message in found), found


def test_a_sound_policy_raises_no_doubt(write: Write) -> None:
    """There is no noise."""
    assert lint(read_policy(write())[0]) == []
