"""Make mutants of a policy: each changes one thing in its file, so that good tests fail.

    number, share, duration   a tenth more and less (7% for plain numbers); small whole numbers by 1; in rules too
    comparison                < and <=, > and >= change places, == becomes !=
    rule                      `and` becomes `or`, and back; one condition is left out; `not` is left out
    list                      one item is left out
    order                     two neighbouring start rules, or tiers, change places; one start rule is left out
    flag, word                true and false change places; another of the words that may stand there
    section                   hedge, speculate.both, the exact or the semantic cache is left out

Left out are mutants that no test can notice: those of `clauses.UNSEEN`, those that the loader refuses, those that state
the same policy in other words, a rule with the same result for all values, and all that concerns escalation where a
policy has one tier or one attempt.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.lab.policy_tests.clauses import as_written, unseen
from policies.caching import CACHE_VALUES
from policies.errors import ConfigError, KeyPath, dotted
from policies.expression import OTHERWISE, WORDS, Expression, ExpressionError, Ranges, combinations
from policies.loader import made_policy, version_of
from policies.model import ROUTE_VALUES, can_occur
from policies.quantities import DURATION

if TYPE_CHECKING:
    from gateway.lab.policy_tests.format import Tested
    from policies.model import Policy

_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "slo.on_miss": ("serve_best", "fail"),
    "escalate.no_signal": ("escalate", "accept"),
    "load.priority": ("interactive", "batch"),
    "route.classifier": ("default", "none"),
    "cache.semantic.verify": ("default", "fast", "none"),
    "escalate.hedge.after": ("p50", "p90", "p95", "p99"),
}
_SECTIONS: Final = ("escalate.hedge", "escalate.speculate.both", "cache.exact", "cache.semantic", "output.max_tokens")
_PERCENT: Final = re.compile(r"^(\d+(?:\.\d+)?)%$")
_OPERATORS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_SIGNS: Final = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_SMALL: Final = 10


@dataclass(frozen=True, slots=True)
class Mutant:
    """A policy with one thing changed: where, and what."""

    at: KeyPath
    line: int
    text: str
    policy: Policy

    def __str__(self) -> str:
        """Return the key and the change: `escalate.when.confidence_below 0.62 -> 0.66`."""
        return f"{dotted(self.at)} {self.text}"


def mutants_of(tested: Tested) -> list[Mutant]:
    """Return the mutants of a policy in the order of its file, without those that no test can notice."""
    content, file = tested.document.value, tested.document.file
    found, versions = [], {version_of(tested.policy)}
    for at, text, value in _changes(tested.policy, content, ()):
        try:
            policy = made_policy(_with(content, at, value), file, {})
        except ConfigError:
            continue
        if policy.version not in versions:
            versions.add(policy.version)
            found.append(Mutant(at, tested.line(at), text, policy))
    return sorted(found, key=lambda mutant: mutant.line)


class _Absent:
    """Stands for a value that is left out."""


_LEFT_OUT: Final = _Absent()
_Change = tuple[KeyPath, str, Any]


def _changes(policy: Policy, value: Any, at: KeyPath) -> Iterator[_Change]:
    """Yield each change: where, in words, and the new value."""
    if unseen(at, total_p95=policy.slo.total.p95 is not None) or _is_idle(policy, at):
        return
    path = dotted(at)
    if path in _SECTIONS:
        yield at, "left out", _LEFT_OUT
    if path in _WORDS:
        yield from ((at, f"{value} -> {word}", word) for word in _WORDS[path] if word != value)
        if not (isinstance(value, str) and DURATION.match(value)):
            return
    if at == ("route", "start"):
        yield from _of_start(value)
    elif (
        at[:2] == ("route", "start")
        or (at[:2] == ("cache", "never") and len(at) > 2)
        or path.endswith("speculate.both")
    ):
        ranges = CACHE_VALUES if at[0] == "cache" else ROUTE_VALUES
        yield from ((at, text, rule) for text, rule in _of_rule(str(value), ranges))
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _changes(policy, item, (*at, key))
    elif isinstance(value, list):
        yield from _of_list(policy, value, at)
    else:
        yield from ((at, f"{value} -> {other}".lower(), other) for other in _of_scalar(value))


def _is_idle(policy: Policy, at: KeyPath) -> bool:
    """Return whether a key has no effect in this policy, whatever its value."""
    escalates = len(policy.tiers) > 1 and policy.escalate.max_attempts > 1
    if not escalates and (
        at[:2] in (("slo", "on_miss"), ("slo", "total")) or (at[:1] == ("escalate",) and len(at) > 1)
    ):
        return at != ("escalate", "max_attempts")
    return at[:2] == ("cache", "never") and policy.cache.exact is None and policy.cache.semantic is None


def _of_start(rules: Mapping[str, str]) -> Iterator[_Change]:
    items = list(rules.items())
    at = ("route", "start")
    for i in range(len(items) - 1):
        swapped = [*items[:i], items[i + 1], items[i], *items[i + 2 :]]
        yield at, f"{items[i][0]} and {items[i + 1][0]} swapped", dict(swapped)
    for tier, rule in items:
        if rule != OTHERWISE:
            yield (*at, tier), "left out", _LEFT_OUT


def _of_list(policy: Policy, items: Sequence[Any], at: KeyPath) -> Iterator[_Change]:
    for i, item in enumerate(items):
        yield (*at, i), f"{item!s} left out", _LEFT_OUT
        if at == ("cache", "never"):
            yield from _changes(policy, item, (*at, i))
    if at == ("tiers",):
        for i in range(len(items) - 1):
            text = f"{items[i]} and {items[i + 1]} swapped"
            yield at, text, [*items[:i], items[i + 1], items[i], *items[i + 2 :]]


def _of_scalar(value: Any) -> Iterator[Any]:
    """Yield the values near a number, share or duration, and the other flag."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from _near(value)
    elif isinstance(value, str) and (match := DURATION.match(value)):
        for factor in (1.1, 0.9):
            yield f"{float(match[1]) * factor:.6g}{match[2]}"
    elif isinstance(value, str) and (match := _PERCENT.match(value)):
        for factor in (1.1, 0.9):
            yield f"{float(match[1]) * factor:.6g}%"


