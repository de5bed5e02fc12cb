"""Which script and language a text is written in."""

from __future__ import annotations

import pytest

from cache.text.reading import is_english, script_of


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
