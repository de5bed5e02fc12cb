"""Tell in which language a text is written, by its groups of letters, and provide the lexicons. Reads one artefact.

Among languages in Latin, Cyrillic and Arabic script a linear model decides over the words and over the groups of two to
four letters in them, each by its hash; it was fitted by `tools.train_languages`. What a word adds is remembered: a text
takes about 11 us, and 9 more for each word that is new. The model knows languages too that no other model here was made
for, so that these can be refused.

The artefact, in `artefacts`:
    languages.json         the data sheet: the languages in the order of the columns, data, quality, `sha256`
    languages.safetensors  `weights` int8 (2 ** 16, languages), `scale` and `bias` float32 (languages,)

Read questions in other languages than English by lists of words, one file for each language. No I/O but the lists.

Nothing here knows a grammar: a lexicon tells what a rule needs to know of a text (`ForeignReading`), and all else is
left to the model that scores the pair. A file of `lexicons/` has lists of entries, parted by commas:

    please       said out of politeness, anywhere in a text (at either end of a part of it where words are not spaced)
    greetings    the same, only at the beginning or the end
    not_please   words that begin or end as one of these does
    faint        words without a topic; `meta` those that ask to go on, or for it in other words
    openers      begin what hangs on something said before; `pointing` refers to it
    asking       a question begins with them, or, where words are not spaced, contains them
    mentions     a text is worked on, or a word is asked about
    negations    say no; `neutral` are words of a topic that look as if they did
    opposites    groups parted by `;`, the sides of each by `/`: two texts that name different sides contradict
    heads        nouns that extend a noun before them, where words are not spaced: a case, a ticket, an account
    numbers      by their value; `counters` follow the numerals of Chinese and Japanese

An entry is a word, several words, a beginning `ein*`, an ending `*los`, a part `*maz*`, or the end of the text `das$`.
The longest entry wins. With `letters_per_word` words are not spaced, and every entry may stand anywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.text.languages import ForeignReading, Language, digits
from cache.text.reading import first_letters, text_words, word_rows
from gateway.parts.encoders.exchange import load_exchanges, may_exchange
from gateway.parts.encoders.typos import load_words, respelled

FOLDER: Final = Path(__file__).with_name("lexicons")
_KINDS: Final = (
    "please", "greetings", "not_please", "faint", "meta", "openers", "pointing", "asking", "mentions", "negations",
    "neutral",
)  # fmt: skip
_EMPTY: Final = frozenset(_KINDS) - {"neutral"}
"""Kinds of entries that are no words of a question's own."""
_AT_EDGES: Final = frozenset({"please", "greetings"})
_SAYING_NO_MORE: Final = frozenset({"faint", "asking", "openers", "neutral"})
"""Kinds of which a reading tells nothing but what the marks of an entry say."""
_NUMBER: Final = re.compile(r"(\d+(?:[.,\u066b\u066c]\d+)*)")
_DIGIT_SIGNS: Final = bytes(b"0 "[not chr(code).isdecimal()] for code in range(256))
_UNIT: Final = re.compile(r"\d+(?:[.,\u066b\u066c]\d+)*|[^\W\d]+")
_SIGN: Final = re.compile(r"\d+(?:[.,]\d+)*|[A-Za-z]+|\w|[\u0e30-\u0e4f]")
_DIGITS: Final = frozenset("〇零一二两三四五六七八九十百千万０１２３４５６７８９๐๑๒๓๔๕๖๗๘๙")
_NUMERALS: Final = re.compile("[〇零一二两三四五六七八九十百千万]+")
_LARGE: Final = re.compile("(\\d+(?:[.,]\\d+)*)([千万億亿])")
_PARTING: Final = re.compile(r"(?:[^\w\u0e30-\u0e4f.,:+#%&/°$€£¥*=<>@^~\"'“”「」『』()-]|[.,:](?!\d))+")
"""What parts a text without spaced words: spaces and punctuation, but no signs that mean something."""
_NOUN: Final = "([\u4e00-\u9fff]{1,2}|[\u30a1-\u30fa\u30fc]{2,8}?)"
"""What a head extends: one or two Chinese characters, or a word in katakana."""
_COMPARED: Final = 5
"""Letters by which two words of different endings are taken for one."""
_END: Final = "$"

