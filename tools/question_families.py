"""Generate labelled pairs of questions from families of intents: `families/*.toml`, written for this project.

    weight = 2                              how much more often pairs are drawn from this file's families; 1 by default
    language = "de"                         its ISO 639-1 code; English by default
    before = ["Hallo,", ...]                what people say before or after a question in another language than English,
    after = ["danke!", ...]                 without asking for anything else
    [slots]                                 values that a wording may name; another value makes another question
    city = ["Paris", "Lyon", "New York | NYC"]   two names of one value
    turn = ["on <> off"]                    two values that are opposites: each is the other's most likely replacement
    [[family]]
    name = "train times"
    [[family.intent]]                       wordings of one intent ask for the same
    name = "duration"
    symmetric = true                        swapping {city_1} and {city_2} asks the same; by default it does not
    ask = ["How long is the train from {city_1} to {city_2}?", ...]

`{city_1}` and `{city_2}` are two different values of `city`. Two intents of a family are near each other and never want
the same answer: the opposite, something narrower, another attribute, another direction. Files may stand in folders.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from gateway.parts.fit.datasets import DataError
from tools.question_pairs import QuestionPair
from tools.rewording import OTHER, SAME, as_typed, sloppy

FAMILIES = "families"
"""Name of the generated data set; the groups are KIND, and a pair's family stands in `FamilyPair`."""
SHIPPED = Path(__file__).with_name("families")
"""The folder of the families in this tree."""
_SLOT = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"\w+")
_SENTENCES = re.compile(r"[.?!;] +\S")
_SHORT = 12  # words
_NAMES = " | "
"""Stands between two names of one value."""
_OPPOSITE = " <> "
"""Stands between two values that are opposites."""
_NUMBERED = re.compile(r"_\d+$")
_ENGLISH = "en"
_IN_ENGLISH = 0.4  # share of the pairs in English where families in other languages are there too
_OPPOSED = 0.75  # share of the changed values with an opposite that become it
_SAID = 0.35  # share of the texts in other languages than English with a greeting, without a mark, ...
_LETTERS = 5  # of a word in which one is mistyped, more than
_AS_TYPED = 0.3  # share of the questions with typos, fillers and the like

