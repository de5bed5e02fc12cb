"""Read the labelled texts in `volatile/*.toml`, written for this project: does the answer depend on when it is asked?

    language = "en"
    around = ["I like trains."]   sentences that may stand around any text of the language
    [slots]
    city = "Rome, Paris"        values, between commas; `{city}` in a text stands for one of them
    [texts]
    day = '''...'''             a text per line whose answer changes by the minute, the hour or the day
    year = '''...'''            whose answer changes within a year or so: who is in office, prices, the latest version
    never = '''...'''           whose answer does not

`day` and `year` are volatile. Texts in `volatile/exam` examine the head and train nothing.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from gateway.parts.fit.datasets import DataError
from tools.question_families import SHIPPED as FAMILIES
from tools.question_families import read_families

SHIPPED = Path(__file__).with_name("volatile")
"""The folder of the texts in this tree."""
EXAM = SHIPPED / "exam"
LABELS = ("day", "year", "never")
_SLOT = re.compile(r"\{(\w+)\}")
_NUMBERED = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text with its label, and the line or family that it was made from, of which no part is in another fold."""

    text: str
    label: str
    language: str
    origin: str
    weight: float = 1.0

    @property
    def is_volatile(self) -> bool:
        return self.label != "never"


def filled_texts(
    folder: Path, fillings: int, seed: int, *, made_up: int = 0, around: bool = False
) -> list[LabelledText]:
    """Return the texts of all files in a folder, each line with `fillings` choices of its slots. Raises DataError.

    A line with slots comes `made_up` times more with names that nobody knows in them, so that a fit goes by the line;
    with `around`, each line comes once more between other sentences.
    """
    texts, neutral = list[LabelledText](), dict[str, list[str]]()
    for path in sorted(folder.glob("*.toml")):
        try:
            read = tomllib.loads(path.read_text("utf-8"))
            language = str(read["language"])
            neutral.setdefault(language, []).extend(read.get("around", ()))
            slots = {name: values.split(", ") for name, values in read.get("slots", {}).items()}
            for label, lines in read["texts"].items():
                if label not in LABELS:
                    raise DataError(f"{path}: texts.{label}: a label is one of {', '.join(LABELS)}")
                for line in filter(None, map(str.strip, lines.splitlines())):
                    made = _filled(line, slots, fillings, made_up, Random(f"{seed}{language}{line}"))  # noqa: S311
                    origin = f"{language}: {line}"
                    texts += [LabelledText(text, label, language, origin, len(made) ** -0.5) for text in made]
        except KeyError as missing:
            raise DataError(f"{path}: {missing.args[0]} missing") from None
        except (ValueError, AttributeError) as error:
            raise DataError(f"{path}: {error}") from None
    if not texts:
        raise DataError(f"{folder}: it contains no labelled text (*.toml)")
    lines = {text.origin: text for text in texts if text.language in neutral} if around else {}
    draw = Random(seed)  # noqa: S311
    return [*texts, *(replace(line, text=_among(line.text, neutral[line.language], draw)) for line in lines.values())]


def _among(text: str, neutral: Sequence[str], draw: Random) -> str:
    """Return the text with one to three other sentences before or behind it."""
    others = draw.sample(neutral, draw.randint(1, min(3, len(neutral))))
    at = draw.choice((0, len(others), len(others)))
    ended = text if text[-1] in ".?!。？！؟" else f"{text}."
    return " ".join((*others[:at], ended, *others[at:]))


def _filled(line: str, slots: dict[str, list[str]], fillings: int, made_up: int, draw: Random) -> list[str]:
    if not _SLOT.search(line):
        return [line]
    known = {_SLOT.sub(lambda slot: draw.choice(slots[slot[1]]).strip(), line) for _ in range(fillings)}
    return sorted(known | {_SLOT.sub(lambda slot: _made_up(slots[slot[1]], draw), line) for _ in range(made_up)})


def _made_up(values: Sequence[str], draw: Random) -> str:
    """Return a name made of pieces of three values; one of the values where they have digits, which mean something."""
    names = [draw.choice(values).strip() for _ in range(3)]
    if any(map(str.isdecimal, "".join(names))):
        return names[0]
    starts = [draw.randrange(max(1, len(name) - 2)) for name in names]
    pieces = (name[start : start + draw.randint(2, 4)] for name, start in zip(names, starts, strict=True))
    return "".join(pieces).replace(" ", "")


def texts_of_families(seed: int, weight: float) -> list[LabelledText]:
    """Return the wordings of the families of questions, with values of their slots, as texts that are not volatile.

    A few of them are all the same: `tools.train_volatile` leaves out those that look it. Raises DataError.
    """
    draw = Random(seed)  # noqa: S311
    return [
        LabelledText(_SLOT.sub(partial(_value, family.slots, draw), ask), "never", family.language, family.name, weight)
        for family in read_families(FAMILIES)
        for intent in family.intents
        for ask in intent.asks
    ]


def _value(slots: Mapping[str, tuple[str, ...]], draw: Random, slot: re.Match[str]) -> str:
    """Return one name of a value of the slot."""
    return draw.choice(slots[_NUMBERED.sub("", slot[1])]).split(" | ")[0]
