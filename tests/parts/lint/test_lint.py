"""What a policy may say but probably does not mean."""

from __future__ import annotations

import re

import pytest

from gateway.parts.lint.codes import CODES
from gateway.parts.lint.rules import faults, lint
from policies.errors import dotted
from policies.loader import SHIPPED, read_policy
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
        ([("0.62, invalid: [json]}", "0}, agreement: {samples: 2}")], "escalate.agreement", "not used"),
        ([("[json]}", "[json]}, verify: [logprobs], agreement: {}")], "escalate.agreement", "verify leaves it out"),
        ([("[json]}", "[json]}, verify: [logprobs, judge]")], "escalate.verify[1]", "judge has no section"),
        ([("[json]}", "[json]}, judge: {backend: local, within: 2s}")], "escalate.judge.within", "held for 0.25s"),
        ([("[json]}", "[json]}, max_attempts: 1, agreement: {}")], "escalate.agreement", "no sample is ever drawn"),
        ([("[json]", "[json_schema]")], "escalate.when.invalid", "json is left out"),
        ([("invalid: [json]}", "invalid: [json]}, max_attempts: 1")], "escalate.when.confidence_below", "max_attempts"),
        ([("deadline: 30s", "deadline: 200ms")], "escalate.stream.hold_max", "past its deadline"),
        ([("invalid: [json]}", "invalid: [json]}, stream: {hold_max: 1s}")], "escalate.stream.hold_max", "slo.ttft"),
        ([("exact: {ttl: 24h}", "semantic: {ttl: 6h, min_similarity: 0.9}")], "cache.semantic", "no exact cache"),
        ([(EXACT, f"{EXACT}, semantic: {{ttl: 6h, cross_encoder: {{min_score: 0.9, within: 500ms}}}}")],
         "cache.semantic.cross_encoder.within", "slo.ttft"),
        ([(EXACT, f"{EXACT}, semantic: {{ttl: 6h, cross_encoder: {{min_score: 0}}}}")],
         "cache.semantic.cross_encoder.min_score", "until there are labels"),
        ([(EXACT, f"{EXACT}, semantic: {{ttl: 6h, verify: fast, cross_encoder: {{min_score: 0.9}}}}")],
         "cache.semantic.cross_encoder", "never asked"),
        ([("invalid: [json]}", "invalid: [json]}, speculate: {during_check: always}")],
         "escalate.speculate.during_check", "verify: default"),
        ([("temperature > 0.3", "otherwise")], "cache.never[1]", "nothing is ever cached"),
        ([(START, "start: {hosted: otherwise, local: stream}")], "route.start.local", "never reached"),
        ([(START, START + "\n  classifier: none")], "route.start.local", "p_adequate has no value"),
        ([("invalid: [json]}", "invalid: [json]}, max_attempts: 1, hedge: {}")], "escalate.hedge", "nothing ever runs"),
        ([("[local, hosted]", "[hosted]"), (START, "start: {hosted: otherwise}"),
          ("invalid: [json]}", "invalid: [json]}, speculate: {both: stream}")],
         "escalate.speculate.both", "no second one"),
        ([("tiers: [local, hosted]", "tiers: [local, hosted]\nholdout: 50%")], "holdout", "50%"),
        ([("tiers: [local, hosted]", "tiers: [local, hosted]\nload: {max_wait: 31s}")],
         "load.max_wait", "slo.deadline"),
        ([("p95: 400ms", "p95: 950ms")], "slo.ttft.p95", "longer than p99"),
        ([("deadline: 30s", "deadline: 600ms")], "slo.ttft.p99", "longer than slo.deadline"),
    ],
)  # fmt: skip
def test_doubtful_rules_are_pointed_out(write: Write, changes: list[tuple[str, str]], key: str, says: str) -> None:
    """Each doubtful rule is named by its key, and the policy loads all the same."""
    found = lint(read_policy(write("chat", CHAT, *changes))[0])
    assert any(dotted(one.path) == key and says in one.message for one in found), found


