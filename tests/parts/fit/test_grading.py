"""Grading short answers: what each rule takes as right."""

from __future__ import annotations

from decimal import Decimal

import pytest

from gateway.parts.fit.grading import RULES, UnknownRule, grade, letter_of, number_of, words_of


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("C", "C"),
        (" (b) is wrong, so C: it melts", "C"),
        ("**D**", "D"),
        ("A: 10^12 atoms", "A"),
        ("The correct answer is (B) because A is false.", "B"),
        ("Answer: J", "J"),
        ("A good question. I think it is D.", "D"),
        ("A is right", "A"),
        ("I'd say so", None),
        ("Because it is cold", None),
        ("K", None),
        ("", None),
    ],
)
def test_the_letter_is_the_one_the_answer_settles_on(answer: str, letter: str | None) -> None:
    """What opens the answer or is said to be it comes first; the article A and the pronoun I are no choices."""
    assert letter_of(answer) == letter


def test_a_choice_may_be_given_in_its_own_words() -> None:
    """Without a letter, an answer is right that says an accepted one's words; a wrong letter beside them is wrong."""
    assert grade("It is twenty apples.", ["C", "twenty apples"], "choice")
    assert not grade("B: twenty apples", ["C", "twenty apples"], "choice")
    assert not grade("something else", ["C"], "choice")


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("5 + 7 = 12.", "12"),
        ("She pays $1,200.00.", "1200"),
        ("about 12.5%", "12.5"),
        ("from 10-5 apples", "5"),
        ("it falls to -3", "-3"),
        ("1,2000", "2000"),
        ("it is .5", "0.5"),
        ("none", None),
    ],
)
def test_the_number_is_the_last_one(answer: str, number: str | None) -> None:
    """Thousands, money, per cent and the full stop after it are no part of the number."""
    assert number_of(answer) == (None if number is None else Decimal(number))


def test_numbers_are_compared_by_value() -> None:
    """18, 18.0 and $18 are one answer; no number is a wrong answer."""
    assert grade("That makes $18.00 a day", ["18"], "number")
    assert not grade("That makes $18.50 a day", ["18"], "number")
    assert not grade("I do not know", ["18"], "number")


def test_text_is_right_when_an_accepted_answer_is_in_it() -> None:
    """Case, accents, punctuation and articles do not count; parts of words do not match."""
    assert grade("That would be Édouard the Confessor!", ["Edouard Confessor"], "text")
    assert grade("It's 'All\u2019s Well That Ends Well'.", ["All's Well That Ends Well"], "text")
    assert not grade("a planet", ["plane"], "text")
    assert not grade("anything", ["the", ""], "text")
    assert words_of("The End, of AN era_1") == ["end", "of", "era", "1"]


def test_yes_and_no_are_the_first_said() -> None:
    """True and false will do; an answer that says neither is wrong, whichever is accepted."""
    assert grade("Yes, there is no doubt.", ["yes"], "yes_no")
    assert grade("False.", ["no"], "yes_no")
    assert not grade("No.", ["yes"], "yes_no")
    assert not grade("Nobody knows", ["no"], "yes_no")
    assert not grade("No.", ["perhaps"], "yes_no")


def test_an_unknown_rule_names_those_that_exist() -> None:
    """A misspelt grade is an error that lists the right ones, never a wrong answer."""
    with pytest.raises(UnknownRule) as caught:
        grade("C", ["C"], "letter")
    assert all(rule in str(caught.value) for rule in RULES)
