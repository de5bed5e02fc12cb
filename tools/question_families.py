"""Generate labelled pairs of questions from families of intents: `families/*.toml`, written for this project.

    weight = 2                              how much more often pairs are drawn from this file's families; 1 by default
    [slots]                                 values that a wording may name; another value makes another question
    city = ["Paris", "Lyon", "New York | NYC"]   two names of one value
    [[family]]
    name = "train times"
    [[family.intent]]                       wordings of one intent ask for the same
    name = "duration"
    symmetric = true                        swapping {city_1} and {city_2} asks the same; by default it does not
    ask = ["How long is the train from {city_1} to {city_2}?", ...]

`{city_1}` and `{city_2}` are two different values of `city`. Two intents of a family are near each other and never want
the same answer: the opposite, something narrower, another attribute, another direction.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from gateway.fit.datasets import DataError
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
_NUMBERED = re.compile(r"_\d+$")
_AS_TYPED = 0.3  # share of the questions with typos, fillers and the like

_KINDS = (
    ("wording", 0.24), ("distant", 0.10), ("directed", 0.03), ("typed", 0.09), ("reworded", 0.07), ("swapped", 0.05),
    ("intent", 0.22), ("value", 0.09), ("changed", 0.07), ("elsewhere", 0.04),
)  # fmt: skip
"""Share of each kind of pair: the first five, and `swapped` of a symmetric intent, want the same answer."""
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


@dataclass(frozen=True, slots=True)
class FamilyPair(QuestionPair):
    """A generated pair; its `group` is the kind of pair."""

    family: str


def read_families(folder: Path) -> list[QuestionFamily]:
    """Return the families in all `*.toml` files of a folder. A slot's values are those of its own file.

    Raises DataError that gives the file and the reason.
    """
    families: dict[str, QuestionFamily] = {}
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise DataError(f"{folder}: it contains no *.toml file")
    for path in paths:
        try:
            read = tomllib.loads(path.read_text(encoding="utf-8"))
            slots = {
                str(name): tuple(dict.fromkeys(map(str, values))) for name, values in read.get("slots", {}).items()
            }
            for row in read["family"]:
                family = _family(row, path.stem, slots, float(read.get("weight", 1.0)))
                if family.name in families:
                    raise ValueError(f"the family {family.name!r} occurs twice")
                families[family.name] = family
        except KeyError as missing:
            raise DataError(f"{path}: {missing.args[0]} missing") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: {error}") from None
    return list(families.values())


def _family(row: Mapping[str, Any], file: str, slots: Mapping[str, tuple[str, ...]], weight: float) -> QuestionFamily:
    name = f"{file}: {row['name']}"
    intents = tuple(
        Intent(str(one["name"]), tuple(dict.fromkeys(map(str, one["ask"]))), bool(one.get("symmetric", False)))
        for one in row["intent"]
    )
    for intent in intents:
        for ask in intent.asks:
            used = [_NUMBERED.sub("", slot) for slot in dict.fromkeys(_SLOT.findall(ask))]
            for slot in used:
                if len(slots.get(slot, ())) < max(2, used.count(slot)):
                    raise ValueError(f"family {name!r}, intent {intent.name!r}: too few values of the slot {slot!r}")
    return QuestionFamily(name, intents, slots, weight)


def family_pairs(families: Sequence[QuestionFamily], count: int, rng: Random) -> Iterator[FamilyPair]:
    """Yield about `count` pairs, in fixed shares of the kinds; each is spread over the intents by weight."""
    intents = [(family, intent) for family in families for intent in family.intents if intent.asks]
    if not intents:
        return
    weights = list(accumulate(family.weight for family, _ in intents))
    names, shares = zip(*_KINDS, strict=True)
    for _ in range(count):
        kind = rng.choices(names, shares)[0]
        for family, intent in rng.choices(intents, cum_weights=weights, k=_TRIES):
            pair = _pair(kind, family, intent, families, rng)
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
                yield as_typed(text, rng) if rng.random() < _AS_TYPED else text, (family.name, intent.name, *named)


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
        farthest = sorted(others, key=lambda one: (_overlap(one, ask), one))[:2]
        other = _filled(rng.choice(farthest), values, rng) if farthest else ""
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
    one = _filled(ask, values, rng)
    if not other or other.lower() == one.lower():
        return None
    same = kind in _ALIKE or (kind == "swapped" and intent.symmetric)
    texts = [as_typed(text, rng) if rng.random() < _AS_TYPED else text for text in (one, other)]
    rng.shuffle(texts)
    group = "swapped, same" if kind == "swapped" and same else kind
    return FamilyPair(texts[0], texts[1], same, FAMILIES, group, family.name)


def _slots(ask: str) -> frozenset[str]:
    return frozenset(_SLOT.findall(ask))


def _overlap(one: str, other: str) -> float:
    """Return the share of the words of both that both have."""
    words, others = (set(_WORD.findall(text.lower())) for text in (one, other))
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
