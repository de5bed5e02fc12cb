"""Change the constants of a policy: those of its start rules, its deadline, its limit for the first token."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache, partial
from operator import le
from typing import Any, Final

from gateway.lab.explain.moves import (
    Move,
    Patch,
    RuleTests,
    difference_of,
    expectations,
    nearest_moves,
    own_adequate,
    relative,
    through,
    yes_or_no,
)
from policies.expression import KINDS, Expression
from policies.model import ROUTE_VALUES, Policy
from policies.quantities import write_duration, write_share
from routing.decide import DecisionInput, rule_values

_WEIGHS: Final = ("route", "weigh_switching")


def changed_policy(policy: Policy, given: DecisionInput, patch: Patch) -> tuple[Policy, DecisionInput] | None:
    """Return the policy with these constants, and the input that it leaves of this request's."""
    start = dict(policy.route.start)
    texts: dict[str, dict[int, str]] = {}
    slo, budget_s, ttft_s, weighs = policy.slo, given.budget_s, given.ttft_s, policy.route.weigh_switching
    for path, value in patch.items():
        if path == _WEIGHS:
            weighs = value
        elif path[0] == "route":
            texts.setdefault(path[2], {})[int(path[3])] = value
        elif path == ("slo", "deadline"):
            budget_s = _budget_left(policy, given, value)
            slo = slo.model_copy(update={"deadline": value})
        else:
            ttft_s = _ttft_left(policy, given, value)
            slo = slo.model_copy(update={"ttft": slo.ttft.model_copy(update={"p99": value})})
    if budget_s <= 0 or (ttft_s is not None and ttft_s <= 0):
        return None
    for tier, changes in texts.items():
        start[tier] = _rewritten(start[tier].source, tuple(sorted(changes.items())))
    route = policy.route.model_copy(update={"start": start, "weigh_switching": weighs})
    changed = policy.model_copy(update={"route": route, "slo": slo})
    return changed, replace(given, budget_s=budget_s, ttft_s=ttft_s)


def policy_things(policy: Policy, given: DecisionInput) -> list[list[Move]]:
    """Return, for each constant of the policy that can matter, the moves that are worth a try."""
    values = rule_values(policy, given.difficulty, given.features, given.budget_s)
    things: list[list[Move]] = []
    for tier, rule in policy.route.start.items():
        own = {**values, "p_adequate": own_adequate(policy, given.difficulty, tier)}
        things += [_constant_moves(tier, constant, own) for constant in _constants(rule.source)]
    expected = {seconds for one in given.health.values() for seconds in expectations(one)}
    tests = RuleTests(policy, values)
    if given.costs:
        weighs = policy.route.weigh_switching
        texts = yes_or_no(weighs), yes_or_no(not weighs)
        things.append([Move(_WEIGHS, not weighs, "route.weigh_switching", *texts, 1.0)])
    if expected or "budget_ms" in tests.names:
        things.append(_deadline_moves(policy, given, tests, expected))
    if expected and given.features.stream:
        things.append(_ttft_moves(policy, given, expected))
    return [moves for moves in things if moves]


def _budget_left(policy: Policy, given: DecisionInput, deadline: float) -> float:
    """Return what would be left of another deadline, in seconds."""
    return given.budget_s + deadline - policy.slo.deadline


def _ttft_left(policy: Policy, given: DecisionInput, p99: float | None) -> float | None:
    """Return what would be left of another limit for the first token; what the client has set itself stays."""
    left, own = given.ttft_s, policy.slo.ttft.p99
    if p99 is None or left is None:
        return p99 if own is not None or left is None else left
    return min(p99, left) if own is None else left + p99 - own


def _deadline_moves(policy: Policy, given: DecisionInput, tests: RuleTests, expected: set[float]) -> list[Move]:
    spent = policy.slo.deadline - given.budget_s
    cuts = {*(cut / 1000 + spent for cut in tests.cuts("budget_ms")), *(seconds + spent for seconds in expected)}
    left = partial(_budget_left, policy, given)
    cases = through(left, [*through(_milliseconds, tests.of("budget_ms")), *(partial(le, one) for one in expected)])
    path, now = ("slo", "deadline"), policy.slo.deadline
    return _tidied(path, "slo.deadline", now, _round_times(cuts, spent), cases, relative, _seconds, write_duration)


