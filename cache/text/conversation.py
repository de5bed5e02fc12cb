"""Take what is more than one question apart: conversations into turns, long texts into sentences. Pure.

The cache stores, compares and indexes one text per request. For a single question that is the question; for a
conversation whose turns are compared one by one it is this:

    ␞u:Who was Cleopatra?␞a:She was the last ruler of Egypt.␞u:How did she die?

`␞` is ASCII's record separator; a text that contains one is never part of such a conversation. An answer of the
assistant that is longer than 300 characters stands there as its hash (`h:`), so it can only be equal to another or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from cache.text.reading import LISTS
from cache.text.thesaurus import word_set

SEPARATOR: Final = "\x1e"
USER: Final = "u"
ASSISTANT: Final = "a"
HASH: Final = "h"
_IN_FULL: Final = 300
_DIGEST_BYTES: Final = 16
_SPEAKERS: Final = {USER: "user", ASSISTANT: "assistant", HASH: "assistant"}


class Turn(NamedTuple):
    """One message: `speaker` is USER, ASSISTANT, or HASH for an answer whose `text` is its hash."""

    speaker: str
    text: str


def user_turn(text: str) -> Turn:
    """Return a turn of the user, without surrounding whitespace."""
    return Turn(USER, text.strip())


def assistant_turn(text: str) -> Turn:
    """Return a turn of the assistant, with single spaces; its hash where it is long."""
    plain = " ".join(text.split())
    if len(plain) <= _IN_FULL:
        return Turn(ASSISTANT, plain)
    return Turn(HASH, blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest())


def as_text(turns: Sequence[Turn]) -> str:
    """Return the turns as one text, which `turns_of` reads back. No turn contains SEPARATOR."""
    return "".join(f"{SEPARATOR}{turn.speaker}:{turn.text}" for turn in turns)


@lru_cache(maxsize=2_048)
def turns_of(text: str) -> tuple[Turn, ...]:
    """Return the turns in a text of `as_text`; () for a single question."""
    if not text.startswith(SEPARATOR):
        return ()
    parts = (part.partition(":") for part in text[1:].split(SEPARATOR))
    return tuple(Turn(speaker, rest) for speaker, _, rest in parts)


def last_of(text: str) -> str:
    """Return the last turn's text; a single question is returned unchanged."""
    return text.rpartition(SEPARATOR)[2].partition(":")[2] if text.startswith(SEPARATOR) else text


def readable(text: str) -> str:
    """Return the text for people: a line per turn with who speaks; a single question is returned unchanged."""
    turns = turns_of(text)
    if not turns:
        return text
    return "\n".join(
        f"{_SPEAKERS.get(turn.speaker, '?')}: {'...' if turn.speaker == HASH else turn.text}" for turn in turns
    )


END: Final = re.compile(r"(?<=[。！？；।؟])|(?<=[.!?…])(?<!\b[A-Z]\.)[\"'”’)\]*_]*+\s++(?![a-z])")
"""The end of a sentence, with the space behind it."""
LONG: Final = 200
"""Characters from which a text tells more than it asks."""
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
