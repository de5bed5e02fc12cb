"""Compute whether a rule of a policy can hold at all, whether it can fail, and whether others leave it anything.

Rules compare names with constants, so the result is the same everywhere between two neighbouring constants of a rule.
`outcomes` evaluates the rule at each constant, at the ends of each range and at one point between neighbours, for every
combination of the names: the result is exact. If there are too many combinations, or two numbers of a request are
compared with each other, both outcomes are assumed to be possible.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from typing import Any, Final

from gateway.parts.lint.rule_values import CLASSIFIER_VALUES, MAY_BE_MISSING, Range, Ranges
from policies.expression import Expression, Values, comparisons

MOST_COMBINATIONS: Final = 60_000
"""Most cases that rules are evaluated for; beyond that, what they can do is not known."""
_HUGE = 1e300
_ANYTHING = frozenset({True, False})


def samples_of(range_: Range, constants: Sequence[float]) -> list[Any]:
    """Return one value of every interval that comparisons with these constants can tell apart."""
    if range_.flag:
        return [True, False]
    if range_.words:
        return [*range_.words, None] if range_.optional else list(range_.words)
    ends = [end for end in (range_.low, range_.high) if math.isfinite(end)]
    cuts = sorted({0.0, *ends, *constants})  # 0 is the only number that is false
    between = [math.floor(a) + 1.0 if range_.whole else (a + b) / 2 for a, b in pairwise(cuts)]
    outside = [math.floor(cuts[0]) - 1.0, math.floor(cuts[-1]) + 1.0]
    numbers: list[Any] = [
        value
        for value in {*cuts, *between, *outside}
        if range_.low <= value <= range_.high and not (range_.whole and value % 1)
    ]
    return [*numbers, None] if range_.optional else numbers


def can_occur(values: Values) -> bool:
    """Return whether a request can have these values: out of its domain the classifier gives none of its own."""
    given = [values[name] is not None for name in CLASSIFIER_VALUES - MAY_BE_MISSING if name in values]
    given += [values["in_domain"]] if "in_domain" in values else []
    least = values.get("quantile") or 0.0
    if not all(given):
        effort = values.get("effort", 0.0)
        least = 1.0 if effort is None else effort
    if (hardest := values.get("conversation_difficulty")) is not None and hardest < least:
        return False  # it includes this turn, and one of which nothing is known may be as hard as any
    if any(values.get(name) is not None for name in MAY_BE_MISSING):
        return all(given) and ("kind" not in values or values["kind"] is not None)
    return all(given) or not any(given)


def _always(_: Values) -> bool:
    return True


def outcomes(rule: Expression, ranges: Ranges, possible: Callable[[Values], bool] = _always) -> frozenset[bool]:
    """Return the possible results: {False} can never hold, {True} always does; both where that is unknown.

    `possible` returns whether a combination of values can occur.
    """
    return _outcomes(rule, tuple((name, ranges[name]) for name in sorted(rule.names)), possible)


@lru_cache(maxsize=4096)  # many policies have the same rules, and `lint --fix` checks a file after each change
def _outcomes(
    rule: Expression, ranges: tuple[tuple[str, Range], ...], possible: Callable[[Values], bool]
) -> frozenset[bool]:
    if rule.tree is None:
        return frozenset({True})
    samples = combinations([rule], dict(ranges))
    return _ANYTHING if samples is None else frozenset(rule.holds(values) for values in samples if possible(values))


def nothing_left(
    rule: Expression, above: Sequence[Expression], ranges: Ranges, possible: Callable[[Values], bool] = _always
) -> bool:
    """Return whether one of the rules `above` holds wherever `rule` does; False where that is not known."""
    if any(expression.tree is None for expression in (rule, *above)):
        return True  # one of those above is `otherwise`, or the rule itself is
    samples = combinations([rule, *above], ranges)
    if samples is None:
        return False
    held = [values for values in samples if possible(values) and rule.holds(values)]
    return bool(held) and all(any(expression.holds(values) for expression in above) for values in held)


def combinations(rules: Sequence[Expression], ranges: Ranges) -> Iterator[Values] | None:
    """Return a combination of values for each case that these rules can tell apart; None where that is not known."""
    if any(compares_names(rule, ranges) for rule in rules):
        return None
    constants: dict[str, set[float]] = {}
    for rule in rules:
        for name, numbers in constants_by_name(rule).items():
            constants.setdefault(name, set()).update(numbers)
    samples = {name: samples_of(ranges[name], sorted(constants[name])) for name in sorted(constants)}
    if math.prod(map(len, samples.values())) > MOST_COMBINATIONS:
        return None
    return (dict(zip(samples, values, strict=True)) for values in product(*samples.values()))


def constants_by_name(rule: Expression) -> dict[str, frozenset[float]]:
    """Return, for each name of the rule, the numbers that it is compared with."""
    found: dict[str, set[float]] = {name: set() for name in rule.names}
    for node in () if rule.tree is None else comparisons(rule.tree):
        numbers = {
            float(number.value)
            for number in ast.walk(node)
            if isinstance(number, ast.Constant) and isinstance(number.value, int | float) and abs(number.value) < _HUGE
        }
        for child in ast.walk(node):
            if isinstance(child, ast.Name):
                found[child.id] |= numbers
    return {name: frozenset(numbers) for name, numbers in found.items()}


def compares_names(rule: Expression, ranges: Ranges) -> bool:
    """Return whether two numbers of a request are compared with each other, such as `turns < tokens_in`."""
    return rule.tree is not None and any(_compares_numbers_of_requests(node, ranges) for node in comparisons(rule.tree))


def _compares_numbers_of_requests(node: ast.Compare, ranges: Ranges) -> bool:
    operands = [node.left, *node.comparators]
    names = [{child.id for child in ast.walk(operand) if isinstance(child, ast.Name)} for operand in operands]
    return sum(any(not (ranges[name].flag or ranges[name].words) for name in some) for some in names) > 1