def _ttft_moves(policy: Policy, given: DecisionInput, expected: set[float]) -> list[Move]:
    own, left = policy.slo.ttft.p99, given.ttft_s
    spent = own - left if own is not None and left is not None else 0.0
    path, what = ("slo", "ttft", "p99"), "slo.ttft.p99"

    def is_late(p99: float | None, seconds: float) -> bool:
        limit = _ttft_left(policy, given, p99)
        return limit is not None and seconds > limit

    cases = [partial(is_late, seconds=seconds) for seconds in expected]
    texts = _round_times({seconds + spent for seconds in expected}, max(spent, 0.0))
    moves = _tidied(path, what, own, texts, cases, _distance_or_1, _seconds, _time_or_none)
    if own is not None and any(case(None) != case(own) for case in cases):
        moves.append(Move(path, None, what, write_duration(own), _time_or_none(None), 1.0))
    return moves


def _milliseconds(seconds: float) -> float:
    return seconds * 1000


def _seconds(milliseconds: str) -> float:
    return float(milliseconds) / 1000


def _time_or_none(seconds: float | None) -> str:
    return "none" if seconds is None else write_duration(seconds)


def _distance_or_1(one: float | None, other: float) -> float:
    return 1.0 if one is None else relative(one, other)


def _round_times(cuts: Iterable[float], least: float) -> set[str]:
    """Return round numbers of milliseconds beside these times, above `least` (both in seconds)."""
    texts = {f"{number:f}" for cut in cuts for number in _decimals(Decimal(cut) * 1000)}
    return {text for text in texts if _seconds(text) > least}


@dataclass(frozen=True, slots=True)
class _Constant:
    """One constant of a rule. `number` counts the rule's constants from 0; `percent` if it is `easiest NUMBER%`.

    `neighbours` are (name, comparison) of the names that it is compared with, as functions of the name's value and the
    constant's.
    """

    number: int
    text: str
    percent: bool
    neighbours: tuple[tuple[str, Callable[[Any, Any], bool]], ...]


def _constant_moves(tier: str, constant: _Constant, values: Mapping[str, Any]) -> list[Move]:
    """Return the moves of one constant: to either side of the values that it is compared with."""
    path = ("route", "start", tier, str(constant.number))
    compared = [(name, test, values[name]) for name, test in constant.neighbours if values[name] is not None]
    if not compared:
        return []
    if constant.neighbours[0][0] == "kind":
        tests = [lambda word, test=test, value=value: test(value, word) for _, test, value in compared]
        others = sorted((word for word in KINDS if word != constant.text), key=lambda word: word != values["kind"])
        return nearest_moves(path, f"route.start.{tier}", constant.text, others, tests, difference_of, str)
    ranges = [ROUTE_VALUES[name] for name, _, _ in compared]
    low, high = max(one.low for one in ranges), min(one.high for one in ranges)
    read = _percent if constant.percent else float
    texts: set[str] = set()
    for (_, _, value), one in zip(compared, ranges, strict=True):
        if one.whole:
            texts |= {str(math.floor(value) + step) for step in (-1, 0, 1)}
        else:
            texts |= {f"{number:f}" for number in _decimals(Decimal(value) * (100 if constant.percent else 1))}
    texts = {text for text in texts if low <= read(text) <= high and (read(text) > 0 or not constant.percent)}
    cases = [partial(test, value) for _, test, value in compared]
    distance = difference_of if math.isfinite(high) else relative
    show = write_share if constant.percent else "{:.10g}".format
    moves = _tidied(path, f"route.start.{tier}", read(constant.text), texts, cases, distance, read, show)
    return [replace(move, value=f"{move.value * 100:.10g}" if constant.percent else move.after) for move in moves]


def _percent(text: str) -> float:
    return float(f"{float(text) / 100:.10g}")


