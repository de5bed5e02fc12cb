"""The exam's data parse, have the sizes that are stated, and nothing of them occurs in what is trained on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from gateway.parts.fit.datasets import read_pairs
from gateway.parts.hit_audits.comparison import AnswerComparer
from gateway.report import silent
from tests.bench.exam.__main__ import main
from tests.bench.exam.answers import answer_pairs, compared
from tests.bench.exam.desk import desk_languages, desk_requests
from tests.bench.exam.pair_cost import measured
from tests.bench.exam.public import unselected_pairs
from tests.bench.exam.questions import FOLDER, PARTS, ExamPair, languages_of, pairs_of, read_data, volatile_questions
from tests.bench.exam.scope import ScopeLookup, ScopeQuestion, figures_of, scope_questions
from tests.bench.exam.table import MIXED, NEEDED
from tests.support.gateway import ROOT, environment

TOOLS = Path(__file__).parents[2] / "tools"
LISTED = {"ar", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "zh"}
UNLISTED = {"hi", "id", "sv", "vi"}
KINDS = {
    "adjective", "before or after", "buy or sell", "condition", "direction", "male or female", "most or least",
    "negation", "neighbour", "noun", "on or off", "prefix", "roles", "tense", "units", "verb",
}  # fmt: skip
_SLOT = re.compile(r"\{(\w+?)(?:_\d+)?\}")
_GRAM = 4
_SHORT = 20
"""Shorter wordings of a desk, such as `password change`, may be anybody's."""


@cache
def pairs(part: str) -> list[ExamPair]:
    return pairs_of(part)


def by_language(part: str) -> dict[str, list[ExamPair]]:
    rows: dict[str, list[ExamPair]] = defaultdict(list)
    for pair in pairs(part):
        rows[pair.language].append(pair)
    return rows


def test_opposites_are_asked_in_every_language_and_of_every_kind() -> None:
    rows = by_language("opposites")
    assert set(rows) == LISTED | UNLISTED == set(languages_of("opposites"))
    for language, of in rows.items():
        assert len(of) >= (150 if language in LISTED else 90), language
        assert {pair.kind for pair in of} >= KINDS - (set() if language in LISTED else {"most or least"}), language
        assert not any(pair.same for pair in of)


def test_each_language_has_rewordings_and_as_many_traps() -> None:
    rows = by_language("rewordings")
    assert set(rows) == (LISTED | UNLISTED) - {"en"}
    for language, of in rows.items():
        same = sum(pair.same for pair in of)
        assert 2 * same == len(of) >= 2 * (60 if language in LISTED else 40), language


def test_questions_that_differ_in_a_word_have_as_many_that_want_the_same() -> None:
    rows = by_language("words")
    assert set(rows) == set(MIXED) == set(languages_of("words"))
    kinds = {"abbreviation", "catalogue", "look-alike", "synonym or sibling"}
    for language, of in rows.items():
        same, other = ([pair for pair in of if pair.same == wanted] for wanted in (True, False))
        assert len(same) == len(other) >= (240 if language == "en" else 20), language
        assert {pair.kind for pair in same} == {pair.kind for pair in other} == kinds


def test_english_has_rewordings_and_traps_of_mixed_kinds() -> None:
    kinds = Counter(pair.kind for pair in pairs("english") if pair.same)
    traps = Counter(pair.kind for pair in pairs("english") if not pair.same)
    assert kinds.total() >= 350 and traps.total() >= 350
    assert set(kinds) == {
        "abbreviation", "chatty", "close wording", "command vs question", "distant wording", "keyword query", "long",
        "longer or shorter", "typo",
    }  # fmt: skip
    assert traps.keys() >= {
        "condition", "date", "long, one fact changed", "name", "negation", "neighbour intent", "number", "opposite",
        "place", "role", "tense", "unit",
    }  # fmt: skip
    assert kinds["typo"] >= 40 and kinds["long"] >= 30
    for pair in pairs("english"):
        if pair.kind == "long":
            assert all(60 <= len(text.split()) <= 150 for text in (pair.a, pair.b)), pair


