"""Parse and evaluate policy rules.

    p_adequate >= 0.7 and tokens_in < 3000        not tools        temperature > 0.3        otherwise
    easiest 40% of its kind and tokens_in < 3000  kind == chat and quantile <= 0.4

A rule compares named numbers, flags and words, joined by and, or, not. It is parsed once, by Python's own parser, into
closures over a mapping of values. `easiest 40% of its kind` is another way to write `quantile <= 0.4`. A comparison
with a value that is missing or None is false, so `temperature > 0.3` does not hold for a request that sets no
temperature. A rule may span several lines, as with YAML's `|` and `>`; it is joined to one line, because headers show
it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal, get_args

from policies import ADDED
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


_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|[^\W\d]\w*|(?P<number>[\d.](?:[eE][+-]|[\w.])*%?)""")
_NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


class ExpressionError(ValueError):
    """A rule is not valid; the message says what is allowed.

    `at` is where, in characters from the start of the rule as one line; None for the whole rule. `instead` is the whole
    rule with the mistake mended; None where that is not known.
    """

    def __init__(self, message: str, at: int | None = None, instead: str | None = None) -> None:
        super().__init__(message)
        self.at = at
        self.instead = instead


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
            raise ExpressionError(f"a rule has 1 to {_LIMIT} characters; split it, or write 'otherwise'")
        # Once joined to one line, a comment would hide the rest of the rule. A backslash has no use here.
        if "#" in text or "\\" in text or not text.isprintable():
            reason = "comments, backslashes and control characters have no place in one"
            raise ExpressionError(f"{text!r} is not a rule: {reason}; leave them out")
        rewritten = _as_comparisons(text)
        names: set[str] = set()
        try:
            tree = _Words(text).visit(ast.parse(rewritten, mode="eval"))
            evaluate = _build(tree.body, names, text)
        except ExpressionError:
            raise
        except SyntaxError as error:
            raise _not_a_rule(text, error) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"{text!r} is not a rule: {error or 'nested too deep'}; make it simpler") from None
        return cls(text, frozenset(names), evaluate, tree.body)

    def holds(self, values: Values) -> bool:
        """Return whether the rule is true for `values`."""
        return bool(self._evaluate(values))

    def start_of(self, name: str) -> int | None:
        """Return where in the source a name first stands; None if it does not, as in `easiest 40% of its kind`."""
        every = () if self.tree is None else ast.walk(self.tree)
        starts = [_start(node, self.source) for node in every if isinstance(node, ast.Name) and node.id == name]
        return min(starts, default=None)

    @property
    def words(self) -> frozenset[str]:
        """The words that it compares with, such as `chat`."""
        every = () if self.tree is None else ast.walk(self.tree)
        return frozenset(node.value for node in every if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _as_comparisons(text: str) -> str:
    """Return the rule with each `easiest 40% of its kind` written as a comparison, of the same length.

    Raises ExpressionError, for this and for numbers that Python would read otherwise than people.
    """

    def comparison(match: re.Match[str]) -> str:
        percent = float(match[1])
        if not 0 < percent <= 100:
            message = f"{match[0]!r} asks for {match[1]}%; write a share above 0% and up to 100%"
            raise ExpressionError(message, match.start())
        return f"(quantile <= {percent / 100:.10g})".ljust(len(match[0]))

    rewritten = _EASIEST.sub(comparison, text)
    if other := _NEARLY_EASIEST.search(rewritten):
        instead = "'easiest 40% of its kind', or 'kind == chat and easiest 40% of its kind' for one kind alone"
        if other[1] == "hardest":
            instead = "'quantile > 0.8' for the hardest 20% of each kind"
        message = f"{text!r} is not a rule: no value is called {other[1]!r}; write {instead}"
        raise ExpressionError(message, other.start())
    for token in _TOKEN.finditer(rewritten):
        number = token["number"]
        if number is not None and not _NUMBER.fullmatch(number):
            how = "write a share as 0.4, or 'easiest 40% of its kind'" if "%" in number else "write digits alone"
            plain = _in_digits(number)
            mended = _replaced(text, token.start(), number, plain) if plain else None
            how += f": {plain}" if plain else ""
            raise ExpressionError(f"{text!r} is not a rule: {number!r} is no number; {how}", token.start(), mended)
    return rewritten


def _in_digits(number: str) -> str | None:
    """Return `40%` as `0.4`, `3k` as `3000`, `2s` as `2000` (milliseconds); None for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%|k|K|ms|s)", number)
    factor = {"%": 0.01, "k": 1000, "K": 1000, "ms": 1, "s": 1000}
    return f"{float(match[1]) * factor[match[2]]:.10g}" if match else None


def _not_a_rule(text: str, error: SyntaxError) -> ExpressionError:
    """Return the error for a rule that Python cannot parse, with what to write instead of what is known to be wrong."""
    reading = ADDED.reading()
    if reading is not None and (foreign := reading.foreign_word(text)) is not None:
        word, instead, at, mended = foreign
        return ExpressionError(f"{text!r} is not a rule: {word!r} has no meaning; write {instead!r}", at, mended)
    at = error.offset - 1 if error.offset and 0 < error.offset <= len(text) else None
    return ExpressionError(f"{text!r} is not a rule: {error.msg}; write such as 'tokens_in < 3000 and not stream'", at)


def _replaced(text: str, at: int, word: str, other: str) -> str | None:
    """Return the text with `other` in place of `word` at that index; None where something else stands there."""
    return text[:at] + other + text[at + len(word) :] if text.startswith(word, at) else None


def _start(node: ast.expr, text: str) -> int:
    """Return where a node begins in the rule's text."""
    at = len(text.encode()[: node.col_offset].decode(errors="ignore"))
    # Of `easiest 40% of its kind`, the comparison stood in parentheses.
    return at - 1 if at and text.startswith("easiest", at - 1) else at


class _Words(ast.NodeTransformer):
    """Replace the bare words that a value of WORDS is compared with by text constants: `kind == chat`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        operands = [node.left, *node.comparators]
        name = next((operand.id for operand in operands if isinstance(operand, ast.Name) and operand.id in WORDS), None)
        if name is None:
            return node
        written, at = ast.unparse(node), _start(node, self._text)
        first = f"{name} == {WORDS[name][0]}"
        if len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
            message = f"{written!r} is not allowed: {name} is a word; compare it with == or !=: {first!r}"
            raise ExpressionError(message, at)
        others = [operand for operand in operands if not (isinstance(operand, ast.Name) and operand.id == name)]
        words = [_word(operand) for operand in others]
        unknown = [(operand, word) for operand, word in zip(others, words, strict=True) if word not in WORDS[name]]
        if unknown or len(words) != 1:
            hint = did_you_mean(unknown[0][1] or "", WORDS[name]) if unknown else ""
            instead = None
            if unknown:
                at, word = _start(unknown[0][0], self._text), unknown[0][1] or ""
                near = get_close_matches(word, WORDS[name], n=1)
                instead = _replaced(self._text, at, word, near[0]) if near else None
            message = f"{written!r} can never hold{hint}: {name} is one of {', '.join(WORDS[name])}"
            raise ExpressionError(message, at, instead)
        left = ast.copy_location(ast.Name(name), node.left)
        node.left, node.comparators = left, [ast.copy_location(ast.Constant(words[0]), others[0])]
        return node


def _word(node: ast.expr) -> str | None:
    """Return the word that is written bare or in quotes; None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _build(node: ast.expr, names: set[str], text: str) -> _Evaluate:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            tests = [_build(part, names, text) for part in parts]
            return lambda values: all(test(values) for test in tests)
        case ast.BoolOp(op=ast.Or(), values=parts):
            tests = [_build(part, names, text) for part in parts]
            return lambda values: any(test(values) for test in tests)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            test = _build(inner, names, text)
            return lambda values: not test(values)
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _COMPARE for op in ops):
            return _build_comparison([left, *rights], [_COMPARE[type(op)] for op in ops], names, text)
        case ast.Name(id=name):
            names.add(name)
            return lambda values: values.get(name)
        case ast.Constant(value=bool() | int() | float() | str() as constant):
            return lambda _: constant
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r} is not allowed in a rule; use names, numbers, < <= > >= == !=, and, or, not",
                _start(node, text),
            )


