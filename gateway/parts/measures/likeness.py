"""Say how likely two answers to one question say the same, 0..1. No I/O; slow: run it in a thread.

A logistic model reads what the pair model says of both answers behind their question, in the two orders, and signs of
the texts, in any language with a lexicon:

    low, high      the logits of the pair model, the lower and the higher one
    cover, shared  share of the answer with fewer words, beyond the question's, that the other has; share of all of them
    numbers        either has numbers that the other has not; `unit`: another word follows the same number
    denied         one says no of what both name and the other does not, beyond a `no` that opens it; `only`: and has
                   all the other's words
    opposite       each names another side of an opposition, or another time
    swapped        the texts differ by one stretch that is exchanged
    alike          share of the words in the same order
    included       the one is said by the other, by its words, and no sign speaks against it
    exchanged      each has words of its own
    moved          words that both have stand in another order; `turned`: and neither has other words

So a short answer agrees with a long one (`Canberra.`), which the pair model alone denies, and two that differ in a name
do not. Answers of several statements are compared by these: each statement of the answer with fewer of them with the
nearest one of the other. `python -m tools.choose_agreement` fits the numbers (`likeness.json`), and sets their level so
that few contradictions of its set reach the threshold that policies have for agreement if they name none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple
from unicodedata import normalize

from cache.semantic.cross_encoder import StatementScorer
from cache.text.languages import known_lexicons, language, reading_in
from cache.text.reading import LISTS, SCRIPTS, is_written_in, read
from cache.text.thesaurus import word_set
from gateway.parts.measures.statements import statements

NUMBERS: Final = Path(__file__).with_suffix(".json")
"""The fitted numbers: `bias`, and `weights` by the name of a sign."""
SIGNS: Final = (
    "low", "high", "cover", "shared", "numbers", "unit", "denied", "only", "opposite", "swapped", "alike", "included",
    "exchanged", "moved", "turned",
)  # fmt: skip
_LONGEST: Final = 600
"""Characters of an answer up to which it is read as a whole."""
_MOST: Final = 6
"""Statements of the shorter answer that are compared, the first ones, and so twice as many calls of the model."""
_SURE: Final = 1e-6
_LEAST_STEM: Final = 4
_DIGITS: Final = re.compile(r"\d+(?:[.,:]\d+)*")
_UNIT: Final = re.compile(r"(?<!\d)(\d++) ?([^\W\d_]{1,2}(?=[\u3040-\u30ff\u3400-\u9fff])|[^\W\d_]++)")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_UNSPACED: Final = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff"
_WORD: Final = re.compile(rf"[{_UNSPACED}]|[^\W\d{_UNSPACED}]+|\d+(?:[.,:]\d+)*")
_CLAUSE: Final = re.compile(r"(?:[,.;:!?](?!\d)|[，。、；：！？])+")
_NOT_IN_JAPANESE: Final = re.compile("ません|ない|なかった|せず")
"""Endings of verbs, which no list of words has."""
_SAID_FIRST: Final = (
    word_set(LISTS["yes"]) | word_set(LISTS["no"]) | {"ja", "nein", "sí", "oui", "non", "いいえ", "はい"}
)
_FIRST: Final = re.compile(r"\A\s*+([^\W\d]++)\s*+[,.!;:、，。]\s*+")


class AgreementScore(NamedTuple):
    """How likely two answers say the same, 0..1, and who says so: `pair_model` or `words`.

    `score` is None where nobody can tell; `by` says why then.
    """

    score: float | None
    by: str


def by_words(one: str, other: str, question: str = "") -> AgreementScore | None:
    """Return what words alone say for sure: that texts are equal but for form, or have other numbers; None else."""
    mine, others = (_words(text) for text in (one, other))
    if mine == others and (mine or one.split() == other.split()):
        return AgreementScore(1.0, "words")
    if not mine or not others:
        return AgreementScore(0.0, "words")
    asked = set(_numbers(question))
    some, more = (set(_numbers(text)) - asked for text in (one, other))
    if some and more and some.isdisjoint(more):
        return AgreementScore(0.0, "words")
    return None


class AnswerLikeness:
    """Compare answers with this pair model; without one, or where it cannot read them, by words that are sure."""

    def __init__(self, scorer: StatementScorer | None) -> None:
        self._scorer = scorer

    def compare(self, one: str, other: str, question: str = "") -> AgreementScore:
        """Return how likely two answers to this question say the same."""
        if (sure := by_words(one, other, question)) is not None:
            return sure
        if why := self._unreadable(one, other, question):
            return AgreementScore(None, why)
        ours, theirs = ([part.text for part in statements(text)] for text in (one, other))
        if min(len(ours), len(theirs)) < 2 and max(len(one), len(other)) <= _LONGEST:
            ours, theirs = [one], [other]
        elif not ours or not theirs:
            return AgreementScore(None, "an answer says nothing")
        if len(ours) > len(theirs):
            ours, theirs = theirs, ours
        scores = [self._nearest(text, theirs, question) for text in ours[:_MOST]]
        if any(score is None for score in scores):
            return AgreementScore(None, "a token is unknown, or a statement is too long")
        told = [score for score in scores if score is not None]
        return AgreementScore(math.fsum(told) / len(told), "pair_model")

    def signs(self, one: str, other: str, question: str) -> dict[str, float] | None:
        """Return the signs of two texts; None where the pair model cannot read them."""
        if self._scorer is None:
            return None
        left, right = f"{question} {one}".strip(), f"{question} {other}".strip()
        scores = self._scorer.scores(((left, right), (right, left)))
        if min(scores) <= 0:
            return None
        low, high = sorted(math.log(p / (1 - p)) for p in (min(1 - _SURE, max(_SURE, score)) for score in scores))
        return {"low": low, "high": high, **text_signs(one, other, question)}

    def _nearest(self, text: str, others: Sequence[str], question: str) -> float | None:
        words = set(_words(text))
        nearest = max(others, key=lambda other: len(words & set(_words(other))) / (1 + len(set(_words(other)))))
        signs = self.signs(text, nearest, question)
        return None if signs is None else likelihood(signs)

    def _unreadable(self, one: str, other: str, question: str) -> str:
        """Return why the pair model cannot compare them; '' if it can."""
        if self._scorer is None:
            return "there is no cross-encoder"
        if not all(is_written_in(text, self._scorer.scripts) for text in (one, other)):
            return "a script that the cross-encoder does not read"
        if not language(f"{question} {one} {other}").is_one_of(self._scorer.languages):
            return "a language that the cross-encoder does not read"
        return "other code" if _CODE.findall(one) != _CODE.findall(other) else ""


def likelihood(signs: dict[str, float]) -> float:
    """Return the probability of signs by the fitted numbers."""
    bias, weights = _fitted()
    return 1 / (1 + math.exp(-bias - math.fsum(weights[name] * signs[name] for name in SIGNS)))


@cache
def _fitted() -> tuple[float, dict[str, float]]:
    numbers = json.loads(NUMBERS.read_bytes())
    return float(numbers["bias"]), {name: float(numbers["weights"][name]) for name in SIGNS}


def text_signs(one: str, other: str, question: str) -> dict[str, float]:
    """Return what the words of two answers tell, without the pair model."""
    code = language(f"{question} {one} {other}").code
    asked = _topics(code, question)
    mine, others = _topics(code, one), _topics(code, other)
    mine, others = _without(mine, asked) or mine, _without(others, asked) or others
    left, right = _without(mine, others), _without(others, mine)
    few, lost = (mine, left) if len(mine) <= len(others) else (others, right)
    cover = 1 - len(lost) / max(1, len(few))
    shared = (len(mine) - len(left)) / max(1, len(mine) + len(right))
    some, more = (set(_numbers(text)) - set(_numbers(question)) for text in (one, other))
    numbers = bool(some - more and more - some)
    common = (mine - left) | (others - right)
    first, second = (_clauses(code, _FIRST.sub(_unsaid, text, count=1), common) for text in (one, other))
    denied, opposite = _denied(code, first) != _denied(code, second), _opposite(code, one, other)
    words = _WORD.findall(one.casefold()), _WORD.findall(other.casefold())
    matcher = SequenceMatcher(None, *words, autojunk=False)
    changed = [tag for tag, *_ in matcher.get_opcodes() if tag != "equal"]
    unit = _other_unit(one, other)
    clear = not (denied or opposite or numbers or unit)
    return {
        "cover": cover,
        "shared": shared,
        "numbers": float(numbers),
        "unit": float(unit),
        "denied": float(denied),
        "only": float(denied and cover == 1),
        "opposite": float(opposite),
        "swapped": float(changed == ["replace"]),
        "alike": matcher.ratio(),
        "included": float(cover == 1 and clear),
        "exchanged": float(bool(left and right)),
        "moved": float(_moved(*words, common)),
        "turned": float(words[0] != words[1] and sorted(words[0]) == sorted(words[1])),
    }


def _unsaid(match: re.Match[str]) -> str:
    return "" if match[1].casefold() in _SAID_FIRST else match[0]


def _clauses(code: str, text: str, common: set[str]) -> str:
    """Return the clauses that have words which both answers have; the whole text where none has."""
    kept = [part for part in _CLAUSE.split(text) if not _topics(code, part).isdisjoint(common)]
    return ", ".join(kept) or text


def _words(text: str) -> list[str]:
    """Return the words of a text without articles, signs where words are not spaced."""
    words = _WORD.findall(normalize("NFKC", text).casefold())
    return [word for word in words if word not in {"a", "an", "the"}] or words


def _moved(words: Sequence[str], others: Sequence[str], common: set[str]) -> bool:
    """Return whether words that both texts have once stand in another order in them."""
    both = {word for word in words if words.count(word) == others.count(word) == 1 and _is_topic(word, common)}
    return [word for word in words if word in both] != [word for word in others if word in both]


def _is_topic(word: str, common: set[str]) -> bool:
    return any(word.startswith(topic) or topic.startswith(word) for topic in common)


def _other_unit(one: str, other: str) -> bool:
    """Return whether another word follows a number in each of two texts."""
    mine, others = (dict(_UNIT.findall(text.casefold())) for text in (one, other))
    pairs = [(mine[number], others[number]) for number in mine.keys() & others.keys()]
    return any(a != b and not _is_form(a, b) for a, b in pairs)


def _numbers(text: str) -> list[str]:
    return [digits.replace(",", "") for digits in _DIGITS.findall(text)]


def _topics(code: str, text: str) -> set[str]:
    """Return the words that say something, in full; signs where words are not spaced."""
    words = set(_WORD.findall(text.casefold()))
    if code == "en" or (code not in known_lexicons() and is_written_in(text, SCRIPTS)):
        reading = read(text)
        return set(reading.stems) | set(reading.times)
    if code not in known_lexicons():
        return words
    own = set(reading_in(code, text).own)
    return own if any(len(word) == 1 for word in own) else {word for word in words if any(map(word.startswith, own))}


def _without(words: set[str], others: set[str]) -> set[str]:
    """Return those of the words that others have in no form."""
    return {word for word in words - others if not any(_is_form(word, other) for other in others)}


def _is_form(word: str, other: str) -> bool:
    """Return whether two words differ in their endings only."""
    most = max(len(word), len(other))
    return most > _LEAST_STEM and word[: max(_LEAST_STEM, most - 2)] == other[: max(_LEAST_STEM, most - 2)]


def _denied(code: str, text: str) -> bool:
    if code == "ja":
        return _NOT_IN_JAPANESE.search(text) is not None
    if code in known_lexicons():
        return reading_in(code, text).denied
    return bool(len(read(text).negations) % 2) if is_written_in(text, SCRIPTS) else False


def _opposite(code: str, one: str, other: str) -> bool:
    if code in known_lexicons():
        mine, others = reading_in(code, one).sides, reading_in(code, other).sides
        return not {group for group, _ in mine - others}.isdisjoint(group for group, _ in others - mine)
    if not all(is_written_in(text, SCRIPTS) for text in (one, other)):
        return False
    a, b = read(one), read(other)
    poles = {-pole for pole in a.poles - b.poles} & (b.poles - a.poles)
    times = set(a.times) - set(b.times) and set(b.times) - set(a.times)
    return bool(poles or times)
