"""The smallest change that makes a request start at another tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.lab.explain.why_not import Flip, Impossible, start_of, why_not
from policies.model import DeployedTier, Policy
from routing.decide import Clamp, DecisionInput, TierHealth
from routing.difficulty.model import Difficulty
from routing.features import Features
from routing.load.latency import Forecast
from routing.warmth import TierCost
from tests.gateway.lab.smallest_change import Tally, check

EVERYTHING = frozenset({"tools", "json", "vision"})


def policy(tiers: str = "local hosted", **start: str) -> Policy:
    rules: dict[str, Any] = {
        "surface": "chat", "version": "0123456", "slo": {"deadline": "10s", "ttft": {"p99": "900ms"}},
        "tiers": tiers.split(), "route": {"start": start},
    }  # fmt: skip
    return Policy.model_validate(rules)


def given(tiers: str = "local hosted", **changes: Any) -> DecisionInput:
    easy = Difficulty((0.5, 0.9), True, "v", "chat", 0.6, 1.0)
    health = {name: TierHealth(name, EVERYTHING, 1) for name in tiers.split()}
    return replace(DecisionInput(easy, Features("", 1, 100), health, 10.0), **changes)


def moves(found: Flip | Impossible) -> list[tuple[str, str, str]]:
    assert isinstance(found, Flip), found
    return [(move.what, move.before, move.after) for move in found.moves]


def test_a_number_moves_just_past_its_constant() -> None:
    """Of the request to the rule's constant, of the policy to the request's value, in as few digits as that takes."""
    answer = why_not(policy(local="p_adequate >= 0.7 and tokens_in < 3000", hosted="otherwise"), given(), "local")
    assert answer.start == "hosted"
    assert moves(answer.request) == [("p_adequate of local", "0.6", "0.7")]
    assert moves(answer.policy) == [("route.start.local", "0.7", "0.6")]
    assert moves(answer.world) == [("hosted", "up", "down")]


def test_a_strict_comparison_is_passed_by_the_least_step() -> None:
    """Which nobody would write, so it is named."""
    answer = why_not(policy(local="p_adequate > 0.7", hosted="otherwise"), given(), "local")
    assert moves(answer.request) == [("p_adequate of local", "0.6", "just above 0.7")]
    answer = why_not(policy(local="tokens_in < 50", hosted="otherwise"), given(), "local")
    assert moves(answer.request) == [("tokens_in", "100", "49")]
    assert moves(answer.policy) == [("route.start.local", "50", "101")]


def test_a_conversation_that_stays_can_go_to_the_weaker_tier() -> None:
    """If no provider held its prompt, or if the policy did not weigh what it would read cold."""
    rules = policy(local="p_adequate >= 0.5", hosted="otherwise")
    warm = given(costs={"local": TierCost(9000, 0.03), "hosted": TierCost(100, 0.02)})
    answer = why_not(rules, warm, "local")
    assert answer.start == "hosted"
    assert moves(answer.request) == [("held by a provider's cache", "yes", "no")]
    assert moves(answer.policy) == [("route.weigh_switching", "yes", "no")]


def test_a_share_of_a_kind_stays_in_percent() -> None:
    """The changed rule is written as the author wrote it."""
    answer = why_not(policy(local="easiest 40% of its kind", hosted="otherwise"), given(), "local")
    assert moves(answer.request) == [("quantile", "0.6", "0.4")]
    assert moves(answer.policy) == [("route.start.local", "40%", "60%")]
    assert isinstance(answer.policy, Flip)
    assert answer.policy.decision.reason == "local: easiest 60% of its kind"


def test_a_conversation_can_be_easier_but_not_easier_than_its_turn() -> None:
    """Where the turn itself is harder, that has to change; on a first turn nothing was before."""
    rules = policy(local="conversation_difficulty <= 0.7 and last_tier <= 1", hosted="otherwise")
    later = Features("", 3, 100, before=0.9)
    assert moves(why_not(rules, given(features=later), "local").request) == [("conversation_difficulty", "0.9", "0.7")]
    later = later._replace(before=0.1, last_tier=2)
    assert moves(why_not(rules, given(features=later), "local").request) == [("last_tier", "2", "1")]
    stricter = policy(local="conversation_difficulty <= 0.5", hosted="otherwise")
    assert moves(why_not(stricter, given(), "local").request) == [("quantile", "0.6", "0.5")]
    assert why_not(stricter, given(features=later), "local").start == "hosted"


def test_fewer_things_come_before_smaller_moves() -> None:
    """One word is a larger move than two small numbers."""
    rules = "kind == code or quantile <= 0.59 and p_adequate >= 0.61"
    answer = why_not(policy(local=rules, hosted="otherwise"), given(), "local")
    assert moves(answer.request) == [("kind", "chat", "code")]
    assert moves(answer.policy) == [("route.start.local", "code", "chat")]


def test_a_request_that_was_not_judged_is_given_all_that_rules_read() -> None:
    """In its domain the classifier gives every value."""
    strange = given(difficulty=Difficulty((0.5, 0.9), False, "v"))
    answer = why_not(policy(local="easiest 40% of its kind", hosted="otherwise"), strange, "local")
    assert [what for what, _, _ in moves(answer.request)] == ["in_domain", "quantile"]
    assert answer.policy == Impossible("no other constants make the rules choose local for this request")


def test_a_quantile_that_is_missing_in_the_domain_can_be_given() -> None:
    """Its kind is then any, unless a rule reads it."""
    unkind = given(difficulty=Difficulty((0.5, 0.9), True, "v"))
    answer = why_not(policy(local="easiest 40% of its kind", hosted="otherwise"), unkind, "local")
    assert [what for what, _, _ in moves(answer.request)] == ["quantile"]
    answer = why_not(policy(local="kind != code and easiest 40% of its kind", hosted="otherwise"), unkind, "local")
    assert [what for what, _, _ in moves(answer.request)] == ["kind", "quantile"]


def test_out_of_its_domain_the_strongest_tier_has_no_probability_either() -> None:
    """Within it that is 1, so only a request that is not judged gets past such a rule."""
    answer = why_not(policy(hosted="p_adequate > 0.95", local="otherwise"), given(), "local")
    assert moves(answer.request) == [("in_domain", "yes", "no")]


def test_a_tier_that_is_too_slow_starts_with_more_time() -> None:
    """Later steps of the decision count as rules do."""
    slow = given(ttft_s=0.9, features=Features("", 1, 100, stream=True))
    slow.health["local"] = replace(slow.health["local"], forecast=Forecast(1.2, 2.0, 3.0, 0.0, known=True))  # type: ignore[index]
    rules = policy(local="tokens_in < 3000", hosted="otherwise")
    assert start_of(rules, slow) == "hosted"
    answer = why_not(rules, slow, "local")
    assert moves(answer.policy) == [("slo.ttft.p99", "900ms", "1.2s")]
    assert moves(answer.world) == [("time that local is expected to take to a first token", "1200 ms", "900 ms")]


@pytest.mark.parametrize(
    ("changes", "of", "reason"),
    [
        ({"clamp": Clamp(max_tier="local")}, "policy", "the client's own limits leave out hosted"),
        ({"features": Features("", 1, 100, has_tools=True)}, "world", "hosted cannot do tools"),
        ({}, "policy", "no start rule names hosted"),
    ],
)
def test_where_nothing_helps_the_reason_is_given(changes: dict[str, Any], of: str, reason: str) -> None:
    """As far as it is known."""
    asked = given("local hosted big", **changes)
    asked.health["hosted"] = replace(asked.health["hosted"], capabilities=frozenset())  # type: ignore[index]
    rules = policy("local hosted big", local="tokens_in < 3000", big="otherwise")
    found = getattr(why_not(rules, asked, "hosted"), of)
    assert found == Impossible(reason)


def test_a_request_may_do_without_what_a_tier_lacks() -> None:
    """Two choices keep a request from a tier that gives one."""
    asked = given(features=Features("", 1, 100, further=frozenset({"n", "files"})))
    asked.health["local"] = replace(asked.health["local"], capabilities=EVERYTHING)  # type: ignore[index]
    asked.health["hosted"] = replace(asked.health["hosted"], capabilities=EVERYTHING | {"n", "files"})  # type: ignore[index]
    rules = policy(local="tokens_in < 3000", hosted="otherwise")
    assert start_of(rules, asked) == "hosted"
    asked.health["local"] = replace(asked.health["local"], capabilities=EVERYTHING | {"files"})  # type: ignore[index]
    assert moves(why_not(rules, asked, "local").request) == [("needs n", "yes", "no")]


def test_a_tier_without_its_key_needs_one() -> None:
    """No request and no rule makes up for it."""
    tier = DeployedTier("hosted", (), EVERYTHING, "OPENAI_API_KEY is not set")
    rules = policy(local="tokens_in < 50", hosted="otherwise")
    rules = rules.model_copy(update={"ladder": ("local",), "unconfigured": {"hosted": tier}})
    answer = why_not(rules, given("local"), "hosted")
    assert answer.request == Impossible("hosted is not configured: OPENAI_API_KEY is not set")
    assert moves(answer.world) == [("hosted", "OPENAI_API_KEY is not set", "configured")]


def test_what_a_client_limited_itself_can_be_left_out() -> None:
    """One limit at a time, but for a tier that it chose."""
    rules = policy(local="tokens_in < 50", hosted="otherwise")
    answer = why_not(rules, given(clamp=Clamp(max_tier="local")), "hosted")
    assert moves(answer.request) == [("the client's own max_tier", "local", "none")]
    answer = why_not(rules, given(clamp=Clamp("local", "local")), "hosted")
    assert moves(answer.request) == [("the client's own choice of a tier", "local", "none")]


def test_a_tier_must_exist_and_not_be_the_start() -> None:
    """Otherwise there is nothing to ask."""
    rules = policy(local="tokens_in < 50", hosted="otherwise")
    with pytest.raises(ValueError, match="no tier 'huge'"):
        why_not(rules, given(), "huge")
    with pytest.raises(ValueError, match="does start"):
        why_not(rules, given(), "hosted")


def test_random_decisions_flip_by_the_smallest_change(times: float, seed: int) -> None:
    """Twenty-five of them, a few changes tried for each; `--times 400` decides 10,000 and tries more."""
    tally, count = Tally(), round(25 * times)
    for number in range(seed, seed + count):
        check(number, 12 if times == 1 else 30, tally)
    print(f"{tally.wrong_decisions} of {tally.decisions} wrong; {tally.tried} changes tried; {dict(tally.counts)}")
    assert tally.failures == []
    assert tally.decisions == count
    assert {name for name, outcome in tally.counts if outcome == "1"} == {"request", "policy", "world"}
