"""Detect questions whose answer depends on when they are asked, by the word list in `volatile.txt`."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

_LONGEST: Final = 2_000
"""Maximum characters read whole. Of a longer text, a document with a question at one end, only the ends are read."""
_END: Final = 500
_WORD: Final = re.compile(r"\w+")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of Chinese, Japanese and Korean, whose words are not separated by spaces or carry joined endings."""


def _read(text: str) -> tuple[frozenset[str], frozenset[tuple[str, ...]], tuple[str, ...]]:
    """Return the list's words, its pairs of words, and the substrings to search for. Raises ValueError."""
    words, pairs, parts = set(), set(), set()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        for entry in filter(None, map(str.strip, line.split(","))):
            tokens = tuple(_WORD.findall(entry))
            if entry != entry.lower() or " ".join(tokens) != entry or len(tokens) > 2:
                raise ValueError(f"volatile.txt: {entry!r} must be one word or two, in lower case")
            if _UNSPACED.search(entry):
                parts.add(entry)
            elif len(tokens) == 1:
                words.add(entry)
            else:
                pairs.add(tokens)
    return frozenset(words), frozenset(pairs), tuple(sorted(parts))


_WORDS, _PAIRS, _PARTS = _read(Path(__file__).with_name("volatile.txt").read_text("utf-8"))


@lru_cache(maxsize=1_024)
def is_volatile(text: str) -> bool:
    """Return whether the answer may be different tomorrow. Takes a few microseconds; results are cached."""
    if len(text) > _LONGEST:
        text = f"{text[:_END]} {text[-_END:]}"
    text = text.lower()
    tokens = _WORD.findall(text)
    if not _WORDS.isdisjoint(tokens) or not _PAIRS.isdisjoint(pairwise(tokens)):
        return True
    return not text.isascii() and any(part in text for part in _PARTS)
