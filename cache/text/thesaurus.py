"""Read the lists of words: `thesaurus.toml` has synonyms, and words of one kind that are not synonyms. English only."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final


def word_set(words: str) -> frozenset[str]:
    """Split a string of words."""
    return frozenset(words.split())


def groups_of(text: str, separator: str = ";") -> list[tuple[str, ...]]:
    """Split a string of groups of words."""
    return [tuple(group.split()) for group in text.split(separator)]


def word_list(name: str) -> dict[str, Any]:
    """Read a file of words in this folder. Its lists are strings, to be split with `word_set` or `groups_of`."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return each first element with all its second ones, in order and each once."""
    grouped: dict[str, dict[str, None]] = {}
    for word, group in pairs:
        grouped.setdefault(word, {})[group] = None
    return {word: list(groups) for word, groups in grouped.items()}


_LISTS: Final = word_list("thesaurus.toml")
GROUPS: Final = tuple(groups_of(_LISTS["synonyms"]))
SYNONYM: Final = {
    word: tuple(heads) for word, heads in _grouped((word, group[0]) for group in GROUPS for word in group).items()
}
"""Maps a word to the first word of each of its synonym groups. Words without a synonym are not in it."""
_KINDS_OF = _grouped((word, kind) for kind, line in _LISTS["kinds"].items() for word in line.split())
KIND: Final = {word: frozenset(kinds) for word, kinds in _KINDS_OF.items()}
"""Maps a word to its kinds (an orange: a colour and a food); two different words of one kind are never equivalent."""
VAGUE: Final = word_set(_LISTS["vague"])
FILLERS: Final = word_set(_LISTS["fillers"])
PHRASES: Final = {
    source.strip(): target.strip()
    for source, _, target in (" ".join(line.split()).partition(">") for line in _LISTS["phrases"].split(";"))
}
"""Maps a phrase to the word that means the same."""
ROOTS: Final[dict[str, str]] = dict(entry.split() for entry in _LISTS["roots"].split(";"))
"""Maps an irregular form to its base form."""
ANTONYMS: Final = tuple((left, right) for left, right in groups_of(_LISTS["antonyms"]))
PREFIXES: Final = tuple((left, right) for left, right in groups_of(_LISTS["prefixes"]))
SUFFIXES: Final = tuple((left, right) for left, right in groups_of(_LISTS["suffixes"]))
"""Beginnings, and endings, that make opposites of the same word."""
TOWARDS: Final = word_set(_LISTS["towards"])
AWAY: Final = word_set(_LISTS["away"])
