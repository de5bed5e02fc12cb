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
        ("easiest 40% of its kind", {"quantile": 0.4}, True),
        ("easiest 40% of its kind", {"quantile": 0.41}, False),
        ("easiest 40% of its kind", {"quantile": None}, False),
        ("not easiest 40% of its kind", {"quantile": 0.41}, True),
        ("easiest 12.5 %  of its kind and tokens_in < 9", {"quantile": 0.125, "tokens_in": 8}, True),
        ("easiest 60% of its kind and not easiest 40% of its kind", {"quantile": 0.5}, True),
        ("kind == chat and quantile <= 0.4", {"kind": "chat", "quantile": 0.4}, True),
        ("'chat' == kind", {"kind": "chat"}, True),
        ("kind == chat", {"kind": "code"}, False),
        ("kind == chat", {"kind": None}, False),
        ("kind != chat", {"kind": "code"}, True),
        ("kind != chat", {"kind": None}, False),
        ("kind == code or easiest 100% of its kind", {"kind": "chat", "quantile": 1.0}, True),
    ],
)
def test_a_rule_holds_or_not(rule: str, values: dict[str, object], holds: bool) -> None:
    """A comparison with a value that is missing, None or of another kind is false."""
    assert Expression.parse(rule).holds(values) is holds


def test_a_rule_names_what_it_asks_for() -> None:
    """The names can be checked against what there is before any request comes. A word is no name."""
    assert Expression.parse("a > 1 and not (b or c < d)").names == {"a", "b", "c", "d"}
    assert Expression.parse("kind == chat and easiest 40% of its kind").names == {"kind", "quantile"}


def test_a_rule_is_shown_as_it_was_written() -> None:
    """Headers, traces and `tierline fit calibrate` show and edit the author's own words."""
    assert Expression.parse("easiest 40% of its kind\n  and tokens_in < 9").source.startswith(
        "easiest 40% of its kind and"
    )


@pytest.mark.parametrize(
    ("rule", "instead"),
    [
        ("easiest 40%", "write 'easiest 40% of its kind'"),
        ("easiest 40 percent of its kind", "write 'easiest 40% of its kind'"),
        ("easiest 40% of chat", "or 'kind == chat and easiest 40% of its kind' for one kind alone"),
        ("hardest 20% of its kind", "write 'quantile > 0.8' for the hardest 20% of each kind"),
        ("easiest 0% of its kind", "write a share above 0% and up to 100%"),
        ("easiest 101% of its kind", "write a share above 0% and up to 100%"),
        ("kind == chatt", "did you mean 'chat'?): kind is one of choices, maths, chat, code, tools"),
        ("kind == 3", "kind is one of choices, maths, chat, code, tools"),
        ("kind == kind", "kind is one of choices, maths, chat, code, tools"),
        ("kind < chat", "compare it with == or !=: 'kind == choices'"),
        ("chat == kind == code", "compare it with == or !=: 'kind == choices'"),
    ],
)
def test_a_rule_about_kinds_that_is_wrong_says_what_to_write_instead(rule: str, instead: str) -> None:
    """A slip in the readable form, a word that is no kind, and an order of words."""
    with pytest.raises(ExpressionError) as error:
        Expression.parse(rule)
    assert instead in str(error.value)


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
