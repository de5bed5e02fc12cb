from __future__ import annotations

from itertools import combinations

import pytest

from cache.semantic.verifier import Verifier, shipped_verifier
from cache.text.guards import SWITCHED, Pair
from cache.text.normalized_question import root_of, senses_of
from cache.text.reading import stem
from cache.text.thesaurus import GROUPS, KIND, SYNONYM


def same_words(one: str, other: str) -> bool:
    """Whether nothing is left over between two questions, and no guard refuses them."""
    pair = Pair(one, other)
    refused = pair.refusal(SWITCHED, "alone")
    return not (refused or pair.rest.left or pair.rest.right)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Where is the nearest shop?", "Where is the nearest store?"),
        ("How do I save a file in vim?", "How do I store a file in vim?"),
        ("Where can I buy stock of that company?", "Where can I buy shares of that company?"),
        ("How do I distribute a document?", "How do I share a document?"),
        ("How do I close a window?", "How do I shut a window?"),
        ("Is the hotel close to the beach?", "Is the hotel near to the beach?"),
        ("Is there a chance to learn?", "Is there an opportunity to learn?"),
        ("What is the chance of rain?", "What is the probability of rain?"),
        ("What is a nice present?", "What is a nice gift?"),
        ("How do I present a chart?", "How do I show a chart?"),
        ("How do I quit smoking?", "How do I stop smoking?"),
        ("How do I quit a job?", "How do I resign a job?"),
        ("Where is the lift?", "Where is the elevator?"),
        ("Why did sales decline?", "Why did sales decrease?"),
    ],
)
def test_a_word_of_two_meanings_matches_the_synonyms_of_each(one: str, other: str) -> None:
    """In either order, and with no veto."""
    assert same_words(one, other)
    assert same_words(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How do I save a car?", "How do I shop a car?"),
        ("Where is the stock?", "Where is the distribution?"),
        ("Is the shop near?", "Is the shop shut?"),
        ("What is an opportunity?", "What is a probability?"),
        ("Is that a gift?", "Is that a display?"),
        ("How do I resign?", "How do I stop?"),
        ("How do poor people live?", "How do bad people live?"),
        ("What is a wood fire?", "What is a forest fire?"),
        ("Where is my application?", "Where is my app?"),
        ("What does it mean to sit?", "What does it mean to website?"),
        ("How do I feed a horse?", "How do I charge a horse?"),
        ("What is a unit?", "What is a merge?"),
    ],
)
def test_meanings_of_one_word_are_not_one_anothers_synonyms(one: str, other: str) -> None:
    """Nor are words that only share the beginning of a synonym."""
    assert not same_words(one, other)


def test_each_meaning_of_a_word_has_its_opposites() -> None:
    """`present` may be `show`, which is the opposite of `hide`; an orange is no apple, and orange is not red."""
    pair = Pair("Revise the page to present the chart.", "Revise the page to hide the chart.")
    assert pair.refusal(SWITCHED, "alone") == "negation"
    assert KIND["orange"] == {"colour", "food"}
    for other_kind in ("an apple", "red"):
        assert Pair("Is it orange?", f"Is it {other_kind}?").refusal(SWITCHED, "alone") == "entities"


@pytest.mark.parametrize("embedding", ["static", "minilm"])
def test_the_shipped_verifier_serves_the_store_for_the_shop(embedding: str) -> None:
    """At its strict threshold, as it does another way to ask for a way; and not what is saved for what is shopped."""
    verifier = Verifier.load(shipped_verifier(embedding))
    assert verifier.score("Where is the nearest shop?", "Where is the nearest store?", 0.9).score >= verifier.strict
    assert verifier.score("How do I save a file?", "How do I store a file?", 0.9).score >= verifier.strict
    assert verifier.score("How do I save a car?", "How do I shop a car?", 0.9).score < verifier.strict


def test_every_group_can_change_something() -> None:
    """It has two words at least, each once."""
    for group in GROUPS:
        assert len(group) == len(set(group)) > 1


def test_words_of_several_meanings_head_no_group() -> None:
    """Else their own root would stand for one of their meanings."""
    several = {word for word, heads in SYNONYM.items() if len(heads) > 1}
    assert {"store", "share"} <= several
    assert several.isdisjoint(group[0] for group in GROUPS)


def test_no_two_groups_stand_for_the_same() -> None:
    """A word's root may be another word's: `resign` was `stop`, for both were `quit`."""
    said = {group: {senses_of(stem(word), root_of(stem(word))) for word in group} for group in GROUPS}
    meanings = {group: {senses[0] for senses in each if len(senses) == 1} for group, each in said.items()}
    for (one, left), (other, right) in combinations(meanings.items(), 2):
        assert left.isdisjoint(right), (one, other)
