"""Read the exam's pairs of questions from the TOML files of this folder."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cache.text.reading import is_written_in

FOLDER: Final = Path(__file__).parent
PARTS: Final = ("opposites", "rewordings", "english", "words")
"""Parts whose pairs of questions are decided one by one."""
BETWEEN: Final = " | "
_VALUES_EACH: Final = 4
"""How many values of `of` a question of the part `volatile` is asked about."""


@dataclass(frozen=True, slots=True)
class ExamPair:
    """Two questions, and whether the answer to `a` may be served to someone who asks `b`."""

    a: str
    b: str
    same: bool
    language: str
    kind: str

    @property
    def script(self) -> str:
        """Whether both texts are written in Latin letters alone."""
        return "Latin" if is_written_in(self.a + self.b, ("Latin",)) else "other"


def pairs_of(part: str, languages: frozenset[str] = frozenset()) -> list[ExamPair]:
    """Return the pairs of a part, in these languages; in all languages where none is named."""
    return [pair for pair in _every(part) if not languages or pair.language in languages]


@dataclass(frozen=True, slots=True)
class TimedQuestion:
    """A question, and whether its answer `changes` within a year; `kind` says what it asks about."""

    text: str
    changes: bool
    language: str
    kind: str


def volatile_questions(languages: frozenset[str] = frozenset()) -> list[TimedQuestion]:
    """Return the questions of the part `volatile` in these languages; in all for none."""
    return [one for one in _timed() if not languages or one.language in languages]


def _timed() -> Iterator[TimedQuestion]:
    """Yield the questions: each of `ask` that has {x} with four of the values of `of`, in turn."""
    for group in read_data(FOLDER / "volatile.toml")["group"]:
        for changes, name in ((True, "changes"), (False, "stays")):
            for text in group[name]:
                yield TimedQuestion(text, changes, group["language"], "a word of time")
    for file in sorted((FOLDER / "volatile").glob("*.toml")):
        data = read_data(file)
        for group in data["group"]:
            of, turn = group.get("of", [""]), 0
            for ask in group["ask"]:
                for _ in range(_VALUES_EACH if "{x}" in ask else 1):
                    text = filled(ask, {"x": of[turn % len(of)]})
                    yield TimedQuestion(text, group["changes"], data["language"], group["kind"])
                    turn += 1


def languages_of(part: str) -> list[str]:
    """Return the codes of the languages of a part."""
    return ["en"] if part == "english" else sorted(file.stem for file in (FOLDER / part).glob("*.toml"))


def _every(part: str) -> Iterator[ExamPair]:
    if part == "english":
        for group in read_data(FOLDER / "english.toml")["group"]:
            for row in group["rows"]:
                yield from reworded("en", row, group["same"], group["other"])
        return
    for language in languages_of(part):
        data = read_data(FOLDER / part / f"{language}.toml")
        if part == "words":
            for group in data["group"]:
                for row in group["rows"]:
                    yield from reworded(language, row, group["kind"], group["kind"])
        elif part == "rewordings":
            for row in data["rows"]:
                yield from reworded(language, row, "rewording", "trap")
        else:
            for group in data["group"]:
                for a, b in _opposites(group):
                    yield ExamPair(a, b, False, language, group["kind"])


def reworded(language: str, row: list[str], same: str, other: str) -> Iterator[ExamPair]:
    """Yield a text with its rewording, and with its trap. One written "old => new" is the question with that change."""
    question, rewording, *traps = row
    if rewording:
        yield ExamPair(question, _changed(question, rewording), True, language, same)
    for trap in traps:
        yield ExamPair(question, _changed(question, trap), False, language, other)


def _changed(question: str, written: str) -> str:
    """Return the question with the change "old => new", or what is written where it is no change."""
    old, arrow, new = written.partition(" => ")
    if arrow and old not in question:
        raise ValueError(f"{old!r} is not in {question!r}")
    return question.replace(old, new) if arrow else written


def _opposites(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs that differ in one word of an opposition, or in the order of {1} and {2}, and the written `pairs`.

    Each of `ask` is combined with each of `words` and, where it has {x}, with each of `of`.
    """
    for ask in group.get("ask", ()):
        for words in group["words"]:
            one, other = words.split(BETWEEN)
            for x in group["of"] if "{x}" in ask else [""]:
                sides = [filled(ask, {"": first, "1": first, "2": second, "x": x})
                         for first, second in ((one, other), (other, one))]  # fmt: skip
                yield sides[0], sides[1]
    yield from ((a, b) for a, b in group.get("pairs", ()))


def filled(ask: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its {slots}, and a capital letter at its start."""
    for name, value in values.items():
        ask = ask.replace(f"{{{name}}}", value)
    return ask[:1].upper() + ask[1:]


def read_data(file: Path) -> dict[str, Any]:
    """Return the content of a file of the exam."""
    return tomllib.loads(file.read_text("utf-8"))
