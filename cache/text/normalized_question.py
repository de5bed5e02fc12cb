"""Normalize a question for a verifier that must tell a paraphrase from a small edit. Pure; cached per text.

`cache.text.reading` keeps every word; here they are reduced: phrases become words (`turn off`, `disable`), ways to ask
for a method become `howto`, inflections and synonyms become one word. What can change the answer alone (numbers,
negations, names, times, who asks what) is kept apart, so that it can refuse alone.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache
from itertools import product
from typing import Final

from cache.text import thesaurus
from cache.text.reading import FAINT, FUNCTION, LINKS, NEGATIONS, QuestionReading, read_unwrapped, stem, unwrap
from cache.text.thesaurus import word_set
from policies.value_type import value_type


def _phrases() -> dict[str, tuple[tuple[str, ...], re.Pattern[str]]]:
    """Compile the phrases by first word, longest first: one pattern of all of them takes a millisecond per text.

    Before each pattern are the first two words of its phrases, without any of which it need not be tried.
    """
    by_first: dict[str, list[str]] = {}
    for phrase in sorted(thesaurus.PHRASES, key=len, reverse=True):
        by_first.setdefault(phrase.split()[0], []).append(phrase)
    return {
        first: (
            tuple(dict.fromkeys(" ".join(phrase.split()[:2]) for phrase in each)),
            re.compile(rf"\b(?:{'|'.join(map(re.escape, each))})\b", re.IGNORECASE),
        )
        for first, each in by_first.items()
    }


_PHRASES: Final = _phrases()
_LETTERS: Final = re.compile(r"[a-z]+")
_IN_LETTERS: Final = bytes(sign if chr(sign) in string.ascii_lowercase else ord(" ") for sign in range(256))
"""A table for `bytes.translate` of ASCII, after which `split` finds what `_LETTERS` does, in less time."""
_LONG_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_FULL_HOUR: Final = re.compile(r"\b(\d{1,2}):00\b")
_POLAR: Final = re.compile(
    r"\s*+(?:is|are|am|was|were|do|does|did|has|have|had|can|could|will|would|should|shall|may|might|must|if)\b",
    re.IGNORECASE,
)
_ANYWHERE: Final = (
    ("used", re.compile(r"\b(?:is|are|be)\s++used\s++(?:to|for)\b", re.IGNORECASE), "for"),
    ("keep", re.compile(r"\bkeep(?=\s++(?:\w++\s++){1,4}?from\s++\w+ing\b)", re.IGNORECASE), "stop"),
)
"""Frames that may stand anywhere in a question, each after a word without which it does not."""
_DATA: Final = thesaurus.word_list("frames.toml")
_FRAMES: Final = tuple(
    (
        re.compile(
            frame["pattern"].replace("<best>", _DATA["best"]).replace("<way>", _DATA["way"]), re.IGNORECASE | re.DOTALL
        ),
        frame["instead"],
    )
    for frame in _DATA["frame"]
)
_SOFT_NEGATIONS: Final = word_set("stop avoid refuse fail lack lacks lacking hardly barely rarely seldom minus non")
_SOFT_TIMES: Final = word_set("already still yet again always often sometimes ago day days future")
_FUNCTION_VALUES: Final = frozenset(FUNCTION.values()) | (FAINT - thesaurus.VAGUE) | thesaurus.FILLERS
_SILENT: Final = thesaurus.FILLERS - {"be", "am", "else"}
_LISTED: Final = frozenset({"i", "you", "he", "she", "#", "@"}).union(
    LINKS, _FUNCTION_VALUES, NEGATIONS - _SOFT_NEGATIONS
)
"""What is in none of the lists is a word of content, or a symbol."""
_MARKS: Final = frozenset("()[]{}\\/|&*~`_")
"""Symbols that rarely belong to a calculation; the others ($, %, +, =) do."""
_QUOTES: Final = re.compile(
    r"""["“”„«»‹›「」『』`]([^"“”„«»‹›「」『』`\n]+)["“”«»‹›「」『』`] | (?<!\w)['‘]([^'’\n]+)['’](?!\w)""", re.VERBOSE
)
_ENDINGS: Final = (
    ("ization", "ize"), ("isation", "ize"), ("ations", ""), ("ation", ""), ("ates", ""), ("ated", ""), ("ating", ""),
    ("ate", ""), ("ments", ""), ("ment", ""),
    ("iveness", "ive"), ("fulness", "ful"), ("ness", ""), ("ically", "ic"), ("ibly", "ible"), ("ably", "able"),
    ("ily", "y"), ("lly", "l"), ("ly", ""), ("ying", "y"), ("ied", "y"), ("ings", ""), ("ing", ""), ("ed", ""),
    ("tions", "t"), ("tion", "t"), ("sions", "d"), ("sion", "d"), ("ise", "ize"),
)  # fmt: skip
_ENDINGS_BY_LETTER: Final = {
    letter: tuple(row for row in _ENDINGS if row[0][-1] == letter) for letter in {ending[-1] for ending, _ in _ENDINGS}
}