_KINDS = (
    ("wording", 0.24), ("distant", 0.10), ("directed", 0.03), ("typed", 0.09), ("reworded", 0.07), ("swapped", 0.05),
    ("intent", 0.22), ("value", 0.13), ("changed", 0.07), ("elsewhere", 0.04),
)  # fmt: skip
"""Share of each kind of pair: the first five, and `swapped` of a symmetric intent, want the same answer."""
_KINDS_IN_ENGLISH = tuple(zip(*_KINDS, strict=True))
# The rules reword English.
_KINDS_ELSEWHERE = tuple(zip(*(row for row in _KINDS if row[0] not in ("reworded", "changed")), strict=True))
_REWORDED_TWICE = 0.4  # share of the pairs by rule of which the rule is applied to another wording
_TRIES = 200  # intents that are tried for a kind of pair


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing to ask: `asks` are its wordings, with the names of slots in braces."""

    name: str
    asks: tuple[str, ...]
    symmetric: bool


@dataclass(frozen=True, slots=True)
class QuestionFamily:
    """Intents that are near each other, and the values of the slots that they name. `name` begins with the file's."""

    name: str
    intents: tuple[Intent, ...]
    slots: Mapping[str, tuple[str, ...]]
    weight: float = 1.0
    opposites: Mapping[str, str] = field(default_factory=dict)
    language: str = _ENGLISH
    around: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What is said before a question, and after it, in another language than English."""


@dataclass(frozen=True, slots=True)
class FamilyPair(QuestionPair):
    """A generated pair; its `group` is the kind of pair."""

    family: str


def read_families(folder: Path) -> list[QuestionFamily]:
    """Return the families in all `*.toml` files of a folder and those in it. A slot's values are those of its own file.

    Raises DataError that gives the file and the reason.
    """
    families: dict[str, QuestionFamily] = {}
    paths = sorted(folder.rglob("*.toml"))
    if not paths:
        raise DataError(f"{folder}: it contains no *.toml file")
    for path in paths:
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
            file = path.relative_to(folder).with_suffix("").as_posix()
            for row in read["family"]:
                family = _family(row, file, read)
                if family.name in families:
                    raise ValueError(f"the family {family.name!r} occurs twice")
                families[family.name] = family
        except KeyError as missing:
            raise DataError(f"{path}: {missing.args[0]} missing") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: {error}") from None
    return list(families.values())


def _family(row: Mapping[str, Any], file: str, read: Mapping[str, Any]) -> QuestionFamily:
    name = f"{file}: {row['name']}"
    intents = tuple(
        Intent(str(word["name"]), tuple(dict.fromkeys(map(str, word["ask"]))), bool(word.get("symmetric", False)))
        for word in row["intent"]
    )
    stated = {
        str(slot): [str(value).split(_OPPOSITE) for value in values] for slot, values in read.get("slots", {}).items()
    }
    slots = {slot: tuple(dict.fromkeys(part for value in values for part in value)) for slot, values in stated.items()}
    for intent in intents:
        for ask in intent.asks:
            used = [_NUMBERED.sub("", slot) for slot in dict.fromkeys(_SLOT.findall(ask))]
            for slot in used:
                if len(slots.get(slot, ())) < max(2, used.count(slot)):
                    raise ValueError(f"family {name!r}, intent {intent.name!r}: too few values of the slot {slot!r}")
    both = [value for values in stated.values() for value in values if len(value) == 2]
    opposites = {word: other for pair in both for word, other in (pair, pair[::-1])}
    around = tuple(map(str, read.get("before", ()))), tuple(map(str, read.get("after", ())))
    weight, language = float(read.get("weight", 1.0)), str(read.get("language", _ENGLISH))
    return QuestionFamily(name, intents, slots, weight, opposites, language, around)


def family_pairs(families: Sequence[QuestionFamily], count: int, rng: Random) -> Iterator[FamilyPair]:
    """Yield about `count` pairs, in fixed shares of the kinds; each is spread over the intents by weight.

    Two in five are in English, the rest in the other languages alike.
    """
    intents: dict[str, list[tuple[QuestionFamily, Intent]]] = {}
    for family in families:
        intents.setdefault(family.language, []).extend((family, intent) for intent in family.intents if intent.asks)
    weights = {name: list(accumulate(family.weight for family, _ in among)) for name, among in intents.items()}
    languages = sorted(name for name, among in intents.items() if among)
    if not languages:
        return
    in_english = _IN_ENGLISH * (len(languages) - 1) / (1 - _IN_ENGLISH) if len(languages) > 1 else 1.0
    drawn = [in_english if name == _ENGLISH else 1.0 for name in languages]
    together = {name: [family for family in families if family.language == name] for name in languages}
    for _ in range(count):
        language = rng.choices(languages, drawn)[0]
        kind = rng.choices(*(_KINDS_IN_ENGLISH if language == _ENGLISH else _KINDS_ELSEWHERE))[0]
        for family, intent in rng.choices(intents[language], cum_weights=weights[language], k=_TRIES):
            pair = _pair(kind, family, intent, together[language], rng)
            if pair is not None:
                yield pair
                break


def questions_of(families: Sequence[QuestionFamily], per_intent: int, rng: Random) -> Iterator[tuple[str, object]]:
    """Yield questions of every intent and what each asks for: two that ask for equal things want the same answer."""
    for family in families:
        for intent in family.intents:
            for _ in range(per_intent if intent.asks else 0):
                ask = rng.choice(intent.asks)
                values = _drawn(ask, family, rng)
                text = _filled(ask, values, rng)
                named = sorted(values.values()) if intent.symmetric else sorted(values.items())
                typed = _sent(text, family, rng) if rng.random() < _AS_TYPED else text
                yield typed, (family.name, intent.name, *named)


def same_wordings(families: Sequence[QuestionFamily], count: int, rng: Random) -> Iterator[tuple[str, str, str, str]]:
    """Yield the language, two wordings with equal slots and what both ask for, `count` times for each intent."""
    for family in families:
        for intent in family.intents:
            by_slots: dict[frozenset[str], list[str]] = {}
            for ask in intent.asks:
                by_slots.setdefault(_slots(ask), []).append(ask)
            for asks in by_slots.values():
                for _ in range(count if len(asks) > 1 else 0):
                    asked, other = rng.sample(asks, 2)
                    values = _drawn(asked, family, rng)
                    want = f"{family.name}/{intent.name}/{sorted(values.items())}"
                    yield family.language, _filled(asked, values, rng), _filled(other, values, rng), want


def _pair(
    kind: str, family: QuestionFamily, intent: Intent, families: Sequence[QuestionFamily], rng: Random
) -> FamilyPair | None:
    """Return a pair of this kind, None if the intent has none."""
    ask = rng.choice(intent.asks)
    values = _drawn(ask, family, rng)
    others = [other for other in intent.asks if other != ask and _slots(other) == _slots(ask)]
    if kind == "directed" and not _pairs_of_slots(values):
        return None
    if kind in ("wording", "directed"):
        # The same wording with another name of a value is another wording.
        others = [*others, ask] if any(_NAMES in value for value in values.values()) else others
        other = _filled(rng.choice(others), values, rng) if others else ""
    elif kind == "distant":
        farthest = sorted(others, key=lambda text: (_overlap(text, ask), text))[:2]
        other = _filled(rng.choice(farthest), values, rng) if farthest else ""
    elif kind == "typed" and family.language != _ENGLISH:
        other = _sent(_filled(rng.choice([ask, *others]), values, rng), family, rng)
    elif kind in _BY_RULE:
        base = _filled(rng.choice([ask, *others] if rng.random() < _REWORDED_TWICE else [ask]), values, rng)
        # In a longer text a small change may be in the story around the question.
        if kind == "changed" and (_SENTENCES.search(base) or len(base.split()) > _SHORT):
            return None
        other = rng.choice(_BY_RULE[kind])(base, rng)
    elif kind in _BY_VALUE:
        changed = _BY_VALUE[kind](values, family, rng)
        other = _filled(rng.choice([ask, *others]), changed, rng) if changed else ""
    else:
        # A stranger has no wish in common, but some of the values.
        place = family if kind == "intent" else rng.choice(families)
        near = [one for one in place.intents if one.asks and (one.name != intent.name or place.name != family.name)]
        chosen = rng.choice(rng.choice(near).asks) if near and (kind == "intent") == (place is family) else ""
        other = _filled(chosen, {**_drawn(chosen, place, rng), **values}, rng)
    question = _filled(ask, values, rng)
    if not other or other.lower() == question.lower():
        return None
    same = kind in _ALIKE or (kind == "swapped" and intent.symmetric)
    texts = [_sent(text, family, rng) if rng.random() < _AS_TYPED else text for text in (question, other)]
    rng.shuffle(texts)
    group = "swapped, same" if kind == "swapped" and same else kind
    return FamilyPair(texts[0], texts[1], same, FAMILIES, group, family.name)


def _sent(text: str, family: QuestionFamily, rng: Random) -> str:
    """Return the text as somebody might send it: with a greeting, without its mark, with a letter mistyped."""
    if family.language == _ENGLISH:
        return as_typed(text, rng)
    long = [match for match in _WORD.finditer(text) if len(match[0]) > _LETTERS and match[0].isalpha()]
    # Words of an alphabet have spaces between them; two signs of Chinese exchanged are another word.
    if long and " " in text and rng.random() < _SAID:
        at = rng.choice(long).start() + rng.randrange(1, _LETTERS)
        text = text[:at] + rng.choice((text[at + 1] + text[at], text[at], text[at + 1])) + text[at + 2 :]
    if rng.random() < _SAID:
        text = text.rstrip("?？!！.。؟")
    if rng.random() < _SAID:
        text = text.lower()
    before, after = family.around
    if before and rng.random() < _SAID:
        text = f"{rng.choice(before)} {text}"
    if after and rng.random() < _SAID:
        text = f"{text} {rng.choice(after)}"
    return text


def _slots(ask: str) -> frozenset[str]:
    return frozenset(_SLOT.findall(ask))


def _overlap(question: str, other: str) -> float:
    """Return the share of the words of both that both have."""
    words, others = (set(_WORD.findall(text.lower())) for text in (question, other))
    return len(words & others) / max(1, len(words | others))


def _filled(ask: str, values: Mapping[str, str], rng: Random) -> str:
    """Return the wording with its values, each under one of its names."""
    return _SLOT.sub(lambda match: rng.choice(values[match[1]].split(_NAMES)), ask)


def _drawn(ask: str, family: QuestionFamily, rng: Random) -> dict[str, str]:
    """Return values for the slots of a wording; numbered slots of one name get different ones."""
    values: dict[str, str] = {}
    for slot in dict.fromkeys(_SLOT.findall(ask)):
        name = _NUMBERED.sub("", slot)
        taken = {value for other, value in values.items() if _NUMBERED.sub("", other) == name}
        values[slot] = rng.choice([value for value in family.slots[name] if value not in taken])
    return values


def _revalued(values: Mapping[str, str], family: QuestionFamily, rng: Random) -> dict[str, str] | None:
    """Return the values with one replaced by another that none of the slots of its name has."""
    if not values:
        return None
    slot = rng.choice(list(values))
    choices = [value for value in family.slots[_NUMBERED.sub("", slot)] if value not in values.values()]
    opposite = family.opposites.get(values[slot], "")
    if opposite in choices and rng.random() < _OPPOSED:
        return {**values, slot: opposite}
    return {**values, slot: rng.choice(choices)} if choices else None


def _pairs_of_slots(values: Mapping[str, str]) -> list[str]:
    """Return the slots of which another slot has the same name."""
    names = [_NUMBERED.sub("", slot) for slot in values]
    return [slot for slot, name in zip(values, names, strict=True) if names.count(name) > 1]


def _turned(values: Mapping[str, str], family: QuestionFamily, rng: Random) -> dict[str, str] | None:
    """Return the values with two numbered slots of one name swapped."""
    twice = _pairs_of_slots(values)
    if not twice:
        return None
    one = rng.choice(twice)
    other = rng.choice([slot for slot in twice if slot != one and _NUMBERED.sub("", slot) == _NUMBERED.sub("", one)])
    return {**values, one: values[other], other: values[one]}


_ALIKE = frozenset({"wording", "distant", "directed", "typed", "reworded"})
_BY_RULE = {"typed": (as_typed, sloppy), "reworded": tuple(SAME.values()), "changed": tuple(OTHER.values())}
_BY_VALUE = {"swapped": _turned, "value": _revalued}


def add_families_flag(parser: argparse.ArgumentParser) -> None:
    """Add --families to a tool."""
    parser.add_argument(
        "--families", type=Path, default=SHIPPED, metavar="DIR", help="families of questions (default: those shipped)"
    )
