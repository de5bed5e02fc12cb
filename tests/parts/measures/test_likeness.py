"""How likely two answers say the same, by the pair model that ships."""

from __future__ import annotations

import pytest

from cache import shipped_cross_encoder
from gateway.parts.encoders.cross_encoder import CrossEncoder
from gateway.parts.measures.likeness import AgreementScore, AnswerLikeness, by_words
from policies.model import UNCALIBRATED_BELOW
from tests.parts.measures.test_statements import Reader

SAME = [
    ("What is the capital of Peru?", "Lima.", "The capital of Peru is Lima."),
    ("Was ist die Hauptstadt von Peru?", "Lima.", "Die Hauptstadt von Peru ist Lima."),
    ("¿Cuál es la capital de Perú?", "Lima.", "La capital de Perú es Lima."),
    ("Quelle est la capitale du Pérou ?", "Lima.", "La capitale du Pérou est Lima."),
    ("秘鲁的首都是哪里？", "利马。", "秘鲁的首都是利马。"),
    ("ペルーの首都はどこですか？", "リマです。", "ペルーの首都はリマです。"),
]
OTHER = [
    ("What is the capital of Peru?", "The capital of Peru is Lima.", "The capital of Peru is Quito."),
    ("Is the road open?", "The road is open.", "The road is not open."),
    ("Was kostet es?", "Es kostet fünf Euro.", "Es kostet acht Euro."),
    ("¿Está abierta la carretera?", "La carretera está abierta.", "La carretera no está abierta."),
    ("La route est-elle ouverte ?", "La route est ouverte.", "La route n'est pas ouverte."),
    ("路开放吗？", "路是开放的。", "路不是开放的。"),
    ("道は開いていますか？", "道は開いています。", "道は開いていません。"),
]


@pytest.fixture(scope="module")
def engine() -> AnswerLikeness:
    return AnswerLikeness(CrossEncoder.load(shipped_cross_encoder()))


@pytest.mark.parametrize(("question", "one", "other"), SAME)
def test_a_short_answer_agrees_with_a_long_one(engine: AnswerLikeness, question: str, one: str, other: str) -> None:
    """In any of six languages, and in either order, although no words but one are shared."""
    for told in (engine.compare(one, other, question), engine.compare(other, one, question)):
        assert told.by == "pair_model" and told.score is not None and told.score >= UNCALIBRATED_BELOW


@pytest.mark.parametrize(("question", "one", "other"), OTHER)
def test_an_edit_that_contradicts_is_no_agreement(engine: AnswerLikeness, question: str, one: str, other: str) -> None:
    """Another name, a negation, another amount."""
    told = engine.compare(one, other, question)
    assert told.score is not None and told.score < 0.5


def test_long_answers_are_compared_by_statements(engine: AnswerLikeness) -> None:
    """In another order they agree; with another statement they agree less."""
    asked = "How do I bake bread?"
    parts = ["Mix flour, water and yeast.", "Let the dough rise for an hour.", "Bake it in a hot oven."]
    same = engine.compare(" ".join(parts), " ".join(reversed(parts)), asked)
    other = engine.compare(
        " ".join(parts), " ".join([parts[0], "Let the dough rise for a day.", "Never bake it."]), asked
    )
    assert same.score is not None and other.score is not None and same.score > other.score


def test_words_alone_say_only_what_is_sure() -> None:
    """Without a cross-encoder there is no signal, but where texts are equal or have other numbers."""
    bare = AnswerLikeness(None)
    assert bare.compare("The answer is Rome.", "answer is:  rome") == AgreementScore(1.0, "words")
    assert bare.compare("It is 42.", "It makes 43.") == AgreementScore(0.0, "words")
    assert bare.compare("Rome.", "It is Rome.") == AgreementScore(None, "there is no cross-encoder")
    assert by_words("It is 42 of 100.", "42, as 100 were asked", "How many of 100?") is None


def test_what_the_model_cannot_read_is_no_signal() -> None:
    """Another script or language, code that differs, and a pair without a score."""
    reader = AnswerLikeness(Reader(languages=("en",), scripts=("Latin",)))
    assert "script" in reader.compare("Вода закипает.", "Она кипит.").by
    assert reader.compare("Run:\n```\nls\n```", "Run:\n```\nrm\n```", "How do I list?").by == "other code"
    unread = Reader()
    unread.scores = lambda pairs: [0.0] * len(pairs)  # type: ignore[method-assign]
    assert AnswerLikeness(unread).compare("It is fine.", "All is well.", "How is it?").score is None
