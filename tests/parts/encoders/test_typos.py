"""Slips are read as the words of the other question; words, names and what may be two things are left alone."""

from __future__ import annotations

import hashlib
import json

import pytest

from gateway.parts.encoders.typos import SHEET, Level, respelled
from tools.collect_words import word_table


@pytest.mark.parametrize(
    ("stored", "asked", "meant"),
    [
        ("Why does my bicycle squeak?", "why dose my bycicle sqeuak", "why dose my bicycle squeak"),
        ("What are the symptoms of measles?", "waht are the symptons of measels", "what are the symptoms of measles"),
        (
            "How do I recover a photo on Android?",
            "how to recvoer a photo on andriod",
            "how to recover a photo on Android",
        ),
        ("Is the oil in my car too old?", "is teh oli in my car too old", "is the oil in my car too old"),
        (
            "Wann muss ich den Wasserkocher entkalken?",
            "wann den wasserkoher entkalken",
            "wann den Wasserkocher entkalken",
        ),
        ("Quels sont les symptômes d'une carence ?", "symptomes d'une carrence", "symptômes d'une carence"),
        ("Jak usunąć rdzę z roweru?", "usunac rdze z rowreu", "usunąć rdzę z roweru"),
        ("¿Cómo arreglo una bicicleta?", "como areglo una bicilceta", "como arreglo una bicicleta"),
        ("Wie öffne ich den Kofferraum?", "wie oeffne ich den koferraum", "wie öffne ich den Kofferraum"),
    ],
)
def test_a_slip_is_read_as_the_word_that_only_the_other_has(stored: str, asked: str, meant: str) -> None:
    """In either text, in every language whose words are known, with its accents where the text has none."""
    assert respelled(stored, asked) == (stored, meant)
    assert respelled(asked, stored) == (meant, stored)


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("What is sulfate?", "What is sulfite?"),  # both are words
        ("What is methanol?", "What is ethanol?"),
        ("Side effects of prednisone", "Side effects of prednisolone"),
        ("How do I treat hypoglycemia?", "How do I treat hypreglycemia?"),  # nearer to hyperglycemia
        ("What causes hypervolemia?", "What causes hypovolemia?"),
        ("Jakie są objawy hiperglikemii?", "Jakie są objawy hipoglikemii?"),
        ("O que é o hipertiroidismo?", "O que é o hipotiroidismo?"),
        ("Is nitrate in water bad?", "Is nitrte in water bad?"),  # as near to nitrite
        ("Is it legal to record a call?", "Is it ilegal to record a call?"),  # illegal
        ("Was ist essbar?", "Was ist unessbar?"),
        ("Jak odciąć przewód?", "Jak dociąć przewód?"),  # two prefixes
        ("Mój kuzyn jest czternastoletni", "Moja czternastoletnia kuzynka"),  # an ending
        ("Who is John Smith?", "Who is John Smyth?"),  # a name that people have
        ("Does Kubernetes use etcd?", "Does Kubernetes use etdc_2?"),  # a part of a sign
        ("How is `receive` spelled?", "How is `recieve` spelled?"),  # quoted
        ("Wie backe ich Kuchen schön braun?", "Wie putze ich die Kueche schon?"),  # words without accents, too
        ("Quando arrivò il treno?", "Quando arrivo?"),
        ("鍵を開ける方法は?", "鍵を閉める方法は?"),
        ("Su içilir mi?", "Su içilmezz mi?"),
    ],
)
def test_what_may_be_another_word_is_left_as_it_is(stored: str, asked: str) -> None:
    assert respelled(stored, asked) == (stored, asked)
    assert respelled(asked, stored) == (asked, stored)


def test_short_forms_of_english_chats_are_spelled_out() -> None:
    """In both texts, for the guards and for the model; in other languages `im` is a word of theirs."""
    assert respelled("How do I freeze bananas?", "how 2 freeze bananas") == (
        "How do I freeze bananas?",
        "how to freeze bananas",
    )
    assert respelled("my app wont open b4 noon", "tickets 4 kids")[0] == "my app will not open before noon"
    german = "Wie schneide ich Rosen im Herbst?"
    assert respelled(german, "rosen schneiden im herbst") == (german, "rosen schneiden im herbst")


def test_a_word_that_both_have_is_no_slip() -> None:
    """Nor does one take the place of two: `dinning` stays where both have `dining` or its slip."""
    both = "Where is the dinning table that the dining table maker made?"
    assert respelled(both, "Where is the dining table?") == (both, "Where is the dining table?")


def test_the_table_is_the_one_that_its_data_sheet_describes() -> None:
    """And a word keeps the highest level that it is given."""
    assert (
        json.loads(SHEET.read_bytes())["sha256"]
        == hashlib.sha256(SHEET.with_suffix(".safetensors").read_bytes()).hexdigest()
    )
    assert [int(one) & 3 for one in word_table({"water": Level.COMMON, "watre": Level.SEEN})] in ([3, 0], [0, 3])
