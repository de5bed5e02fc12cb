from __future__ import annotations

import pytest

from cache.planning.eligibility import _volatile_list, is_volatile


@pytest.mark.parametrize(
    "text",
    [
        "What is the price of gold today?", "What time is it now?", "latest iPhone", "Who is the current champion?",
        "Is the weather nice in Rome?", "What's today's date?", "any news about the strike", "How old is the king?",
        "What is the score?", "WHAT HAPPENED LAST NIGHT", "Wie wird das Wetter morgen?", "Wie spät ist es?",
        "Quelle heure est-il ?", "Que se passe-t-il aujourd’hui ?", "¿Quién es el presidente?", "¿Qué hora es?",
        "Che ore sono?", "Que horas são?", "Wat is het laatste nieuws?", "Какая сегодня погода?", "今天天气怎么样?",
        "東京の天気は?", "오늘의 날씨 어때?",
    ],
)  # fmt: skip
def test_what_changes_by_the_day_is_volatile(text: str) -> None:
    """The time, the weather, news, prices and who is in office, in several languages."""
    assert is_volatile(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "Where do penguins live?", "How do I share a folder?", "What is a good score in golf?",
        "Do black guys like to date Indian girls?", "How do I get traffic on my blog?", "Why is knowledge power?",
        "How do I stock a pond?", "What is the actual meaning of irony?", "Hier steht ein Haus", "春天为什么暖和?",
        "Why is it a snowy day?",
    ],
)  # fmt: skip
def test_what_lasts_is_not_volatile(text: str) -> None:
    """A word that mostly means something else, or that only contains one of the list, is no sign of it."""
    assert not is_volatile(text)


def test_of_a_long_text_the_ends_are_looked_at() -> None:
    """There the question stands; a document that says `today` somewhere is not volatile for that."""
    document = "It has rained a lot, and the river rose. " * 100
    assert is_volatile(f"What is the weather in Rome? {document}")
    assert is_volatile(f"{document} What is the price of gold?")
    assert not is_volatile(f"Summarise: {document} And today it is dry. {document}")


@pytest.mark.parametrize("entry", ["Today", "the end of days", "e-mail"])
def test_an_entry_that_could_never_be_found_is_refused(entry: str) -> None:
    """Texts are looked at in lower case, word by word, and in pairs of words at most."""
    with pytest.raises(ValueError, match=entry):
        _volatile_list(f"# A comment.\ntoday, {entry}\n")