Meaning = tuple[str, str]
"""A kind of entry, and its value: of a number, or the group and the side of an opposition."""


_OWN, _LONG, _ASKS, _SPECIAL, _SAID = (1 << bit for bit in range(5))
"""What an entry is: a word of the question's own, one that counts for the length, one that asks, one whose values or
kinds say more, and any that is not polite.
"""


class _Meanings(NamedTuple):
    """What an entry means, the kinds of that, and its marks in bits; nothing for a word in no list."""

    values: tuple[Meaning, ...] = ()
    kinds: frozenset[str] = frozenset()
    marks: int = _OWN | _LONG | _SAID

    @classmethod
    def of(cls, *values: Meaning) -> _Meanings:
        kinds = frozenset(kind for kind, _ in values)
        if not kinds.isdisjoint(_AT_EDGES):
            return cls(values, kinds, 0)
        marks = (
            (_EMPTY.isdisjoint(kinds), _OWN),
            ("openers" not in kinds, _LONG),
            ("asking" in kinds, _ASKS),
            (not kinds <= _SAYING_NO_MORE, _SPECIAL),
        )
        return cls(values, kinds, _SAID | sum(mark for holds, mark in marks if holds))


def _with(mark: int) -> bytes:
    """Return a table for `bytes.translate` of marks: whether they have this one."""
    return bytes(marks & mark > 0 for marks in range(256))


_IS_OWN, _IS_LONG, _IS_ASKING, _IS_SPECIAL = map(_with, (_OWN, _LONG, _ASKS, _SPECIAL))
_kinds, _marks = itemgetter(1), itemgetter(2)
_compared = itemgetter(slice(_COMPARED))


_listed = lru_cache(maxsize=None)(_Meanings.of)
"""The same object for all entries that mean the same: there are thousands."""
_NOT_LISTED: Final = _Meanings()
_NEUTRAL: Final = _Meanings.of(("neutral", ""))


_Found = tuple[str, _Meanings, int, int]
"""An entry, or a word in no list, with its place in the text: where it begins and ends, in characters or in words."""


class _Phrase(NamedTuple):
    """An entry of several words: all but the last, the last and whether that is a beginning, and its size in words."""

    before: list[str]
    last: str
    begins: bool
    size: int
    meanings: _Meanings