@value_type
class Word:
    """One content word: its text, its comparison form (`root`), its synonym group (`sense`), and its properties.

    `senses` are all groups it may belong to; a word with several meanings has its own root as `sense`, then the groups.
    """

    text: str
    root: str
    sense: str
    senses: tuple[str, ...]
    kinds: frozenset[str]
    vague: bool
    name: bool
    link: str
    """Preposition before the word, '' if there is none."""
    opposed: frozenset[str]
    """Senses that are opposites of one of its own."""


@value_type
class NormalizedQuestion:
    """A question reduced to what a verifier compares; see the module's docstring."""

    words: tuple[Word, ...]
    numbers: tuple[str, ...]
    negations: tuple[tuple[int, str], ...]
    times: tuple[str, ...]
    asked: frozenset[str]
    modals: frozenset[str]
    persons: tuple[str, ...]
    others: tuple[str, ...]
    """`he` and `she`, in order."""
    function: frozenset[str]
    symbols: tuple[str, ...]
    passive: bool
    polar: bool
    """Whether the question asks for yes or no."""
    poles: frozenset[int]
    plain: str
    """The rephrased text in lower case."""
    length: int
    quotes: tuple[str, ...]
    """What is in quotation marks or backticks, in lower case."""


@lru_cache(maxsize=16_384)
def gist(text: str) -> NormalizedQuestion:
    """Normalize one question; cached, because stored questions are compared repeatedly."""
    plain, unwrapped = _rephrased(text)
    return _sorted_out(read_unwrapped(plain if unwrapped else unwrap(plain)), plain)


def _rephrased(text: str) -> tuple[str, bool]:
    """Return `text` with known phrases as one word, and every way to ask for a method as `howto`; and whether it is
    known that `unwrap` would not change that.
    """
    lowered = text.lower()
    words = lowered.encode().translate(_IN_LETTERS).decode().split() if lowered.isascii() else _LETTERS.findall(lowered)
    for first in dict.fromkeys(words):
        if (phrases := _PHRASES.get(first)) is not None:
            begins, pattern = phrases
            for begin in begins:
                if begin in lowered:
                    text = pattern.sub(_instead, text)
                    lowered = text.lower()
                    break
    if ":00" in text:
        text = _FULL_HOUR.sub(r"\1", text)
    wrapped, text = text, unwrap(text)
    # These are about a question's beginning, where a match is found without trying every other place.
    for pattern, instead in _FRAMES:
        if (match := pattern.match(text)) is not None:
            text = f"{match.expand(instead)}{text[match.end() :]}"
    folded = text.casefold()
    for word, pattern, instead in _ANYWHERE:
        if word in folded:
            text = pattern.sub(instead, text, count=1)
    return text, text == wrapped


