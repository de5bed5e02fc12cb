"""Take long texts apart into sentences, and find those in which two differ. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from cache.text.conversation import END, LONG
from cache.text.reading import LISTS
from cache.text.thesaurus import word_set

_FEWEST: Final = 3
_MOST_SENTENCES: Final = 40
"""Sentences of each text: to compare two lists of them takes the product of their lengths."""
_MOST: Final = 6
"""Pairs of sentences: a bound on what a model has to read."""
_ALIKE: Final = 0.6
"""Share of words that two texts have in common, below which they are two stories, or one told anew."""
_WORDS: Final = re.compile(r"\w+")
_GREETINGS: Final = word_set(LISTS["greetings"])


def differing_sentences(stored: str, asked: str, wording: Callable[[str], str]) -> tuple[tuple[str, str], ...] | None:
    """Return the pairs of sentences in which two long texts differ, each sentence with the one in its place.

    None where they are not long, have little in common, or a sentence has no counterpart: these must be read as a
    whole. `wording` returns what is equal for sentences that are taken for the same.
    """
    if min(len(stored), len(asked)) < LONG:
        return None
    return _differing(stored, asked, wording)


@lru_cache(maxsize=1_024)
def _differing(stored: str, asked: str, wording: Callable[[str], str]) -> tuple[tuple[str, str], ...] | None:
    own, others = (frozenset(_WORDS.findall(text.lower())) for text in (stored, asked))
    if 2 * len(own & others) < _ALIKE * (len(own) + len(others)):
        return None
    ours, theirs = ([sentence for sentence in _sentences(text) if not _greets(sentence)] for text in (stored, asked))
    if min(len(ours), len(theirs)) < _FEWEST or max(len(ours), len(theirs)) > _MOST_SENTENCES:
        return None
    pairs: list[tuple[str, str]] = []
    matcher = SequenceMatcher(None, [*map(wording, ours)], [*map(wording, theirs)], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            continue
        if j - i != m - k:
            return None
        pairs += zip(ours[i:j], theirs[k:m], strict=True)
    return tuple(pairs) if len(pairs) <= _MOST else None


def _sentences(text: str) -> list[str]:
    return [sentence for line in text.splitlines() for sentence in map(str.strip, END.split(line)) if sentence]


def _greets(sentence: str) -> bool:
    """Return whether a sentence is a greeting or thanks."""
    return _GREETINGS.issuperset(_WORDS.findall(sentence.lower()))
