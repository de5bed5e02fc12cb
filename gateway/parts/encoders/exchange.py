"""Say whether the one word in which two English questions differ may stand for the other. No I/O but one artefact.

A cross-encoder knows a rare word by its pieces alone, so that two drugs one syllable apart, or two protocols one letter
apart, look like one. Where two questions differ in one word of content each, the table must list the two: as members of
one set of synonyms, a verb beside the verb it is a kind of, adjectives of one cluster, a word beside one derived from
it, or forms of one word. What it does not list is refused (`guard: exchange`), unless one word is common, the other
usual, and neither looks like the other: then the cross-encoder decides. Opposites are never listed. A short form in
capitals has to be listed, and so has what holds a digit; numbers are left to the guard `numbers`.

Other languages have no table. Where their words are known (`typos`), what is refused there are short forms in
capitals, two words that no dictionary has as usual, and two look-alikes of which one is not usual and which are no
forms of one word; elsewhere nothing is.

The artefact, in `artefacts`:
    exchanges.json         the data sheet: where the pairs are from, `sha256`
    exchanges.LICENSE      the notice that WordNet's licence asks for
    exchanges.safetensors  `pairs`: CRC-32 of each pair, sorted, uint32; irregular forms are among them
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from cache.text.languages import ENGLISH
from gateway.parts.encoders.typos import Level, has_words, word_level
from policies.tensors import map_file, release, tensors_in

SHEET: Final = Path(__file__).parent / "artefacts" / "exchanges.json"
_LISTS: Final = tomllib.loads(Path(__file__).with_name("exchange.toml").read_text("utf-8"))
FREE: Final = frozenset(_LISTS["free"].split())
"""Words without a topic of their own: the other guards and the cross-encoder read them."""
_ENDINGS: Final = tuple(tuple(rule.split(":")) for rule in _LISTS["endings"].split())
_SHORT_FORMS: Final = frozenset(frozenset(pair.split("=")) for pair in _LISTS["short_forms"].split())
_BEGINNINGS: Final = tuple(_LISTS["beginnings"].split())
_WORD: Final = re.compile(r"[^\W_]+(?:[-.'’+#]+[^\W_]+|[+#]+)*")
_CAPITALS: Final = re.compile(r"[A-Z]{2}|\d")
_NUMBER: Final = re.compile(r"[\d.,]+|" + "|".join(_LISTS["numbers"].split()))
_LIKE: Final = 0.4
"""Share of the longer word's letters that two look-alikes may differ in."""
_FEWEST_STEM: Final = 3
_FUNCTION_WORD: Final = 4
"""Letters of the longest common word in another language that is taken for one without a topic."""
_STEM: Final = 4
_INFLECTED: Final = 3
"""Letters that forms of one word share at least, and that they differ in at most, at the end."""


