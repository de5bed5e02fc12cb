"""Does the answer to a question depend on when it is asked? Decided by a list of words in `volatile.txt`."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

_LONGEST: Final = 2_000
"""Characters. A longer text is a document with a question before or behind it: only its ends are looked at."""
_END: Final = 500
_WORD: Final = re.compile(r"\w+")
_UNSPACED: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
"""Letters of Chinese, Japanese and Korean, which are written without spaces or with endings joined to the word."""


def _read(text: str) -> tuple[frozenset[str], frozenset[tuple[str, ...]], tuple[str, ...]]:
    """The list's words, its pairs of words, and what counts as a part of any word. Raises ValueError."""
    words, pairs, parts = set(), set(), set()
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        for entry in filter(None, map(str.strip, line.split(","))):
            found = tuple(_WORD.findall(entry))
            if entry != entry.lower() or " ".join(found) != entry or len(found) > 2:
                raise ValueError(f"volatile.txt: {entry!r} is neither a word nor two, in lower case")
            if _UNSPACED.search(entry):
                parts.add(entry)
            elif len(found) == 1:
                words.add(entry)
            else:
                pairs.add(found)
    return frozenset(words), frozenset(pairs), tuple(sorted(parts))


_WORDS, _PAIRS, _PARTS = _read(Path(__file__).with_name("volatile.txt").read_text("utf-8"))


@lru_cache(maxsize=1_024)
def is_volatile(text: str) -> bool:
    """Whether the answer may be another one tomorrow. Takes a few microseconds, and next to nothing if asked again."""
    if len(text) > _LONGEST:
        text = f"{text[:_END]} {text[-_END:]}"
    text = text.lower()
    found = _WORD.findall(text)
    if not _WORDS.isdisjoint(found) or not _PAIRS.isdisjoint(pairwise(found)):
        return True
    return not text.isascii() and any(part in text for part in _PARTS)
