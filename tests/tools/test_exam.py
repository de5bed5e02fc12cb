"""The exam's data parse, have the sizes that are stated, and nothing of them occurs in what is trained on."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from gateway.fit.datasets import read_pairs
from tools.exam.questions import ExamPair, languages_of, pairs_of

TOOLS = Path(__file__).parents[2] / "tools"
LISTED = {"ar", "de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "th", "tr", "zh"}
UNLISTED = {"hi", "id", "sv", "vi"}
KINDS = {
    "adjective", "before or after", "buy or sell", "condition", "direction", "male or female", "most or least",
    "negation", "neighbour", "noun", "on or off", "prefix", "roles", "tense", "units", "verb",
}  # fmt: skip
_SLOT = re.compile(r"\\\{\w+\\\}")
_GRAM = 4


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


@pytest.mark.parametrize("part", ["opposites"])
def test_no_pair_is_one_text_twice_or_occurs_twice(part: str) -> None:
    assert [pair for pair in pairs(part) if pair.a.casefold() == pair.b.casefold()] == []
    counted = Counter((pair.a, pair.b) for pair in pairs(part))
    assert [texts for texts, count in counted.items() if count > 1] == []
    assert [pair for pair in pairs(part) if "{" in pair.a + pair.b] == []


def _plain(text: str) -> str:
    return text.casefold().strip(" .?!¿¡？。！؟")


def _exam_texts() -> set[str]:
    return {_plain(text) for part in ("opposites",) for pair in pairs(part) for text in (pair.a, pair.b)}


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def _trained_on() -> Iterator[str]:
    for file in [*TOOLS.glob("*.toml"), *TOOLS.glob("families/**/*.toml")]:
        yield from _strings(tomllib.loads(file.read_text("utf-8")))
    for file in TOOLS.glob("pairs/*.jsonl"):
        for pair in read_pairs(file):
            for side in (pair.a, pair.b):
                yield from [side] if isinstance(side, str) else [str(message["content"]) for message in side]


def texts_within(texts: set[str], trained_on: Iterable[str]) -> list[str]:
    """Return the texts that are one of these strings, or what a string with {slots} may become."""
    grams: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for start in range(len(text) - _GRAM + 1):
            grams[text[start : start + _GRAM]].add(text)
    found = []
    for string in {_plain(one) for one in trained_on}:
        if string in texts:
            found.append(string)
        pieces = _SLOT.split(re.escape(string))
        written = re.sub(r"\\(.)", r"\1", max(pieces, key=len))
        if len(pieces) > 1 and len("".join(pieces)) >= 2 * _GRAM and len(written) >= _GRAM:
            pattern = re.compile(r".{1,30}".join(pieces))
            rarest = min(
                (grams.get(written[at : at + _GRAM], set()) for at in range(len(written) - _GRAM + 1)), key=len
            )
            found += [text for text in rarest if pattern.fullmatch(text)]
    return found


def test_nothing_of_the_exam_occurs_in_what_is_trained_on_or_chosen_by() -> None:
    """What this finds is taken out of the exam, or of the training families: whichever came later."""
    texts = _exam_texts()
    planted = [next(iter(texts)), "What is the {quality} of a {thing}?"]
    assert texts_within({*texts, "what is the weight of a brick"}, planted) == [_plain(planted[0]), "what is the weight of a brick"] or set(
        texts_within({*texts, "what is the weight of a brick"}, planted)
    ) == {_plain(planted[0]), "what is the weight of a brick"}
    assert texts_within(texts, _trained_on()) == []