def _build_comparison(
    operands: list[ast.expr], compare: list[Callable[[Any, Any], bool]], names: set[str], text: str
) -> _Evaluate:
    match operands:
        case [ast.Name(id=name), ast.Constant(value=bool() | int() | float() | str() as constant)]:
            names.add(name)
            return _build_simple(name, compare[0], constant)
    parts = [_build(operand, names, text) for operand in operands]

    def evaluate(values: Values) -> bool:
        arguments = [part(values) for part in parts]
        if any(value is None for value in arguments):
            return False
        try:
            return all(test(arguments[i], arguments[i + 1]) for i, test in enumerate(compare))
        except TypeError:
            return False

    return evaluate


def _build_simple(name: str, compare: Callable[[Any, Any], bool], constant: Any) -> _Evaluate:
    """Build the comparison of a value with a constant, as nearly all are, in a quarter of the general one's time."""

    def evaluate(values: Values) -> bool:
        value = values.get(name)
        if value is None:
            return False
        try:
            return bool(compare(value, constant))
        except TypeError:
            return False

    return evaluate


def parts(rule: Expression) -> Iterator[tuple[Expression, int]]:
    """Yield each comparison in the rule as a rule of its own, with its place in the rule's source."""
    if rule.tree is not None:
        for node in comparisons(rule.tree):
            yield Expression.parse(ast.unparse(node)), _start(node, rule.source)


def comparisons(tree: ast.expr) -> list[ast.Compare]:
    """Return the comparisons of a rule's tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
