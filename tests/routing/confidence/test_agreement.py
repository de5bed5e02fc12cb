"""How far two answers say the same."""

from __future__ import annotations

import pytest

from routing.confidence.agreement import agreement_of, similarity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The answer is Rome.", "answer is:  rome"),
        ("A", "A."),
        ('{"a": 1, "b": [2]}', '{ "b": [2], "a": 1 }'),
        ("", " "),
        ("Здравствуй, мир", "здравствуй мир!"),
    ],
)
def test_form_makes_no_difference(one: str, other: str) -> None:
    """Case, punctuation, articles and the order of a JSON object's keys."""
    assert similarity(one, other) == similarity(other, one) == 1.0


@pytest.mark.parametrize(("one", "other"), [("Rome", "Milan"), ("A", "B"), ("42", "43"), ("Rome", ""), ("?", "!")])
def test_nothing_in_common_is_no_agreement(one: str, other: str) -> None:
    """Other words, other numbers, or an answer and none."""
    assert similarity(one, other) == 0.0


def test_the_last_number_is_half_of_it() -> None:
    """Reasoning in other words that comes to the same number agrees more than the same words with another number."""
    same_result = similarity("6 times 7 makes 42", "Multiplying the two we get 42.")
    same_words = similarity("She pays 12 dollars", "She pays 13 dollars")
    assert same_result > 0.5 > same_words > 0.0
    assert similarity("It is -5", "It is 5") == 0.5
    assert similarity("1,200.00", "1200") >= 0.5


def test_answers_of_several_samples_are_averaged() -> None:
    """And without a sample there is no evidence."""
    assert agreement_of("Rome", ["rome.", "Milan"]) == 0.5
    assert agreement_of("Rome", []) is None


def test_vectors_count_half_where_they_are_at_hand() -> None:
    """What is said in other words agrees more, and what is the same needs no vectors."""
    near = similarity("It froze", "Ice everywhere", lambda _one, _other: 0.8)
    assert near == pytest.approx(0.4)
    assert similarity("It froze", "Ice everywhere", lambda _one, _other: None) == 0.0
    assert similarity("Rome.", "rome", lambda _one, _other: 0.0) == 1.0


def test_json_of_any_depth_can_be_compared() -> None:
    """What is nested too deep to be put in order is compared as text."""
    deep = '{"a":' * 600 + "1" + "}" * 600
    assert similarity(deep, deep) == 1.0
