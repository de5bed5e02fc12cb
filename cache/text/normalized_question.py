"""What a question comes to, for a verifier that must tell a rephrasing from a small edit. Pure; kept per text.

Where `cache.text.reading` keeps every word, a gist reduces them: phrases become words (`turn off`, `disable`), ways to
ask for a way become `howto`, inflections and synonyms one word. What may change the answer by itself (numbers,
negations, names, times, who asks what) stays apart, so that it can refuse by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

from cache.text import thesaurus, words
from cache.text.reading import QuestionReading, read


def _phrases() -> dict[str, re.Pattern[str]]:
    """The phrases by their first word, longest first: one pattern of them all costs a millisecond a text."""
    by_first: dict[str, list[str]] = {}
    for phrase in sorted(thesaurus.PHRASES, key=len, reverse=True):
        by_first.setdefault(phrase.split()[0], []).append(re.escape(phrase))
    return {first: re.compile(rf"\b(?:{'|'.join(each)})\b", re.IGNORECASE) for first, each in by_first.items()}


_PHRASES: Final = _phrases()
_LETTERS: Final = re.compile(r"[a-z]+")
_LONG_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_FULL_HOUR: Final = re.compile(r"\b(\d{1,2}):00\b")
_POLAR: Final = re.compile(
    r"\s*(?:is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|should|shall|may|might|must|if)\b",
    re.IGNORECASE,
)
_WAY = r"(?:ways?|methods?|steps?|process|procedure|strateg(?:y|ies)|approach(?:es)?|techniques?|tips?|tricks?)"
_BEST = (
    r"(?:(?:very|most|single|best|good|great|easiest|easy|fastest|quickest|quick|simplest|right|proper|correct|effective|"
    r"efficient|possible|different|common|some|various|main|only|safest|cheapest)\s+){0,3}"
)
_FRAMES: Final = (
    (re.compile(r"^\s*(?:do|would)\s+you\s+(?:think|say|believe)\s+(?:that\s+)?(?=\w)", re.IGNORECASE), ""),
    (re.compile(r"\b(?:is|are|be)\s+used\s+(?:to|for)\b", re.IGNORECASE), "for"),
    (
        re.compile(
            r"^\s*(?:can|could|would|will)\s+you\s+(?:please\s+|kindly\s+)?(?=(?:confirm|check|verify|explain|describe|list|give|provide|"
            r"suggest|recommend|tell|show|help|write|draft|create|generate|summari[sz]e|find|make|clarify|outline|compare|name|send|add|"
            r"remove|update|cancel|schedule|book|set)\b)",
            re.IGNORECASE,
        ),
        "",
    ),
    (re.compile(r"^\s*is\s+it\s+true\s+that\s+", re.IGNORECASE), ""),
    (
        re.compile(
            rf"^\s*(?:(?:what|which)(?:\s+is|\s+are|'s|\s+would\s+be)?\s+|(?:are|is)\s+there\s+(?:any\s+)?)?(?:the\s+|a\s+|an\s+|any\s+)?"
            rf"{_BEST}{_WAY}\s+(?:that\s+)?(?:to|of|for|on|(?:i|you|we|one)\s+can(?:\s+use\s+to)?)\s+",
            re.IGNORECASE,
        ),
        "howto ",
    ),
    (
        re.compile(
            r"^\s*what\s+(?:should|can|must|do|could|would)\s+(?:i|you|we|one)\s+(?:(?:need|have)\s+to\s+)?do\s+(?:if\s+i\s+want\s+)?to\s+",
            re.IGNORECASE,
        ),
        "howto ",
    ),
    (
        re.compile(
            r"^\s*(?:i|we)(?:\s+would|'d)?\s+(?:want|like|need|am\s+trying|'m\s+trying|wish)\s+to\s+(?!know)(.+?)[.,;:]\s*(?:so\s+)?"
            r"(?:how|what)\s+(?:can|do|should|could|would|must)\s+(?:i|we)\s+do(?:\s+(?:that|this|it|so))?\W*$",
            re.IGNORECASE | re.DOTALL,
        ),
        r"howto \1",
    ),
    (
        re.compile(
            r"^\s*(?:teach\s+me|i\s+need\s+help|help\s+me|(?:please\s+)?guide\s+me\s+(?:on|in)|learn|explain|describe|show)\s+(?:how\s+to\s+|with\s+)",
            re.IGNORECASE,
        ),
        "howto ",
    ),
    (re.compile(r"^\s*(?:how|where)\s+to\s+go\s+about\s+|^\s*howto\s+go\s+about\s+", re.IGNORECASE), "howto "),
)
_SOFT_NEGATIONS: Final = words.word_set(
    "stop avoid refuse fail lack lacks lacking hardly barely rarely seldom minus non"
)
_SOFT_TIMES: Final = words.word_set("already still yet again always often sometimes ago day days future")
_FUNCTION_VALUES: Final = frozenset(words.FUNCTION.values()) | (words.FAINT - thesaurus.VAGUE) | thesaurus.FILLERS
_SILENT: Final = thesaurus.FILLERS - {"be", "am", "else"}
_MARKS: Final = frozenset("()[]{}\\/|&*~`_")
"""Symbols that seldom calculate anything; the others ($, %, +, =) do."""
_ENDINGS: Final = (
    ("ization", "ize"), ("isation", "ize"), ("ations", ""), ("ation", ""), ("ates", ""), ("ated", ""), ("ating", ""),
    ("ate", ""), ("ments", ""), ("ment", ""),
    ("iveness", "ive"), ("fulness", "ful"), ("ness", ""), ("ically", "ic"), ("ibly", "ible"), ("ably", "able"),
    ("ily", "y"), ("lly", "l"), ("ly", ""), ("ying", "y"), ("ied", "y"), ("ings", ""), ("ing", ""), ("ed", ""),
    ("tions", "t"), ("tion", "t"), ("sions", "d"), ("sion", "d"), ("ise", "ize"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Word:
    """One content word: as it is compared (`root`), what stands for its synonyms (`sense`), and what it is.

    `senses` are all that it may be a synonym of; a word with several meanings stands for itself (`sense`) and has more.
    """

    text: str
    root: str
    sense: str
    senses: tuple[str, ...]
    kinds: frozenset[str]
    vague: bool
    name: bool
    link: str
    """The preposition before it, '' when there is none."""


@dataclass(frozen=True, slots=True)
class NormalizedQuestion:
    """See the module's docstring."""

    words: tuple[Word, ...]
    numbers: tuple[str, ...]
    negations: tuple[tuple[int, str], ...]
    times: tuple[str, ...]
    asked: frozenset[str]
    modals: frozenset[str]
    persons: tuple[str, ...]
    others: tuple[str, ...]
    """He and she, in order."""
    function: frozenset[str]
    symbols: tuple[str, ...]
    passive: bool
    polar: bool
    """Asked for a yes or a no."""
    poles: frozenset[int]
    plain: str
    """The text, rephrased and in lower case."""
    length: int
    foreign: bool
    """Of a language whose grammar is not read here."""


