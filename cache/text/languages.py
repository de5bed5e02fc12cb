"""Tell in which language a question is written, and read those that are not in English by lexicons.

English is told by its function words, and where a script is of one language here, it decides: Thai, Hangul, any
Japanese syllable, Chinese characters. The others, and the lexicons, are handed in (`cache.text.foreign`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cache.text.foreign import ForeignLexicon, ForeignReading, Language, foreign_languages
from cache.text.reading import is_english, script_of

ENGLISH: Final = "en"
_OF_SCRIPT: Final = {
    "Han": "zh", "Hiragana": "ja", "Katakana": "ja", "Hangul": "ko", "Thai": "th", "Greek": "el", "Hebrew": "he",
    "Devanagari": "hi", "": "",
}  # fmt: skip
"""Languages of the scripts that are of one language for us."""
_COMPARED: Final = frozenset({"Latin", "Cyrillic", "Arabic"})
_LIKELY: Final = 0.2
"""Share of a language from which its rules are asked too: short texts may be of several."""
_ENGLISH: Final = Language(ENGLISH)


@lru_cache(maxsize=16_384)
def language(text: str) -> Language:
    """Return the language of a text; cached, because stored questions are compared repeatedly."""
    if text.isascii() and is_english(text):
        return _ENGLISH
    script = script_of(text)
    if script not in _COMPARED:
        return Language(_OF_SCRIPT.get(script, script.lower()))
    if (foreign := foreign_languages()) is not None:
        return foreign.compared(text)
    return _ENGLISH if script == "Latin" and is_english(text) else Language(script.lower())


def language_of(text: str) -> str:
    """Return the code of the language of a text; see `Language`."""
    return language(text).code


def known_lexicons() -> Mapping[str, ForeignLexicon]:
    """Return the lexicons by the code of their language."""
    foreign = foreign_languages()
    return {} if foreign is None else foreign.lexicons


@lru_cache(maxsize=16_384)
def reading_in(code: str, text: str) -> ForeignReading:
    """Return the reading of a text in a language that has a lexicon; cached, as stored questions are compared often."""
    return known_lexicons()[code].read(text)


@lru_cache(maxsize=16_384)
def languages_to_read(text: str) -> tuple[str, ...]:
    """Return the languages with a lexicon in which a text may be written, the likeliest first; none for English."""
    tongue = language(text)
    if tongue.code == ENGLISH:
        return ()
    likely = [code for code, share in tongue.shares.items() if share >= _LIKELY and code != tongue.code]
    return tuple(code for code in (tongue.code, *likely) if code in known_lexicons())


def readings_of(text: str) -> tuple[ForeignReading, ...]:
    """Return the reading of a text in each language that it may be in; none for English."""
    return tuple(reading_in(code, text) for code in languages_to_read(text))


def digits(word: str) -> str:
    """Return a number in ASCII digits, with a point between their groups."""
    return "".join(str(int(sign)) if sign.isdecimal() else "." for sign in word)
