"""Prompts as people write them, for the load: three languages, three lengths, no two alike.

They are made from the templates and slots in `prompts.toml`: a question, a paragraph that ends with one, or a page. The
same seed gives the same prompts, so that two builds answer the same. Each is a line of a file that `wrk.lua` reads.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

LANGUAGES: Final = ("en", "de", "es")
LENGTHS: Final = {"question": (0, 0.6), "paragraph": (5, 0.3), "page": (18, 0.1)}
"""Sentences before the question, and the share of such prompts in the mix: 90, 500 and 1,700 characters or so."""


_STORED: Final = 160
"""Questions of a seed that `rewordings` asks in other words, some seven times each."""


@cache
def _templates() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())


class _Slots:
    """Fill each slot by chance; those that are not lists are numbers."""

    def __init__(self, slots: Mapping[str, Sequence[str]], chance: random.Random) -> None:
        self._slots = slots
        self._chance = chance

    def __getitem__(self, name: str) -> object:
        if name in self._slots:
            return self._chance.choice(self._slots[name])
        most = {"count": 30, "distance": 400, "price": 900, "number": 10_000_000}[name]
        return self._chance.randrange(3, most)


def natural(seed: int, languages: Sequence[str] = LANGUAGES, lengths: Sequence[str] = tuple(LENGTHS)) -> Iterator[str]:
    """Yield prompts of these languages in turn, of these lengths by their shares, without end and no two alike."""
    chance, seen = random.Random(seed), set[str]()
    shares = [LENGTHS[length][1] for length in lengths]
    while True:
        for language in languages:
            text = _prompt(language, LENGTHS[chance.choices(lengths, shares)[0]][0], chance)
            if text not in seen:
                seen.add(text)
                yield text


def _prompt(language: str, sentences: int, chance: random.Random) -> str:
    templates = _templates()[language]
    slots = _Slots(templates["slots"], chance)
    chosen = [*chance.sample(templates["sentences"], sentences), chance.choice(templates["questions"])]
    parts = [template.format_map(slots) for template in chosen]
    return " ".join(part[:1].upper() + part[1:] for part in parts)


def stored(seed: int) -> list[str]:
    """Return the questions that `rewordings` of the same seed ask in other words."""
    return list(dict.fromkeys(question for question, _ in pairs(seed)))


def rewordings(seed: int) -> Iterator[str]:
    """Yield other wordings of what is `stored`, each once, in random order."""
    texts = [asked for _, asked in pairs(seed)]
    random.Random(seed).shuffle(texts)
    yield from texts


def pairs(seed: int) -> Iterator[tuple[str, str]]:
    """Yield a question and another wording, which the cache's rules leave open and the cross-encoder takes."""
    chance = random.Random(seed)
    slots, reworded = _Slots(_templates()["en"]["slots"], chance), _templates()["reworded"]
    seen = set[str]()
    while len(seen) < _STORED:
        chosen = reworded[len(seen) % len(reworded)]
        values = {name: slots[name] for name in ("do", "thing", "bike")}
        question = chosen["stored"].format_map(values)
        if question not in seen:
            seen.add(question)
            yield from ((question, asked.format_map(values)) for asked in chosen["asked"])


def as_line(text: str) -> str:
    """Return what stands between the quotes of a JSON string of this text."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