@lru_cache(maxsize=16_384)
def gist(text: str) -> NormalizedQuestion:
    """The gist of one question; kept, because stored questions are compared again and again."""
    plain = rephrased(text)
    return _sorted_out(read(plain), plain)


def rephrased(text: str) -> str:
    """`text` with its phrases as words and its ways to ask for a way as `howto`."""
    for first in dict.fromkeys(_LETTERS.findall(text.lower())):
        if (phrases := _PHRASES.get(first)) is not None:
            text = phrases.sub(_instead, text)
    if ":00" in text:
        text = _FULL_HOUR.sub(r"\1", text)
    text = words.unwrap(text)
    for pattern, instead in _FRAMES:
        text = pattern.sub(instead, text, count=1)
    return text


def _instead(found: re.Match[str]) -> str:
    return thesaurus.PHRASES[found[0].lower()]


def root_of(word: str) -> str:
    """A word without its commonest endings; `running` and `ran` are `run`. Good for comparing, not for showing."""
    if (known := thesaurus.ROOTS.get(word)) is not None:
        return known
    if len(word) < 4 or not word.isascii():
        return word
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            if not instead and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def senses_of(word: str, root: str) -> tuple[str, ...]:
    """What stands for a word and its synonyms: one sense, or the word's own root and then one for each of its meanings.

    `activated` is of `activate`, though its root is that of `active`.
    """
    known = _SENSES.get(word)
    if known is None and word not in thesaurus.ROOTS:
        verbs = (word[:-1],) if word.endswith("ed") else (f"{word[:-3]}e", word[:-3]) if word.endswith("ing") else ()
        known = next((_SENSES[verb] for verb in verbs if verb in _SENSES), None)
    return known or _SENSES.get(root) or (root,)