def test_what_is_looked_up_in_a_scope_stands_beside_near_questions() -> None:
    """A wording wants one thing; no trap wants what the scope has, and each rewording's question was asked first."""
    questions = scope_questions()
    assert len({question.text.casefold() for question in questions}) == len(questions)
    known = {question.wants for question in questions if question.first}
    traps = [question for question in questions if question.wants not in known]
    assert not any(question.first for question in traps)
    english = {pair.b for pair in pairs("english")}
    assert len(traps) >= 1_000 and sum(question.text not in english for question in traps) >= 650
    assert sum(question.first for question in questions) >= 453
    sample = scope_questions(limit=1, seed=1)
    assert {question for question in sample if question.first} == {question for question in questions if question.first}
    assert len(sample) < len(questions)


def test_a_hit_in_a_scope_is_right_where_it_answers_the_question_asked() -> None:
    asked = ScopeQuestion("a", "w", "k", False)
    rows = [
        ScopeLookup(asked, True, True, True, "b", 1),
        ScopeLookup(asked, True, True, False, "c", 3),
        ScopeLookup(asked, False, True, False, "c", 2),
        ScopeLookup(asked, False, False, False, "", 2),
    ]
    figures = figures_of(rows, 7)
    assert (figures.served.value, figures.mistaken.value, figures.wrong.value) == (0.5, 0.5, 0.5)
    assert (figures.stored, figures.judged_mean, figures.judged_each) == (7, 2.0, 2.0)


