"""A text as the things it says."""

from __future__ import annotations

import numpy as np
import pytest

from routing.difficulty.text_statistics import BUCKETS, ENOUGH, read, shortened, terms_of

QUESTION = "Which gas do plants take in?"
CHOICES = "\nA. Oxygen\nB. Carbon dioxide\nAnswer:"


def buckets(text: str) -> set[int]:
    return set(terms_of(read(text))[0].tolist())


def test_words_before_the_first_choice_are_what_is_asked() -> None:
    """The choices' words are kept apart; a text without choices is all question."""
    reading = read(QUESTION + CHOICES)
    assert reading.words[: reading.asked] == ["which", "gas", "do", "plants", "take", "in"]
    assert reading.words[reading.asked :] == ["oxygen", "carbon", "dioxide", "answer"]
    assert reading.choices_at == len(QUESTION)
    assert read(QUESTION).asked == 6


def test_case_does_not_matter_and_order_and_place_do() -> None:
    """Equal words give equal terms; a pair turned round, or a word moved into the choices, gives others."""
    assert buckets("Heat flows") == buckets("heat FLOWS")
    assert buckets("heat flows") != buckets("flows heat")
    assert buckets("heat flows") & buckets("flows heat")
    assert buckets("Name the gas\nA. oxygen\nB. neon") > buckets("Name the gas") | buckets("oxygen")


@pytest.mark.parametrize("text", ["", "a", "? !", "\ud800\ud800", "word", "日本 語彙", "\nA. \nB. "])
def test_any_text_has_terms(text: str) -> None:
    """Empty and strange texts too: buckets are within bounds and distinct, weights at least 1."""
    found, often = terms_of(read(text))
    assert len(set(found.tolist())) == len(found) == len(often)
    assert np.all((found >= 0) & (found < BUCKETS))
    assert np.all(often >= 1)


def test_said_more_often_weighs_more_but_not_in_proportion() -> None:
    """Once weighs 1, three times 1 + log 3."""
    found, often = terms_of(read("buffalo " * 3))
    weight = dict(zip(found.tolist(), often.tolist(), strict=True))
    (once,) = buckets("buffalo")
    assert weight[once] == pytest.approx(1 + np.log(3))


def test_a_text_that_says_little_weighs_little() -> None:
    """Long weights get length 1, short ones stay in proportion; nothing stays nothing."""
    assert shortened(np.array([3, 4], np.float32) * 100).tolist() == pytest.approx([0.6, 0.8])
    assert shortened(np.array([0, ENOUGH / 2], np.float32)).tolist() == pytest.approx([0, 0.5])
    assert shortened(np.zeros(2, np.float32)).tolist() == [0, 0]