def _instead(match: re.Match[str]) -> str:
    # `re` takes the letters ſ, ı and İ for s and i; they stand in no English phrase.
    return thesaurus.PHRASES.get(match[0].lower(), match[0])


def root_of(word: str) -> str:
    """Return a word without its commonest endings (`running` and `ran` give `run`): for comparison, not for display."""
    if (irregular := thesaurus.ROOTS.get(word)) is not None:
        return irregular
    if len(word) < 4 or not word.isascii():
        return word
    for ending, instead in _ENDINGS_BY_LETTER.get(word[-1], ()):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            if not instead and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def senses_of(word: str, root: str) -> tuple[str, ...]:
    """Return the synonym groups of a word: one, or the word's own root and then one for each of its meanings.

    `activated` belongs to `activate`, though its root is that of `active`.
    """
    senses = _SENSES.get(word)
    if senses is None and word.endswith(("ed", "ing")) and word not in thesaurus.ROOTS:
        verbs = (word[:-1],) if word.endswith("ed") else (f"{word[:-3]}e", word[:-3])
        senses = next((_SENSES[verb] for verb in verbs if verb in _SENSES), None)
    return senses or _SENSES.get(root) or (root,)


def _table() -> dict[str, tuple[str, ...]]:
    table = {}
    for word, heads in thesaurus.SYNONYM.items():
        groups = tuple(root_of(stem(head)) for head in heads)
        for form in (word, stem(word)):
            table[form] = groups if len(groups) == 1 else (root_of(form), *groups)
    return table


_SENSES: Final = _table()
# Shortest form first, so that `agree`, not `agreement`, sets the entry of their common root.
for _form in sorted(_SENSES, key=len):
    _SENSES.setdefault(root_of(_form), _SENSES[_form])


def _listed(word: str) -> tuple[str, ...]:
    """Return the senses meant where a table below lists a word: its own, and the first of its groups'."""
    form = stem(word)
    return senses_of(form, root_of(form))[:2]


def _opposites() -> dict[str, frozenset[str]]:
    """Return the opposites of each sense that has some."""
    table: dict[str, set[str]] = {}
    for left, right in thesaurus.ANTONYMS:
        for word, other in product(_listed(left), _listed(right)):
            table.setdefault(word, set()).add(other)
            table.setdefault(other, set()).add(word)
    return {sense: frozenset(others) for sense, others in table.items()}


_OPPOSITES: Final = _opposites()
_NONE: Final[frozenset[str]] = frozenset()
_NEGATING: Final = ("un", "in", "im", "ir", "il", "dis", "non", "de", "anti", "mis")
_SHORTEST_NEGATED: Final = 4
DIRECTIONS: Final = {
    _listed(word)[0]: way for way, group in ((1, thesaurus.TOWARDS), (-1, thesaurus.AWAY)) for word in sorted(group)
}
"""A sense with a direction -> 1 (more, on, yes) or -1 (less, off, no)."""
_KINDS: Final = {stem(word): kinds for word, kinds in thesaurus.KIND.items()}


def _sorted_out(reading: QuestionReading, plain: str) -> NormalizedQuestion:
    content: list[Word] = []
    persons, others, symbols, function = [], [], [], set()
    link = ""
    names = frozenset() if reading.names and _is_title(plain) else reading.names
    for token in reading.content:
        if token not in _LISTED:
            if token[-1].isalnum():
                word = _word(token, link, token in names)
                # In canonical order: `amount of the settlement` as `settlement amount`, `b and a` as `a and b`.
                before = content and (link == "of" or (link in ("and", "or") and word.sense < content[-1].sense))
                content.insert(len(content) - 1 if before else len(content), word)
                link = ""
            elif token not in _MARKS:
                symbols.append(token)
        elif token in ("i", "you"):
            persons.append(token)
        elif token in ("he", "she"):
            others.append(token)
        elif token in LINKS:
            function.add(token)
            link = token
        elif (token in _FUNCTION_VALUES or token in ("#", "@")) and token not in _SILENT:
            function.add(token)
    negations, times = reading.negations, reading.times
    if negations:
        negations = tuple(negation for negation in negations if negation[1] not in _SOFT_NEGATIONS)
    if times:
        times = tuple(time for time in times if time not in _SOFT_TIMES)
    return NormalizedQuestion(
        words=tuple(content),
        numbers=reading.numbers,
        negations=negations,
        times=times,
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
        quotes=_quotes_in(plain),
    )