class Lexicon:
    """The lists of one language. Safe to use from several threads at once."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.letters: int = data.get("letters_per_word", 0)
        self._drops_marks: bool = data.get("drops_marks", False)
        self._joined: tuple[str, ...] = tuple(_entries(data.get("joined", "")))
        self._counters: tuple[str, ...] = tuple(_entries(data.get("counters", "")))
        heads = sorted(map(re.escape, _entries(data.get("heads", ""))), key=len, reverse=True)
        self._compounds = re.compile(f"{_NOUN}({'|'.join(heads)})") if heads else None
        self._entries: dict[str, _Meanings] = {}
        for kind in _KINDS:
            self._add(data.get(kind, ""), (kind, ""))
        for value, words in data["numbers"].items():
            self._add(words, ("number", value))
        groups = data["opposites"].split(";")
        self._groups = frozenset(map(str, range(len(groups))))
        for group, sides in enumerate(groups):
            for side, words in enumerate(sides.split("/")):
                self._add(words, (str(group), str(side)))
        phrases = [(entry.replace(_END, f" {_END}").split(), meanings) for entry, meanings in self._entries.items()]
        self._phrases: dict[str, list[_Phrase]] = {}
        self._seconds: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        for words, meanings in sorted(phrases, key=lambda phrase: len(phrase[0]), reverse=True):
            *before, last = words
            if before:
                phrase = _Phrase(before, last.removesuffix("*"), last[-1] == "*", len(words) - (last == _END), meanings)
                self._phrases.setdefault(before[0], []).append(phrase)
        for word, begun in self._phrases.items():
            beginnings = tuple(phrase.last for phrase in begun if phrase.begins and len(phrase.before) == 1)
            self._seconds[word] = frozenset([*phrase.before, phrase.last][1] for phrase in begun), beginnings
        affixes: dict[int, tuple[dict[str, _Meanings], dict[str, _Meanings]]] = {}
        for entry, meanings in self._entries.items():
            if (is_ending := entry[0] == "*") != (entry[-1] == "*"):
                affixes.setdefault(len(entry) - 1, ({}, {}))[is_ending][entry.strip("*")] = meanings
        self._affixes = sorted(affixes.items(), key=itemgetter(0), reverse=True)
        self._parts = [entry for entry in self._entries if len(entry) > 2 and entry[0] == entry[-1] == "*"]
        self._sizes: dict[str, list[int]] = {}
        for entry in sorted(self._entries, key=len, reverse=True) if self.letters else ():
            sizes = self._sizes.setdefault(entry[:2].rstrip(_END), [])
            if len(entry) not in sizes[-1:]:
                sizes.append(len(entry))
        self._word = lru_cache(maxsize=4_096)(self._meanings)

    def _add(self, words: str, meaning: Meaning) -> None:
        for entry in _entries(words):
            form = self._folded(entry)
            self._entries[form] = _listed(*self._entries.get(form, _NOT_LISTED).values, meaning)

    def _folded(self, text: str) -> str:
        """Return the text in lower case, of the same length where its language needs no marks dropped."""
        text = text.lower().replace("i\u0307", "i")
        if not self._drops_marks:
            return text
        return "".join(sign for sign in unicodedata.normalize("NFD", text) if unicodedata.category(sign) != "Mn")

    def read(self, text: str) -> ForeignReading:
        """Return what the lists tell of a text."""
        folded = self._folded(text)
        if self.letters:
            found = list(self._found_signs(folded))
            words, meanings = [entry[0] for entry in found], [entry[1] for entry in found]
        else:
            words, meanings = self._entries_in(_units(folded, text))
        marks = bytes(map(_marks, meanings))
        own = list(compress(words, marks.translate(_IS_OWN)))
        special = list(compress(meanings, marks.translate(_IS_SPECIAL)))
        values = [value for meaning in special for value in meaning.values]
        denials = [meaning.kinds for meaning in special if "negations" in meaning.kinds]
        every = frozenset[str]().union(*map(_kinds, special))
        first = next(filter(_marks, meanings), _NOT_LISTED)
        return ForeignReading(
            numbers=tuple(sorted([value for kind, value in values if kind == "number"])),
            negated=any(map(self._groups.isdisjoint, denials)),
            denied=bool(denials),
            sides=frozenset([value for value in values if value[0] in self._groups]),
            own=tuple(own if self.letters else map(_compared, own)),
            size=-(-sum(map(len, own)) // self.letters) if self.letters else len(own),
            meta=sum(["meta" in meaning.kinds for meaning in special]) if "meta" in every else 0,
            length=marks.translate(_IS_LONG).count(1),
            opens="openers" in first.kinds,
            asks=1 in marks.translate(_IS_ASKING) if self.letters else bool(first.kinds) and _asks(meanings),
            points_back="pointing" in every,
            mentions="mentions" in every,
            letters=self.letters,
            compounds=tuple(self._compounds.findall(folded)) if self._compounds else (),
        )

    def bare(self, text: str) -> str:
        """Return the text without polite phrases, with its numbers in digits; not folded."""
        folded = self._folded(text)
        if len(folded) != len(text):
            text = folded
        found: list[_Found]
        if not self.letters:
            units = list(_UNIT.finditer(folded))
            found = [
                (word, meanings, units[at].start(), units[end - 1].end())
                for word, meanings, at, end in self._found_words([unit[0] for unit in units])
            ]
            polite = [next((kind for kind in ("please", "greetings") if kind in of.kinds), "") for _, of, _, _ in found]
            first = next((at for at, kind in enumerate(polite) if not kind), len(polite))
            last = len(polite) - next((at for at, kind in enumerate(reversed(polite)) if not kind), len(polite))
            polite = [kind if kind == "please" or not first <= at < last else "" for at, kind in enumerate(polite)]
        else:
            found = list(self._found_signs(folded))
            polite = ["" if _AT_EDGES.isdisjoint(meanings.kinds) else "please" for _, meanings, _, _ in found]
        pieces, at = [], 0
        for (_, meanings, start, end), drop in zip(found, polite, strict=True):
            number = next((value for kind, value in meanings.values if kind == "number"), "")
            if drop or number:
                pieces += [text[at:start], number]
                at = end
        return "".join((*pieces, text[at:]))

    def _found_words(self, words: list[str]) -> Iterator[_Found]:
        """Yield what words consist of, with places in words."""
        at = 0
        for phrase, size, meanings in [*self._phrases_in(words), (len(words), 0, _NOT_LISTED)]:
            for place in range(at, phrase):
                yield words[place], self._word(words[place]), place, place + 1
            if size:
                yield words[phrase], meanings, phrase, phrase + size
            at = phrase + size

    def _entries_in(self, words: list[str]) -> tuple[list[str], list[_Meanings]]:
        """Return what words consist of: the first word of each entry, and what the entry means."""
        meanings = list(map(self._word, words))
        if phrases := self._phrases_in(words):
            words = words.copy()
            for at, size, meant in reversed(phrases):
                words[at : at + size], meanings[at : at + size] = [words[at]], [meant]
        return words, meanings

    def _phrases_in(self, words: list[str]) -> list[tuple[int, int, _Meanings]]:
        """Return the entries of several words: where each begins, its size in words, and what it means."""
        found = list[tuple[int, int, _Meanings]]()
        ended = [*words, _END]
        count, until, seconds_of = len(words), 0, self._seconds
        starts = compress(range(count), map(seconds_of.__contains__, words))
        for at in starts:
            seconds, beginnings = seconds_of[words[at]]
            second = ended[at + 1]
            if (second not in seconds and not second.startswith(beginnings)) or at < until:
                continue
            for before, last, begins, size, meanings in self._phrases[words[at]]:
                end = at + len(before)
                if end > count or ended[at:end] != before:
                    continue
                if ended[end].startswith(last) if begins else ended[end] == last:
                    found.append((at, size, meanings))
                    until = at + size
                    break
        return found

    def _meanings(self, word: str) -> _Meanings:
        """Return what one word means: the word itself, else its longest beginning, ending or part that is listed."""
        if word[0].isdecimal():
            return _Meanings.of(("number", digits(word)))
        entries = self._entries
        if (own := entries.get(word)) is not None:
            return own
        for size, (beginnings, endings) in self._affixes:
            if size <= len(word) and (listed := beginnings.get(word[:size]) or endings.get(word[-size:])):
                return listed
        for part in self._parts:
            if part[1:-1] in word[1:]:
                return entries[part]
        for before in self._joined:
            if word.startswith(before) and len(word) > len(before) + 1:
                return self._meanings(word[len(before) :])
        return _NOT_LISTED

    def _found_signs(self, text: str) -> Iterator[_Found]:
        parts, sizes = list(_parts(text)), self._sizes
        for first, end in parts:
            at, after = first, _END if end == parts[-1][1] else ""
            while at < end:
                sign = text[at]
                if sign in sizes or text[at : at + 2] in sizes or sign.isascii() or sign in _DIGITS or at == end - 1:
                    entry = self._entry(text, at, first, end, after)
                    yield entry
                    at = entry[3]
                else:
                    at += 1
                    yield sign, _NOT_LISTED, at - 1, at

    def _entry(self, text: str, at: int, first: int, end: int, after: str) -> _Found:
        """Return the longest entry at a place of the part between `first` and `end`, behind which `after` is read; else
        one sign, number or word in Latin letters.
        """
        entries, sizes = self._entries, self._sizes
        for begin in (text[at : min(at + 2, end)], text[at]):
            for size in sizes.get(begin, ()):
                stop = at + size
                form = text[at:stop] if stop <= end else text[at:end] + after * (stop - end)
                meanings = entries.get(form) if len(form) == size else None
                if meanings is not None:
                    stop = min(stop, end)
                    if at == first or stop == end or meanings.values[0][0] not in _AT_EDGES:
                        return text[at:stop], meanings, at, stop
        if text[at].isdecimal() and (large := _LARGE.match(text, at, end)) is not None:
            return large[0], _Meanings.of(("number", _large(large[1], large[2]))), at, large.end()
        if (numeral := _NUMERALS.match(text, at, end)) is not None and text.startswith(self._counters, numeral.end()):
            return numeral[0], _Meanings.of(("number", _value(numeral[0]))), at, numeral.end()
        sign = _SIGN.match(text, at, end)
        if sign is None:
            return "", _NEUTRAL, at, at + 1
        meanings = _Meanings.of(("number", digits(sign[0]))) if sign[0][0].isdecimal() else _NOT_LISTED
        return sign[0], meanings, at, sign.end()


def _asks(meanings: Sequence[_Meanings]) -> bool:
    """Return whether the first entry that is listed, openers and polite ones aside, asks."""
    listed = (meaning for meaning in meanings if meaning.marks and meaning.kinds)
    return "asking" in next((meaning.kinds for meaning in listed if "openers" not in meaning.kinds), ())


def _cut_at_numbers(text: str) -> list[str]:
    """Return what `_NUMBER` splits a text into; of Latin-1 in a fifth of the time, as a table shows its digits."""
    try:
        signs = text.encode("latin-1").translate(_DIGIT_SIGNS)
    except UnicodeEncodeError:
        return _NUMBER.split(text)
    pieces, at = list[str](), 0
    while (digit := signs.find(b"0", at)) >= 0:
        number = _NUMBER.match(text, digit)
        if number is None:
            raise AssertionError("a number begins with a digit")
        pieces += (text[at:digit], number[0])
        at = number.end()
    return [*pieces, text[at:]]


def _units(folded: str, text: str) -> list[str]:
    """Return the words of a folded text, its numbers and rows of letters and `_`; `text` is the same before."""
    pieces = _cut_at_numbers(folded)
    if len(pieces) == 1 and folded == text.lower():
        return text_words(text)
    units = word_rows(pieces[0])
    for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        units.append(number)
        units += word_rows(piece)
    return units


def _entries(words: str) -> list[str]:
    return [" ".join(entry.split()) for entry in words.split(",") if entry.strip()]


def _parts(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each part between spaces and punctuation begins and ends."""
    at = 0
    for match in _PARTING.finditer(text):
        if match.start() > at:
            yield at, match.start()
        at = match.end()
    if at < len(text):
        yield at, len(text)


