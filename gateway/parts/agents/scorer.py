"""Estimate from question and answer alone how likely the answer is right: what is left where a model tells nothing.

A logistic model over what can be counted in the two texts, after FrugalGPT's scoring function (Chen et al., 2023), but
without its language model: on sets left out, vectors of the texts ranked answers at chance. It is fitted to labelled
answers of one's own, and says nothing of texts that are mostly not written in Latin letters, of kinds that it was told
to leave alone, nor of beginnings where sets left out did not prove that it can. None ships: fitted to public answers it
ranks those of other sets hardly better than their length does (routing/README.md).

An artefact is one JSON file as a confidence head's. `gateway.parts.fit.training.answer_scorer` writes it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.parts.heads.head import LogisticScorer, numbers_hash
from routing.difficulty.model import ArtefactError

FORMAT: Final = "tierline-scorer-1"
WHOLE: Final = "whole"
BEGINNING: Final = "beginning"
"""Part that judges what a stream has held: fitted to the first BEGINNING_WORDS words of answers."""
BEGINNING_WORDS: Final = 24
READ_CHARS: Final = 6_000
"""Characters of each text that are read, from its beginning."""
FEATURES: Final = (
    "words", "asked_words", "overlap", "variety", "doubts", "finds_none", "longest_number", "lines", "word_length",
)  # fmt: skip

_WORD: Final = re.compile(r"\w+")
_NUMBER: Final = re.compile(r"\d[\d,.]*")
_DOUBT: Final = re.compile(
    r"\b(?:maybe|perhaps|possibly|probably|might|could be|i (?:think|believe)|not sure|unsure|unclear|seems?|appears?"
    r"|likely|approximately|roughly|assum\w+|however|although|wait|actually|alternatively|let me|re-?check|mistake)\b"
)
_NONE: Final = re.compile(
    r"\b(?:none of|not (?:listed|among|match|provided)|does(?: not|n't) match|closest|cannot|not enough)\b"
)
_LATIN_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class AnswerScorer:
    """A fitted scorer. `version` is the first 12 hex digits of its numbers' SHA-256.

    `parts` are WHOLE, BEGINNING or both, as far as they were proven; of the kinds of requests in `not_for` it says
    nothing.
    """

    version: str
    parts: dict[str, LogisticScorer]
    not_for: frozenset[str]

    @classmethod
    def load(cls, path: Path) -> AnswerScorer:
        """Read an artefact. Raises ArtefactError if it is missing, altered or malformed."""
        try:
            artefact = json.loads(path.read_bytes())
            if artefact["format"] != FORMAT:
                raise ValueError(f"its format is {artefact['format']!r}")
            numbers = artefact["numbers"]
            if numbers_hash(numbers) != artefact["sha256"]:
                raise ArtefactError(f"{path}: the SHA-256 of its numbers differs from the one it states")
            parts = {str(part): LogisticScorer.of(weights) for part, weights in numbers["parts"].items()}
            if unknown := {name for part in parts.values() for name in part.features} - set(FEATURES):
                raise ValueError(f"it reads {sorted(unknown)}")
            return cls(artefact["sha256"][:12], parts, frozenset(map(str, numbers["not_for"])))
        except OSError as error:
            raise ArtefactError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtefactError(f"{path} is not a {FORMAT} artefact: {type(error).__name__}: {error}") from None

    def p_right(self, question: str, answer: str, *, complete: bool, kind: str = "") -> float | None:
        """Return the probability that the answer is right; None for what the scorer was not fitted to.

        `complete` is false where the answer is only its beginning.
        """
        part = self.parts.get(WHOLE if complete else BEGINNING)
        if part is None or kind in self.not_for:
            return None
        values = answer_features(question, answer)
        return None if values is None else part.p_right(values)


def answer_features(question: str, answer: str) -> dict[str, float] | None:
    """Return FEATURES; None for an answer without words, or in letters that are mostly not Latin.

    words, asked_words   log of one plus the number of the answer's and of the question's words
    overlap              share of the question's words that the answer has
    variety              share of the answer's words that are different
    doubts, finds_none   such phrases per hundred words (English), and whether it says that nothing fits
    longest_number       digits of the longest number in the answer
    lines                line breaks per ten words
    word_length          letters per word of the answer
    """
    question, answer = question[:READ_CHARS].lower(), answer[:READ_CHARS].lower()
    words, asked = _WORD.findall(answer), set(_WORD.findall(question))
    letters = sum(map(len, words))
    if not words or (not answer.isascii() and sum(map(_is_latin, answer)) < _LATIN_SHARE * letters):
        return None
    different, many = set(words), len(words)
    numbers = [len(number.replace(",", "").replace(".", "")) for number in _NUMBER.findall(answer)]
    return {
        "words": math.log1p(many),
        "asked_words": math.log1p(len(asked)),
        "overlap": len(asked & different) / max(1, len(asked)),
        "variety": len(different) / many,
        "doubts": 100.0 * len(_DOUBT.findall(answer)) / many,
        "finds_none": float(_NONE.search(answer) is not None),
        "longest_number": float(max(numbers, default=0)),
        "lines": 10.0 * answer.count("\n") / many,
        "word_length": letters / many,
    }


def _is_latin(letter: str) -> bool:
    return letter.isalnum() and letter < "\u0250"
