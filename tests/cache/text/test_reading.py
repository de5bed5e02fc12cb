"""Which script and language a text is written in."""

from __future__ import annotations

import re

import pytest

from cache.text.reading import (
    first_letters,
    is_english,
    letters_of,
    script_of,
    text_letters,
    text_words,
    unwrap,
    word_rows,
    words_spelled_out,
)

LATIN_1 = "".join(map(chr, range(256)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("How do I mute the bell?", "Latin"),
        ("Wie öffne ich das?", "Latin"),
        ("iPhone的通知怎么关闭？", "Han"),
        ("通知をオフにする", "Hiragana"),
        ("알림을 끄려면?", "Hangul"),
        ("Как включить звук?", "Cyrillic"),
        ("كيف أفعّل الإشعارات؟", "Arabic"),
        ("ปิดเสียงอย่างไร", "Thai"),
        ("5", ""),
        ("…？", ""),
    ],
)
def test_the_script_of_a_text_is_that_of_most_of_it(text: str, name: str) -> None:
    """Japanese has a script of its own beside one that it shares."""
    assert script_of(text) == name


@pytest.mark.parametrize(
    ("texts", "english"),
    [
        (("The bell rings.",), True),
        (("Canberra.", "Sydney.", "What is the capital of Australia?"), True),
        (("Canberra.", "Sydney."), False),
        (("O serviço aceita pedidos fora do prazo.",), False),
        (("Si può bere l'acqua.", "La compressa va presa prima di mangiare."), False),
        (("Die Mitnahme ist erlaubt.", "How is that?"), False),
    ],
)
def test_texts_are_english_by_their_function_words(texts: tuple[str, ...], english: bool) -> None:
    """More of them than of other languages; without any, it is not known to be English."""
    assert is_english(*texts) is english


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "Don't, don’t: x_1 2nd __init__ 1,000.5", LATIN_1, " A".join(LATIN_1), "ΣΊΣΥΦΟΣ ς İstanbul ﬁn 日本 語",
        "A\u0301 b\ud800c \u2028d", "Ist das möglich? 5€ – ½ ² µm",
    ],
)  # fmt: skip
def test_words_are_rows_of_letters_and_digits_in_lower_case(text: str) -> None:
    """Of Latin-1 they are cut by a table, with the same words."""
    letters = re.findall(r"[^\W\d_]+", text.lower())
    assert text_words(text) == word_rows(text) == re.findall(r"\w+", text.lower())
    assert text_letters(text) == letters_of(text) == letters
    for count in (1, 3, 40):
        assert first_letters(text, count) == letters[:count]


@pytest.mark.parametrize("text", ["can u tell me howſ that", "u know whatſ up", "u know what'ſ up"])
def test_a_short_form_with_a_long_s_is_none(text: str) -> None:
    """`re` takes ſ for s, where the tables of short forms and contractions do not have it."""
    assert words_spelled_out(text) == text.replace("u ", "you ", 1)
    assert unwrap(f"Where is {text}") == f"Where is {words_spelled_out(text)}"
