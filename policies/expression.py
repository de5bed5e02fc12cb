"""Parse and evaluate policy rules, and compute whether one can hold at all, and whether it can fail.

    p_adequate >= 0.7 and tokens_in < 3000        not tools        temperature > 0.3        otherwise
    easiest 40% of its kind and tokens_in < 3000  kind == chat and quantile <= 0.4

A rule compares named numbers, flags and words, joined by and, or, not. It is parsed once, by Python's own parser, into
closures over a mapping of values. `easiest 40% of its kind` is another way to write `quantile <= 0.4`. A comparison
with a value that is missing or None is false, so `temperature > 0.3` does not hold for a request that sets no
temperature. A rule may span several lines, as with YAML's `|` and `>`; it is joined to one line, because headers show
it.

Rules compare names with constants, so the result is the same everywhere between two neighbouring constants of a rule.
`outcomes` evaluates the rule at each constant, at the ends of each range and at one point between neighbours, for every
combination of the names: the result is exact. If there are too many combinations, or two numbers of a request are
compared with each other, both outcomes are assumed to be possible.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, Final, Literal, get_args

from policies.errors import did_you_mean

OTHERWISE = "otherwise"
Kind = Literal["choices", "maths", "chat", "code", "tools"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Kinds of requests that the difficulty classifier tells apart: exam questions, maths, chat, code, tools."""
WORDS: Final = {"kind": KINDS}
"""Values that are a word, with the words they may be."""

Values = Mapping[str, Any]
_Evaluate = Callable[[Values], Any]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_LIMIT = 500
_EASIEST = re.compile(r"\beasiest\s+(\d+(?:\.\d+)?|\.\d+)\s*%\s+of\s+its\s+kind\b")
_NEARLY_EASIEST = re.compile(r"\b(easiest|hardest)\b")


