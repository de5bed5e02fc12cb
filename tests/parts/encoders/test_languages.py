"""The language of a question, told by its script or its groups of letters; in doubt it is one of those listed."""

from __future__ import annotations

import numpy as np
import pytest

from cache.planning.plan import Planner
from cache.text import languages as module
from cache.text.languages import Language, language, language_of, languages_to_read
from gateway.parts.encoders import languages

LISTED = frozenset(["en", "zh", "ja", "ko", "ar", "th", "ru", "tr", "de", "fr", "es", "it", "pt", "nl", "pl"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("How do I change my password?", "en"),
        ("refund policy", "en"),
        ("café opening hours on Sunday", "en"),
        ("Wie kann ich mein Konto kündigen?", "de"),
        ("Comment puis-je annuler ma commande ?", "fr"),
        ("¿Dónde puedo cambiar mi contraseña?", "es"),
        ("Como posso mudar a minha senha?", "pt"),
        ("Nasıl şifre değiştiririm?", "tr"),
        ("Jak mogę zmienić hasło?", "pl"),
        ("Как мне сменить пароль?", "ru"),
        ("كيف أغير كلمة المرور؟", "ar"),
        ("怎么改密码？", "zh"),
        ("パスワードを変える方法", "ja"),
        ("変更", "zh"),
        ("비밀번호를 바꾸는 법", "ko"),
        ("เปลี่ยนรหัสผ่านอย่างไร", "th"),
    ],
)
def test_a_listed_language_is_told_and_accepted(text: str, code: str) -> None:
    """The code is that of the language, and the text is one of those that are listed."""
    assert language_of(text) == code
    assert language(text).is_one_of(LISTED)


@pytest.mark.parametrize(
    "text",
    [
        "Hur kan jag byta mitt lösenord?",
        "Miten voin vaihtaa salasanani?",
        "Bagaimana cara mengganti kata sandi saya?",
        "Làm sao để đổi mật khẩu của tôi?",
        "Jak si změním heslo k účtu?",
        "Як мені змінити пароль?",
        "Cum îmi pot schimba parola contului?",
        "Hogyan tudom megváltoztatni a jelszavam?",
        "چگونه رمز عبور خود را عوض کنم؟",
        "मैं अपना पासवर्ड कैसे बदलूँ?",
        "Πώς αλλάζω τον κωδικό μου;",
        "איך אני משנה סיסמה?",
        "როგორ შევცვალო პაროლი?",
    ],
)
def test_a_text_in_a_language_that_is_not_listed_is_told_apart(text: str) -> None:
    """Whatever language it is taken for, it is none of those that are listed."""
    assert not language(text).is_one_of(LISTED)


def test_a_text_without_letters_is_in_any_language() -> None:
    """Numbers and signs are no language, and no reason to refuse a pair."""
    assert language("12 + 7 = ?") == Language("")
    assert language("12 + 7 = ?").is_one_of(LISTED)
    assert language("").is_one_of({"en"})


def test_a_text_is_told_from_its_beginning_alone_in_bounded_time() -> None:
    """A document of a hundred thousand words takes no longer than one of forty."""
    text = "Wie kann ich mein Konto kündigen? " * 20_000
    assert language_of(text) == "de"


def test_the_model_is_read_when_a_planner_is_made() -> None:
    """Not by the first request, whose worker would read two megabytes while others wait."""
    languages._model.cache_clear()
    Planner(b"secret", "static", 2_000, {}, lambda *_: 0)
    assert languages._model.cache_info().currsize == 1


def test_few_shares_are_remembered_of_a_text() -> None:
    """Thousands of texts are kept; each has the languages that it may well be in, and they decide."""
    shares = language("Como posso cancelar a minha encomenda hoje?").shares
    assert 0 < len(shares) < 10
    assert min(shares.values()) >= 0.01
    assert sum(shares.values()) > 0.9


@pytest.mark.parametrize(
    "text",
    [
        "Wie kann ich mein Konto kündigen?", "где где где аптека", "İstanbul'da hava nasıl? ﬁn", "a",
        "Word after word, " * 30, "x" * 300 + " kündigen", "Rindfleischetikettierungsüberwachung" * 3,
    ],
)  # fmt: skip
def test_what_is_remembered_of_words_gives_the_shares_of_all_groups_of_letters(text: str) -> None:
    """Equal to the last bit, for long words too, which are not remembered."""
    model, groups = languages._model(), languages.groups_of_letters(text)
    weights = model.raised.astype(np.int32) - 128
    logits = weights[groups].sum(axis=0) * (model.scale / len(groups)) + model.bias
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    likely = {code: share for code, share in zip(model.codes, shares.tolist(), strict=True) if share >= 0.01}
    for _ in range(2):
        told = languages.ShippedLanguages().compared(text)
        assert told == Language(model.codes[int(shares.argmax())], likely)


def test_without_the_part_english_alone_has_a_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other texts in a script of several languages are in none that a model lists, and no lexicon reads them."""
    monkeypatch.setattr(module, "foreign_languages", lambda: None)
    told = [language.__wrapped__(text) for text in ("Wie stelle ich das leise?", "where is the café?", "怎么改密码？")]
    assert told == [Language("latin"), Language("en"), Language("zh")]
    assert languages_to_read.__wrapped__("Wie stelle ich das leise?") == ()
