"""Parse a question into the parts that must not differ between it and another. Pure.
    numbers    digits and number words, in order
    negations  `not` by the clause it stands in (its place within a clause may change: `why don't cats`, `why do cats
               not`), every other negation too; and which side of an opposition is named (more or less, on or off)
    names      what is written like a name, an acronym or code
    times      days, months, before and after, and tenses
    asked      who, when, why, how, whether; can, should
    content    every word and symbol in order, function words too: `in the house` is not `on the house`, `do` is not
               `be`. Numbers and times leave a placeholder. Only articles and a few fillers are dropped.
Synonyms and plurals are reduced to one form. Made for English; in another language it detects words, names, numbers and
order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cache.text import words

_LETTER = r"[^\W\d_]"
_TOKEN: Final = re.compile(
    rf"""
    (?<![\w)])-?\d+(?:[.,]\d+)* | \d+ | {_LETTER}+(?:[\d_]\w*)? | _\w*   # -1,000.5; word, x1, a_b; __init__
    | (?<!{_LETTER}{{2}})-(?!{_LETTER}{{2}}) | (?<!\w)- | -(?!\w)        # a minus, not the hyphen of a compound
    | (?<=\d)[!:] | !(?=[\w=(]) | '(?=\()                                # 5!, 3:4, !done, f'(x)
    | [^\w\s.,;:!?'"“”‘’„«»…¿¡、。，？！：；「」\-—]                          # any other symbol that is no punctuation
    """,
    re.VERBOSE,
)
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CODE = re.compile(r"\w*[^\W_][._/\\-]?\d\w*|\w+_\w*|\w+(?:::|->|\.)\w+\(?|[a-z]+[A-Z]\w*|[A-Z]{2,}\w*")
_POLES = {word: 2 * i + side for i, pair in enumerate(words.OPPOSITES) for side in (0, 1) for word in pair[side]}
_NUMBER, _TIME = "#", "@"


_HALVES: Final = ("AM", "PM")
"""Halves of the day, which are no acronyms."""


@dataclass(frozen=True, slots=True)
class QuestionReading:
    """The parsed question; see the module's docstring. `negations` are (number of clauses before it, word)."""

    numbers: tuple[str, ...]
    negations: tuple[tuple[int, str], ...]
    poles: frozenset[int]
    names: frozenset[str]
    times: tuple[str, ...]
    asked: tuple[frozenset[str], frozenset[str]]
    content: tuple[str, ...]
    stems: frozenset[str]


@lru_cache(maxsize=4_096)
def read(text: str) -> QuestionReading:
    """Parse one question; cached, because stored questions are compared repeatedly."""
    draft = _Draft(words.unwrap(text))
    for token in _TOKEN.finditer(draft.text):
        draft.take(token[0], token.start(), token.end())
    return draft.finished()


@dataclass(slots=True)
class _Draft:
    """What has been parsed of `text` so far."""

    text: str
    numbers: list[str] = field(default_factory=list)
    negations: list[tuple[int, str]] = field(default_factory=list)
    poles: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    times: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    modals: set[str] = field(default_factory=set)
    content: list[str] = field(default_factory=list)
    clauses: int = 0

    def take(self, raw: str, start: int, end: int) -> None:
        """Classify one token, which lies at text[start:end]."""
        if raw[-1].isdecimal() and (raw[0].isdecimal() or raw[0] == "-"):
            # `1,000` is `1000`, but `1,5` is not `15`, and `1.000` is not `1` everywhere.
            self._number(raw.replace(",", "") if _THOUSANDS.fullmatch(raw) else raw)
        elif not raw[-1].isalnum():
            self.content.append(raw)
        elif len(raw) > 1 and raw.isupper() and raw not in _HALVES:  # `US` is not `us`, `IT` is not `it`
            self._name(words.stem(raw.lower()))
        else:
            self._word(raw, raw.lower(), start, end)

    def _word(self, raw: str, word: str, start: int, end: int) -> None:
        if word in words.EMPTY:
            # `vitamin A`, `option a?`: not followed by a word, it is no article.
            if len(word) == 1 and ((raw == "A" and not self._opens_sentence(start)) or not self._goes_on(end)):
                self._name(word)
        elif word in words.FUNCTION:
            self._function(word)
        elif word in words.NUMBERS:
            self._number(words.NUMBERS[word])
        elif word in words.NEGATIONS:
            self._negation(word)
        elif word in words.TIME_WORDS:
            self.times.append(word)
            self.content.append(_TIME)
        elif word in words.ASKED:
            self.asked.add(words.ASKED[word])
            self.clauses += 1
        elif word in words.MODALS:
            self.modals.add(words.MODALS[word])
        else:
            self._meaning(raw, word, start)

    def _function(self, word: str) -> None:
        self.content.append(words.FUNCTION[word])
        if word in words.LINKS:
            self.clauses += 1
        elif word in words.TENSES:
            self.times.append(words.TENSES[word])

    def _meaning(self, raw: str, word: str, start: int) -> None:
        stem = words.stem(word)
        self.content.append(stem)
        if word in _POLES:
            self.poles.add(_POLES[word])
        if _CODE.fullmatch(raw) or (raw != word and not self._opens_sentence(start)):
            self.names.add(stem)

    def _number(self, number: str) -> None:
        self.numbers.append(number)
        self.content.append(_NUMBER)

    def _negation(self, word: str) -> None:
        self.negations.append((self.clauses, word))
        if word != "not":
            self.content.append(word)

    def _name(self, stem: str) -> None:
        self.content.append(stem)
        self.names.add(stem)

    def _opens_sentence(self, start: int) -> bool:
        before = self.text[:start].rstrip()
        return not before or before[-1] in ".!?:\n"

    def _goes_on(self, end: int) -> bool:
        return self.text[end : end + 1].isspace() and self.text[end + 1 : end + 2].isalnum()

    def finished(self) -> QuestionReading:
        """Return the parsed question."""
        return QuestionReading(
            numbers=tuple(self.numbers),
            negations=tuple(self.negations),
            poles=frozenset(self.poles),
            names=frozenset(self.names),
            times=tuple(self.times),
            asked=(frozenset(self.asked), frozenset(self.modals)),
            content=tuple(self.content),
            stems=frozenset(self.content),
        )
