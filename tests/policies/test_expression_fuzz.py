"""Any text is a rule or is refused as one, and a rule means the same however it is written."""

from __future__ import annotations

import ast
import os
import time
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.parts.lint.outcomes import can_occur, outcomes
from gateway.parts.lint.rule_values import ROUTE_VALUES, Range
from policies.expression import Expression, ExpressionError

# FUZZ_EXAMPLES=5000 pytest tests/policies/test_expression_fuzz.py looks longer.
FEW = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "30")),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

_NAMES = st.sampled_from([name for name in ROUTE_VALUES if name != "kind"])
_NUMBERS = st.one_of(
    st.integers(0, 40_000).map(str),
    st.floats(0, 1.2).map(lambda number: f"{number:.3g}"),
    st.just("1e3"),
    st.just(".5"),
)
_TOKENS = (
    "chat and or not otherwise easiest ( ) < <= == != = && 0.4 3k ' \" # \\ - + ** lambda: if else in is None True "
    "[ ] f' , := await ä \u0661 1_0 0x"
)
_WORDS = st.sampled_from([*ROUTE_VALUES, *_TOKENS.split(" "), "% of its kind", "\x00", "9" * 400])
_TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(_WORDS, max_size=25).map(" ".join),
    st.lists(_WORDS, max_size=12).map("".join),
    st.tuples(st.sampled_from(["(", "not ", "-", "[", "~", "x<", "a and (", "lambda:", "'"]), st.integers(1, 250)).map(
        lambda pair: pair[0] * pair[1]
    ),
)


def _compared(parts: tuple[str, str, str]) -> str:
    return f"{parts[0]} {parts[1]} {parts[2]}"


_OPERATORS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
_COMPARISONS = st.one_of(
    st.tuples(_NAMES, _OPERATORS, _NUMBERS).map(_compared),
    st.tuples(_NUMBERS, _OPERATORS, _NAMES).map(_compared),
    st.sampled_from(["stream", "has_tools", "kind == chat", "kind != 'code'", "0.2 < quantile <= 0.6"]),
    st.integers(1, 100).map(lambda share: f"easiest {share}% of its kind"),
)
_RULES = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(_compared),
        inner.map(lambda rule: f"not ({rule})"),
        inner.map(lambda rule: f"({rule})"),
    ),
    max_leaves=4,
)


def _value(name: str, of: Range) -> st.SearchStrategy[Any]:
    if of.flag:
        return st.booleans()
    if of.words:
        return st.sampled_from([*of.words, None] if of.optional else of.words)
    whole = st.sampled_from([0, 1, 2, 3000, 40_000]) | st.integers(0, 50_000)
    number: st.SearchStrategy[Any] = whole if of.whole else st.floats(of.low, min(of.high, 60_000.0))
    return number | st.none() if of.optional else number


_REQUESTS = st.fixed_dictionaries({name: _value(name, of) for name, of in ROUTE_VALUES.items()})


@FEW
@given(_TEXTS)
@example("not " * 120 + "stream")
@example("(" * 199 + "stream" + ")" * 199)
@example("-" * 499 + "1")
@example("5and 3")
@example("'\\d' == 1")
@example("9" * 499 + " < turns")
def test_any_text_is_a_rule_or_is_refused(text: str) -> None:
    """With one exception and no other, quickly; a place that it names is within the rule."""
    began = time.process_time()
    try:
        rule = Expression.parse(text)
    except ExpressionError as error:
        assert str(error)
        assert error.at is None or 0 <= error.at <= len(" ".join(text.split()))
    else:
        assert rule.holds({}) in (True, False)
        assert Expression.parse(rule.source) == rule
    assert time.process_time() - began < 0.5


@FEW
@given(_RULES, st.lists(_REQUESTS, min_size=3, max_size=3))
def test_a_rule_means_the_same_however_it_is_written(text: str, requests: list[dict[str, Any]]) -> None:
    """Parsed from its own source, from its syntax tree, and over several lines."""
    rule = Expression.parse(text)
    assert rule.tree is not None
    in_lines = f"\n  {text}  \n".replace(" ", "\n ")
    others = [Expression.parse(one) for one in (rule.source, ast.unparse(rule.tree), in_lines)]
    for request in requests:
        assert {one.holds(request) for one in others} == {rule.holds(request)}


@FEW
@given(_RULES, st.lists(_REQUESTS, min_size=6, max_size=6))
def test_what_a_rule_can_come_to_agrees_with_what_it_does(text: str, requests: list[dict[str, Any]]) -> None:
    """Whatever a request that can occur makes of it was foreseen."""
    rule = Expression.parse(text)
    possible = outcomes(rule, ROUTE_VALUES, can_occur)
    for request in requests:
        if can_occur(request):
            assert rule.holds(request) in possible, (text, request)