def _table() -> dict[str, tuple[str, ...]]:
    found = {}
    for word, heads in thesaurus.SYNONYM.items():
        groups = tuple(root_of(words.stem(head)) for head in heads)
        for form in (word, words.stem(word)):
            found[form] = groups if len(groups) == 1 else (root_of(form), *groups)
    return found


_SENSES: Final = _table()
# The shortest first: `agree` is what its root stands for, not `agreement`.
for _form in sorted(_SENSES, key=len):
    _SENSES.setdefault(root_of(_form), _SENSES[_form])


def _listed(word: str) -> tuple[str, ...]:
    """The senses that are meant where a table below lists a word: its own, and of its groups' the first."""
    stem = words.stem(word)
    return senses_of(stem, root_of(stem))[:2]


OPPOSITES: Final = frozenset(
    frozenset(pair) for left, right in thesaurus.ANTONYMS for pair in product(_listed(left), _listed(right))
)
"""Pairs of senses that are opposites."""
DIRECTIONS: Final = {
    _listed(word)[0]: way for way, group in ((1, thesaurus.TOWARDS), (-1, thesaurus.AWAY)) for word in sorted(group)
}
"""A sense that points somewhere -> 1 (more, on, yes) or -1 (less, off, no)."""
_KINDS: Final = {words.stem(word): kinds for word, kinds in thesaurus.KIND.items()}
_NO_KINDS: Final[frozenset[str]] = frozenset()


def _sorted_out(reading: QuestionReading, plain: str) -> NormalizedQuestion:
    found: list[Word] = []
    persons, others, symbols, function = [], [], [], set()
    link = ""
    names = frozenset() if _is_title(plain) else reading.names
    for token in reading.content:
        if token in ("i", "you"):
            persons.append(token)
        elif token in ("he", "she"):
            others.append(token)
        elif token in words.LINKS:
            function.add(token)
            link = token
        elif token in _FUNCTION_VALUES or token in ("#", "@"):
            if token not in _SILENT:
                function.add(token)
        elif not token[-1].isalnum():
            if token not in _MARKS:
                symbols.append(token)
        elif token not in words.NEGATIONS or token in _SOFT_NEGATIONS:
            _place(found, _word(token, link, token in names))
            link = ""
    return NormalizedQuestion(
        words=tuple(found),
        numbers=reading.numbers,
        negations=tuple(one for one in reading.negations if one[1] not in _SOFT_NEGATIONS),
        times=tuple(time for time in reading.times if time not in _SOFT_TIMES),
        asked=reading.asked[0],
        modals=reading.asked[1],
        persons=tuple(persons),
        others=tuple(others),
        function=frozenset(function),
        symbols=tuple(symbols),
        passive="by" in function and "be" in function,
        polar=not reading.asked[0] and _POLAR.match(plain) is not None,
        poles=reading.poles,
        plain=plain.lower(),
        length=len(reading.content),
        foreign=_is_foreign(plain),
    )


def _is_foreign(text: str) -> bool:
    """Whether more of its words are foreign words of grammar than English ones, and two at least."""
    said = set(text.lower().split())
    foreign = len(said & words.FOREIGN)
    return foreign > 1 and foreign > len(said & words.FAINT)


@lru_cache(maxsize=16_384)
def _word(token: str, link: str, name: bool) -> Word:
    """Kept: a few thousand words make up most questions, and working out their roots is most of the reading."""
    root = root_of(token)
    senses = senses_of(token, root)
    return Word(token, root, senses[0], senses, _KINDS.get(token, _NO_KINDS), token in _VAGUE, name, link)


_VAGUE: Final = frozenset(form for word in thesaurus.VAGUE for form in (word, words.stem(word)))


@lru_cache(maxsize=1_024)
def grams_of(text: str) -> frozenset[str]:
    """The trigrams of a text's letters. Apart from the gist, since most pairs are refused before they are looked at."""
    return frozenset({text[i : i + 3] for i in range(len(text) - 2)})


def _is_title(text: str) -> bool:
    """Whether Nearly Every Word Is Written Like This, so that a capital names nothing."""
    long = _LONG_WORD.findall(text)
    return len(long) > 3 and all(word[0].isupper() for word in long)


def _place(found: list[Word], word: Word) -> None:
    """Puts `amount of the settlement` where `settlement amount` stands, and `b and a` where `a and b` does."""
    before = found and (word.link == "of" or (word.link in ("and", "or") and word.sense < found[-1].sense))
    found.insert(len(found) - 1 if before else len(found), word)