def may_exchange(stored: str, asked: str, code: str) -> bool:
    """Return whether two texts in a language differ in more or less than one word of content, or in two that may stand
    for each other.
    """
    if code == ENGLISH:
        differing = _differing(_content(stored), _content(asked))
        return differing is None or are_listed(*differing)
    if not has_words(code):
        return True
    differing = _differing(_words_in(stored, code), _words_in(asked, code))
    return differing is None or not _confused(*differing, code)


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the one word that each text alone has, as it is written; None where that is not one each."""
    if len(ours.keys() - theirs.keys()) != 1 or len(theirs.keys() - ours.keys()) != 1:
        return None
    ((own,), (other,)) = (ours.keys() - theirs.keys(), theirs.keys() - ours.keys())
    return ours[own], theirs[other]


@lru_cache(maxsize=4_096)
def _content(text: str) -> Mapping[str, str]:
    """Return the words of content of a text as they are written, by their lower case."""
    words = _words(text).items()
    return {low: word for low, word in words if low not in FREE and "'" not in word and "’" not in word}


@lru_cache(maxsize=4_096)
def _words_in(text: str, code: str) -> Mapping[str, str]:
    """Return the words of a text in another language, as `_content` does; short and common ones have no topic."""
    return {
        low: word
        for low, word in _words(text).items()
        if len(low) > _FUNCTION_WORD or _CAPITALS.search(word) or word_level(low, (code,)) < Level.COMMON
    }


def _words(text: str) -> Mapping[str, str]:
    """Return the words of a text as they are written, by their lower case; capitals tell nothing in a text of them."""
    return {word.lower(): word for word in _WORD.findall(text.lower() if text.isupper() else text)}


def _confused(word: str, other: str, code: str) -> bool:
    """Return whether two words in a language without a list look alike and are no forms of one, and one is not usual;
    or one is a short form in capitals.
    """
    own, others = word.lower(), other.lower()
    if own.replace("-", "") == others.replace("-", "") or _NUMBER.fullmatch(own) or _NUMBER.fullmatch(others):
        return False
    if _CAPITALS.search(word) or _CAPITALS.search(other):
        return True
    shorter = min(len(own), len(others))
    shared = next((at for at, (letter, too) in enumerate(zip(own, others, strict=False)) if letter != too), shorter)
    if shared >= _STEM and max(len(own), len(others)) - shared <= _INFLECTED:
        return False
    level, level_too = (word_level(text, tuple(sorted({code, ENGLISH}))) for text in (own, others))
    if max(level, level_too) < Level.USUAL and min(level, level_too) < Level.RARE:
        return True
    return min(level, level_too) < Level.USUAL and _look_alike(own, others)


@lru_cache(maxsize=8_192)
def are_listed(word: str, other: str) -> bool:
    """Return whether two words may stand for each other, as they are written in two questions."""
    own, others = word.lower(), other.lower()
    if own.replace("-", "") == others.replace("-", "") or frozenset((own, others)) in _SHORT_FORMS:
        return True
    if _NUMBER.fullmatch(own) or _NUMBER.fullmatch(others):
        return True  # the guard of numbers compares those
    pairs = _pairs()
    ours, theirs = ({*_stems(written)} for written in (own, others))
    if not ours.isdisjoint(theirs):
        return True
    if any(_has(pairs, pair_digest(stem, stem_too)) for stem in ours for stem_too in theirs):
        return True
    if _CAPITALS.search(word) or _CAPITALS.search(other):
        return False
    level, level_too = (word_level(text, ("en",)) for text in (own, others))
    if min(level, level_too) == Level.UNKNOWN and max(level, level_too) >= Level.COMMON:
        return _mistyped(*((own, others) if level == Level.UNKNOWN else (others, own)))
    known = min(level, level_too) >= Level.USUAL and max(level, level_too) >= Level.COMMON
    return known and not _look_alike(own, others)


def _mistyped(word: str, known: str) -> bool:
    """Return whether a word that nobody writes is a common one mistyped, or that with a word without a topic glued on.

    `typos` reads most slips before; it leaves those that may be a third word.
    """
    if word[0] != known[0]:
        return False
    return (word.startswith(known) and word[len(known) :] in FREE) or _letters_apart(word, known) == 1


def _look_alike(word: str, other: str) -> bool:
    """Return whether two words differ in few letters, or in a beginning that turns one into another thing."""
    bare, bare_too = (next((text[len(b) :] for b in _BEGINNINGS if text.startswith(b)), text) for text in (word, other))
    if {word, bare} & {other, bare_too} and min(len(bare), len(bare_too)) >= _FEWEST_STEM:
        return True
    return _letters_apart(word, other) <= _LIKE * max(len(word), len(other))


def _letters_apart(word: str, other: str) -> int:
    """Return the number of letters to add, drop or replace (Levenshtein); words are short, so no limit is kept."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word[:40], 1):
        before, row[0] = row[0], i
        for j, letter_too in enumerate(other[:40], 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != letter_too))
    return row[min(len(other), 40)]


def _stems(word: str) -> Iterator[str]:
    """Return a word and what it may be a regular form of."""
    yield word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _FEWEST_STEM - 1:
            stem = word[: -len(ending)] + instead
            yield stem
            if not instead and len(stem) > _FEWEST_STEM and stem[-1] == stem[-2]:
                yield stem[:-1]


def pair_digest(word: str, other: str) -> int:
    """Return what the table has of a pair of words in lower case, in either order."""
    return crc32("\n".join(sorted((word, other))).encode())


def _has(table: memoryview, digest: int) -> bool:
    at = bisect_left(table, digest)
    return at < len(table) and table[at] == digest


def load_exchanges() -> None:
    """Read the table now rather than at the first pair that needs it. Raises ValueError, OSError."""
    _pairs()


@lru_cache(maxsize=1)
def _pairs() -> memoryview:
    """Return the pairs that are listed. Raises ValueError where the files do not belong together."""
    data = map_file(SHEET.with_suffix(".safetensors"))
    digest = hashlib.sha256(data).hexdigest()
    release(data)
    if digest != json.loads(SHEET.read_bytes())["sha256"]:
        raise ValueError(f"{SHEET}: its sha256 is not that of the table beside it; install both files again")
    return tensors_in(data)["pairs"].data
