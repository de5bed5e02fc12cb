"""Parse a question into the parts that must not differ between it and another. Pure.
    numbers    digits and number words, in order
    negations  `not` by the clause it stands in (its place within a clause may change: `why don't cats`, `why do cats
               not`), every other negation too; and which side of an opposition is named (more or less, on or off)
    names      what is written like a name, an acronym or code
    times      days, months, before and after, and tenses
    asked      who, when, why, how, whether; can, should
    content    every word and symbol in order, function words too: `in the house` is not `on the house`, `do` is not
               `be`. Numbers and times leave a placeholder. Only articles and a few fillers are dropped.
Synonyms and plurals are reduced to one form. The words are in `words.toml`. Made for English; in another language it
detects words, names, numbers and order.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

_WRAPPING = re.compile(
    r"""^(?:\s*(?:
        please\b[\s,]*|
        # `Hello Kitty` is no greeting.
        (?:hi|hello|hey|ok|okay|so|well)(?:\s+there)?(?:\s*[,!.:]+|
            \s+(?=(?:what|who|where|when|why|how|which|can|could|would|will|do|does|is|are|please|i|tell|show)\b))|
        (?:
            (?:can|could|would|will)\s+(?:you|u|someone|anyone)\s+(?:please\s+)?(?:kindly\s+)?
                (?:tell|explain\s+to|show|help)\s+me|
            (?:can|could)\s+(?:you|someone)\s+(?:please\s+)?(?:explain|describe)|
            (?:tell|show)\s+me|
            i(?:\s+would|'d)?\s+(?:want|like|need)\s+to\s+know|
            i(?:'m|\s+am)\s+(?:wondering|curious)(?:\s+about)?|
            do\s+you\s+(?:happen\s+to\s+)?know
        )[\s,!.:]+
    ))+""",
    re.IGNORECASE | re.VERBOSE,
)
_HOW = re.compile(
    r"""^\s*(?:
        how\s+to|
        how\s+(?:can|do|does|could|should|would|may|might|must)\s+(?:i|you|we|one|someone|a\s+person|anyone)|
        what(?:\s+is|\s+are)\s+(?:the|a|some)\s+(?:(?:good|best)\s+)?(?:steps?|ways?|methods?|process|procedure)\s+(?:to|of|for)|
        in\s+what\s+way\s+(?:can|do)\s+(?:i|you|we)
    )\s+""",
    re.IGNORECASE | re.VERBOSE,
)
_IF_I_WANT = re.compile(
    r"^\s*(?:if\s+(?:i|you)\s+want\s+to|in\s+order\s+to)\s+(.+?),?\s+what\s+(?:should|can|must|do)\s+(?:i|you)\s+do\W*$",
    re.IGNORECASE | re.DOTALL,
)
_FILLER = re.compile(r"\bsome\s+of\s+(?=the\b)|\bin\s+fact\b", re.IGNORECASE)
_CONTRACTIONS = re.compile(
    r"""(?<=[a-z])(?:n't|'(?:re|m|ll|ve|d))\b | (?<=\bit|\bhe)'s\b | (?<=\bwho|\bhow|\bwhy|\bshe)'s\b
    | (?<=\bwhat|\bwhen|\bthat|\bhere)'s\b | (?<=\bwhere|\bthere)'s\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Expands `'s` only where it certainly is `is`: `the dog's food` is not `the dog is food`."""
_EXPANDED = {"n't": " not", "'s": " is", "'re": " are", "'m": " am", "'ll": " will", "'ve": " have", "'d": " would"}


def unwrap(text: str) -> str:
    """Return `text` without greetings and polite phrases, with every way to ask for a method as `howto`."""
    if "’" in text:
        text = text.replace("’", "'")
    if "'" in text:
        text = text.replace("can't", "can not").replace("won't", "will not")
        text = _CONTRACTIONS.sub(lambda match: _EXPANDED[match[0].lower()], text)
    text = text.replace("cannot", "can not")
    text = _WRAPPING.sub("", text, count=1)
    if match := _IF_I_WANT.match(text):
        return f"howto {match[1]}"
    return _HOW.sub("howto ", _FILLER.sub("", text), count=1)


def word_set(words: str) -> frozenset[str]:
    """Split a string of words."""
    return frozenset(words.split())


def groups_of(text: str, separator: str = ";") -> list[tuple[str, ...]]:
    """Split a string of groups of words."""
    return [tuple(group.split()) for group in text.split(separator)]


def word_list(name: str) -> dict[str, Any]:
    """Read a file of words in this folder. Its lists are strings, to be split with `word_set` or `groups_of`."""
    return tomllib.loads(Path(__file__).with_name(name).read_text("utf-8"))


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    """Turn a table of forms, each with its words, into one from each word to its form."""
    return {word: form for form, words in table.items() for word in words.split()}


LISTS: Final = word_list("words.toml")
EMPTY: Final = word_set(LISTS["empty"])
LINKS: Final = word_set(LISTS["links"])
NEGATIONS: Final = word_set(LISTS["negations"])
FOREIGN: Final = word_set(LISTS["foreign"])
NUMBERS: Final = _by_word(LISTS["numbers"])
_TIMES: Final = word_set(LISTS["times"])
_TENSES: Final = _by_word(LISTS["tenses"])
_ASKED: Final = _by_word(LISTS["asked"])
_MODALS: Final = _by_word(LISTS["modals"])
_FORMS: Final = _by_word(LISTS["forms"]) | _by_word(LISTS["persons"])
FUNCTION: Final = {word: word for word in LINKS} | _FORMS
"""Function words and the form they are compared as. They stay in the text's order, which determines who does what to
whom, and where."""
FAINT: Final = EMPTY.union(FUNCTION, _ASKED, _MODALS, word_set(LISTS["faint"]))
"""Words without a topic: a question made only of these refers to something said before."""
_SYNONYMS: Final = {word: group[0] for group in groups_of(LISTS["synonyms"]) for word in group[1:]}
_OTHER_THINGS: Final = word_set(LISTS["other_things"])
_POLES: Final = {
    word: 2 * place + side
    for place, pair in enumerate(LISTS["opposites"].split(";"))
    for side, words in enumerate(groups_of(pair, "/"))
    for word in words
}
"""Words on a side of an opposition, each with the number of the side."""


def stem(word: str) -> str:
    """Return a word without plural or third-person ending, or its commonest synonym.

    `-ing` and `-ed` are kept: marketing is not a market, nor is something partitioned a partition.
    """
    word = _SYNONYMS.get(word, word)
    if len(word) < 4 or not word.isascii() or not word.endswith("s") or word in _OTHER_THINGS:
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "zes", "oes")):
        return word[:-2]
    return word if word.endswith(("ss", "us", "is", "ics")) else word[:-1]


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
    draft = _Draft(unwrap(text))
    for token in _TOKEN.finditer(draft.text):
        draft.take(token[0], token.start(), token.end())
    return draft.finished()


@dataclass(slots=True)
class _Draft:
    """Parsed parts of `text` so far."""

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
            self._name(stem(raw.lower()))
        elif (word := raw.lower()) in EMPTY:
            # `vitamin A`, `option a?`: not followed by a word, it is no article.
            if len(word) == 1 and ((raw == "A" and not self._opens_sentence(start)) or not self._goes_on(end)):
                self._name(word)
        elif word in FUNCTION:
            self._function(word)
        elif word in NUMBERS:
            self._number(NUMBERS[word])
        elif word in NEGATIONS:
            self._negation(word)
        elif word in _TIMES:
            self.times.append(word)
            self.content.append(_TIME)
        elif word in _ASKED:
            self.asked.add(_ASKED[word])
            self.clauses += 1
        elif word in _MODALS:
            self.modals.add(_MODALS[word])
        else:
            self._meaning(raw, word, start)

    def _function(self, word: str) -> None:
        self.content.append(FUNCTION[word])
        if word in LINKS:
            self.clauses += 1
        elif word in _TENSES:
            self.times.append(_TENSES[word])

    def _meaning(self, raw: str, word: str, start: int) -> None:
        form = stem(word)
        self.content.append(form)
        if word in _POLES:
            self.poles.add(_POLES[word])
        if _CODE.fullmatch(raw) or (raw != word and not self._opens_sentence(start)):
            self.names.add(form)

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