def _value(numeral: str) -> str:
    """Return the value of a Chinese numeral in digits: 二十五 is 25."""
    total = pending = 0
    for sign in numeral:
        value = int(unicodedata.numeric("二" if sign == "两" else sign))
        if value < 10:
            pending = 10 * pending + value
        else:
            total, pending = total + max(pending, 1) * value, 0
    return str(total + pending)


def _large(number: str, unit: str) -> str:
    """Return a number before a Chinese unit in digits: 3.5万 is 35000."""
    return f"{float(number.replace(',', '')) * unicodedata.numeric(unit if unit != '亿' else '億'):.0f}"


@lru_cache(maxsize=1)
def lexicons() -> Mapping[str, Lexicon]:
    """Return the lexicons by the code of their language, read once."""
    return {path.stem: Lexicon(tomllib.loads(path.read_text("utf-8"))) for path in sorted(FOLDER.glob("*.toml"))}


SHEET: Final = Path(__file__).parent / "artefacts" / "languages.json"
BUCKETS: Final = 1 << 16
_READ_WORDS: Final = 40
_LONGEST_GROUP: Final = 4
_LEAST_SHARE: Final = 0.01
"""Smaller shares are not kept: thousands of texts are remembered, each in a few of some forty languages."""


_REMEMBERED: Final = 8_192
_LONGEST_REMEMBERED: Final = 64
"""Letters of the longest word that is remembered."""
_LANE: Final = np.dtype("<i4")
_RAISED: Final = 128
"""Added to each weight, so that none is below 0 and sums of lanes do not borrow from each other."""


