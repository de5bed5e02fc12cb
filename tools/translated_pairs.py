"""Make pairs of texts of translations with their English, for a cross-encoder that reads many languages.

minimal     two texts of one language that differ in one token, and in English too: not the same
exchanged   a text and the same with two words exchanged: not the same
strangers   two texts of one language: not the same
elsewhere   a text and its translation: not the same, because the answer comes in the language of the question
marked      a text and the same with another mark at its end, or other letters (A for a): the same
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from cache.text.languages import ENGLISH
from tools.question_pairs import QuestionPair

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS = "texts"
"""Name of the data set of these pairs; the groups are the kinds of the module's docstring."""
_SHARES = {"minimal": 0.29, "exchanged": 0.2, "strangers": 0.1, "elsewhere": 0.05, "marked": 0.36}
_PER_SOURCE = 12_000  # texts of a language
_DEFINITIONS = 5  # times as many of English
_LONGEST = 170  # characters
_MINIMAL = 40_000  # pairs of a language
_LONGEST_MINIMAL = 40  # tokens
_MOST_ALIKE = 30  # texts that differ in one token at the same place
_SIGNS = "?.!？。 "
_SPACE = "▁"


class Translation(NamedTuple):
    """A text in a language (its code), and its English."""

    language: str
    english: str
    text: str


def chosen(texts: Mapping[str, set[tuple[str, str, str]]], per_source: int = _PER_SOURCE) -> list[Translation]:
    """Return at most `per_source` texts of each language and source, of the texts that `package_texts` collects.

    They are those whose English comes first by its hash, so that many are translations of the same English.
    """
    found: list[Translation] = []
    for language, rows in sorted(texts.items()):
        by_source: dict[str, list[Translation]] = defaultdict(list)
        for source, english, text in rows:
            if len(english) <= _LONGEST >= len(text):
                by_source[source].append(Translation(language, english, text))
        for _, own in sorted(by_source.items()):
            # All English of one source: definitions, which are for the alignment alone.
            most = per_source * (_DEFINITIONS if language == ENGLISH else 1)
            found += sorted(own, key=lambda pair: (zlib.crc32(pair.english.encode()), pair))[:most]
    return found


class TranslatedPairs:
    """Draws pairs from translations."""

    def __init__(self, translations: Sequence[Translation], tokenizer: Tokenizer) -> None:
        """Take texts, and the tokenizer by whose tokens pairs are minimal. Half a million texts take half a minute."""
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._same: dict[str, list[Translation]] = defaultdict(list)
        english_of: dict[str, dict[str, str]] = defaultdict(dict)
        for translation in translations:
            self._same[translation.english].append(translation)
            english_of[translation.language].setdefault(translation.text, translation.english)
            english_of[ENGLISH].setdefault(translation.english, translation.english)
        self._texts = {language: sorted(own) for language, own in english_of.items()}
        self._minimal = {language: _minimal(own, tokenizer) for language, own in sorted(english_of.items())}
        self._english = sorted(self._same)

    def draw(self, count: int, rng: Random) -> Iterator[QuestionPair]:
        """Yield about `count` pairs, of all languages alike."""
        makers: dict[str, Callable[[str, Random], tuple[str, str] | None]] = {
            "minimal": self._minimal_pair,
            "exchanged": self._exchanged,
            "strangers": self._strangers,
            "elsewhere": self._elsewhere,
            "marked": self._marked,
        }
        languages = sorted(self._texts)
        for kind in rng.choices(list(_SHARES), list(_SHARES.values()), k=count if languages else 0):
            pair = makers[kind](rng.choice(languages), rng)
            if pair and pair[0].strip() != pair[1].strip():
                yield QuestionPair(*pair, kind == "marked", TEXTS, kind)

    def _minimal_pair(self, language: str, rng: Random) -> tuple[str, str] | None:
        return rng.choice(self._minimal[language]) if self._minimal[language] else None

    def _strangers(self, language: str, rng: Random) -> tuple[str, str]:
        return rng.choice(self._texts[language]), rng.choice(self._texts[language])

    def _elsewhere(self, _: str, rng: Random) -> tuple[str, str]:
        english = rng.choice(self._english)
        text, other = rng.choice(self._same[english]), rng.choice(self._same[english])
        return text.text, english if text.language == other.language else other.text

    def _exchanged(self, language: str, rng: Random) -> tuple[str, str] | None:
        text = rng.choice(self._texts[language])
        read = self._tokenizer.encode(text, add_special_tokens=False)
        # A piece that begins a word has the space before it too, which would tell the two texts apart.
        words = [
            (start + text[start].isspace(), end)
            for token, (start, end) in zip((token.strip(_SPACE) for token in read.tokens), read.offsets, strict=True)
            if token.isalpha() and len(token) >= (4 if token.isascii() else 2)
        ]
        if len(words) < 2:
            return None
        (start, end), (then, last) = sorted(rng.sample(words, 2))
        return text, f"{text[:start]}{text[then:last]}{text[end:then]}{text[start:end]}{text[last:]}"

    def _marked(self, language: str, rng: Random) -> tuple[str, str]:
        text = rng.choice(self._texts[language])
        other = text.rstrip(_SIGNS) + rng.choice(["", *_SIGNS])
        return text, rng.choice([other, other, other.lower(), other.upper()])


def _minimal(english_of: Mapping[str, str], tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return pairs of texts that differ in one token, and whose English differs."""
    rng = Random(0)  # noqa: S311  (no secret)
    texts = list(english_of)
    alike: dict[int, list[str]] = defaultdict(list)
    for text, read in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        if 2 <= len(read.ids) <= _LONGEST_MINIMAL:
            for place in range(len(read.ids)):
                alike[hash((place, *read.ids[:place], -1, *read.ids[place + 1 :]))].append(text)
    pairs = []
    for group in alike.values():
        if 2 <= len(group) <= _MOST_ALIKE:
            pairs += [tuple(rng.sample(group, 2)) for _ in range(len(group) - 1)]
    differing = [(a, b) for a, b in pairs if _bare(english_of[a]) != _bare(english_of[b])]
    return rng.sample(differing, min(len(differing), _MINIMAL))


def _bare(text: str) -> str:
    return text.lower().strip(".:? ")
