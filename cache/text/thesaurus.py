"""Read the lists of words, and spell out what people shorten. English only. No I/O but the lists.

`thesaurus.toml` has synonyms, and words of one kind that are not synonyms; `spelling.toml` has what is also spelled
otherwise (`b4`, `dont`, `how 2 run`, `non-profit`).
"""

from __future__ import annotations

import re
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
_SPELLINGS: Final = word_list("spelling.toml")


def _by_short(table: dict[str, str]) -> dict[str, str]:
    return {short: long for long, words in table.items() for short in words.split()}


_LOWER: Final = _by_short(_SPELLINGS["lower"])
_SHORT: Final = _by_short(_SPELLINGS["any"]) | _LOWER
_WORDS: Final = {name: frozenset(words.split()) for name, words in _SPELLINGS["digits"].items()}
_TOKEN: Final = re.compile(
    rf"(?<![\w'/-])(?:{'|'.join(sorted(map(re.escape, _SHORT), key=len, reverse=True))})(?![\w'/-])", re.IGNORECASE
)
_DIGIT: Final = re.compile(r"(?:(?<=\A)|(?<=[A-Za-z?!.,]\s))([24])(?=\s++([A-Za-z]++)(?:\s++([A-Za-z0-9]++))?)")
"""A single 2 or 4 between words, the word after it, and the next."""
_LAST_WORD: Final = re.compile(r"(?<![a-z0-9])([a-z0-9]++)\s++\Z", re.IGNORECASE)


_NON: Final = re.compile(r"\bnon[- ](?=[a-z]{3})", re.IGNORECASE)
_FREE: Final = re.compile(rf"\b({'|'.join(_SPELLINGS['free'].split())})[- ]free\b", re.IGNORECASE)


def spelled_out(text: str) -> str:
    """Return `text` with its short forms spelled out, `non-x` as `nonx` and `x-free` as `without x`.

    A 2 or a 4 that may be a number stays one.
    """
    lowered = text.lower()
    if "non" in lowered or "free" in lowered:
        text = _FREE.sub(r"without \1", _NON.sub("non", text))
    return words_spelled_out(text)


def words_spelled_out(text: str) -> str:
    """Return an English text with its short forms spelled out, and with each 2 and 4 that is none as a word."""
    lowered = text.lower()
    if not _SHORT.keys().isdisjoint(lowered.translate(_MARKS).split()):
        text = _TOKEN.sub(_spelled, text)
    return _DIGIT.sub(_word_for, text) if "2 " in text or "4 " in text else text


_MARKS: Final = str.maketrans(dict.fromkeys('.,;:!?"()', " "))


def _spelled(match: re.Match[str]) -> str:
    short = match[0]
    return short if short.lower() in _LOWER and not short.islower() else _SHORT[short.lower()]


def _word_for(match: re.Match[str]) -> str:
    """Return what the digit says: `to`, `too`, `for`, or itself."""
    digit, after, then = match[1], match[2].lower(), (match[3] or "").lower()
    found = _LAST_WORD.search(match.string, 0, match.start())
    before = found[1].lower() if found else ""
    if (
        after in _WORDS["both_before"]
        and before
        and (after != "a" or not _WORDS["english"].isdisjoint(match.string.split()))
    ):
        return "to" if digit == "2" else "for"
    counts = after in _WORDS["counted"] or _is_plural(after)
    return _two(before, after, then, counts) if digit == "2" else _four(before, after, then, counts)


def _two(before: str, after: str, then: str, counts: bool) -> str:
    if after in _WORDS["too_before"] or (then in ("2", "to") and not counts and after not in _WORDS["verbs"]):
        return "too"
    if _is_plural(before) and _is_plural(after) and before not in _WORDS["numbered"] | _WORDS["to_after"]:
        return "to"  # hectares 2 acres
    verb = after in _WORDS["verbs"] and not _is_plural(then) and before and before not in _WORDS["numbered"]
    return "to" if not counts and (verb or before in _WORDS["to_after"]) else "2"


def _four(before: str, after: str, then: str, counts: bool) -> str:
    if after in _WORDS["for_before"] or before in _WORDS["for_after"]:
        return "for"
    if not before or before.isdigit() or counts or before in _WORDS["numbered"]:
        return "4"
    return "4" if before in _WORDS["verbs"] and not after.endswith("ing") else "for"


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is"))