def _near(value: float) -> Iterator[float]:
    """Yield a number a little above and one a little below."""
    if isinstance(value, int) or float(value).is_integer():
        step = 1 if abs(value) < _SMALL else max(1, round(abs(value) * 0.07))
        yield from (int(value) + step, int(value) - step)
        return
    for factor in (1.07, 0.93):
        rounded = float(f"{value * factor:.2g}")
        yield float(f"{value * factor:.3g}") if rounded == value else rounded


# --- rules ----------------------------------------------------------------------------------------------------------


def _of_rule(source: str, ranges: Ranges) -> Iterator[tuple[str, str]]:
    """Yield each changed rule with the change in words, unless its result is the same for all values."""
    rule = Expression.parse(source)
    if rule.tree is None:
        return
    for text, tree in _trees(rule.tree):
        changed = ast.unparse(tree)
        try:
            other = Expression.parse(changed)
        except ExpressionError:
            continue
        if not is_same(rule, other, ranges):
            yield as_written(text), changed


def _trees(tree: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield each changed copy of a syntax tree, with the change in words."""
    nodes = list(ast.walk(tree))
    for i, node in enumerate(nodes):
        if isinstance(node, ast.BoolOp):
            was, to = ("and", ast.Or()) if isinstance(node.op, ast.And) else ("or", ast.And())
            yield _edited(tree, i, f"{was} -> {'or' if was == 'and' else 'and'}", lambda one, to=to: _set(one, op=to))
            for j, part in enumerate(node.values):
                rest = [*node.values[:j], *node.values[j + 1 :]]
                instead = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                yield f"{ast.unparse(part)} left out", _replaced(tree, node, instead)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield f"{ast.unparse(node)} -> {ast.unparse(node.operand)}", _replaced(tree, node, node.operand)
        elif isinstance(node, ast.Compare):
            for j, operator in enumerate(node.ops):
                to_type = _OPERATORS[type(operator)]
                ops = [to_type() if k == j else one for k, one in enumerate(node.ops)]
                text = f'"{_SIGNS[type(operator)]}" -> "{_SIGNS[to_type]}" in {ast.unparse(node)}'
                yield _edited(tree, i, text, lambda one, ops=ops: _set(one, ops=ops))
        elif isinstance(node, ast.Constant) and not isinstance(node.value, bool):
            values: Sequence[Any]
            if isinstance(node.value, str):
                words = next((words for words in WORDS.values() if node.value in words), ())
                values = [word for word in words if word != node.value][:1]
            elif isinstance(node.value, int | float):
                values = list(_near(node.value))
            else:
                values = ()
            for value in values:
                text = f"{node.value!s} -> {value}"
                yield _edited(tree, i, text, lambda one, value=value: _set(one, value=value))


def _edited(tree: ast.expr, index: int, text: str, edit: Any) -> tuple[str, ast.expr]:
    """Return a copy of the tree with its node of this index edited."""
    made = copy.deepcopy(tree)
    edit(list(ast.walk(made))[index])
    return text, made


def _set(node: ast.AST, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(node, name, value)


def _replaced(tree: ast.expr, node: ast.AST, instead: ast.expr) -> ast.expr:
    """Return a copy of the tree with `node` replaced."""
    index = next(i for i, one in enumerate(ast.walk(tree)) if one is node)
    made = copy.deepcopy(tree)
    target = list(ast.walk(made))[index]

    class Replace(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> Any:
            return copy.deepcopy(instead) if one is target else self.generic_visit(one)

    return Replace().visit(made)  # type: ignore[no-any-return]


def is_same(rule: Expression, other: Expression, ranges: Ranges) -> bool:
    """Return whether two rules have the same result for all values that a request can have."""
    cells = combinations([rule, other], ranges)
    return cells is not None and all(rule.holds(cell) == other.holds(cell) for cell in cells if can_occur(cell))


def _with(content: Mapping[str, Any], at: KeyPath, value: Any) -> dict[str, Any]:
    """Return the content with one value replaced, or left out."""
    made = copy.deepcopy(dict(content))
    inside: Any = made
    for part in at[:-1]:
        inside = inside[part]
    if value is _LEFT_OUT:
        del inside[at[-1]]
    else:
        inside[at[-1]] = value
    return made
