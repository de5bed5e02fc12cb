"""Grade short answers without a judge model: one rule per kind of task, each a pure function of two texts.

    choice   the letter that the answer chooses, A to J; without a letter, the text rule
    number   the last number of the answer: "so she pays $1,200.00." is 1200 (GSM8K's convention)
    text     an accepted answer occurs in it as whole words, after case, accents, punctuation and articles are removed
             (TriviaQA's normalisation; containment, because a chat model answers in sentences)
    yes_no   its first yes or no, or true or false

Containment is lenient with a long answer, which may contain the right words by chance: ask for short ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Final

# "A book" and "I think": words that look like letters of choices. In "A is right" the A is a choice.
_WORD: Final = re.compile(r"\bA\s+(?!(?:is|as|because|since)\b)[a-z]|\bI(?:\s+(?!is\b)[a-z]|['\u2019])")
_OPENING: Final = re.compile(r"\W*([A-J])(?:\W*$|\)?[ \t]*[:.),*\n-])")
_STATED: Final = re.compile(r"\b(?i:answer|choice|option)(?i:\s+is)?[\s:*(\"']*([A-J])(?![\w'\u2019])")
_LONE: Final = re.compile(r"\b([A-J])(?![\w'\u2019])")
_NUMBER: Final = re.compile(r"(?:(?<![\w)])-)?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)")
_YES_NO: Final = re.compile(r"\b(?:(yes|true)|no|false)\b", re.IGNORECASE)
_QUOTES: Final = re.compile(r"['\u2018\u2019`]")
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+")
_ARTICLES: Final = frozenset({"a", "an", "the"})


class UnknownRule(ValueError):
    """A row names a rule that is not in RULES; the message lists them."""


def grade(answer: str, accepted: Sequence[str], rule: str) -> bool:
    """Return whether `answer` matches one of `accepted` by the rule of that name. Raises UnknownRule."""
    is_right = RULES.get(rule)
    if is_right is None:
        raise UnknownRule(f"{rule!r} is no grade; the grades are {', '.join(RULES)}")
    return is_right(answer, accepted)


def letter_of(answer: str) -> str | None:
    """Return the chosen letter: the one that opens the answer, else one stated as the answer, else the first alone.

    None without a letter of A to J. The article A and the pronoun I do not count.
    """
    letters = _WORD.sub(" ", answer)
    match = _OPENING.match(letters) or _STATED.search(letters) or _LONE.search(letters)
    return match.group(1) if match else None


def number_of(answer: str) -> Decimal | None:
    """Return the last number of an answer in digits; None without one."""
    numbers = _NUMBER.findall(answer)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def words_of(text: str) -> list[str]:
    """Return the normalised words of a text: lower case, without accents, punctuation and articles."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return [word for word in _BETWEEN_WORDS.split(_QUOTES.sub("", plain)) if word and word not in _ARTICLES]


def _choice(answer: str, accepted: Sequence[str]) -> bool:
    letter = letter_of(answer)
    if letter is None:
        return _text(answer, [text for text in accepted if len(text.strip()) > 1])
    return letter in {text.strip().upper() for text in accepted}


def _number(answer: str, accepted: Sequence[str]) -> bool:
    number = number_of(answer)
    return number is not None and number in {number_of(text) for text in accepted}


def _text(answer: str, accepted: Sequence[str]) -> bool:
    padded = f" {' '.join(words_of(answer))} "
    return any(f" {' '.join(words)} " in padded for text in accepted if (words := words_of(text)))


def _yes_no(answer: str, accepted: Sequence[str]) -> bool:
    verdict = _agrees(answer)
    return verdict is not None and verdict in map(_agrees, accepted)


def _agrees(text: str) -> bool | None:
    match = _YES_NO.search(text)
    return None if match is None else bool(match.group(1))


RULES: Final[Mapping[str, Callable[[str, Sequence[str]], bool]]] = MappingProxyType(
    {"choice": _choice, "number": _number, "text": _text, "yes_no": _yes_no}
)
"""Grading rules by the name that a row's `grade` gives."""
