"""A policy's start rule with its threshold open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.parts.fit.calibration.start import START_QUANTILES, START_THRESHOLDS, StartRules, with_threshold
from policies.loader import read_policy
from policies.model import Policy

POLICY = """\
surface: chat
slo: {{deadline: 30s}}
tiers: [local, middle, hosted]
route:
  classifier: {classifier}
  start:
    local: {rule}
    middle: tokens_in < 100
    hosted: otherwise
"""
EASY = {"p_adequate": 0.8, "in_domain": True, "tokens_in": 50}
HARD = {"p_adequate": 0.2, "in_domain": True, "tokens_in": 50}
UNKNOWN = {"p_adequate": None, "in_domain": False, "tokens_in": 50}
Make = Callable[..., Policy]
LONG = {"p_adequate": 0.8, "in_domain": True, "tokens_in": 5000}


@pytest.fixture
def policy(tmp_path: Path) -> Make:
    def _policy(rule: str, classifier: str = "default") -> Policy:
        file = tmp_path / "chat.yaml"
        file.write_text(POLICY.format(rule=rule, classifier=classifier))
        return read_policy(file)[0]

    return _policy


def test_rules_are_asked_as_the_gateway_asks_them(policy: Make) -> None:
    """The rest of the rule holds as written: unknown requests start cheap here, and long ones do not."""
    rules = StartRules.of(policy("(p_adequate >= 0.7 or not in_domain) and tokens_in < 3000"))
    assert rules.threshold == 0.7
    assert rules.thresholds == tuple(sorted(START_THRESHOLDS))
    requests = [EASY, HARD, UNKNOWN, LONG]
    assert rules.start_cheapest(requests, 0.7).tolist() == [True, False, True, False]
    assert rules.start_cheapest(requests, 0.0).tolist() == [True, True, True, False]
    assert rules.start_cheapest(requests, 0.9).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    "rule", ["easiest 70% of its kind and tokens_in < 3000", "quantile <= 0.7 and tokens_in < 3000"]
)
def test_a_quantile_is_varied_as_well(policy: Make, rule: str) -> None:
    """In both forms, from all requests of a known kind to the easiest fifth of them."""
    rules = StartRules.of(policy(rule))
    assert (rules.value, rules.threshold) == ("quantile", 0.7)
    assert rules.thresholds == tuple(sorted({*START_QUANTILES, 0.7}, reverse=True))
    assert rules.in_words(0.7) == "easiest 70% of its kind"
    easy, hard = EASY | {"kind": "chat", "quantile": 0.3}, HARD | {"kind": "chat", "quantile": 0.9}
    requests = [easy, hard, UNKNOWN | {"quantile": None}, easy | {"tokens_in": 5000}]
    assert rules.start_cheapest(requests, 0.7).tolist() == [True, False, False, False]
    assert rules.start_cheapest(requests, 1.0).tolist() == [True, True, False, False]
    assert rules.start_cheapest(requests, 0.2).tolist() == [False, False, False, False]


@pytest.mark.parametrize(
    ("rule", "classifier"),
    [
        ("tokens_in < 3000", "default"),
        ("p_adequate >= 0.7 or p_adequate >= 0.2 and turns > 3", "default"),
        ("0.7 <= p_adequate", "default"),
        ("easiest 40% of its kind or p_adequate >= 0.7", "default"),
        ("kind == chat and easiest 40% of its kind or kind == code and easiest 10% of its kind", "default"),
        ("easiest 40% of its kind", "none"),
        ("p_adequate >= 0.7", "none"),
    ],
)
def test_a_rule_with_no_single_threshold_is_taken_as_it_is(policy: Make, rule: str, classifier: str) -> None:
    """There is then no start threshold to choose."""
    rules = StartRules.of(policy(rule, classifier))
    assert (rules.threshold, rules.thresholds) == (None, (None,))
    assert rules.rule(None).source == rule


def test_only_the_number_changes() -> None:
    """Whatever stands around it stays, over several lines too."""
    assert (
        with_threshold("'p_adequate>=.7 and\n  tokens_in < 3000'", 0.25) == "'p_adequate>=0.25 and\n  tokens_in < 3000'"
    )
    assert with_threshold("p_adequate > 0.75", 0.9) == "p_adequate > 0.9"
    assert (
        with_threshold("kind == chat and easiest 7.5% of its kind", 0.6) == "kind == chat and easiest 60% of its kind"
    )
    assert with_threshold("quantile < 0.75 and turns < 3", 0.2) == "quantile < 0.2 and turns < 3"