def groups_of_letters(text: str) -> list[int]:
    """Return the hashes, 0..BUCKETS, of the words of a text and of the groups of letters in them."""
    return [group for word in first_letters(text, _READ_WORDS) for group in _groups_in(word)]


def _groups_in(word: str) -> list[int]:
    marked = f"<{word}>".encode("utf-32-le")
    size = len(marked)
    groups = [zlib.crc32(marked)]
    for width in range(8, min(4 * _LONGEST_GROUP + 1, size), 4):
        groups += [zlib.crc32(marked[at : at + width]) for at in range(0, size - width + 1, 4)]
    return [group % BUCKETS for group in groups]


def _lanes_of(word: str) -> int:
    """Return the raised weights of a word's groups, summed by language, and the number of groups: in that order lanes
    of 32 bits of one number. What is added to another word's is exact, as these are integers.
    """
    groups = _groups_in(word)
    sums = np.add.reduce(_model().raised.take(groups, axis=0), axis=0, dtype=_LANE)
    return int.from_bytes(sums.tobytes() + len(groups).to_bytes(_LANE.itemsize, "little"), "little")


_remembered_lanes_of = lru_cache(maxsize=_REMEMBERED)(_lanes_of)
"""A few thousand words make up most texts."""


class ShippedLanguages:
    """The languages that this part reads."""

    respelled = staticmethod(respelled)
    may_exchange = staticmethod(may_exchange)

    @property
    def lexicons(self) -> Mapping[str, Lexicon]:
        """The lexicons by the code of their language."""
        return lexicons()

    def compared(self, text: str) -> Language:
        """Return the language of a text in Latin, Cyrillic or Arabic script."""
        words = first_letters(text, _READ_WORDS)
        if not words:
            return Language("")
        model = _model()
        short = max(map(len, words)) <= _LONGEST_REMEMBERED
        lanes = sum(map(_remembered_lanes_of if short else _lanes_of, words))
        sums = np.frombuffer(lanes.to_bytes(_LANE.itemsize * (len(model.codes) + 1), "little"), _LANE)
        groups = int(sums[-1])
        logits = (sums[:-1] - _RAISED * groups) * (model.scale / groups) + model.bias
        shares = np.exp(logits - np.maximum.reduce(logits))
        shares /= np.add.reduce(shares)
        (likely,) = (shares >= _LEAST_SHARE).nonzero()
        return Language(
            model.codes[int(shares.argmax())],
            {model.codes[at]: share for at, share in zip(likely.tolist(), shares[likely].tolist(), strict=True)},
        )

    def load(self) -> None:
        """Read the model's files, the lexicons and the words of dictionaries. Raises ValueError, OSError."""
        _model()
        lexicons()
        load_words()
        load_exchanges()


class _Model(NamedTuple):
    codes: tuple[str, ...]
    raised: NDArray[np.uint8]
    """The weights, int8, each raised by _RAISED."""
    scale: NDArray[np.float32]
    bias: NDArray[np.float32]


@lru_cache(maxsize=1)
def _model() -> _Model:
    """Return the model that ships. Raises ValueError where its two files do not belong together."""
    from safetensors.numpy import load

    sheet: dict[str, Any] = json.loads(SHEET.read_bytes())
    path = SHEET.with_suffix(".safetensors")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sheet["sha256"]:
        raise ValueError(f"{path}: its SHA-256 is not that of {SHEET.name}; install both files again")
    tensors = load(data)
    raised = tensors["weights"].view(np.uint8) ^ np.uint8(_RAISED)
    return _Model(tuple(sheet["languages"]), raised, tensors["scale"], tensors["bias"])
