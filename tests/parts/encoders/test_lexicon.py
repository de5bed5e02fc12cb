from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from cache.text.languages import languages_to_read, reading_in, readings_of
from gateway.parts.encoders.languages import FOLDER, SHEET, lexicons
from tests.support.gateway import ROOT

CROSS_ENCODER = ROOT / "cache/artefacts/cross-encoder/sheet.json"


def test_every_language_that_the_cross_encoder_reads_has_a_lexicon_but_english() -> None:
    """English is read by rules of its own."""
    listed = set(json.loads(CROSS_ENCODER.read_bytes())["languages"])
    assert (
        listed - {"en"}
        <= set(lexicons())
        <= set(json.loads(SHEET.read_bytes())["languages"]) | {"zh", "ja", "ko", "th"}
    )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_lexicon_has_known_lists_and_no_entry_on_both_sides_of_an_opposition(path: Path) -> None:
    data = tomllib.loads(path.read_text("utf-8"))
    lists = {"please", "greetings", "not_please", "faint", "meta", "openers", "pointing", "asking", "mentions"}
    rest = {"negations", "neutral", "opposites", "numbers", "letters_per_word", "drops_marks", "joined"}
    rest |= {"counters", "heads"}
    assert set(data) <= lists | rest
    for name in lists - {"not_please"} | {"negations", "opposites"}:
        assert data[name].strip()
    for group in data["opposites"].split(";"):
        sides = [{" ".join(entry.split()) for entry in side.split(",") if entry.strip()} for side in group.split("/")]
        assert len(sides) > 1 and all(sides), group
        assert sum(map(len, sides)) == len(set().union(*sides)), group


@pytest.mark.parametrize(
    ("code", "text", "numbers"),
    [
        ("de", "Die zwölf Räuber und 3 Raben", ("12", "3")),
        ("ru", "через две недели", ("2",)),
        ("ar", "بعد ثلاثة أيام و٥ ساعات", ("3", "5")),
        ("ko", "고양이 세 마리", ("3",)),
        ("zh", "二十五个苹果", ("25",)),
        ("zh", "三明治怎么做", ()),
        ("ja", "百二十三枚の紙", ("123",)),
        ("ja", "3.5万円", ("35000",)),
        ("th", "หมาสามตัวสามารถว่ายน้ำ", ("3",)),
    ],
)
def test_numbers_are_read_in_words_and_in_digits(code: str, text: str, numbers: tuple[str, ...]) -> None:
    """Words that only look like a number, such as a sandwich in Chinese, are none."""
    assert reading_in(code, text).numbers == numbers


@pytest.mark.parametrize(
    ("code", "text", "bare"),
    [
        ("de", "Hallo, wo liegt bitte der Bahnhof? Vielen Dank!", ", wo liegt  der Bahnhof? !"),
        ("de", "Wie lange braucht ein Dank für zwei Gäste?", "Wie lange braucht ein Dank für 2 Gäste?"),
        ("fr", "Où est la gare, s'il vous plaît ?", "Où est la gare,  ?"),
        ("zh", "请问车站在哪里？谢谢", "车站在哪里？"),
        ("zh", "请假要几天", "请假要几天"),
        ("th", "คะแนนสอบดูที่ไหนคะ", "คะแนนสอบดูที่ไหน"),
    ],
)
def test_polite_phrases_go_and_words_that_begin_like_one_stay(code: str, text: str, bare: str) -> None:
    """A leave of absence in Chinese begins with `please`, and a score in Thai with a polite ending."""
    assert lexicons()[code].bare(text) == bare


@pytest.mark.parametrize(
    ("code", "one", "other"),
    [
        ("pl", "włączyć", "wyłączyć"),
        ("tr", "ucuz", "pahalı"),
        ("ar", "المستأجر", "المؤجر"),
        ("ja", "長所", "短所"),
    ],
)
def test_the_sides_of_an_opposition_have_one_group(code: str, one: str, other: str) -> None:
    (left,), (right,) = reading_in(code, one).sides, reading_in(code, other).sides
    assert left[0] == right[0] and left[1] != right[1]


def test_english_has_no_reading_and_an_ambiguous_text_one_for_each_language() -> None:
    assert languages_to_read("How do I mute the bell?") == ()
    assert languages_to_read("Wie stelle ich die Klingel leise?") == ("de",)
    assert readings_of("Wo?") == tuple(reading_in(code, "Wo?") for code in languages_to_read("Wo?"))
