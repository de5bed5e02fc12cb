"""Say where two texts conflict by their signs, or by the words of a lexicon, in any language. Pure but for lexicons.

A function takes both texts and returns whether they conflict. English has no lexicon (`cache.text.languages`); what is
read of it stands in `question_conflicts`.
"""

from __future__ import annotations

import re
from typing import Final

from cache.text import question_conflicts
from cache.text.languages import ForeignReading, digits, languages_to_read, reading_in
from cache.text.reading import read, script_of

_DIGITS: Final = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)*")
_WORDS: Final = re.compile(r"\w+")
_UNSPACED: Final = frozenset({"Han", "Hiragana", "Thai"})
"""Scripts without spaces between words."""
_LATIN_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z0-9.+#-]*")


def other_numbers(stored: str, asked: str) -> bool:
    """Return whether the numbers differ: in whatever digits they are written, and in the words of a lexicon.

    A number in words that only one of them has may belong to its story, and one may be an article.
    """
    own, others = _in_digits(stored), _in_digits(asked)
    pairs = _read(stored, asked)
    if not pairs:
        return own != others
    written = bool(own or others)
    return any(
        one.numbers != other.numbers and (written or (_several(one) != _several(other) and all(map(_several, pair))))
        for pair in pairs
        for one, other in (pair,)
    )


def _several(reading: ForeignReading) -> list[str]:
    return [number for number in reading.numbers if number != "1"]


def _in_digits(text: str) -> list[str]:
    return sorted(map(digits, _DIGITS.findall(text)))


def opposite(stored: str, asked: str) -> bool:
    """Return whether they name opposite sides of something, or one has the words of the other and a `not`.

    An opposite and a `not` say the same: `allowed` and `not forbidden`. In other words a `not` may say it too.
    """
    for reading, other in _read(stored, asked):
        if _other_sides(reading, other):
            refused = reading.negated == other.negated
        else:
            refused = reading.denied != other.denied and sorted(reading.own) == sorted(other.own)
        if refused:
            return True
    return False


def other_numbers_in_turns(stored: str, asked: str) -> bool:
    """Return whether the numbers of two turns differ, in any order."""
    pairs = _read(stored, asked)
    if pairs:
        return any(reading.numbers != other.numbers for reading, other in pairs)
    return question_conflicts.numbers(read(stored), read(asked))


def opposite_in_turns(stored: str, asked: str) -> bool:
    """Return whether one of two turns says no, or each names another side of an opposition."""
    pairs = _read(stored, asked)
    if pairs:
        return any(reading.denied != other.denied or _other_sides(reading, other) for reading, other in pairs)
    return question_conflicts.negations_or_sides(read(stored), read(asked))


def _read(stored: str, asked: str) -> list[tuple[ForeignReading, ForeignReading]]:
    """Return the readings of both texts in the likeliest language of each; none for English."""
    codes = dict.fromkeys((*languages_to_read(stored)[:1], *languages_to_read(asked)[:1]))
    return [(reading_in(code, stored), reading_in(code, asked)) for code in codes]


def _other_sides(one: ForeignReading, other: ForeignReading) -> bool:
    """Return whether each names a side of an opposition that the other does not."""
    own, others = ({group for group, _ in sides} for sides in (one.sides - other.sides, other.sides - one.sides))
    return not own.isdisjoint(others)


def other_latin_words(stored: str, asked: str) -> bool:
    """Return whether texts in another script both have words in Latin letters and none in common: PDF and JPG."""
    own, others = _latin_words(stored), _latin_words(asked)
    return bool(own and others) and set(own).isdisjoint(others)


def part_for_whole(stored: str, asked: str) -> bool:
    """Return whether one asks for a part, or what belongs to a thing, and the other for the thing: a case for a phone.

    Where words are not spaced, the second noun of a compound is one sign or two, which a model overlooks.
    """
    return any(
        noun in text and head not in text
        for reading, other in _read(stored, asked)
        for compounds, text in ((reading.compounds, asked), (other.compounds, stored))
        for noun, head in compounds
    )


def words_moved(stored: str, asked: str) -> bool:
    """Return whether they have the same words in another order; where no spaces are, the same signs."""
    own, others = (_WORDS.findall(text.lower()) for text in (stored, asked))
    if script_of(stored) in _UNSPACED:
        own, others = list("".join(own)), list("".join(others))
    return own != others and sorted(own) == sorted(others)


def latin_words_moved(stored: str, asked: str) -> bool:
    """Return whether texts in another script have the same words in Latin letters in another order: PDF to Word."""
    own, others = _latin_words(stored), _latin_words(asked)
    return own != others and sorted(own) == sorted(others)


def _latin_words(text: str) -> list[str]:
    """Return the words in Latin letters, in lower case and in order; none of a text that is mostly in Latin script."""
    return [] if script_of(text) == "Latin" else [word.lower() for word in _LATIN_WORDS.findall(text)]
