"""The language of policy rules."""

from __future__ import annotations

import pytest

from policies.expression import Expression, ExpressionError


@pytest.mark.parametrize(
    ("rule", "values", "holds"),
    [
        ("p_adequate >= 0.7 and tokens_in < 3000", {"p_adequate": 0.7, "tokens_in": 10}, True),
        ("p_adequate >= 0.7 and tokens_in < 3000", {"p_adequate": 0.7, "tokens_in": 3000}, False),
        ("p_adequate >= 0.7", {"p_adequate": None}, False),
        ("p_adequate < 0.7", {}, False),
        ("not tools", {"tools": False}, True),
        ("tools", {"tools": True}, True),
        ("tools or images", {"images": True}, True),
        ("1 < turns <= 3", {"turns": 3}, True),
        ("temperature > 0.3", {"temperature": "hot"}, False),
        ("otherwise", {}, True),
    ],
)
def test_a_rule_holds_or_not(rule: str, values: dict[str, object], holds: bool) -> None:
    """A comparison with a value that is missing, None or of another kind is false."""
    assert Expression.parse(rule).holds(values) is holds


def test_a_rule_names_what_it_asks_for() -> None:
    """The names can be checked against what there is before any request comes."""
    assert Expression.parse("a > 1 and not (b or c < d)").names == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "a >",
        "a = 1",
        "__import__('os').system('x')",
        "a.b > 1",
        "a[0]",
        "lambda: 1",
        "a + 1 > 2",
        "f'{a}'",
        "a in b",
        "(a := 1)",
        "a > 1; b",
        "None",
        "x" * 501,
        "a\x00",
        "a == '\x1b[31m'",
        "a > 1 # or so\nand b",
    ],
)
def test_nothing_but_comparisons_is_a_rule(rule: str) -> None:
    """Calls, attributes, arithmetic and all else that Python could do is refused."""
    with pytest.raises(ExpressionError):
        Expression.parse(rule)


def test_a_rule_of_the_greatest_length_can_be_parsed() -> None:
    """Nesting is bounded by the length, so no rule can exhaust the stack."""
    assert Expression.parse("not " * 123 + "a").holds({"a": False})


@pytest.mark.parametrize(
    "rule", ["a >= 0.7\n  and b\n", "(a >= 0.7\r\n and b)", "a >= 0.7 and\tb", " a >= 0.7\u2028and b "]
)
def test_a_rule_over_several_lines_is_one(rule: str) -> None:
    """It is kept without its line breaks: traces and headers show it."""
    parsed = Expression.parse(rule)
    assert parsed.source.strip("()") == "a >= 0.7 and b"
    assert parsed.holds({"a": 0.8, "b": True})
    assert not parsed.holds({"a": 0.8, "b": False})