def _quotes_in(text: str) -> tuple[str, ...]:
    if text.isascii() and not ('"' in text or "'" in text or "`" in text):
        return ()
    return tuple(quote.strip().lower() for groups in _QUOTES.findall(text) for quote in groups if quote.strip())


@lru_cache(maxsize=16_384)
def _word(token: str, link: str, name: bool) -> Word:
    """Build a content word; cached, because a few thousand words make up most questions."""
    root, senses, opposed = _meaning_of(token)
    kinds = _KINDS.get(token, _NONE)
    return Word(token, root, senses[0], senses, kinds, token in _VAGUE, name, link, opposed)


@lru_cache(maxsize=16_384)
def _meaning_of(token: str) -> tuple[str, tuple[str, ...], frozenset[str]]:
    """Return a word's root, its senses and their opposites; cached, because roots are slow."""
    root = root_of(token)
    senses = senses_of(token, root)
    if len(senses) == 1:
        return root, senses, _OPPOSITES.get(senses[0], _NONE)
    return root, senses, _NONE.union(*(_OPPOSITES[sense] for sense in senses if sense in _OPPOSITES))


@lru_cache(maxsize=4_096)
def negated_by(word: str) -> frozenset[str]:
    """Return the words of which this is the negation or the other side, if they are words: `happy` for `unhappy`,
    `hypotension` for `hypertension`, `lessee` for `lessor`. Not part of `Word`: only words without an equal are asked.
    """
    forms = list[str]()
    if word.startswith(_NEGATING):
        bare = {word[len(prefix) :] for prefix in _NEGATING if word.startswith(prefix)}
        forms += [form for rest in bare if len(rest) >= _SHORTEST_NEGATED for form in (rest, root_of(rest))]
    if word.endswith("less"):
        forms += word[:-4], word[:-4] + "ful"
    if word.startswith(_BEGINNINGS) or word.endswith(_ENDS):
        turned = [f"{other}{word[len(prefix) :]}" for prefix, other in _PREFIXES if word.startswith(prefix)]
        turned += [f"{word[: -len(suffix)]}{other}" for suffix, other in _SUFFIXES if word.endswith(suffix)]
        forms += [other for other in turned if len(other) > _SHORTEST_NEGATED]
    return frozenset(forms) if forms else _NONE


def _both_ways(pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return (*pairs, *(pair[::-1] for pair in pairs))


_PREFIXES: Final = _both_ways(thesaurus.PREFIXES)
_SUFFIXES: Final = _both_ways(thesaurus.SUFFIXES)
_BEGINNINGS: Final = tuple(prefix for prefix, _ in _PREFIXES)
_ENDS: Final = tuple(suffix for suffix, _ in _SUFFIXES)
_VAGUE: Final = frozenset(form for word in thesaurus.VAGUE for form in (word, stem(word)))


@lru_cache(maxsize=1_024)
def grams_of(text: str) -> frozenset[str]:
    """Return the trigrams of a text. Not part of the normalized question, since most pairs are refused without them."""
    return frozenset({text[i : i + 3] for i in range(len(text) - 2)})


def _is_title(text: str) -> bool:
    """Return whether nearly every word begins with a capital, as in a title, so that a capital does not mark a name."""
    count = 0
    for word in _LONG_WORD.finditer(text):
        if not word[0][0].isupper():
            return False
        count += 1
    return count > 3
