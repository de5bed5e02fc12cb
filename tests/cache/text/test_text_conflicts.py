from __future__ import annotations

import pytest

from cache.text.guards import SWITCHED, Pair


@pytest.mark.parametrize(
    ("stored", "asked", "guard"),
    [
        ("Wie schalte ich den Wecker ein?", "Wie schalte ich den Wecker aus?", "negation"),
        ("Darf der Hund mit in die Bahn?", "Darf der Hund nicht mit in die Bahn?", "negation"),
        ("Gibt es Suppe mit Sahne?", "Gibt es Suppe ohne Sahne?", "negation"),
        ("Haben Sie drei Zimmer frei?", "Haben Sie vier Zimmer frei?", "numbers"),
        ("Haben Sie drei Zimmer frei?", "Haben Sie 4 Zimmer frei?", "numbers"),
        ("¿Puedo entrar con perro?", "¿No puedo entrar con perro?", "negation"),
        ("Est-ce que le magasin livre avant Noël ?", "Est-ce que le magasin livre après Noël ?", "negation"),
        ("Como aumento o volume da televisão?", "Como diminuo o volume da televisão?", "negation"),
        ("Какие права у покупателя?", "Какие права у продавца?", "negation"),
        ("Jak wpłacić pieniądze na konto?", "Jak wypłacić pieniądze z konta?", "negation"),
        ("Köpek trene alınır mı?", "Köpek trene alınmaz mı?", ""),  # a suffix that no entry has: the model's
        ("Kapıyı nasıl açarım?", "Kapıyı nasıl kapatırım?", "negation"),
        ("كيف أفتح نافذة الشكوى؟", "كيف أغلق نافذة الشكوى؟", "negation"),
        ("怎么打开地图的声音？", "怎么关闭地图的声音？", "negation"),
        ("这种蘑菇能吃吗？", "这种蘑菇不能吃吗？", "negation"),
        ("地図の音をオンにするには？", "地図の音をオフにするには？", "negation"),
        ("이 버섯은 먹을 수 있나요?", "이 버섯은 먹을 수 없나요?", "negation"),
        ("เปิดเสียงแผนที่ยังไง", "ปิดเสียงแผนที่ยังไง", "negation"),
    ],
)
def test_an_opposite_a_not_and_another_number_are_refused_in_other_languages(
    stored: str, asked: str, guard: str
) -> None:
    """Before the cross-encoder reads them, by the lists of their language."""
    assert Pair(stored, asked).refusal(SWITCHED, "foreign") == guard
    assert Pair(asked, stored).refusal(SWITCHED, "foreign") == guard


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Ist Grillen im Hof erlaubt?", "Ist Grillen im Hof nicht verboten?"),
        ("Haben Sie drei Zimmer frei?", "Haben Sie 3 Zimmer frei?"),
        ("Wie komme ich ohne Auto zum See?", "Ich habe kein Auto, wie erreiche ich den See?"),
        ("Ich habe zwei Katzen, was fressen sie?", "Was fressen Katzen?"),
        ("能不能退掉这张票？", "可以退掉这张票吗？"),
        ("У меня болит зуб, что делать?", "Что делать, если болит зуб?"),
    ],
)
def test_what_says_the_same_in_other_words_is_left_to_the_model(stored: str, asked: str) -> None:
    """Two turns make none, and a number in words that only one has may belong to its story."""
    assert Pair(stored, asked).refusal(SWITCHED, "foreign") == ""


@pytest.mark.parametrize(
    ("stored", "asked", "guard"),
    [
        ("Ich vertrage Milch.", "Ich vertrage keine Milch.", "negation"),
        ("Ich bleibe zwei Nächte.", "Ich bleibe fünf Nächte.", "numbers"),
        ("Ich bleibe 2 Nächte.", "Ich bleibe zwei Nächte.", ""),
        ("J'ai déjà ouvert la boîte.", "J'ai déjà fermé la boîte.", "negation"),
        ("我有过敏史。", "我没有过敏史。", "negation"),
        ("アレルギーがあります。", "アレルギーがありません。", "negation"),
        ("У меня есть аллергия.", "У меня нет аллергии.", "negation"),
        ("He has 2 dogs.", "He has two dogs.", ""),
        ("He has 2 dogs.", "He has three dogs.", "numbers"),
    ],
)
def test_a_turn_of_a_history_keeps_its_numbers_and_its_no(stored: str, asked: str, guard: str) -> None:
    assert Pair(stored, asked).refusal(SWITCHED, "turn") == guard
