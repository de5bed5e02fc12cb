"""Find the values of one thing that rules can tell apart, and the nearest of each case."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from policies.expression import Expression, constants_by_name, parts
from policies.model import Policy
from routing.decide import TierHealth
from routing.difficulty.model import Difficulty

Patch = Mapping[tuple[str, ...], Any]
"""Changed things: their new values by their names."""


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that changes. `path` names it; `value` is its new value, `before` and `after` are for people."""

    path: tuple[str, ...]
    value: Any
    what: str
    before: str
    after: str
    distance: float


class RuleTests:
    """The comparisons of start rules, by the name that they look at."""

    def __init__(self, policy: Policy, values: Mapping[str, Any]) -> None:
        """Collect them; `values` are the request's, for comparisons of two names."""
        self._every: list[tuple[str, str, Callable[[Any], Hashable]]] = []
        self._cuts: list[tuple[str, str, float]] = []
        self.names = used_names(policy)
        for tier, rule in policy.route.start.items():
            for part, _ in parts(rule):
                for name, numbers in constants_by_name(part).items():
                    others = [values[other] for other in part.names - {name}]
                    self._every.append((name, tier, partial(_holds, part, name, values)))
                    self._cuts += [(name, tier, float(one)) for one in (*numbers, *others) if is_number(one)]
            for name in bare_names(rule.tree):
                self._every.append((name, tier, bool))
                self._cuts.append((name, tier, 0.0))

    def of(self, name: str, tier: str | None = None) -> list[Callable[[Any], Hashable]]:
        """Return the comparisons with a name, in the rule of one tier or in all."""
        return [test for one, where, test in self._every if one == name and tier in (None, where)]

    def cuts(self, name: str, tier: str | None = None) -> set[float]:
        """Return the numbers that a name is compared with."""
        return {cut for one, where, cut in self._cuts if one == name and tier in (None, where)}


def _holds(part: Expression, name: str, values: Mapping[str, Any], value: Any) -> bool:
    return part.holds({**values, name: value})


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def bare_names(node: ast.expr | None) -> Iterator[str]:
    """Yield the names that stand in a rule without a comparison."""
    match node:
        case ast.BoolOp(values=every):
            for one in every:
                yield from bare_names(one)
        case ast.UnaryOp(operand=inner):
            yield from bare_names(inner)
        case ast.Name(id=name):
            yield name


def used_names(policy: Policy) -> frozenset[str]:
    return frozenset(name for rule in policy.route.start.values() for name in rule.names)


def heads_of(policy: Policy, difficulty: Difficulty | None) -> int:
    """Return how many tiers the classifier was trained for; the policy's number where it said nothing."""
    return len(difficulty.p_right) if difficulty is not None and difficulty.p_right else max(2, len(policy.tiers))


def positions_of(policy: Policy, difficulty: Difficulty | None) -> dict[int, list[str]]:
    """Return the trained tiers whose `p_adequate` or `difficulty` a rule asks for, with the tiers of those rules.

    That of the strongest one is always 1.
    """
    heads, count = heads_of(policy, difficulty), len(policy.tiers)
    found: dict[int, list[str]] = {}
    for tier, rule in policy.route.start.items():
        position = policy.tiers.index(tier) * (heads - 1) // max(count - 1, 1)
        if "p_adequate" in rule.names and position < heads - 1:
            found.setdefault(position, []).append(tier)
    if "difficulty" in used_names(policy) and heads > 1:
        found.setdefault(0, [policy.tiers[0]])
    return found


def adequate_of(difficulty: Difficulty | None) -> list[float]:
    """Return `p_adequate` of each trained tier but the strongest."""
    if difficulty is None or not difficulty.in_domain:
        return []
    strongest = difficulty.p_right[-1]
    return [1.0 - max(0.0, strongest - right) for right in difficulty.p_right[:-1]]


def own_adequate(policy: Policy, difficulty: Difficulty | None, tier: str) -> float | None:
    if difficulty is None or not difficulty.in_domain:
        return None
    return difficulty.p_adequate_of(policy.tiers.index(tier), len(policy.tiers))


def seen_adequate(right: float) -> float:
    """Return the `p_adequate` that rules see of a tier with this P(right) where the strongest one's is 1."""
    return 1.0 - max(0.0, 1.0 - right)


def through(seen: Callable[[Any], Any], tests: Iterable[Callable[[Any], Hashable]]) -> list[Callable[[Any], Hashable]]:
    """Return the tests of what rules see of a value."""
    return [partial(_through, seen, test) for test in tests]


def _through(seen: Callable[[Any], Any], test: Callable[[Any], Hashable], value: Any) -> Hashable:
    return test(None if value is None else seen(value))


def unchanged(value: float) -> float:
    return value


def crossings(seen: Callable[[float], Any], cuts: Iterable[float], low: float, high: float) -> set[float]:
    """Return the numbers from `low` to `high` next to where `seen`, which never turns, passes one of the cuts."""
    found: set[float] = set()
    for cut in cuts:
        end = min(high, max(1.0, abs(cut)) * 4) if math.isinf(high) else high
        for compare in (operator.lt, operator.le):
            one, other = low, end
            at_start = compare(seen(one), cut)
            if compare(seen(other), cut) == at_start:
                continue
            while one < (middle := (one + other) / 2) < other:
                if compare(seen(middle), cut) == at_start:
                    one = middle
                else:
                    other = middle
            found |= {one, other}
    return found


def nearest_moves(
    path: tuple[str, ...],
    what: str,
    now: Any,
    values: Iterable[Any],
    tests: Sequence[Callable[[Any], Hashable]],
    distance: Callable[[Any, Any], float],
    text: Callable[[Any], str],
    *,
    same_if_missing: bool = False,
) -> list[Move]:
    """Return, for each case that the tests tell apart, the move to its nearest value, but for the case of now.

    A value that is missing now is given for the first time, so every case counts, unless `same_if_missing`.
    """
    at = tuple(test(now) for test in tests) if now is not None or same_if_missing else None
    nearest: dict[tuple[Hashable, ...], tuple[tuple[float, float, int], Any]] = {}
    for value in values:
        case = tuple(test(value) for test in tests)
        far = 1.0 if now is None or value is None else distance(now, value)
        # Of two neighbouring floats the distances may be equal; where nothing counts, the shortest is for people.
        towards = abs(value) * (1 if value > now else -1) if is_number(value) and is_number(now) else 0.0
        rank = far, towards, len(text(value))
        if case != at and value != now and (case not in nearest or rank < nearest[case][0]):
            nearest[case] = rank, value
    before = "missing" if now is None and not same_if_missing else text(now)
    return [Move(path, value, what, before, text(value), far) for (far, *_), value in nearest.values()]


def difference_of(one: Any, other: Any) -> float:
    return abs(float(one) - float(other)) if is_number(one) and is_number(other) else 1.0


def relative(one: float, other: float) -> float:
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def near(value: float | None, cuts: Iterable[float]) -> str:
    """Return a number for people: `just above 0.7` where it lies closer to a constant than they write."""
    if value is None:
        return "missing"
    near = next((cut for cut in cuts if math.isclose(value, cut, rel_tol=1e-9, abs_tol=1e-12)), None)
    if near is None:
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    written = f"{near if abs(near) < 100 else round(near, 1):.10g}"
    return written if value == near else f"just {'above' if value > near else 'below'} {written}"


def expectations(health: TierHealth) -> Iterator[float]:
    if health.forecast is not None and health.forecast.known:
        yield from (health.forecast.ttft_s, health.forecast.whole_s)
