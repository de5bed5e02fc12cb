"""Which answers come to the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.parts.hit_audits.comparison import AnswerComparer, contradict, includes, text_of
from tests.cache.samples import answer
from tests.parts.measures.test_statements import Reader


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ("Rome.", "Rome.", False),
        ("Rome is the capital of Italy.", "The capital of Italy is Rome.", False),
        ("Yes, it is safe.", "No, it is not safe.", True),
        ("It was written by Tolstoy.", "It was written by Dostoevsky.", False),
        ("Bring no towels.", "For towels please look after yourselves.", False),
        ("In 1969 Armstrong and Aldrin landed.", "Armstrong landed in 1969, with Aldrin, after 4 days.", False),
    ],
)
def test_answers_contradict_each_other_by_a_yes_and_a_no_alone(one: str, other: str, differ: bool) -> None:
    """A negation or another name is in many answers that say the same."""
    assert (contradict(one, other) == "different") is differ


BOILS = ("It boils at 100 degrees.", "It boils at 90 degrees.")


@pytest.mark.parametrize(
    ("one", "other", "question", "found"),
    [
        (*BOILS, "When does it boil?", "different"),
        ("Check-in is from 3 p.m. to 9 p.m.", "You can come between 15:00 and 21:00.", "When?", "unknown"),
        ("Check-in is from 3 p.m.", "We welcome you at the reception from three.", "When?", "unknown"),
        ("The key is under the mat.", "A bus leaves at the gate.", "Where is the key?", "different"),
        ("Of the 3 cities, Rome fits.", "Of the 3 cities, Oslo fits.", "Which of the 3 cities fits?", "different"),
        ("Ab 11 Uhr ist der Platz frei.", "Ab 15 Uhr ist der Platz frei.", "Ab wann?", "different"),
    ],
)  # fmt: skip
def test_two_signs_together_say_that_answers_differ(one: str, other: str, question: str, found: str) -> None:
    """Other numbers, or far vectors and no number in common, and a model that is sure; what it is unsure of is unknown.

    The clock has twelve hours, number words are numbers, and the question's say nothing.
    """
    assert AnswerComparer(far, Reader()).compare(one, other, question) == found
    assert AnswerComparer(far, Reader([frozenset((one, other))])).compare(one, other, question) != "different"
    assert AnswerComparer(far, Reader(languages=())).compare(one, other, question) == "unknown"


def test_near_vectors_are_no_sign() -> None:
    """Opposites are near; without a model other numbers decide."""
    one, other = "The key is under the mat.", "A bus leaves at the gate."
    assert AnswerComparer(near, Reader()).compare(one, other) == "unknown"
    assert AnswerComparer(near).compare(*BOILS) == "different"


def far(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.eye(len(texts), dtype=np.float32)


def near(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.ones((len(texts), 1), np.float32)


def test_the_text_of_a_completion_is_what_its_choices_say() -> None:
    """What is no completion says nothing."""
    assert text_of(answer("Rome.").completion) == "Rome."
    assert text_of({"choices": [None, {"message": 3}]}) == ""
    assert text_of({}) == ""


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("To mute the bell, open Sounds and turn it off.", "To ring the bell, open Sounds and turn it on."),
        ("Hypoglycaemia is a blood sugar below the normal range.", "Hyperglycaemia is one above the normal range."),
        ("The buyer pays for the survey before the contract is signed.",
         "The seller pays for the survey before the contract is signed."),
        ("If you arrive early, the desk keeps your bags.", "If you arrive late, the desk charges for your bags."),
        ("Take it with food, and keep it in a dry place away from light.",
         "Do not take it with food, and keep it in a dry place away from light, out of the reach of children."),
        ("The warranty covers the battery and the screen for two years.",
         "The warranty covers the battery and the screen, which makes repairs cheap."),
        ("Tap the bell and switch it on.", "Tap the bell and switch it off."),
        ("Take the pill before the meal.", "Take the pill after the meal."),
        ("All members can vote.", "Some members can vote."),
        ("Convert miles to kilometres.", "Convert kilometres to miles."),
    ],
)  # fmt: skip
def test_near_answers_that_may_be_opposites_are_not_called_the_same(one: str, other: str) -> None:
    """An opposite, a negation, a quantity or a name in one of them, or a word for another: in either order."""
    assert contradict(one, other) in ("doubtful", "different")
    assert contradict(other, one) in ("doubtful", "different")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("打开设置，选择通知，然后开启即可。", "打开设置，选择通知，然后关闭即可。"),
        ("設定を開き、通知をオンにします。", "設定を開き、通知をオフにします。"),
        ("افتح الإعدادات وفعّل الإشعارات.", "افتح الإعدادات وعطّل الإشعارات."),
        ("Откройте настройки и включите звук.", "Откройте настройки и выключите звук."),
        ("Öffnen Sie die Einstellungen und schalten Sie den Ton ein.",
         "Öffnen Sie die Einstellungen und schalten Sie den Ton aus."),
        ("Abra la configuración y active el sonido de la llamada.",
         "Abra la configuración y desactive el sonido de la llamada."),
    ],
)  # fmt: skip
def test_answers_in_other_scripts_and_languages_are_unreadable(one: str, other: str) -> None:
    """The words are not known, and the vectors were not made for them; equal texts agree all the same."""
    assert contradict(one, other) == "unreadable"
    assert contradict(one, one) == ""


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("可以，当天就能退货。", "不可以退货。", "different"),
        ("はい、持ち込めます。", "いいえ、持ち込めません。", "different"),
        ("네, 됩니다.", "아니요, 안 됩니다.", "different"),
        ("Да, можно.", "Нет, нельзя.", "different"),
        ("Sí, se puede.", "No, no se puede.", "different"),
        ("可以在设置里关闭。", "不同的手机步骤不同。", "unreadable"),
        ("Si llueve, se cancela.", "No se cancela.", "unreadable"),
    ],
)
def test_a_yes_and_a_no_differ_in_many_languages(one: str, other: str, found: str) -> None:
    """At the beginning of an answer, and not as the beginning of another word."""
    assert contradict(one, other) == found


def test_other_words_for_the_same_are_compared_by_their_vectors() -> None:
    """Where nothing looks like an opposite."""
    one = "Press the small button at the back with a pin until the lights blink."
    other = "At the rear there is a recessed reset switch: hold it down with a paper clip, then wait for the lamps."
    assert contradict(one, other) == ""
