"""What a rule can come to, given what its names can be."""

from __future__ import annotations

import random

import pytest

from gateway.parts.lint.outcomes import can_occur, outcomes
from gateway.parts.lint.rule_values import CACHE_VALUES, COUNT, FLAG, ROUTE_VALUES, SHARE, Range
from policies.caching import CACHE_NAMES
from policies.expression import KINDS, Expression, parts
from policies.model import ROUTE_NAMES

RANGES = {
    "share": SHARE,
    "other": SHARE,
    "maybe": Range(0.0, 1.0, optional=True),
    "count": COUNT,
    "any": Range(),
    "flag": FLAG,
    "kind": Range(words=KINDS),
    "quantile": Range(0.0, 1.0, optional=True),
}


@pytest.mark.parametrize(
    ("rule", "comes_to"),
    [
        ("share >= 2", {False}),
        ("share <= 1", {True}),
        ("share < 0 or count < 0", {False}),
        ("share >= 0.7 and share < 0.5", {False}),
        ("share >= 0.7 or share < 0.8", {True}),
        ("0.2 < share < 0.2", {False}),
        ("0.2 < share < 0.21", {True, False}),
        ("count > 3 and count < 4", {False}),
        ("count >= 2.5 and count <= 3", {True, False}),
        ("count", {True, False}),
        ("not count >= 0", {False}),
        ("maybe >= 0", {True, False}),
        ("not maybe >= 0", {True, False}),
        ("maybe <= 1 or not maybe <= 1", {True}),
        ("any > 1000000", {True, False}),
        ("flag and not flag", {False}),
        ("flag == 2", {False}),
        ("share == 'easy'", {False}),
        ("share < other", {True, False}),
        ("share < other and other < share", {True, False}),
        ("kind == chat", {True, False}),
        ("kind == chat and kind == code", {False}),
        ("kind != chat or kind != code", {True}),
        ("easiest 100% of its kind", {True, False}),
        ("easiest 40% of its kind and quantile > 0.4", {False}),
        ("otherwise", {True}),
        ("true", {True, False}),
        ("0.5", {True}),
        ("share < 1e999", {True}),
    ],
)
def test_a_rule_can_hold_fail_or_both(rule: str, comes_to: set[bool]) -> None:
    """Exactly, but for two numbers of a request held against each other, of which nothing is claimed."""
    assert outcomes(Expression.parse(rule), {**RANGES, "true": FLAG}) == comes_to


def test_what_is_ruled_out_between_names_does_not_count() -> None:
    """A combination that no request has is no way for a rule to hold."""
    rule = Expression.parse("flag and count > 2")
    assert outcomes(rule, RANGES) == {True, False}
    assert outcomes(rule, RANGES, lambda values: not (values["flag"] and values["count"])) == {False}


def test_a_rule_of_too_many_cases_is_left_alone() -> None:
    """No claim is better than a slow one."""
    names = sorted(set(ROUTE_VALUES) - {"stream", "kind", "conversation_difficulty", "effort", "last_tier"})
    rule = " and ".join(f"({name} > 0.1 or {name} < 0.2)" for name in names)
    assert outcomes(Expression.parse(rule), ROUTE_VALUES) == {True, False}


def _random_rule(rng: random.Random, depth: int = 3) -> str:
    if depth and rng.random() < 0.7:
        joined = f" {rng.choice(['and', 'or'])} ".join(_random_rule(rng, depth - 1) for _ in range(2))
        return rng.choice([f"({joined})", f"not ({joined})"])
    if rng.random() < 0.2:
        return rng.choice(["flag", "kind == chat", "kind != code"])
    name = rng.choice(sorted(set(RANGES) - {"flag", "kind"}))
    number = rng.choice(["0", "1", "0.3", "0.5", "2", "3.5"])
    return f"{name} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {number}"


def _random_value(rng: random.Random, one: Range) -> object:
    if one.flag:
        return rng.random() < 0.5
    if one.words:
        return rng.choice(one.words)
    if one.optional and rng.random() < 0.3:
        return None
    edges = [0, 1, 0.3, 0.5, 2, 3, 3.5, 4, -1]
    value = rng.choice(edges) if rng.random() < 0.5 else rng.uniform(-2, 5)
    value = round(value) if one.whole else value
    return min(max(value, one.low), one.high)


@pytest.mark.parametrize("rules", [100, pytest.param(400, marks=pytest.mark.long)])
def test_no_value_contradicts_a_claim(rules: int) -> None:
    """Whatever is said of a rule holds for values drawn at random from its names' ranges."""
    rng = random.Random(7)
    claims = 0
    for _ in range(rules):
        rule = Expression.parse(_random_rule(rng))
        found = outcomes(rule, RANGES)
        claims += len(found) == 1
        for _ in range(60):
            values = {name: _random_value(rng, one) for name, one in RANGES.items()}
            assert rule.holds(values) in found, (rule.source, values)
    assert claims > rules // 20


def test_the_comparisons_of_a_rule_stand_alone() -> None:
    """Each can be looked at by itself, and `otherwise` has none."""
    rule = Expression.parse("not (p_adequate >= 2 or stream) and 1 < turns <= 3")
    assert [part.source for part, _ in parts(rule)] == ["1 < turns <= 3", "p_adequate >= 2"]
    assert list(parts(Expression.parse("otherwise"))) == []


def test_a_conversation_is_as_hard_as_its_turn_at_least() -> None:
    """And as its effort where the classifier abstains from the turn, so such rules can be told never to hold."""
    never = ["conversation_difficulty < 0.5 and quantile > 0.5", "conversation_difficulty < 0.5 and effort > 0.5"]
    for rule in (never[0], f"{never[1]} and not in_domain"):
        assert outcomes(Expression.parse(rule), ROUTE_VALUES, can_occur) == {False}, rule
    of_domain = ("conversation_difficulty >= 1 and not in_domain", "not in_domain and conversation_difficulty <= 0.5")
    for rule in (never[1], "conversation_difficulty > 0.5 and quantile < 0.5", *of_domain):
        assert True in outcomes(Expression.parse(rule), ROUTE_VALUES, can_occur), rule


def test_every_name_of_a_rule_has_its_values() -> None:
    """In the order in which the policies' own lists have them."""
    assert (tuple(ROUTE_VALUES), tuple(CACHE_VALUES)) == (ROUTE_NAMES, CACHE_NAMES)
