"""Make labelled pairs of answers from a file of topics: `agreement/chosen_on.toml` has the format."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

CHOSEN_ON: Final = Path(__file__).parent / "agreement" / "chosen_on.toml"
"""The set that numbers are chosen on."""


class AgreementPair(NamedTuple):
    """Two answers to one question, and whether they say the same.

    `topic` counts within a language. `kind` is `short` (a short answer and a longer one), `reworded`, or the kind of
    the edit that makes them contradict, with ` reworded` where the other answer has another wording too.
    """

    language: str
    topic: int
    kind: str
    question: str
    one: str
    other: str
    same: bool


def agreement_pairs(path: Path = CHOSEN_ON) -> Iterator[AgreementPair]:
    """Yield the pairs of a file: all wordings of an answer with each other, and each edited one with two of them."""
    topics: dict[str, int] = {}
    for row in tomllib.loads(path.read_text("utf-8"))["topic"]:
        language, question, says = row["language"], row["question"], row["says"]
        topic = topics[language] = topics.get(language, -1) + 1
        for (place, one), (_, other) in combinations(enumerate(says), 2):
            yield AgreementPair(language, topic, "reworded" if place else "short", question, one, other, True)
        for kind, text, instead in row["edits"]:
            for place, said in enumerate(says):
                if text in said:
                    edited, other = said.replace(text, instead), says[(place + 1) % len(says)]
                    yield AgreementPair(language, topic, kind, question, said, edited, False)
                    yield AgreementPair(language, topic, f"{kind} reworded", question, other, edited, False)