SPECULATE = "invalid: [json]}, speculate: {both: "


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ([("p_adequate >= 0.7", "p_adequate >= 2")],
         "route.start.local", "'p_adequate >= 2' can never hold: p_adequate is from 0 to 1"),
        ([("tokens_in < 3000", "not tokens_in >= 0")],
         "route.start.local", "'p_adequate >= 0.7 and not tokens_in >= 0' can never hold: p_adequate is from 0 to 1; "
         "tokens_in is a whole number, 0 or more"),
        ([("tokens_in < 3000", "(stream or turns < 0)")],
         "route.start.local", "'turns < 0' can never hold: turns is a whole number, 0 or more"),
        ([("tokens_in < 3000", "p_adequate < 0.5")], "route.start.local", "can never hold"),
        ([("tokens_in < 3000", "not in_domain")],
         "route.start.local", "no comparison with p_adequate holds unless in_domain does"),
        ([("p_adequate >= 0.7", "easiest 40% of its kind"), ("tokens_in < 3000", "not in_domain")],
         "route.start.local", "no comparison with quantile holds unless in_domain does"),
        ([("p_adequate >= 0.7", "easiest 40% of its kind"), ("tokens_in < 3000", "quantile > 1")],
         "route.start.local", "'quantile > 1' can never hold: quantile is from 0 to 1"),
        ([("p_adequate >= 0.7", "kind == chat"), ("tokens_in < 3000", "kind == code")],
         "route.start.local", "can never hold: kind is one of choices, maths, chat, code, tools"),
        ([("tokens_in < 3000", "budget_ms > 30001")],
         "route.start.local", "'budget_ms > 30001' can never hold: budget_ms is from 0 to 30000"),
        ([("tokens_in < 3000", "stream == 'yes'")], "route.start.local", "stream is true or false"),
        ([("temperature > 0.3", "top_p > 1")], "cache.never[1]", "top_p is from 0 to 1"),
        ([("temperature > 0.3", "n < 1")], "cache.never[1]", "n is a whole number, 1 or more"),
        ([("invalid: [json]}", SPECULATE + "difficulty > 1}")],
         "escalate.speculate.both", "'difficulty > 1' can never hold: difficulty is from 0 to 1"),
    ],
)  # fmt: skip
def test_rules_that_can_never_hold_are_faults(
    write: Write, changes: list[tuple[str, str]], key: str, says: str
) -> None:
    """The rule is named by its key, and the message says what the value can be."""
    found = faults(read_policy(write("chat", CHAT, *changes))[0])
    assert [(dotted(one.path), says in one.message) for one in found] == [(key, True)], found


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ([("p_adequate >= 0.7 and tokens_in < 3000", "p_adequate >= 0 or not in_domain")],
         "route.start.local", "holds for every request"),
        ([("p_adequate >= 0.7 and tokens_in < 3000", "tokens_in >= 0")],
         "route.start.hosted", "never reached: 'local' above already takes every request"),
        ([("temperature > 0.3", "n >= 1")], "cache.never[1]", "nothing is ever cached"),
        ([("otherwise}", "otherwise}\n  traffic: {classifier: a0a0a0a, deciles: {chat: [0, 0, 0, 0, 0, 1, 1, 1, 1]}}")],
         "route.traffic", "no rule asks for `quantile`"),
        ([("p_adequate >= 0.7", "easiest 40% of its kind"), ("otherwise}", "otherwise}\n  classifier: none")],
         "route.start.local", "quantile has no value, because route.classifier is none"),
        ([("invalid: [json]}", SPECULATE + "turns >= 0}")], "escalate.speculate.both", "write 'otherwise' instead"),
    ],
)  # fmt: skip
def test_rules_that_always_hold_are_pointed_out(
    write: Write, changes: list[tuple[str, str]], key: str, says: str
) -> None:
    """They may be meant, but then what stands after them never counts."""
    policy = read_policy(write("chat", CHAT, *changes))[0]
    assert faults(policy) == []
    found = lint(policy)
    assert any(dotted(one.path) == key and says in f"{one.message}; {one.mend}" for one in found), found


@pytest.mark.parametrize(
    "rule",
    [
        "(p_adequate >= 0.4 or not in_domain) and tokens_in < 3000",
        "p_adequate >= 1",
        "p_adequate <= 1",
        "difficulty < p_adequate",
        "not (p_adequate > 0.5 and p_adequate < 0.6)",
        "budget_ms < 30000 and budget_ms > 29999",
        "turns == 1 and not has_tools",
        "tokens_in > 2.5 and tokens_in < 3.5",
    ],
)
def test_rules_that_can_go_both_ways_raise_no_alarm(write: Write, rule: str) -> None:
    """However narrow the case, as long as there is one."""
    policy = read_policy(write("chat", CHAT, ("p_adequate >= 0.7 and tokens_in < 3000", rule)))[0]
    assert faults(policy) == []
    assert lint(policy) == []


def test_a_sound_policy_raises_no_doubt(write: Write) -> None:
    """There is no noise."""
    policy = read_policy(write())[0]
    assert lint(policy) == [] and faults(policy) == []


def test_every_code_is_used_and_described() -> None:
    """The table of codes, the README's, and the checks name the same ones; a code means one thing."""
    row = re.compile(r"^\| `(T\d{3})` \| (error|warning) \| (.*) \| (.*) \|$", re.MULTILINE)
    described = {found[1]: found.groups()[1:] for found in row.finditer((SHIPPED / "README.md").read_text())}
    assert described == {code: (one.severity, one.title, one.reason) for code, one in CODES.items()}
    root = SHIPPED.parent
    files = [*SHIPPED.glob("*.py"), *(root / "gateway/parts/lint").glob("*.py"), root / "gateway/parts/lab/evidence.py"]
    files += (root / "gateway/parts").glob("*/policy.py")
    used = {code for file in files if file.name != "codes.py" for code in re.findall(r'"(T\d{3})"', file.read_text())}
    assert used == CODES.keys()
