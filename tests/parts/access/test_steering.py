"""A budget that runs out steers: the ladder is capped, thresholds come down, and nothing is refused for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.parts.lab.explain.path import decision_lines
from gateway.parts.lab.walk import Draft, Surroundings, walk
from gateway.parts.recorder.decision_record import TierFacts, input_of, named, record_of, unnamed
from policies.model import Policy
from policies.sections import policy_model
from policies.steering import Spent
from routing.cascade import Attempt, AttemptOutcome, Cascade, Left, Serve
from routing.decide import Clamp, Decision, DecisionInput, TierHealth, clause_of, decide
from routing.features import Features
from routing.load.latency import Forecast

TIERS = ("local", "hosted", "large")


def policy(spending: dict[str, Any] | None = None, **changes: Any) -> Policy:
    return policy_model().model_validate({
        "surface": "chat",
        "version": "0" * 8,
        "slo": {"deadline": "10s"},
        "tiers": TIERS,
        "route": {"classifier": "none", "start": {"local": "tokens_in < 50", "large": "otherwise"}},
        "escalate": {"when": {"confidence_below": 0.6}},
        "spending": spending or {},
    } | changes)  # fmt: skip


def request(tokens: int = 100, share: float | None = None, cap: str = "", **changes: Any) -> DecisionInput:
    health = {
        name: TierHealth(name, frozenset({"tools"} if name != "local" else ()), 1, forecast=changes.pop(name, None))
        for name in TIERS
    }
    spent = None if share is None else Spent(share, cap)
    return replace(DecisionInput(None, Features("", 1, tokens), health, 10.0, spent=spent), **changes)


def decided(given: DecisionInput, spending: dict[str, Any] | None = None) -> Decision:
    return decide(policy(spending), given)


def test_below_the_share_nothing_changes() -> None:
    """Up to 90% of the budget, and without one, a hard request starts at the strongest tier."""
    free = decided(request())
    assert free.tiers == ("large",)
    assert decided(request(share=0.899)) == free


def test_a_ladder_is_capped_below_the_strongest_where_gains_are_not_known() -> None:
    """The reason says how much is spent, where the ladder is capped, and on what it goes; failures go on upwards."""
    decision = decided(request(share=0.93))
    assert decision.tiers == ("hosted", "large")
    assert decision.fallbacks == ("local",)
    assert decision.reason == (
        "large: otherwise; 93.0% of the budget is spent: capped at hosted, the tier below the strongest, "
        "as what more gains is not known"
    )
    assert decision.steering is not None
    assert (decision.steering.cap, decision.steering.wanted) == ("hosted", "large")
    assert clause_of(policy(), decision) == "spending.cap"


def test_a_measured_cap_is_taken() -> None:
    """Where the measured quality says beyond which tier dollars gain least, the ladder is capped there."""
    decision = decided(request(share=0.93, cap="local"))
    assert decision.tiers == TIERS
    assert decision.reason.endswith("93.0% of the budget is spent: capped at local")


def test_a_measured_cap_at_the_strongest_is_none() -> None:
    """Where no weaker tier costs less, nothing is gained by a cap."""
    assert decided(request(share=0.93, cap="large")).tiers == ("large",)


@pytest.mark.parametrize(("cap", "tiers"), [("none", ("large",)), ("local", TIERS), ("hosted", ("hosted", "large"))])
def test_the_policy_may_name_the_cap(cap: str, tiers: tuple[str, ...]) -> None:
    """`none` never caps; a named tier caps whatever was measured."""
    assert decided(request(share=0.93, cap="local"), {"cap": cap}).tiers == tiers


def test_what_starts_below_the_cap_starts_where_it_would() -> None:
    """An easy request is not touched; only its thresholds come down."""
    decision = decided(request(tokens=10, share=0.95))
    assert decision.tiers == TIERS
    assert decision.steering is not None
    assert decision.steering.wanted == ""
    assert clause_of(policy(), decision) == "route.start.local"


@pytest.mark.parametrize(
    "changes",
    [
        {"features": Features("", 1, 100, has_tools=True)},
        {"clamp": Clamp(min_tier="large")},
        {"local": Forecast(11.0, 12.0, 12.0, 0.0, known=True)},
    ],
)
def test_no_request_is_left_without_an_answer(changes: dict[str, Any]) -> None:
    """Where no tier up to the cap can do it, may do it or is in time, it starts where it would have."""
    decision = decided(request(share=0.99, cap="local", **changes))
    assert decision.tiers[0] in ("hosted", "large")


def test_a_request_that_is_steered_is_not_held_out() -> None:
    """The strongest tier as a baseline is money for what may not be needed."""
    assert decided(request(tokens=10, holdout=True)).tiers == ("large",)
    assert decided(request(tokens=10, holdout=True, share=0.95)).tiers == TIERS


def test_thresholds_come_down_linearly() -> None:
    """At 90% they are whole, at 95% three quarters, at the end a half; the policy may say otherwise."""
    rules = policy().spending
    assert [rules.ease(share) for share in (0.9, 0.95, 1.0, 1.2)] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert policy({"thresholds": "100%"}).spending.ease(0.97) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("share", "confidence", "tier", "stored"),
    [
        (None, 0.5, "hosted", True),
        (0.95, 0.5, "local", False),
        (0.95, 0.4, "hosted", True),
        (0.95, 0.7, "local", True),
    ],
)
def test_fewer_answers_escalate(share: float | None, confidence: float, tier: str, stored: bool) -> None:
    """At 95% a threshold of 0.6 is 0.45. What is taken for that alone is not stored for others."""
    around = Surroundings({"local": [Draft(confidence)]})
    got = walk(policy({"cap": "none"}), request(tokens=10, share=share), around)
    assert (got.tier, got.may_store) == (tier, stored)


def test_any_confidence_is_taken_at_the_cap_but_no_fault() -> None:
    """An answer of the cap's tier stands, however unsure; one that is empty is replaced by the next tier's."""
    given = request(share=0.95, cap="local")
    assert walk(policy(), given, Surroundings({"local": [Draft(0.01)]})).tier == "local"
    assert walk(policy(), given, Surroundings({"local": [Draft(0.99, empty=True)]})).tier == "hosted"
    assert walk(policy(), given, Surroundings({"local": [Draft(fault="error")]})).tier == "hosted"


def test_nothing_runs_beside_what_is_steered() -> None:
    """No hedge and no second tier at once, whatever the policy says."""
    rules = {"escalate": {"hedge": {"after": "100ms"}, "speculate": {"both": "tokens_in > 1"}}}
    around = Surroundings({"local": [Draft(ttft_s=2.0, total_s=3.0)]})
    free = walk(policy(**rules), request(tokens=10), around)
    assert set(free.called) > {"local"}
    assert walk(policy(**rules), request(tokens=10, share=0.95), around).called == ("local",)


def test_an_attempt_says_how_far_its_thresholds_came_down() -> None:
    """Below the cap by the formula, from the cap on to nothing."""
    given = request(tokens=10, share=0.95)
    cascade = Cascade(decide(policy(), given), policy(), given.health)
    first = cascade.next(Left(10.0))
    assert isinstance(first, Attempt)
    assert first.ease == pytest.approx(0.75)
    cascade.observe(AttemptOutcome("low_confidence", kept=True))
    second = cascade.next(Left(10.0))
    assert isinstance(second, Attempt)
    assert (second.tier, second.ease) == ("hosted", 0.0)
    assert cascade.observe(AttemptOutcome("accepted", kept=True, eased=True)) == Serve(2)
    assert not cascade.may_store(2, clamped=False)


@pytest.mark.parametrize("costly", [{}, {"features": Features("", 1, 100, last_tier=2)}])
def test_a_record_holds_what_was_spent(costly: dict[str, Any]) -> None:
    """Read back from JSON and from columns, it decides alike; without a budget records are as they were."""
    given = request(share=0.95, cap="local", **costly)
    record = orjson.loads(orjson.dumps(record_of(given)))
    facts = [TierFacts(one.name, one.capabilities, one.endpoints, one.context) for one in given.health.values()]
    assert input_of(record, facts, "").spent == given.spent
    columns, _ = named(record, None)
    assert columns is not None
    assert columns["budget_share"] == 0.95
    assert unnamed(columns) == record
    without = replace(given, spent=None)
    assert record_of(without) == record[: len(record_of(without))]
    assert input_of(record_of(without), facts, "").spent is None


def test_an_explanation_says_what_the_budget_did() -> None:
    """Its share and the cap."""
    given = request(share=0.93, cap="local")
    lines = [line.text for line in decision_lines(policy(), given) if line.step == "budget"]
    assert lines[-1] == (
        "93.0% of the tightest budget is spent, and it steers from 90.0%: the cap is local, "
        "and thresholds below it are 85.0% of theirs"
    )
