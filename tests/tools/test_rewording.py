"""Rules that reword a question: what each does to an example, and which examples it leaves alone."""

from __future__ import annotations

import re
from random import Random

import pytest

from tools.rewording import OTHER, SAME, as_typed

TIMES = 1000
ANY = "What is the price of a ticket?"


def made(rules: str, text: str) -> set[str]:
    """Return what a rule makes of a text, with many seeds."""
    rule = {**SAME, **OTHER}[rules]
    return {rule(text, Random(seed)) for seed in range(TIMES)}


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [
        ("respelled", "What is the price?", "What's the price?"),
        ("how else", "How do I bake bread?", "What should I do to bake bread?"),
        ("either order", "difference between tea and coffee", "difference between coffee and tea"),
        ("negated", "Can I park here?", "Can I not park here?"),
        ("negated", "Delete the file.", "Do not delete the file."),
        ("opposed", "How do I open it?", "How do I close it?"),
        ("revalued", "Is it open on Monday?", "Is it open on Friday?"),
        ("turned", "a train from Paris to Rome", "a train from Rome to Paris"),
        ("turned", "from New York to Los Angeles by bus", "from Los Angeles to New York by bus"),
        ("narrowed", "How do I learn chess?", "How do I learn chess for beginners?"),
        ("renumbered", "Add 7 cups", "Add 8 cups"),
        ("respelled", "What is the salary of a physician?", "What is the pay of a physician?"),
        ("opened", "Do I have to pay?", "Am I required to pay?"),
        ("opened", "do i have to pay", "am i required to pay"),
        ("opened", "Benefits of tea", "What's good about tea"),
        ("moved", "How do I read a file in Python?", "In Python, how do I read a file?"),
        ("same direction", "How do I convert a list to a tuple?", "How do I make a tuple out of a list?"),
        ("same direction", "Is there a bus from Paris to New York?", "Is there a bus to New York from Paris?"),
        ("sloppy", "Does it hurt?", "does it hrut"),
    ],
)
def test_a_rule_makes_its_example(rule: str, text: str, expected: str) -> None:
    """One of the results is the expected one."""
    assert expected in made(rule, text)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("how else", ANY), ("either order", ANY), ("renumbered", ANY), ("turned", ANY),
        ("revalued", "Why?"), ("renumbered", "how 2 get taller"),
        ("indirect", "Bake bread."), ("filled", "Why so?"), ("mistyped", "Is NASA OK?"), ("opened", "Bake bread."),
        ("moved", "Who lives in Rome?"), ("same direction", ANY), ("sloppy", "Is it?"),
        ("turned", "from Rome to Rome"),
    ],
)  # fmt: skip
def test_a_rule_leaves_alone_what_it_does_not_fit(rule: str, text: str) -> None:
    """Then the result is empty, and no pair is made."""
    assert made(rule, text) == {""}


def test_typos_stay_near_the_word() -> None:
    """A mistyped question has at most three letters more or fewer, and its short words as they were."""
    for text in made("mistyped", ANY):
        assert text not in ("", ANY)
        assert abs(len(text) - len(ANY)) <= 3
        assert re.search(r"is .*of a", text)


def test_rules_that_keep_the_question_do_not_swap_a_direction() -> None:
    """Where something goes from and what becomes what stay as they were, in whatever order they are named."""
    for text in made("same direction", "Convert a PDF to HTML."):
        assert re.search(r"(?:to|into) HTML|HTML (?:out of|from) a PDF", text), text
    assert made("same direction", "a train from Paris to Rome") == {"a train to Rome from Paris"}


def test_the_same_rules_keep_numbers_and_names() -> None:
    """What is typed in a hurry still names the same city and year."""
    for seed in range(200):
        typed = as_typed("How many people lived in Oslo in 1987?", Random(seed))
        assert "1987" in typed
