"""Define what reads other languages than English. The caller hands it in, for the whole process, with `read_by`.

Without it questions that are not in English have no language but their script's, and nothing is read of them but signs:
the cache serves no answer to them by meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

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
    """What a lexicon tells of a text.

    `own` are its words that no list of words without a topic has, cut short; signs where words are not spaced, of which
    `letters` make a word. `size` is their number in words, `meta` that of the words that ask to go on, `length` that of
    all but polite ones and openers. `negated` counts no side of an opposition (`with / without`), `denied` does.
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


class ForeignLexicon(Protocol):
    """The lists of words of one language."""

    letters: int
    """Signs that make a word where words are not spaced, else 0."""

    def read(self, text: str) -> ForeignReading:
        """Return what the lists tell of a text."""

    def bare(self, text: str) -> str:
        """Return a text without greetings and polite phrases, its numbers in digits."""


class ForeignLanguages(Protocol):
    """Read other languages than English."""

    @property
    def lexicons(self) -> Mapping[str, ForeignLexicon]:
        """The lexicons by the code of their language."""

    def compared(self, text: str) -> Language:
        """Return the language of a text whose script several languages have: it may be English, too."""

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
