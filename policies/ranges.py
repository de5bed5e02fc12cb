"""Compute from the possible values of a rule's names whether it can hold, and whether it can fail.

Rules compare names with constants, so the result is the same everywhere between two neighbouring constants of a rule.
It is enough to evaluate the rule at each constant, at the ends of each range and at one point between neighbours, for
every combination of the names: the result is exact. If there are too many combinations, or two numbers of a request are
compared with each other, both outcomes are assumed to be possible.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from policies.expression import Expression, Values

_COMBINATIONS = 20_000
_ANYTHING = frozenset({True, False})


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one name: true and false where `flag` is set, else numbers from `low` to `high`, both included.

    `whole`: only whole numbers. `optional`: the value may be missing, and then no comparison with it holds.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    optional: bool = False
    flag: bool = False

    def __str__(self) -> str:
        """Return the text for error messages: `from 0 to 1`, `a whole number, 0 or more`."""
        if self.flag:
            return "true or false"
        kind = "a whole number" if self.whole else "a number"
        if math.isinf(self.low):
            return kind
        return f"{kind}, {self.low:g} or more" if math.isinf(self.high) else f"from {self.low:g} to {self.high:g}"

    def samples(self, constants: Sequence[float]) -> list[Any]:
        """Return one value of every interval that comparisons with these constants can tell apart."""
        if self.flag:
            return [True, False]
        ends = [end for end in (self.low, self.high) if math.isfinite(end)]
        cuts = sorted({0.0, *ends, *constants})  # 0 is the only number that is false
        between = [math.floor(a) + 1.0 if self.whole else (a + b) / 2 for a, b in pairwise(cuts)]
        outside = [math.floor(cuts[0]) - 1.0, math.floor(cuts[-1]) + 1.0]
        numbers: list[Any] = [
            value
            for value in {*cuts, *between, *outside}
            if self.low <= value <= self.high and not (self.whole and value % 1)
        ]
        return [*numbers, None] if self.optional else numbers


Ranges = Mapping[str, Range]

FLAG = Range(flag=True)
SHARE = Range(0.0, 1.0)
COUNT = Range(0.0, whole=True)


def outcomes(rule: Expression, ranges: Ranges, possible: Callable[[Values], bool] = lambda _: True) -> frozenset[bool]:
    """Return the possible results: {False} can never hold, {True} always does; both where that is unknown.

    `possible` returns whether a combination of values can occur.
    """
    if rule.tree is None:
        return frozenset({True})
    if any(_compares_numbers_of_requests(node, ranges) for node in _comparisons(rule.tree)):
        return _ANYTHING
    try:
        constants = [
            float(node.value)
            for node in ast.walk(rule.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
        ]
    except OverflowError:
        return _ANYTHING
    names = sorted(rule.names)
    samples = [ranges[name].samples([number for number in constants if math.isfinite(number)]) for name in names]
    if math.prod(map(len, samples)) > _COMBINATIONS:
        return _ANYTHING
    combinations = (dict(zip(names, values, strict=True)) for values in product(*samples))
    return frozenset(rule.holds(values) for values in combinations if possible(values))


def parts(rule: Expression) -> Iterator[Expression]:
    """Yield each comparison of the rule as a rule of its own."""
    if rule.tree is not None:
        for node in _comparisons(rule.tree):
            yield Expression.parse(ast.unparse(node))


def _comparisons(tree: ast.expr) -> list[ast.Compare]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]


def _compares_numbers_of_requests(node: ast.Compare, ranges: Ranges) -> bool:
    operands = [node.left, *node.comparators]
    names = [{one.id for one in ast.walk(operand) if isinstance(one, ast.Name)} for operand in operands]
    return sum(any(not ranges[name].flag for name in some) for some in names) > 1
