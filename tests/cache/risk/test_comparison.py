"""Which answers come to the same."""

from __future__ import annotations

import pytest

from cache.risk.comparison import contradict, includes, text_of
from tests.cache.samples import answer


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("Rome.", "Rome.", False),
        ("Rome is the capital of Italy.", "The capital of Italy is Rome.", False),
        ("Yes, it is safe.", "No, it is not safe.", True),
        ("It boils at 100 degrees.", "It boils at 90 degrees.", True),
        ("It was written by Tolstoy.", "It was written by Dostoevsky.", True),
        ("You can open it.", "You can not open it.", True),
        ("In 1969 Armstrong and Aldrin landed.", "Armstrong landed in 1969, with Aldrin, after 4 days.", False),
    ],
)
def test_answers_contradict_each_other_by_what_a_vector_does_not_show(one: str, other: str, differ: bool) -> None:
    """Yes and no, a negation, other numbers, other names; more detail in one of them is no contradiction."""
    assert contradict(one, other) is differ


def test_the_text_of_a_completion_is_what_its_choices_say() -> None:
    """What is no completion says nothing."""
    assert text_of(answer("Rome.").completion) == "Rome."
    assert text_of({"choices": [None, {"message": 3}]}) == ""
    assert text_of({}) == ""


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("The capital of Australia is Canberra.", "The capital of Australia is Sydney.", True),
        ("The capital of Australia is Canberra.", "Canberra, far from Sydney and Melbourne.", False),
        ("Of the 3 cities in Australia, 1 fits.", "Of the 3 cities in Australia, 2 fit.", True),
        ("1. Canberra\n2. Sydney", "1. Sydney\n2. Canberra\n3. Perth", False),
    ],
)
def test_what_the_question_names_already_says_nothing(one: str, other: str, differ: bool) -> None:
    """Nor do the numbers of a list; a name at the beginning of a sentence is found all the same."""
    assert contradict(one, other, "Which of the 3 largest cities in Australia is the capital?") is differ


@pytest.mark.parametrize(
    ("one", "other", "within"),
    [
        ("Canberra.", "Canberra, a compromise between Sydney and Melbourne.", True),
        ("The capital is Canberra, far from the coast.", "Canberra is the capital.", True),
        ("Canberra, far from the coast.", "Canberra, a compromise between two cities.", False),
        ("Sydney.", "The capital is Canberra.", False),
        ("Australia.", "Australia, and its capital is Canberra.", False),
    ],
)
def test_an_answer_includes_one_that_says_nothing_else(one: str, other: str, within: bool) -> None:
    """Beyond the words of the question; an answer that only repeats those says nothing that another could include."""
    assert includes(one, other, "What is the capital of Australia?") is within
