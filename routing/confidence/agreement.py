"""Measure how far two answers to the same request agree: evidence where a backend gives no log-probabilities. No I/O.

A model that knows an answer tends to repeat it; one that guesses answers differently the next time (self-consistency:
Wang et al., 2022). Two answers are equal if they differ only in case, punctuation and articles, or if they are the same
JSON. Otherwise agreement is the F1 of their words, as in reading-comprehension scoring (SQuAD); where either contains a
number, half of the weight is on whether the last numbers are equal. With an embedding, words count half and the cosine
of the two vectors the other half: words alone miss paraphrases, vectors alone miss a changed name (AUC of telling
paraphrases from other pairs: 0.74 with words and 0.79 with both on Quora's questions, 0.78 and 0.82 on CheckList's
minimal edits).

Of answers that call tools the calls are compared, one by one in their order, and what is said around them is not: the
same tool with the same arguments is 1, another tool is 0, and between them lies the mean over the arguments. An answer
that calls something and one that does not have nothing in common.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import orjson

Cosine = Callable[[str, str], float | None]
"""The cosine of two texts' vectors, -1..1; None where that would take too long."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"a", "an", "the"})
_MAX_CHARS = 20_000
"""Maximum number of characters compared of each answer."""


class ComparedAnswer(NamedTuple):
    """What a model said, and the tools that it called with it: the name and the arguments, as JSON, of each."""

    text: str
    calls: Sequence[tuple[str, str]] = ()

    def begun_like(self, draft: ComparedAnswer) -> ComparedAnswer:
        """Return so much of this answer as the draft has words, and of its calls as the draft has made."""
        calls = [
            (name, _first_words(arguments, theirs))
            for (name, arguments), (_, theirs) in zip(self.calls, draft.calls, strict=False)
        ]
        return ComparedAnswer(_first_words(self.text, draft.text), calls)

    def so_far(self) -> ComparedAnswer | None:
        """Return the beginning of an answer without its last word, which may go on; None if nothing is left."""
        if not self.calls:
            text = self.text.rpartition(" ")[0]
            return ComparedAnswer(text) if text else None
        *calls, (name, arguments) = self.calls
        return ComparedAnswer(self.text, [*calls, (name, arguments.rpartition(" ")[0])])


def _first_words(text: str, like: str) -> str:
    return " ".join(text.split(" ")[: like.count(" ") + 1]) if like else ""


def agreement_of(
    answer: ComparedAnswer, samples: Sequence[ComparedAnswer], cosine: Cosine | None = None, *, complete: bool = True
) -> float | None:
    """Return the mean agreement of `answer` with each of `samples`, 0..1; None without a sample that can be compared.

    Of an answer that is not `complete` the samples' beginnings are compared. One that has called nothing yet may still
    do what a sample does that calls something.
    """
    if not complete:
        begun = answer.so_far()
        if begun is None:
            return None
        answer, samples = begun, [sample.begun_like(begun) for sample in samples if begun.calls or not sample.calls]
    if not samples:
        return None
    return math.fsum(_alike(answer, sample, cosine) for sample in samples) / len(samples)


def _alike(one: ComparedAnswer, other: ComparedAnswer, cosine: Cosine | None) -> float:
    if not one.calls and not other.calls:
        return similarity(one.text, other.text, cosine)
    pairs = zip_longest(one.calls, other.calls)
    alike = [0.0 if mine is None or theirs is None else _calls_alike(*mine, *theirs) for mine, theirs in pairs]
    return math.fsum(alike) / len(alike)


def _calls_alike(name: str, arguments: str, other: str, others: str) -> float:
    if name != other:
        return 0.0
    try:
        mine, theirs = orjson.loads(arguments or b"{}"), orjson.loads(others or b"{}")
    except orjson.JSONDecodeError:  # still being written, or cut off
        return similarity(arguments, others)
    if mine == theirs or not isinstance(mine, dict) or not isinstance(theirs, dict):
        return float(mine == theirs)
    keys = mine.keys() | theirs.keys()
    return math.fsum(_values_alike(mine.get(key), theirs.get(key)) for key in keys) / len(keys)


def _values_alike(one: Any, other: Any) -> float:
    return similarity(one, other) if isinstance(one, str) and isinstance(other, str) else float(one == other)


def similarity(one: str, other: str, cosine: Cosine | None = None) -> float:
    """Return how far two answers agree: 1 if they say the same, 0 if they have nothing in common."""
    one, other = one[:_MAX_CHARS], other[:_MAX_CHARS]
    if _same_json(one, other):
        return 1.0
    mine, others = _words(one), _words(other)
    if not mine or not others:
        # At least one answer has no words, only punctuation.
        return float(one.split() == other.split())
    overlap = _f1(Counter(mine), Counter(others))
    near = cosine(one, other) if cosine is not None and overlap < 1 else None
    if near is not None:
        overlap = (overlap + min(1.0, max(0.0, near))) / 2
    my_last, other_last = _last_number(one), _last_number(other)
    if my_last is None and other_last is None:
        return overlap
    return (overlap + (my_last == other_last)) / 2


def _same_json(one: str, other: str) -> bool:
    if not one.lstrip().startswith(("{", "[")):
        return False
    try:
        return _sorted(one) == _sorted(other)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # not JSON, or too deep to be written back
        return False


def _sorted(text: str) -> bytes:
    value: Any = orjson.loads(text)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _words(text: str) -> list[str]:
    words = _WORD.findall(text.casefold())
    return [word for word in words if word not in _ARTICLES] or words  # "A" may be the answer to a multiple choice


def _f1(mine: Counter[str], others: Counter[str]) -> float:
    shared = (mine & others).total()
    return 2 * shared / (mine.total() + others.total())


def _last_number(text: str) -> float | None:
    numbers = _NUMBER.findall(text)
    return float(numbers[-1].replace(",", "")) if numbers else None
