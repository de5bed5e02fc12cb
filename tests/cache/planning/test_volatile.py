from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cache.planning.volatile import (
    ARTEFACT,
    FACT,
    TOKEN,
    VolatileError,
    VolatileHead,
    facts_of,
    pairs_of,
    sentences_of,
    token,
    volatile_head,
    volatility_of,
)


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
    assert volatility_of(text) != "stable"


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
    """A word that mostly means something else is no sign of it."""
    assert volatility_of(text) != "volatile"


@pytest.mark.parametrize(
    "text",
    [
        "What time zone is Chicago in?", "What is inflation?", "What is price elasticity?", "What is electric current?",
        "How old was Napoleon when he died?", "Who was president in 1860?", 'What does "at the latest" mean?',
        "Once there was a king. Now the king had three daughters.", "In welcher Zeitzone liegt Rom?",
        "Qui était président en 1860 ?", "什么是通货膨胀?", "インフレとは何ですか?", "인플레이션이 뭐야?",
        "Что такое инфляция?",
    ],
)  # fmt: skip
def test_a_word_of_time_in_a_lasting_question_is_no_sign(text: str) -> None:
    """What a price or a president is, what was long ago, and a `now` within a story stay as they are."""
    assert volatility_of(text) != "volatile"


@pytest.mark.parametrize(
    "text",
    [
        "Is the pharmacy on Main Street open?", "Who leads the Premier League?", "Did my team win?",
        "how is the dollar doing", "is the site down", "when is the next train", "Hat die Apotheke offen?",
        "Est-ce que la pharmacie est ouverte ?", "药店开门了吗?", "薬局は開いていますか?", "Аптека открыта?",
    ],
)  # fmt: skip
def test_a_question_about_this_moment_needs_no_word_for_it(text: str) -> None:
    """What is open, ahead, down or next is another thing tomorrow."""
    assert volatility_of(text) != "stable"


def test_of_a_long_text_the_ends_are_looked_at() -> None:
    """There the question stands; a document that says `today` somewhere is not volatile for that."""
    document = "It has rained a lot, and the river rose. " * 100
    assert volatility_of(f"What is the weather in Rome? {document}") == "volatile"
    assert volatility_of(f"{document} What is the price of gold today?") == "volatile"
    assert volatility_of(f"Summarise: {document} And today it is dry. {document}") == "stable"


def test_one_sentence_about_this_moment_is_enough() -> None:
    """The sentences around it do not hide it."""
    story = "I am planning a trip with my two sisters. We like museums."
    assert volatility_of(story) == "stable"
    assert volatility_of(f"{story} What is the weather in Rome today?") == "volatile"
    assert volatility_of(f"What is the weather in Rome today? {story}") == "volatile"


def test_a_table_that_the_sheet_does_not_describe_is_refused(tmp_path: Path) -> None:
    """A changed or missing file is named, with the command that makes it again."""
    for file in ARTEFACT.iterdir():
        shutil.copy(file, tmp_path)
    assert VolatileHead.load(tmp_path).version == volatile_head().version
    table = tmp_path / "volatile.safetensors"
    table.write_bytes(table.read_bytes()[:-1] + b"\x01")
    with pytest.raises(VolatileError, match=r"volatile\.safetensors.*sha256"):
        VolatileHead.load(tmp_path)
    table.unlink()
    with pytest.raises(VolatileError, match=r"tools\.train_volatile"):
        VolatileHead.load(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "What's the price of \"gold\" at 10:30 on 1,000.5 days in 1999, 2024?", "오늘의 날씨",
        "it's: 50% off. Now? Yes! No\n\nAnd so on.", "今日の円相場は？そして昨日は。", "ไทยไม่มีเว้นวรรค now",
        "Wie spät ist es? Und wo? l’eau d'or 'quoted'",
        "İstanbul'da hava nasıl?", "x_1 ?? !!\t\n. a\n \nb", "One. Two. Three? Four. Five? Six? Seven? Eight.", "…", "",
    ],
)  # fmt: skip
def test_a_score_is_the_sum_of_what_the_head_was_fitted_to(text: str) -> None:
    """Words are remembered, pairs and facts looked up: equal to the last bit to the rows that training reads."""
    head = volatile_head()
    weights, bits = head._weights, head._bits
    sentences, count = sentences_of(text)
    scores = [float("-inf")]
    for sentence in sentences:
        words = [token(word, bits) for word in TOKEN.findall(sentence)]
        total = 0.0
        for word in words:
            total += sum(weights[row] * value for row, value in zip(word.rows, word.values, strict=True))
        total += sum(weights[row] for row in pairs_of([word.form for word in words if word.form], bits))
        total /= max(1.0, sum(word.size for word in words)) ** 0.5
        facts = sum(weights[row] for row in facts_of(text, sentence, count, bits))
        if words:
            scores.append(head._bias + head._scale * (total + FACT * facts))
    assert head.score(text) == max(scores)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (" One ", ["one"]), ("One?", ["one?"]), ("。", ["。"]), ("\n", []), ("", []), ("A. b", ["a.", "b"]),
        ("a.\n\n b\n \nc 3.5", ["a.", "b", "c 3.5"]), ("何？はい。no", ["何？", "はい。", "no"]), ("a? ", ["a?"]),
    ],
)  # fmt: skip
def test_a_text_is_cut_after_its_sentences_and_lines(text: str, sentences: list[str]) -> None:
    """Where no space separates sentences, their ends do."""
    assert sentences_of(text) == (sentences, len(sentences))
