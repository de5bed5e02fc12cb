"""Parse and evaluate policy rules: comparisons of named numbers and flags, joined by and, or, not.

    p_adequate >= 0.7 and tokens_in < 3000        not tools        temperature > 0.3        otherwise

A rule is parsed once, by Python's own parser, into closures over a mapping of values. A comparison with a value that is
missing or None is false, so `temperature > 0.3` does not hold for a request that sets no temperature.

A rule may span several lines, as with YAML's `|` and `>`; it is joined to one line, because headers show it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

OTHERWISE = "otherwise"

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
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"{text!r} is not a rule: {error}") from None
        names: set[str] = set()
        evaluate = _build(tree.body, names)
        return cls(text, frozenset(names), evaluate, tree.body)

    def holds(self, values: Values) -> bool:
        """Return whether the rule is true for `values`."""
        return bool(self._evaluate(values))


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