def test_a_scope_is_looked_up_in_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    """The same words are a hit without any model; a lookup finds what was asked first."""
    assert main(["--part", "scope", "--cross-encoder", "none", "--limit", "3", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)["scope"]
    assert values["stored"] > 350 and values["served"]["n"] > 20 and values["wrong"]["n"] > 40
    assert values["served"]["value"] > 0.05 and values["judged_each"] == 0


def test_the_table_says_of_each_figure_whether_its_target_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts that it needs are run, and not shown where they were not asked for."""
    options = ["--cross-encoder", "none", "--limit", "2", "--languages", "en,de"]
    assert main(["--part", "table", *options, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert set(values) == {*NEEDED, "table"}
    lines = {line["what"]: line for line in values["table"]}
    served = lines["mixed, 13 languages: rewordings served"]
    assert served["target"] == 40 and served["at_least"] and served["met"] == (served["value"] >= 40)
    barred = lines["stable texts barred"]
    assert barred["n"] > 500 and barred["met"] == (barred["value"] <= 4)
    assert "CPU" not in " ".join(lines)


def test_the_cost_of_a_pair_is_counted_where_the_pair_model_judges_it() -> None:
    """In a process of its own, as in the tree of another commit; a pair with another number is refused before."""
    judged = ("How do I clean a wool carpet?", "How can I clean a carpet made of wool?")
    refused = ("How do I peel 3 aubergines?", "How do I peel 5 aubergines?")
    rows = measured(ROOT, environment(PYTHONPATH=str(ROOT)), [judged, refused])
    assert rows[0] is not None and 0 < rows[0] < 1_000 and rows[1] is None


def test_the_command_is_run_as_a_tool() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.exam", "--help"], capture_output=True, text=True, check=True, cwd=TOOLS.parent
    )
    assert done.stdout.startswith("usage: python -m tools.exam") and "--part table" in done.stdout


def test_answers_are_there_in_six_languages_as_many_the_same_as_others() -> None:
    rows = answer_pairs()
    assert len(rows) >= 300 and 2 * sum(row.same for row in rows) == len(rows)
    assert {row.language for row in rows} == {"ar", "de", "en", "es", "ja", "zh"}
    assert {row.kind for row in rows} == {"opposite", "other number", "other step"}
    assert all(row.one.casefold() != row.other.casefold() for row in rows)


def test_answers_are_counted_by_verdict() -> None:
    """An opposite one called the same is the error that counts; a comparer without a model takes most as unknown."""
    rows = answer_pairs(frozenset({"en"}))
    values, tables = compared(rows, AnswerComparer(), silent)
    figures = values["language"]["en"]
    assert figures["others_called_same"]["n"] == figures["same_unknown"]["n"] == len(rows) // 2
    assert figures["others_called_same"]["value"] <= 0.1 and figures["same_unknown"]["value"] > 0.2
    assert values["kind"]["all"] == figures and len(tables) == 4


def test_of_each_kind_and_language_a_hundred_questions_change_and_as_many_stay() -> None:
    """But for those around a word of time, of which there are as many that change as that stay."""
    questions = volatile_questions()
    assert len({question.text for question in questions}) == len(questions)
    assert [question for question in questions if "{" in question.text] == []
    by_language = Counter((question.language, question.changes) for question in questions)
    assert {language for language, _ in by_language} == {*languages_of("rewordings"), "en"}
    assert min(by_language.values()) >= 100 and by_language["en", False] >= 400
    by_kind = Counter((question.kind, question.changes) for question in questions)
    around = [by_kind.pop(("a word of time", changes)) for changes in (True, False)]
    assert around == [130, 130] and min(by_kind.values()) >= 100
    assert {kind for kind, _ in by_kind} == {"catalogue", "measures", "knowledge", "service", "day", "year"}
    english = Counter(question.kind for question in questions if question.language == "en")
    assert min(count for kind, count in english.items() if kind != "a word of time") >= 100


def test_six_desks_have_eighty_intents_with_five_wordings_and_two_answers() -> None:
    assert desk_languages() == ["ar", "de", "en", "es", "ja", "zh"]
    for language in desk_languages():
        data = read_data(FOLDER / "desk" / f"{language}.toml")
        assert len(data["intents"]) >= 80, language
        asked = [ask for asks, _ in data["intents"] for ask in asks]
        assert [ask for ask, count in Counter(asked).items() if count > 1] == []
        for asks, answers in data["intents"]:
            assert len(asks) == 5 and len({*answers}) == 2, asks
            slots = [{*_SLOT.findall(text)} for text in (*asks, *answers)]
            assert all(one == slots[0] <= data["slots"].keys() for one in slots), asks


def test_a_desk_repeats_itself_in_few_intents_and_many_words() -> None:
    """Equal numbers want the same; a text wants one thing; the same seed makes the same requests."""
    requests = desk_requests("en", 2_000, 1)
    assert requests == desk_requests("en", 2_000, 1) != desk_requests("en", 2_000, 2)
    wants: dict[str, set[int]] = defaultdict(set)
    for request in requests:
        wants[request.text].add(request.wants)
    assert {len(numbers) for numbers in wants.values()} == {1}
    counted = Counter(request.wants for request in requests)
    assert counted.most_common(1)[0][1] > 200 and len(counted) >= 60 and len(wants) > 700


def test_unselected_pairs_are_drawn_from_files_and_named_by_them(tmp_path: Path) -> None:
    rows = [{"a": f"a{n}", "b": f"b{n}", "same_answer": n % 2 == 0, "group": "g"} for n in range(20)]
    file = tmp_path / "zh.own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn = unselected_pairs([file], 5, 1)
    assert len(drawn) == 5 and {(pair.language, pair.kind) for pair in drawn} == {("zh", "g")}
    assert {pair.a for pair in drawn} != {pair.a for pair in unselected_pairs([file], 5, 2)}
    assert len(unselected_pairs([file], 0, 1)) == 20


def test_the_command_prints_a_part_and_refuses_a_language_it_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the cross-encoder, and on a sample, it takes a second."""
    options = ["--cross-encoder", "none", "--limit", "2", "--json"]
    assert main(["--part", "opposites", "--part", "english", "--languages", "en,de", *options]) == 0
    values = json.loads(capsys.readouterr().out)
    assert set(values) == {"opposites", "english"} and set(values["opposites"]["language"]) == {"de", "en"}
    assert values["english"]["kind"]["typo"]["served"]["n"] == 2
    assert main(["--languages", "xx", *options]) == 2
    assert "the exam has no xx" in capsys.readouterr().err


@pytest.mark.parametrize("part", PARTS)
def test_no_pair_is_one_text_twice_or_occurs_twice(part: str) -> None:
    assert [pair for pair in pairs(part) if pair.a.casefold() == pair.b.casefold()] == []
    counted = Counter((pair.a, pair.b) for pair in pairs(part))
    assert [texts for texts, count in counted.items() if count > 1] == []
    assert [pair for pair in pairs(part) if "{" in pair.a + pair.b] == []


def _plain(text: str) -> str:
    return text.casefold().strip(" .?!¿¡？。！؟")


def _exam_texts() -> set[str]:
    questions = {_plain(text) for part in PARTS for pair in pairs(part) for text in (pair.a, pair.b)}
    for language in desk_languages():
        for asks, _ in read_data(FOLDER / "desk" / f"{language}.toml")["intents"]:
            questions |= {_plain(ask) for ask in asks if len(ask) > _SHORT}
    questions |= {_plain(question.text) for question in (*volatile_questions(), *scope_questions())}
    return questions | {_plain(text) for row in answer_pairs() for text in (row.one, row.other)}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _trained_on() -> Iterator[tuple[str, Mapping[str, list[str]]]]:
    """Yield each string of the training data and of tools/pairs, with the values of the {slots} in it."""
    folders = ("", "families/**/", "volatile/**/", "desks/")
    for file in [file for folder in folders for file in TOOLS.glob(f"{folder}*.toml")]:
        data = tomllib.loads(file.read_text("utf-8"))
        slots = {name: re.split(r" \| | <> ", " | ".join(values)) for name, values in data.get("slots", {}).items()}
        for text in _strings(data):
            yield text, slots
    for file in TOOLS.glob("pairs/*.jsonl"):
        for pair in read_pairs(file):
            for side in (pair.a, pair.b):
                for text in [side] if isinstance(side, str) else [str(message["content"]) for message in side]:
                    yield text, {}


def texts_within(texts: set[str], trained_on: Iterable[tuple[str, Mapping[str, list[str]]]]) -> set[str]:
    """Return the texts that are one of these strings, or what a string becomes with the values of its slots."""
    grams: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for start in range(len(text) - _GRAM + 1):
            grams[text[start : start + _GRAM]].add(text)
    found = set()
    for written_string, slots in trained_on:
        string = _plain(written_string)
        if string in texts:
            found.add(string)
        pieces = _SLOT.split(string)[::2]
        longest = max(pieces, key=len)
        if longest == string or len(longest) < _GRAM:
            continue
        near = grams.get(longest[:_GRAM], set())
        if near := {text for text in near if text.startswith(pieces[0]) and text.endswith(pieces[-1])}:
            pattern = re.compile("(.+)".join(map(re.escape, pieces)))
            values = [{one.casefold() for one in slots.get(name, [])} for name in _SLOT.findall(string)]
            found |= {text for text in near if _fits(pattern.fullmatch(text), values)}
    return found


def _fits(match: re.Match[str] | None, values: list[set[str]]) -> bool:
    return match is not None and all(one in known for one, known in zip(match.groups(), values, strict=True))


def test_nothing_of_the_exam_occurs_in_what_is_trained_on_or_chosen_by() -> None:
    """What this finds is taken out of the exam, or of the training families: whichever came later."""
    texts = _exam_texts()
    first = sorted(texts)[0]
    planted = [(f"{first}?", {}), ("What is the {end} of a brick?", {"end": ["weight", "top"]})]
    assert texts_within({*texts, "what is the top of a brick"}, planted) == {first, "what is the top of a brick"}
    assert texts_within(texts, _trained_on()) == set()
