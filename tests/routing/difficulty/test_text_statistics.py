"""The terms of a text, and what is counted in a request."""

from __future__ import annotations

import re
from zlib import crc32

import numpy as np
import pytest

from routing.difficulty.text_statistics import BUCKETS, COUNTS, ENOUGH, counts_of, shortened, terms_of, tokenise
from routing.embedder import bounded
from routing.features import Features

QUESTION = "Which gas do plants take in?"
CHOICES = "\nA. Oxygen\nB. Carbon dioxide\nAnswer:"


def buckets(text: str) -> set[int]:
    return set(terms_of(tokenise(text))[0].tolist())


def test_words_before_the_first_choice_are_what_is_asked() -> None:
    """The choices' words are kept apart; a text without choices is all question."""
    reading = tokenise(QUESTION + CHOICES)
    assert reading.words[: reading.asked] == [b"which", b"gas", b"do", b"plants", b"take", b"in"]
    assert reading.words[reading.asked :] == [b"oxygen", b"carbon", b"dioxide", b"answer"]
    assert reading.choices_at == len(QUESTION)
    assert tokenise(QUESTION).asked == 6


@pytest.mark.parametrize(
    "text",
    [
        "", "Don't: x_1 2nd a B", "".join(map(chr, range(256))), " Ab".join(map(chr, range(256))), "ΣΊΣ ς İstanbul",
        "b\ud800cd 日本 語彙 ﬁn", "Größe?\nA. Übel ½m\nB. ’Tis",
    ],
)  # fmt: skip
def test_words_are_rows_of_two_or_more_letters_or_digits(text: str) -> None:
    """Of Latin-1 they are cut by a table, with the same words."""
    words = [word.encode() for word in re.findall(r"\w\w+", text.lower())]
    assert tokenise(text).words == words
    assert tokenise(text).hashes.tolist() == list(map(crc32, words))


def test_case_does_not_matter_and_order_and_place_do() -> None:
    """Equal words give equal terms; a pair turned round, or a word moved into the choices, gives others."""
    assert buckets("Heat flows") == buckets("heat FLOWS")
    assert buckets("heat flows") != buckets("flows heat")
    assert buckets("heat flows") & buckets("flows heat")
    assert buckets("Name the gas\nA. oxygen\nB. neon") > buckets("Name the gas") | buckets("oxygen")


@pytest.mark.parametrize("text", ["", "a", "? !", "\ud800\ud800", "word", "日本 語彙", "\nA. \nB. "])
def test_any_text_has_terms(text: str) -> None:
    """Empty and strange texts too: buckets are within bounds and distinct, weights at least 1."""
    found, often = terms_of(tokenise(text))
    assert len(set(found.tolist())) == len(found) == len(often)
    assert np.all((found >= 0) & (found < BUCKETS))
    assert np.all(often >= 1)


def test_said_more_often_weighs_more_but_not_in_proportion() -> None:
    """Once weighs 1, three times 1 + log 3."""
    found, often = terms_of(tokenise("buffalo " * 3))
    weight = dict(zip(found.tolist(), often.tolist(), strict=True))
    (once,) = buckets("buffalo")
    assert weight[once] == pytest.approx(1 + np.log(3))


def test_a_text_that_says_little_weighs_little() -> None:
    """Long weights get length 1, short ones stay in proportion; nothing stays nothing."""
    assert shortened(np.array([3, 4], np.float32) * 100).tolist() == pytest.approx([0.6, 0.8])
    assert shortened(np.array([0, ENOUGH / 2], np.float32)).tolist() == pytest.approx([0, 0.5])
    assert shortened(np.zeros(2, np.float32)).tolist() == [0, 0]


def counted(text: str) -> dict[str, float]:
    counts = counts_of(Features(text=text, turns=1, approx_tokens=len(text) // 4 + 4), tokenise(bounded(text)))
    assert counts.dtype == np.float32
    return dict(zip(COUNTS, counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "text",
    ["", " ", "a" * 2_000_000, "\ud800", "日本の首都は?", "x = {1: 2}\n```\ndef f(): return 1\n```", "\nA. \nB. "],
)
def test_counts_are_finite_for_any_text(text: str) -> None:
    """Empty, huge and strange texts give finite counts, one for each name."""
    assert np.isfinite(list(counted(text).values())).all()


def test_choices_are_counted_apart_from_the_question() -> None:
    """How many there are, how long they and the question are, and whether they are numbers."""
    counts = counted("How many legs has a spider?\nA. 8\nB. 16\nC. six\nD. none\nAnswer:")
    assert counts["log_choices"] == pytest.approx(np.log1p(4))
    assert counts["log_question_chars"] == pytest.approx(np.log1p(len("How many legs has a spider?")))
    assert counts["log_choice_chars"] == pytest.approx(np.log1p((1 + 2 + 3 + 4) / 4))
    assert counts["share_choices_with_digits"] == 0.5
    plain = counted("How many legs has a spider?")
    assert (plain["log_choices"], plain["log_choice_chars"]) == (0, 0)


def test_code_mathematics_and_style_are_seen() -> None:
    """What kind of text it is shows in its marks."""
    assert counted("def f(): pass")["code"] == 1
    assert counted("x^2 + y^2 = 9")["share_mathematics"] > counted("two squares make nine")["share_mathematics"]
    assert counted("the cat the cat")["share_distinct_words"] == 0.5


def test_the_conversation_and_the_request_are_counted() -> None:
    """How long an answer is asked for, whether it is corrected, which language it is in, and what tools there are."""
    short = counted("Summarise this in one sentence, briefly.")
    assert short["log_short_asked"] == pytest.approx(np.log1p(2))
    assert counted("Write 500 words, in detail.")["log_long_asked"] == pytest.approx(np.log1p(2))
    assert counted("That is wrong. Try again!")["log_corrections"] == pytest.approx(np.log1p(2))
    assert counted("What is the size of it?")["share_english"] > 0.7
    assert counted("Wie hoch ist der Berg?")["share_english"] == 0
    request = Features(text="Book it.", turns=1, approx_tokens=6, has_tools=True, tools=3, parallel_tools=True)
    counts = dict(zip(COUNTS, counts_of(request, tokenise("Book it.")).tolist(), strict=True))
    assert (counts["log_tools"], counts["parallel_tools"]) == (pytest.approx(np.log1p(3)), 1)