class ExpressionError(ValueError):
    """A rule is not valid; the message says where, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed rule. `source` is one printable line, `names` the values it reads; `holds(values)` evaluates it."""

    source: str
    names: frozenset[str]
    _evaluate: _Evaluate = field(repr=False, compare=False, hash=False)
    tree: ast.expr | None = field(default=None, repr=False, compare=False, hash=False)
    """Python's syntax tree of the rule; None for `otherwise`."""

    @classmethod
    def parse(cls, source: str) -> Expression:
        """Parse the rule in `source`. Raises ExpressionError."""
        text = " ".join(source.split())
        if text == OTHERWISE:
            return cls(OTHERWISE, frozenset(), lambda _: True)
        if not text or len(text) > _LIMIT:
            raise ExpressionError(f"a rule has 1 to {_LIMIT} characters")
        if "#" in text or not text.isprintable():  # once joined to one line, a comment would hide the rest of the rule
            raise ExpressionError(f"{text!r} is not a rule: comments and control characters have no place in one")
        try:
            tree = ast.parse(_as_comparisons(text), mode="eval")
            tree = _Words().visit(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if isinstance(error, ExpressionError):
                raise
            raise ExpressionError(f"{text!r} is not a rule: {error}") from None
        names: set[str] = set()
        evaluate = _build(tree.body, names)
        return cls(text, frozenset(names), evaluate, tree.body)

    def holds(self, values: Values) -> bool:
        """Return whether the rule is true for `values`."""
        return bool(self._evaluate(values))

    @property
    def words(self) -> frozenset[str]:
        """The words that it compares with, such as `chat`."""
        every = () if self.tree is None else ast.walk(self.tree)
        return frozenset(node.value for node in every if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _as_comparisons(text: str) -> str:
    """Return the rule with each `easiest 40% of its kind` written as a comparison. Raises ExpressionError."""

    def comparison(match: re.Match[str]) -> str:
        percent = float(match[1])
        if not 0 < percent <= 100:
            raise ExpressionError(f"{match[0]!r} asks for {match[1]}%; write a share above 0% and up to 100%")
        return f"(quantile <= {percent / 100:.10g})"

    rewritten = _EASIEST.sub(comparison, text)
    if other := _NEARLY_EASIEST.search(rewritten):
        instead = "'easiest 40% of its kind', or 'kind == chat and easiest 40% of its kind' for one kind alone"
        if other[1] == "hardest":
            instead = "'quantile > 0.8' for the hardest 20% of each kind"
        raise ExpressionError(f"{text!r} is not a rule: no value is called {other[1]!r}; write {instead}")
    return rewritten


class _Words(ast.NodeTransformer):
    """Replace the bare words that a value of WORDS is compared with by text constants: `kind == chat`."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        operands = [node.left, *node.comparators]
        name = next((one.id for one in operands if isinstance(one, ast.Name) and one.id in WORDS), None)
        if name is None:
            return node
        written = ast.unparse(node)
        first = f"{name} == {WORDS[name][0]}"
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            raise ExpressionError(f"{written!r} is not allowed: {name} is a word; compare it with == or !=: {first!r}")
        words = [_word(one) for one in operands if not (isinstance(one, ast.Name) and one.id == name)]
        unknown = [word for word in words if word not in WORDS[name]]
        if unknown or len(words) != 1:
            hint = did_you_mean(unknown[0] or "", WORDS[name]) if unknown else ""
            raise ExpressionError(f"{written!r} can never hold{hint}: {name} is one of {', '.join(WORDS[name])}")
        node.left, node.comparators = ast.Name(name), [ast.Constant(words[0])]
        return node


def _word(node: ast.expr) -> str | None:
    """Return the word that is written bare or in quotes; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _build(node: ast.expr, names: set[str]) -> _Evaluate:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            tests = [_build(part, names) for part in parts]
            return lambda values: all(test(values) for test in tests)
        case ast.BoolOp(op=ast.Or(), values=parts):
            tests = [_build(part, names) for part in parts]
            return lambda values: any(test(values) for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            test = _build(inner, names)
            return lambda values: not test(values)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
            return _build_comparison([left, *rights], [_COMPARE[type(op)] for op in ops], names)
        case ast.Name(id=name):
            names.add(name)
            return lambda values: values.get(name)
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return lambda _: constant
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r} is not allowed in a rule; use names, numbers, < <= > >= == !=, and, or, not"
            )


def _build_comparison(
    operands: list[ast.expr], compare: list[Callable[[Any, Any], bool]], names: set[str]
) -> _Evaluate:
    parts = [_build(operand, names) for operand in operands]

    def evaluate(values: Values) -> bool:
        arguments = [part(values) for part in parts]
        if any(value is None for value in arguments):
            return False
        try:
            return all(test(arguments[i], arguments[i + 1]) for i, test in enumerate(compare))
        except TypeError:
            return False

    return evaluate


_COMBINATIONS = 20_000
_HUGE = 1e300
_ANYTHING = frozenset({True, False})


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one name: one of `words`, or true and false where `flag` is set, else numbers from `low` to `high`.

    Both ends are included. `whole`: only whole numbers. `optional`: the value may be missing, and then no comparison
    with it holds.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    optional: bool = False
    flag: bool = False
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the text for error messages: `from 0 to 1`, `a whole number, 0 or more`."""
        if self.flag:
            return "true or false"
        if self.words:
            return f"one of {', '.join(self.words)}"
        kind = "a whole number" if self.whole else "a number"
        if math.isinf(self.low):
            return kind
        return f"{kind}, {self.low:g} or more" if math.isinf(self.high) else f"from {self.low:g} to {self.high:g}"

    def samples(self, constants: Sequence[float]) -> list[Any]:
        """Return one value of every interval that comparisons with these constants can tell apart."""
        if self.flag:
            return [True, False]
        if self.words:
            return [*self.words, None] if self.optional else list(self.words)
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


def constants_by_name(rule: Expression) -> dict[str, frozenset[float]]:
    """Return, for each name of the rule, the numbers that it is compared with."""
    found: dict[str, set[float]] = {name: set() for name in rule.names}
    for node in () if rule.tree is None else _comparisons(rule.tree):
        numbers = {
            float(one.value)
            for one in ast.walk(node)
            if isinstance(one, ast.Constant) and isinstance(one.value, int | float) and abs(one.value) < _HUGE
        }
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                found[one.id] |= numbers
    return {name: frozenset(numbers) for name, numbers in found.items()}


def compares_names(rule: Expression, ranges: Ranges) -> bool:
    """Return whether two numbers of a request are compared with each other, such as `turns < tokens_in`."""
    return rule.tree is not None and any(
        _compares_numbers_of_requests(node, ranges) for node in _comparisons(rule.tree)
    )


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
    return sum(any(not (ranges[name].flag or ranges[name].words) for name in some) for some in names) > 1
