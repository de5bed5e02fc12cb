"""Tell in which language a question is written, and read those that are not in English by lexicons.

English is told by its function words, and where a script is of one language here, it decides: Thai, Hangul, any
Japanese syllable, Chinese characters. Function words of the others, and the lexicons, are handed in (`read_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from itertools import repeat
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from cache.text.reading import is_english, script_of

_NOT_LISTED: Final = 0.7
"""Share of the languages that are not listed from which a text is taken for one of them: short English questions have a
few per cent often, and 70% in one of two hundred."""


class Language(NamedTuple):
    """The likeliest language of a text as its ISO 639-1 code, '' for a text without letters, the script's name in lower
    case where no language is known; and the shares of the languages that it may be, from 1% on.
    """

    code: str
    shares: Mapping[str, float] = MappingProxyType({})

    def is_one_of(self, listed: Collection[str]) -> bool:
        """Return whether the text may be in one of these languages."""
        if not self.shares:
            return not self.code or self.code in listed
        return sum(share for code, share in self.shares.items() if code not in listed) < _NOT_LISTED


class ForeignReading(NamedTuple):
    """What the word lists of one language tell of a text.

    `own` are its words that no list of words without a topic has, cut short; signs where words are not spaced, of which
    `letters` make a word. `size` is their number in words, `meta` that of the words that ask to go on, `length` that of
    all but polite ones and openers. `negated` counts no side of an opposition (`with / without`), `denied` does.
    `compounds` are nouns that another noun extends to name a part or a thing that belongs to it, each with that noun.
    """

    numbers: tuple[str, ...]
    negated: bool
    denied: bool
    sides: frozenset[tuple[str, str]]
    own: tuple[str, ...]
    size: int
    meta: int
    length: int
    opens: bool
    asks: bool
    points_back: bool
    mentions: bool
    letters: int
    compounds: tuple[tuple[str, str], ...] = ()


class ForeignLexicon(Protocol):
    """The lists of words of one language."""

    letters: int
    """Signs that make a word where words are not spaced, else 0."""

    def read(self, text: str) -> ForeignReading:
        """Return what the lists tell of a text."""

    def bare(self, text: str) -> str:
        """Return a text without greetings and polite phrases, its numbers in digits."""


class ForeignLanguages(Protocol):
    """Read other languages than English, and slips in any."""

    @property
    def lexicons(self) -> Mapping[str, ForeignLexicon]:
        """The lexicons by the code of their language."""

    def compared(self, text: str) -> Language:
        """Return the language of a text in a script that several languages share, English among them, by its words."""

    def respelled(self, stored: str, asked: str) -> tuple[str, str]:
        """Return two texts, each with the words of the other in place of those that are slips of them."""

    def may_exchange(self, stored: str, asked: str, code: str) -> bool:
        """Return whether two texts in a language differ in more or less than one word, or in two that mean the same."""

    def load(self) -> None:
        """Read the files now rather than at the first text that needs them. Raises ValueError, OSError."""


_loaders: Final[list[Callable[[], ForeignLanguages | None]]] = []


def read_by(load: Callable[[], ForeignLanguages | None]) -> None:
    """Have other languages read by what `load` returns, which is called when the first text is read."""
    _loaders[:] = [load]
    foreign_languages.cache_clear()


@cache
def foreign_languages() -> ForeignLanguages | None:
    """Return what reads other languages; None without."""
    return _loaders[0]() if _loaders else None


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
    return tuple(map(reading_in, languages_to_read(text), repeat(text)))


def digits(word: str) -> str:
    """Return a number in ASCII digits, with a point between their groups."""
    return "".join(str(int(sign)) if sign.isdecimal() else "." for sign in word)
