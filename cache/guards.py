"""May the answer to one question be given to another that is close to it? The guards look for reasons why not.

A cosine does not see what changes an answer: a negated question, another number, another name, `before` for `after`,
`A to B` for `B to A` all stay within 0.95 of each other. So both texts are read, once each, into the few things that
must not differ, and compared. Fail closed: a word that is in one text only, and that is not known to be mere wrapping,
is a difference. Pure, English first; of another language it sees words, names, numbers and order.

    numbers   digits and number words                                negation  not, never, without; more/less, on/off
    entities  names, acronyms, code-like words                       dates     days, months, before/after, was/is/will
    asked     who, when, why, how, whether; can, should; I, you, he  wording   any other word or symbol; order
The first four are switched by the policy; the others are always on.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from cache import words

_TOKEN = re.compile(r"(?<![\w)])-?\d+(?:[.,]\d+)*|\d+|[^\W\d_]+(?:[\d_]\w*)?|_\w*|[%$€£+*/<>=^#&|@~\\{}\[\];`]")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_CODE = re.compile(r"\w*[^\W_][._/\\-]?\d\w*|\w+_\w*|\w+(?:::|->|\.)\w+\(?|[a-z]+[A-Z]\w*|[A-Z]{2,}\w*")
_POLES = {word: 2 * i + side for i, pair in enumerate(words.OPPOSITES) for side in (0, 1) for word in pair[side]}
_TENSES = (
    ("past", re.compile(r"\W(?:was|were|did|had)\W")),
    ("future", re.compile(r"\W(?:will|shall|going to|gonna)\W")),
)
_MAX_CHARS = 2_000
"""A longer question is hardly asked twice in other words, and would make the guards slow."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one question says, reduced to what must agree. Words are stems, in the text's order."""

    numbers: tuple[str, ...]
    negations: int
    poles: frozenset[int]
    names: frozenset[str]
    times: tuple[str, ...]
    asked: tuple[frozenset[str], frozenset[str], frozenset[str]]
    content: tuple[str, ...]
    stems: frozenset[str]


def difference(stored: str, asked: str, guards: Collection[str]) -> str | None:
    """Why the answer to `stored` must not be given to `asked`, as the guard's word; None when nothing says so."""
    if stored == asked:
        return None
    if len(stored) > _MAX_CHARS or len(asked) > _MAX_CHARS:
        return "length"
    a, b = read(stored), read(asked)
    if not a.content or not b.content:
        return "wording"
    if "numbers" in guards and a.numbers != b.numbers:
        return "numbers"
    if "negation" in guards and (a.negations != b.negations or a.poles != b.poles):
        return "negation"
    if "entities" in guards and not (a.names <= b.stems and b.names <= a.stems):
        return "entities"
    if "dates" in guards and a.times != b.times:
        return "dates"
    if a.asked != b.asked:
        return "asked"
    if a.content != b.content:
        return "order" if a.stems == b.stems else "wording"
    return None


@lru_cache(maxsize=4_096)
def read(text: str) -> Reading:
    """The reading of one question; kept, because stored questions are compared again and again."""
    plain = words.unwrap(text)
    numbers: list[str] = []
    times: list[str] = []
    content: list[str] = []
    names: set[str] = set()
    marks: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    poles: set[int] = set()
    negations = 0
    for token in _TOKEN.finditer(plain):
        raw = token[0]
        word = raw.lower()
        if raw[0].isdigit() or raw[0] == "-" or not word[-1].isalnum():
            _read_odd(word, numbers, content)
            continue
        if len(raw) > 1 and raw.isupper():  # `US` is not `us`, `IT` is not `it`
            content.append(words.stem(word))
            names.add(content[-1])
            continue
        if word in words.EMPTY:
            continue
        if word in words.NUMBERS:
            numbers.append(words.NUMBERS[word])
        elif word in words.NEGATIONS:
            negations += 1
        elif word in words.TIME_WORDS:
            times.append(word)
        elif word in words.OTHERS:
            content.append(words.OTHERS[word])
        elif not _read_mark(word, marks):
            stem = words.stem(word)
            content.append(stem)
            if word in _POLES:
                poles.add(_POLES[word])
            if _CODE.fullmatch(raw) or (raw != word and not _opens_sentence(plain, token.start())):
                names.add(stem)
    lowered = f" {plain.lower()} "
    times.extend(tense for tense, pattern in _TENSES if pattern.search(lowered))
    return Reading(
        numbers=tuple(numbers),
        negations=negations,
        poles=frozenset(poles),
        names=frozenset(names),
        times=tuple(times),
        asked=(frozenset(marks[0]), frozenset(marks[1]), frozenset(marks[2])),
        content=tuple(content),
        stems=frozenset(content),
    )


def _read_odd(word: str, numbers: list[str], content: list[str]) -> None:
    """A number or a symbol. A unit written right behind its number is a word of its own already."""
    if not word[-1].isdigit():
        content.append(word)
        return
    # `1,000` is `1000`, but `1,5` is not `15`, and `1.000` is not `1` everywhere.
    numbers.append(word.replace(",", "") if _THOUSANDS.fullmatch(word) else word)


def _read_mark(word: str, marks: tuple[set[str], set[str], set[str]]) -> bool:
    for i, table in enumerate((words.ASKED, words.MODALS, words.PERSONS)):
        if word in table:
            marks[i].add(table[word])
            return True
    return False


def _opens_sentence(text: str, start: int) -> bool:
    before = text[:start].rstrip()
    return not before or before[-1] in ".!?:\n"