def _tidied(
    path: tuple[str, ...],
    what: str,
    now: float | None,
    texts: Iterable[str],
    tests: Sequence[Callable[[Any], Hashable]],
    distance: Callable[[Any, Any], float],
    read: Callable[[str], float],
    show: Callable[[Any], str],
) -> list[Move]:
    """Return the nearest moves, each to the shortest text that is at most 1% further away than the nearest."""
    at = tuple(test(now) for test in tests)
    by_case: dict[tuple[Hashable, ...], list[tuple[float, str]]] = {}
    for text in texts:
        case = tuple(test(read(text)) for test in tests)
        if case != at:
            by_case.setdefault(case, []).append((distance(now, read(text)), text))
    moves = []
    for found in by_case.values():
        least = min(found)[0]
        _, far, chosen = min((len(text.rstrip("0")), far, text) for far, text in found if far <= least * 1.01)
        value = read(chosen)
        moves.append(Move(path, value, what, show(now), show(value), far))
    return moves


_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_NUMBER: Final = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_CONSTANT: Final = re.compile(
    rf"""\beasiest\s+(?P<percent>{_NUMBER})\s*%\s+of\s+its\s+kind\b
    | (?<![\w.])(?P<number>{_NUMBER})(?![\w.])
    | (?P<quote>['"]?)\b(?P<word>{"|".join(KINDS)})\b(?P=quote)""",
    re.VERBOSE,
)


@lru_cache(maxsize=4096)
def _constants(source: str) -> tuple[_Constant, ...]:
    """Return the constants of a rule in the order in which they are written, each with what it is compared with."""
    tree = Expression.parse(source).tree
    if tree is None:
        return ()
    found: list[tuple[tuple[str, Callable[[Any, Any], bool]], ...]] = []
    _visit(tree, found)
    tokens = list(_CONSTANT.finditer(source))
    if len(tokens) != len(found):
        raise AssertionError(f"{source!r}: {len(tokens)} constants written, {len(found)} read")
    return tuple(
        _Constant(number, token["percent"] or token["number"] or token["word"], token["percent"] is not None, names)
        for number, (token, names) in enumerate(zip(tokens, found, strict=True))
    )


def _visit(node: ast.expr, found: list[tuple[tuple[str, Callable[[Any, Any], bool]], ...]]) -> None:
    """Append, for each constant below this node in order, the names beside it, each with the comparison."""
    match node:
        case ast.BoolOp(values=parts_):
            for part in parts_:
                _visit(part, found)
        case ast.UnaryOp(operand=inner):
            _visit(inner, found)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            operands = [left, *rights]
            for at, operand in enumerate(operands):
                if not _is_constant(operand):
                    _visit(operand, found)
                    continue
                names = []
                if at and isinstance(operands[at - 1], ast.Name):
                    names.append((operands[at - 1].id, _COMPARE[type(ops[at - 1])]))  # type: ignore[attr-defined]
                if at < len(ops) and isinstance(operands[at + 1], ast.Name):
                    compare = _COMPARE[type(ops[at])]
                    names.append((operands[at + 1].id, partial(_turned, compare)))  # type: ignore[attr-defined]
                found.append(tuple(names))
        case ast.Constant() if _is_constant(node):
            found.append(())


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, bool)


def _turned(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    return compare(other, one)


@lru_cache(maxsize=4096)
def _rewritten(source: str, changes: tuple[tuple[int, str], ...]) -> Expression:
    """Return the rule with other constants, by their numbers."""
    new = dict(changes)
    text, at = "", 0
    for number, token in enumerate(_CONSTANT.finditer(source)):
        if number in new:
            group = next(name for name in ("percent", "number", "word") if token[name] is not None)
            text += source[at : token.start(group)] + new[number]
            at = token.end(group)
    return Expression.parse(text + source[at:])


def _decimals(value: Decimal) -> set[Decimal]:
    """Return the round numbers next to a value on both sides, from thousands to twelve decimals."""
    found = set()
    for digits in range(-3, 13):
        step = Decimal(1).scaleb(-digits)
        for rounding in (ROUND_FLOOR, ROUND_CEILING):
            rounded = value.quantize(step, rounding) if digits >= 0 else (value / step).quantize(1, rounding) * step
            found |= {rounded - step, rounded, rounded + step}
    return found
