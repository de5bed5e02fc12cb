"""Say where two texts conflict by their signs alone, in any language. Pure."""

from __future__ import annotations

import re
from typing import Final

from cache.text.reading import script_of

_DIGITS: Final = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)*")
_WORDS: Final = re.compile(r"\w+")
_UNSPACED: Final = frozenset({"Han", "Hiragana", "Thai"})
"""Scripts without spaces between words."""
_LATIN_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z0-9.+#-]*")


def other_digits(stored: str, asked: str) -> bool:
    """Return whether the numbers in digits differ, in whatever digits they are written."""
    return sorted(_numbers_in_digits(stored)) != sorted(_numbers_in_digits(asked))


def _numbers_in_digits(text: str) -> list[str]:
    return ["".join(str(int(sign)) if sign.isdecimal() else "." for sign in found) for found in _DIGITS.findall(text)]


def other_latin_words(stored: str, asked: str) -> bool:
    """Return whether texts in another script both have words in Latin letters and none in common: PDF and JPG."""
    own, others = _latin_words(stored), _latin_words(asked)
    return bool(own and others) and set(own).isdisjoint(others)


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
