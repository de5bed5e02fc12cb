"""Reword a question by rule: ways that ask for the same, and small changes after which it asks for something else.

The tables stand in `rewording.toml`. Every rule returns '' for a question to which it does not apply.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

_TABLES: Final = tomllib.loads(Path(__file__).with_name("rewording.toml").read_text(encoding="utf-8"))
_WORD: Final = re.compile(r"[A-Za-z]+")
_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?![\w.]*\d)")
_HOW: Final = re.compile(r"^(?:how (?:do|can|could|would|should) (?:i|you|we|one)|how to)\s+(.+?)\W*$", re.IGNORECASE)
_ASKING: Final = re.compile(r"^(?:what|where|when|who|why|which|how)\b", re.IGNORECASE)
_AUXILIARY: Final = re.compile(
    r"\b(?:(?:is|are|was) (?:it|there|this|these|the \w+|my \w+)|(?:can|should|must|may|do|will|could) (?:i|we|you|it)|"
    r"(?:does|did|has|will) (?:it|the \w+)|i (?:can|should|am)|it is|they are|you can|to be)\b",
    re.IGNORECASE,
)
_ORDER: Final = re.compile(
    r"^(?:please\s+)?(?=[A-Za-z]+\s+(?:the|a|an|my|our|this|these|all|any|your|me|him|her)\b)", re.IGNORECASE
)
_DIRECTION: Final = re.compile(
    r"\bfrom (?P<one>[^\s,.?!]+(?: [A-Z][^\s,.?!]+)*) (?P<link>to|into) (?P<two>[^\s,.?!]+(?: [A-Z][^\s,.?!]+)*)"
)
_CONVERT: Final = re.compile(
    r"\b(?:convert|change|turn|transform|translate|switch) "
    r"(?P<one>(?:(?:a|an|my|the|some) )?(?P<one_bare>[\w.#+-]+(?: (?:file|files|document))?)) (?:to|into) "
    r"(?P<two>(?:(?:a|an|the) )?(?P<two_bare>[\w.#+-]*[\w#+]))",
    re.IGNORECASE,
)
_LAST_PHRASE: Final = re.compile(
    r"^(?P<asked>\S+(?: \S+){3,}) (?P<phrase>(?:in|on|at|during|after|before|without) (?:\S+ ){0,3}[^\s?.!]+)"
    r"(?P<mark>[?.!]?)$"
)
_EITHER: Final = re.compile(
    r"\b(?P<lead>between|compare|comparing|both|either)\s+(?P<one>\w[\w-]*)\s+(?P<link>and|or|with|to)\s+(?P<two>\w[\w-]*)\b",
    re.IGNORECASE,
)
_KEYBOARD: Final = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS: Final = {
    key: row[max(0, at - 1) : at] + row[at + 1 : at + 2] for row in _KEYBOARD for at, key in enumerate(row)
}
"""Maps a letter to those beside it on a keyboard."""
_LOST_SPACE: Final = 0.08  # share of the typos that lose the space after a word
_FIRST_LETTER: Final = 0.1  # share of the typos that may be in the first letter of a word

Rule = Callable[[str, Random], str]


def _both_ways(pairs: Sequence[Sequence[str]], one_way: Sequence[Sequence[str]] = ()) -> Mapping[str, tuple[str, ...]]:
    """Map the lower-case form of each word or phrase to those that may stand in its place."""
    found: dict[str, list[str]] = {}
    for word, other in [*pairs, *(pair[::-1] for pair in pairs), *one_way]:
        found.setdefault(word.lower(), []).append(other)
    return {name: tuple(others) for name, others in found.items()}


def _pattern(phrases: Mapping[str, object]) -> re.Pattern[str]:
    longest_first = sorted(phrases, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.IGNORECASE)


_SAME: Final = _both_ways(_TABLES["same_word"]["pairs"], _TABLES["synonyms"]["pairs"])
_OPENINGS: Final = {word: tuple(group) for group in _TABLES["openings"]["lists"] for word in group}
_OPENING: Final = _pattern(_OPENINGS)
_OTHER: Final = _both_ways(_TABLES["other_word"]["pairs"])
_VALUES: Final = {value.lower(): tuple(values) for values in _TABLES["values"]["lists"] for value in values}
_SAME_PATTERN: Final = _pattern(_SAME)
_OTHER_PATTERN: Final = _pattern(_OTHER)
_VALUES_PATTERN: Final = _pattern(_VALUES)


# --- the same question, asked in another way --------------------------------------------------------------------------


def greeted(text: str, rng: Random) -> str:
    """Add a greeting, thanks or both."""
    head = f"{rng.choice(_TABLES['before'])} " if rng.random() < 0.65 else ""
    tail = f" {rng.choice(_TABLES['after'])}" if not head or rng.random() < 0.3 else ""
    return f"{head}{_lower_first(text) if head and rng.random() < 0.6 else text}{tail}"


def mistyped(text: str, rng: Random) -> str:
    """Mistype one to three of the words of three letters or more, and now and then lose a space between two words."""
    # A mistyped abbreviation can mean another thing.
    words = [match for match in _WORD.finditer(text) if len(match[0]) > 2 and not match[0].isupper()]
    # Longer words are mistyped more often.
    chosen = {
        rng.choices(words, [len(word[0]) for word in words])[0] for _ in range(rng.choice((1, 1, 2, 2, 3))) if words
    }
    for match in sorted(chosen, key=lambda slip: -slip.start()):
        end = match.end()
        if rng.random() < _LOST_SPACE and re.match(r" [a-z]", text[end:]):
            text = text[:end] + text[end + 1 :]
        else:
            text = text[: match.start()] + _typo(match[0], rng) + text[end:]
    return text if words else ""


def _typo(word: str, rng: Random) -> str:
    """Return the word with a letter lost, doubled, swapped with the next, or a key beside it hit instead or too."""
    kind = rng.choice(("lost", "lost", "doubled", "swapped", "swapped", "beside", "beside", "both"))
    last = len(word) - 1
    # The first letter is mostly right.
    at = rng.randrange(0 if rng.random() < _FIRST_LETTER else 1, last if kind == "swapped" else last + 1)
    if kind == "lost":
        doubled = [place for place in range(1, last + 1) if word[place] == word[place - 1]]
        at = rng.choice(doubled) if doubled else at
        return word[:at] + word[at + 1 :]
    if kind == "doubled":
        return word[:at] + word[at] + word[at:]
    if kind == "swapped":
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    beside = rng.choice(_NEIGHBOURS[word[at].lower()])
    return word[:at] + beside + word[at + (kind == "beside") :]


def sloppy(text: str, rng: Random) -> str:
    """Mistype some words and leave out capital letters and marks."""
    typed = mistyped(text, rng)
    return plain(typed, rng) if typed and rng.random() < 0.7 else typed


def respelled(text: str, rng: Random) -> str:
    """Replace up to three words or phrases by shorter, longer or other forms of the same."""
    other = text
    for _ in range(rng.choice((1, 1, 2, 3))):
        other = _replaced(other, rng, _SAME_PATTERN, _SAME) or other
    return "" if other == text else other


def plain(text: str, rng: Random) -> str:
    """Write as people type in a hurry: lower case, no marks, sometimes no articles."""
    typed = re.sub(r"[?!,;:]+(?=\s|$)|\.(?=\s*$)", "", text.lower() if rng.random() < 0.8 else text)
    return re.sub(r"\b(?:the|a|an) ", "", typed) if rng.random() < 0.3 else typed


def filled(text: str, rng: Random) -> str:
    """Add a filler word inside."""
    words = text.split(" ")
    if len(words) < 4:
        return ""
    at = rng.randrange(2, len(words))
    return " ".join([*words[:at], rng.choice(_TABLES["inside"]), *words[at:]])


def indirect(text: str, rng: Random) -> str:
    """Ask a question with a question word indirectly."""
    if not _ASKING.match(text):
        return ""
    return str(rng.choice(_TABLES["indirect"])).format(_lower_first(text).rstrip("?. "))


def how_else(text: str, rng: Random) -> str:
    """Ask how to do something in other words."""
    match = _HOW.match(text)
    return str(rng.choice(_TABLES["how"])).format(match[1]) if match else ""


def opened(text: str, rng: Random) -> str:
    """Begin the question in other words of the same meaning."""
    match = _OPENING.match(text)
    if not match:
        return ""
    other = rng.choice([opening for opening in _OPENINGS[match[0].lower()] if opening != match[0].lower()])
    other = other if text.islower() else re.sub(r"\bi\b", "I", other)
    return (other[0].upper() + other[1:] if match[0][0].isupper() else other) + text[match.end() :]


def moved(text: str, rng: Random) -> str:
    """Begin with the place, time or condition that the question ends with."""
    match = _LAST_PHRASE.match(text)
    if not match:
        return ""
    phrase = match["phrase"][0].upper() + match["phrase"][1:] if text[0].isupper() else match["phrase"]
    return f"{phrase}{',' if rng.random() < 0.7 else ''} {_lower_first(match['asked'])}{match['mark']}"


def same_direction(text: str, rng: Random) -> str:
    """Say in other words, or the other way about, what becomes what or where something goes from and to."""
    if match := _CONVERT.search(text):
        names = {name: match[name] for name in ("one", "two", "one_bare", "two_bare")}
        return text[: match.start()] + str(rng.choice(_TABLES["convert"])).format(**names) + text[match.end() :]
    if match := _DIRECTION.search(text):
        return f"{text[: match.start()]}to {match['two']} from {match['one']}{text[match.end() :]}"
    return ""


def either_order(text: str, rng: Random) -> str:
    """Swap two things whose order means nothing: between A and B."""
    match = _EITHER.search(text)
    return _swapped(text, match) if match else ""


_TYPED: Final = ((greeted, 0.2), (respelled, 0.3), (filled, 0.08), (mistyped, 0.35), (plain, 0.4))


def as_typed(text: str, rng: Random) -> str:
    """Return the question with some of a greeting, short forms, fillers, typos and lost marks, at random."""
    for rule, share in _TYPED:
        if rng.random() < share:
            text = rule(text, rng) or text
    return text


# --- another question -------------------------------------------------------------------------------------------------


def negated(text: str, rng: Random) -> str:
    """Ask for the opposite by a negation."""
    if match := _HOW.match(text):
        return str(rng.choice(_TABLES["how_not"])).format(match[1])
    if match := _AUXILIARY.search(text):
        return f"{text[: match.end()]} not{text[match.end() :]}"
    if match := _ORDER.match(text):
        return f"Do not {_lower_first(text[match.end() :])}"
    return ""


def renumbered(text: str, rng: Random) -> str:
    """Change a number, but no 2 or 4 that may stand for "to" or "for"."""
    numbers = [match for match in _NUMBER.finditer(text) if match[0] not in ("2", "4") or not text.islower()]
    if not numbers:
        return ""
    match = rng.choice(numbers)
    digits = re.sub(r"\D", "", match[0])
    value = int(digits) if len(digits) < 15 else 0
    other = rng.choice([value + 1, value + rng.randrange(2, 10), max(1, value - 1), value * 2 + 1, value * 10 + 3])
    if 1800 < value < 2100:
        other = value + rng.choice((-40, -10, -5, -2, -1, 1, 2, 3, 10))
    return "" if other == value else text[: match.start()] + str(other) + text[match.end() :]


def opposed(text: str, rng: Random) -> str:
    """Replace a word by its opposite, or by another attribute."""
    return _replaced(text, rng, _OTHER_PATTERN, _OTHER)


def revalued(text: str, rng: Random) -> str:
    """Replace a day, month, unit, place, number word or thing by another of its kind."""
    return _replaced(text, rng, _VALUES_PATTERN, _VALUES)


def narrowed(text: str, rng: Random) -> str:
    """Ask about a part of what was asked."""
    qualifier = rng.choice(_TABLES["narrower"])
    stem = text.rstrip("?.! ")
    return "" if qualifier.lower() in text.lower() else f"{stem} {qualifier}{text[len(stem) :].strip()}"


def turned(text: str, rng: Random) -> str:
    """Swap where something goes from and to."""
    match = _DIRECTION.search(text)
    return _swapped(text, match) if match else ""


SAME: Final[Mapping[str, Rule]] = {
    "greeted": greeted, "mistyped": mistyped, "respelled": respelled, "plain": plain, "filled": filled,
    "indirect": indirect, "how else": how_else, "either order": either_order, "as typed": as_typed,
    "sloppy": sloppy, "opened": opened, "moved": moved, "same direction": same_direction,
}  # fmt: skip
"""Rules that keep what a question asks, by name."""
OTHER: Final[Mapping[str, Rule]] = {
    "negated": negated, "renumbered": renumbered, "opposed": opposed, "revalued": revalued, "narrowed": narrowed,
    "turned": turned,
}  # fmt: skip
"""Rules that change what a question asks, by name."""


def _replaced(text: str, rng: Random, pattern: re.Pattern[str], others: Mapping[str, Sequence[str]]) -> str:
    """Replace one occurrence of a word or phrase by one of `others`, with its capital letter kept."""
    matches = list(pattern.finditer(text))
    if not matches:
        return ""
    match = rng.choice(matches)
    choices = [word for word in others[match[0].lower()] if word.lower() != match[0].lower()]
    if not choices:
        return ""
    other = rng.choice(choices)
    if match[0][0].isupper() and match.start() == 0:
        other = other[0].upper() + other[1:]
    return text[: match.start()] + other + text[match.end() :]


def _swapped(text: str, match: re.Match[str]) -> str:
    first, two = match["one"], match["two"]
    if first.lower() == two.lower():
        return ""
    start, end = match.span("one"), match.span("two")
    return text[: start[0]] + two + text[start[1] : end[0]] + first + text[end[1] :]


def _lower_first(text: str) -> str:
    """Return the text with a small first letter, unless its first word is written in capitals ("I", "NASA")."""
    first = text.split(" ", 1)[0].split("'", 1)[0]
    return text if first.isupper() else text[:1].lower() + text[1:]
