"""Spell out what people shorten or spell otherwise: `b4`, `dont`, `how 2 run`, `non-profit`. English only. Pure."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

_LISTS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _by_short(table: dict[str, str]) -> dict[str, str]:
    return {short: long for long, words in table.items() for short in words.split()}


_LOWER: Final = _by_short(_LISTS["lower"])
_SHORT: Final = _by_short(_LISTS["any"]) | _LOWER
_WORDS: Final = {name: frozenset(words.split()) for name, words in _LISTS["digits"].items()}
_TOKEN: Final = re.compile(
    rf"(?<![\w'/-])(?:{'|'.join(sorted(map(re.escape, _SHORT), key=len, reverse=True))})(?![\w'/-])", re.IGNORECASE
)
_DIGIT: Final = re.compile(r"(?:(?<=\A)|(?<=[A-Za-z?!.,]\s))([24])(?=\s++([A-Za-z]++)(?:\s++([A-Za-z0-9]++))?)")
"""A single 2 or 4 between words, the word after it, and the next."""
_LAST_WORD: Final = re.compile(r"([a-z0-9]++)\s++\Z", re.IGNORECASE)


_NON: Final = re.compile(r"\bnon[- ](?=[a-z]{3})", re.IGNORECASE)
_FREE: Final = re.compile(rf"\b({'|'.join(_LISTS['free'].split())})[- ]free\b", re.IGNORECASE)


def spelled_out(text: str) -> str:
    """Return `text` with its short forms spelled out, `non-x` as `nonx` and `x-free` as `without x`.

    A 2 or a 4 that may be a number stays one.
    """
    lowered = text.lower()
    if "non" in lowered or "free" in lowered:
        text = _FREE.sub(r"without \1", _NON.sub("non", text))
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
