"""Read a mistyped word of one question as the word of the other question that it must be. No I/O but one artefact.

`bycicle` in one question is `bicycle` if the other has that word, the first has not, and no dictionary has `bycicle`.
Nothing is guessed: a word changes only to one of the other question, and not where a third word is as near (`nitrte`
may be nitrate or nitrite). What a dictionary has is never a slip, since `sulfite` is not `sulfate`. What people often
write though no dictionary has it may be a name, so only a letter doubled or two letters exchanged count there. The
first letter must be right, as `illegal` and `legal` differ in no more, and so must a beginning be that has an opposite
(`hypo`, `hyper`); the last may be doubled, in English also lost, and be no other one, as endings tell tense and person.

A text without any accent, beside one with some, is read with those of the other: `symptomes` as `symptômes`. Where all
words without accents are words as well (`schon`, `schön`), it is left as it is.

The artefact, in `artefacts`:
    spelling.json         the data sheet: where the words are from, `sha256`
    spelling.safetensors  for each language CRC-32 of its words, sorted, uint32; the last two bits say how common the
                          word is (`Level`)
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
import unicodedata
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Final
from zlib import crc32

from cache.text.languages import ENGLISH, language
from cache.text.reading import words_spelled_out
from policies.tensors import map_file, release, tensors_in

SHEET: Final = Path(__file__).parent / "artefacts" / "spelling.json"
_WORD: Final = re.compile(r"""(?<![\w`"“”„«»./\\@#-])[^\W\d_]{3,32}(?![\w'’`"“”«»/\\@#=<>(-]|\.\w)""")
"""A word that is not quoted, shortened, or a part of a path, of code or of a compound; a longer one is no word."""
_SLIPS: Final = tomllib.loads(Path(__file__).with_name("slips.toml").read_text("utf-8"))
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_MOST_LETTERS: Final = 32
_VOWELS: Final = frozenset("aeiouy")
_UNDER_OTHER_LETTERS: Final = str.maketrans(_SLIPS["letters"])
_CHEAP: Final[float] = _SLIPS["cheap"]
_LOST: Final[float] = _SLIPS["lost"]
_ADDED: Final[float] = _SLIPS["added"]
_VOWEL: Final[float] = _SLIPS["vowel"]
_OTHER: Final[float] = _SLIPS["other"]
_LIMITS: Final[tuple[tuple[int, float], ...]] = tuple((length, cost) for length, cost in _SLIPS["limits"])
_BY_ENDINGS: Final = frozenset(_SLIPS["by_endings"])
"""Languages in which one letter within a word may turn it round."""
_SURE: Final[int] = _SLIPS["sure"]
_TURNING: Final = tuple(tuple(slip.split()) for slip in _SLIPS["turning"])
"""Beginnings of words of which one turns the others round: `hyper` and `hypo`."""
_TWO_SIGNS: Final = "İ"
"""The letter that is two signs in lower case, where a word with it is none."""
_NO_WORDS: Final[frozenset[str]] = frozenset()
NEVER: Final = 9.0
"""Cost of what is no slip."""


def respelled(stored: str, asked: str) -> tuple[str, str]:
    """Return both texts, each with the words of the other in place of those that are slips of them, and with the short
    forms of English chats spelled out (`how 2`, `dont`).

    Most texts have only words that a dictionary has; these take two look-ups.
    """
    codes = _dictionaries(language(stored).code, language(asked).code)
    if not codes or stored == asked:
        return stored, asked
    (word, ours, unknown), (other, theirs, unknown_too) = _read(stored, codes), _read(asked, codes)
    if word.isascii() != other.isascii() or _TWO_SIGNS in word or _TWO_SIGNS in other:
        return _respelled(word, other, codes)
    if unknown or unknown_too:
        words, others = set(ours), set(theirs)
        if (unknown and _may_slip(unknown - others, others - words, codes)) or (
            unknown_too and _may_slip(unknown_too - words, words - others, codes)
        ):
            return _respelled(word, other, codes)
    return word, other


def _may_slip(unknown: Collection[str], others: Collection[str], codes: tuple[str, ...]) -> bool:
    """Return whether any of the unknown words is near one of the others."""
    for word in unknown:
        for other in others:
            if _near(word, other, codes) is not None:
                return True
    return False


def _near(word: str, other: str, codes: tuple[str, ...]) -> float | None:
    """Return the cost of the slips that make a word of another; None where they begin otherwise or it is too high."""
    if other[0] != word[0] or abs(len(other) - len(word)) > 2 or _turned(word, other):
        return None
    cost = _cost(word, other)
    return cost if cost <= _limit(other, codes) else None


@lru_cache(maxsize=256)
def _dictionaries(*codes: str) -> tuple[str, ...]:
    """Return the languages whose words count where texts are in these: those, if one is known, and English."""
    known = {code for code in codes if code in _words()}
    return tuple(sorted({*known, ENGLISH})) if known else ()


@lru_cache(maxsize=16_384)
def _read(text: str, codes: tuple[str, ...]) -> tuple[str, tuple[str, ...], frozenset[str]]:
    """Return a text, with short forms spelled out if it is English; its words, in lower case; and those of them that
    are in no dictionary of these languages.

    Thousands of texts are remembered: they share their words, and a tuple of these takes a tenth of a set.
    """
    text = words_spelled_out(text) if codes == (ENGLISH,) else text
    words = tuple(map(sys.intern, {*_WORD.findall(text.lower())}))
    return text, words, frozenset([word for word in words if _remembered_level(word, codes) < _RARE]) or _NO_WORDS


class Level(IntEnum):
    """How well a word is known. From RARE on, a dictionary has it; SEEN is what people often write all the same."""

    UNKNOWN = -1
    SEEN = 0
    RARE = 1
    USUAL = 2
    COMMON = 3


_RARE: Final = int(Level.RARE)
_BITS: Final = 3


def _level(word: str, codes: tuple[str, ...]) -> int:
    """Return the highest level that a word has in these languages."""
    digest, highest = digest_of(word), int(Level.UNKNOWN)
    for code in codes:
        table = _words()[code]
        at = bisect_left(table, digest)
        if at < len(table) and table[at] & ~_BITS == digest:
            highest = max(highest, table[at] & _BITS)
    return highest


def has_words(code: str) -> bool:
    """Return whether the words of a language are known."""
    return code in _words()


def word_level(word: str, codes: tuple[str, ...]) -> int:
    """Return the highest level that a word in lower case has in these languages."""
    return _remembered_level(word, codes)


_remembered_level = lru_cache(maxsize=16_384)(_level)
"""A few thousand words make up most texts."""


def digest_of(word: str) -> int:
    """Return what a table has of a word; its last two bits are 0."""
    return crc32(word.encode()) & ~_BITS


@lru_cache(maxsize=4_096)
def _respelled(stored: str, asked: str, codes: tuple[str, ...]) -> tuple[str, str]:
    own, others = ({match[0].lower(): match for match in _WORD.finditer(text)} for text in (stored, asked))
    left = {word: match for word, match in own.items() if word not in others}
    right = {word: match for word, match in others.items() if word not in own}
    if not left or not right:
        return stored, asked
    correction = _corrections(stored, left, right, codes, bare=stored.isascii() and not asked.isascii())
    right = {word: match for word, match in right.items() if match not in correction.values()}
    other = _corrections(asked, right, left, codes, bare=asked.isascii() and not stored.isascii())
    return _replaced(stored, correction), _replaced(asked, other)


_Words = Mapping[str, re.Match[str]]


def _corrections(
    text: str, words: _Words, others: _Words, codes: tuple[str, ...], *, bare: bool
) -> dict[str, re.Match[str]]:
    """Return the words of a text that are slips, each with the word of the other text that it is.

    `bare`: the text is without accents, and the other is not.
    """
    unknown = _read(text, codes)[2]
    accented = {form: match for word, match in others.items() for form in _without_accents(word)} if bare else {}
    found = {word: accented[word] for word in words if word in accented}
    if unknown.isdisjoint(found):
        found = {}
    for word, match in words.items():
        if word in unknown and word not in found and not _is_name(match[0], text):
            likely = _slip_of(word, {**others, **accented} if bare else others, codes)
            if likely is not None:
                found[word] = likely
    return found


def _is_name(word: str, text: str) -> bool:
    """Return whether a word of a text is an acronym or has capitals within."""
    return not word[1:].islower() and not text.isupper()


def _slip_of(word: str, others: _Words, codes: tuple[str, ...]) -> re.Match[str] | None:
    """Return the one of the other words of which this is a slip; None where there is none, or another may be meant."""
    near = {other: cost for other in others if (cost := _near(word, other, codes)) is not None}
    if not near:
        return None
    best = min(near, key=near.__getitem__)
    cost = near[best]
    if sum(near_cost <= cost + _CHEAP / 2 for near_cost in near.values()) > 1:
        return None
    level = max(_level(best, codes), _level(others[best][0].lower(), codes))
    if not _may_be(word, best, level, cost, codes):
        return None
    forms = [form for form in _slips(word, cost) if not (form.startswith(best) or best.startswith(form))]
    least = max(Level.RARE, level - 1)
    return None if any(_level(form, codes) >= least for form in forms) else others[best]


def _turned(word: str, other: str) -> bool:
    """Return whether two words begin with beginnings that turn each other round."""
    for parts in _TURNING:
        own, theirs = (next((part for part in parts if spelling.startswith(part)), None) for spelling in (word, other))
        if own and theirs and own != theirs:
            return True
    return False


def _may_be(word: str, best: str, level: int, cost: float, codes: tuple[str, ...]) -> bool:
    """Return whether what is known of two words allows one to be a slip of the other at this cost."""
    shorter, longer = sorted((word, best), key=len)
    if codes != (ENGLISH,) and longer.startswith(shorter) and longer[-1] != longer[-2]:
        return False  # in most languages but English one more letter at the end says who or when
    if level == Level.UNKNOWN:
        return cost <= _CHEAP and len(best) >= _SURE
    if level == Level.SEEN:
        return cost <= _CHEAP  # `mssql` is no `mysql`
    surely = level == Level.COMMON and cost <= _LOST and len(best) > _SURE
    return surely or cost <= _CHEAP or _level(word, codes) == Level.UNKNOWN


def _limit(word: str, codes: tuple[str, ...]) -> float:
    """Return the highest cost of a slip of a word."""
    most = next((cost for length, cost in _LIMITS if len(word) >= length), 0.0)
    return most if _BY_ENDINGS.isdisjoint(codes) else min(most, _LOST)


def _cost(word: str, meant: str) -> float:
    """Return the cost of the slips that turn `meant` into `word`; NEVER where the last letter forbids it.

    It takes the product of their lengths, so it reads no more than words have letters.
    """
    if max(len(word), len(meant)) > _MOST_LETTERS:
        return NEVER
    rows = [[0.0]]
    for at, letter in enumerate(meant, 1):
        rows[0].append(rows[0][-1] + (_CHEAP if at > 1 and letter == meant[at - 2] else _LOST))
    for i, typed in enumerate(word, 1):
        row = [rows[0][0] + i * _ADDED]
        for j, letter in enumerate(meant, 1):
            doubled = i > 1 and typed == word[i - 2]
            single = j > 1 and letter == meant[j - 2]
            best = min(
                rows[-1][j] + (_CHEAP if doubled else _ADDED),
                row[j - 1] + (_CHEAP if single else _LOST),
                rows[-1][j - 1] + _instead(typed, letter, last=i == len(word) and j == len(meant)),
            )
            if i > 1 and j > 1 and typed == meant[j - 2] and word[i - 2] == letter != typed:
                best = min(best, rows[-2][j - 2] + (_CHEAP if j > 2 else NEVER))
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def _instead(typed: str, letter: str, *, last: bool) -> float:
    """Return the cost of one letter in place of another."""
    if typed == letter:
        return 0.0
    if _without_accent(typed) == _without_accent(letter):
        return _CHEAP
    if last:
        return NEVER
    return _VOWEL if typed in _VOWELS and letter in _VOWELS else _OTHER


def _slips(word: str, most: float) -> list[str]:
    """Return what a word may be a slip of at a cost of at most `most`, but for what takes two slips."""
    return sorted({form for cost, form in _one_slip(word) if cost <= most} - {word})


def _one_slip(word: str) -> Iterator[tuple[float, str]]:
    for at in range(len(word)):
        head, letter, tail = word[:at], word[at], word[at + 1 :]
        if head and tail:
            yield _CHEAP, f"{head}{tail[0]}{letter}{tail[1:]}"
        if head:
            yield (_CHEAP if head[-1] == letter else _ADDED), head + tail
            for other in _LETTERS if tail else ():
                yield _instead(letter, other, last=False), f"{head}{other}{tail}"
        for other in _LETTERS:
            yield (_CHEAP if other == letter else _LOST), f"{head}{letter}{other}{tail}"


def _without_accent(letter: str) -> str:
    return letter if letter.isascii() else unicodedata.normalize("NFD", letter.translate(_UNDER_OTHER_LETTERS))[0]


@lru_cache(maxsize=4_096)
def _without_accents(word: str) -> tuple[str, ...]:
    """Return the forms that a word with accents has without them; none for a word without any."""
    if word.isascii():
        return ()
    plain = unicodedata.normalize("NFD", word.translate(_UNDER_OTHER_LETTERS))
    spelled = unicodedata.normalize("NFD", word.translate(_SPELLED_LETTERS))
    return tuple(dict.fromkeys("".join(sign for sign in form if sign.isalpha()) for form in (plain, spelled)))


_SPELLED_LETTERS: Final = _UNDER_OTHER_LETTERS | str.maketrans(_SLIPS["spelled"])


def _replaced(text: str, by: Mapping[str, re.Match[str]]) -> str:
    """Return the text with the words in the keys of `by` replaced."""
    return _WORD.sub(lambda match: _in_place(match, by.get(match[0].lower())), text) if by else text


def _in_place(match: re.Match[str], meant: re.Match[str] | None) -> str:
    """Return what to write in the place of a word: a name stays one, the beginning of a sentence does not."""
    if meant is None:
        return match[0]
    if not match[0].islower():
        return meant[0][0].upper() + meant[0][1:]
    return meant[0].lower() if not meant.string[: meant.start()].strip(" ¿¡\"'") else meant[0]


def load_words() -> None:
    """Read the table of words now rather than at the first pair that needs it. Raises ValueError, OSError."""
    _words()


@lru_cache(maxsize=1)
def _words() -> Mapping[str, memoryview]:
    """Return the words of each language. Raises ValueError where the two files do not belong together."""
    data = map_file(SHEET.with_suffix(".safetensors"))
    digest = hashlib.sha256(data).hexdigest()
    release(data)
    if digest != json.loads(SHEET.read_bytes())["sha256"]:
        raise ValueError(f"{SHEET}: its sha256 is not that of the table beside it; install both files again")
    return {code: table.data for code, table in tensors_in(data).items()}
