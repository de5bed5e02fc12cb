"""Compare what two answers say, statement by statement, with the model that also compares questions. Slow: no I/O, but
a call of the model per pair of statements, so run it in a thread.

A statement is a sentence, or an item of a list. Two answers say the same when each statement of either has a
counterpart in the other: one that says the same by its words, one that includes it, or one to which the pair model
gives its threshold for answers (`same_answer`) in both orders. In numbered lists the counterparts must come in the same
order. They say different things when a statement is, but for one place, one of the other answer, and the model is
sure that it is not the same (`other_answer` or less): `switch it on` and `switch it off`.

Nothing is said of what the model cannot read, of answers with code that differs, and of very long ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from operator import add
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.semantic.cross_encoder import StatementScorer
from cache.text.conversation import END
from cache.text.guards import Pair
from cache.text.languages import language
from cache.text.reading import LISTS, SCRIPTS, is_english, is_written_in, read

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
Verdict = Literal["same", "different", "unknown"]

_MOST: Final = 16
"""Statements of an answer: longer ones are not compared."""
_CANDIDATES: Final = 2
"""Statements of the other answer, the nearest ones, that the model compares one with."""
_AROUND: Final = 0.5
"""Share of the longer one of two statements, before and after what is exchanged in it, from which they differ in one
place: an opposite is mostly made so, and other words for the same mostly change a statement in several places."""
_CONFLICTS: Final = ("negation", "entities", "dates")
_DIGITS: Final = re.compile(r"\d+")
_CODE: Final = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_NUMBERED: Final = re.compile(r"\d++[.)]\s++")
_MARK: Final = re.compile(r"(?:\d++[.)]|[-*•·–#>]++)\s++")
_OPENERS: Final = frozenset(part.strip() for part in LISTS["openers"].split(";"))
"""Sentences that say nothing about the question, in lower case without punctuation."""


class StatementComparer:
    """Compare answers with this pair model. `embed` finds the nearest statements; without it all are near."""

    def __init__(self, scorer: StatementScorer, embed: Embed | None = None) -> None:
        self._scorer = scorer
        self._embed = embed
        self._scripts, self._languages = scorer.scripts, scorer.languages
        self._least = 1.0 if scorer.same_answer is None else scorer.same_answer

    def compare(self, stored: str, fresh: str, question: str = "") -> Verdict:
        """Return whether two answers to this question say the same."""
        english = _are_english(stored, fresh, question)
        if not self._reads(stored, fresh, english=english) or _CODE.findall(stored) != _CODE.findall(fresh):
            return "unknown"
        ours, theirs = statements(stored), statements(fresh)
        if not ours or not theirs or max(len(ours), len(theirs)) > _MOST:
            return "unknown"
        nearest, back = self._nearest(ours, theirs)
        same = True
        for some, others, places in ((ours, theirs, nearest), (theirs, ours, back)):
            steps = []
            for one, order in zip(some, places, strict=True):
                place = next((at for at in order if _includes(others[at], one, english)), None)
                if place is None and (same or differ_in_one_place(one.text, others[order[0]].text)):
                    scores = self._scores(one, [others[at] for at in order[:_CANDIDATES]])
                    if self._denies(scores[0], one, others[order[0]], some):
                        return "different"
                    place = next(
                        (
                            at
                            for at, score in zip(order[:_CANDIDATES], scores, strict=True)
                            if score >= self._least and not conflict(one.text, others[at].text, english)
                        ),
                        None,
                    )
                same &= place is not None
                if one.numbered and place is not None:
                    steps.append(place)
            same &= steps == sorted(steps)
        return "same" if same else "unknown"

    def denies(self, stored: str, fresh: str, question: str = "") -> bool:
        """Return whether the model is sure that two answers, read as a whole, do not say the same."""
        if not self._reads(stored, fresh, english=_are_english(stored, fresh, question)):
            return False
        scores = self._scorer.scores(((stored, fresh), (fresh, stored)))
        return min(scores) > 0 and max(scores) <= self._scorer.other_answer

    def _reads(self, stored: str, fresh: str, *, english: bool) -> bool:
        """Return whether the model was made for the language of two texts and, if they are not English, for their
        scripts, where that can be told.
        """
        if english:
            return "en" in self._languages
        if not set(self._languages) - {"en"} or not all(is_written_in(text, self._scripts) for text in (stored, fresh)):
            return False
        return all(language(text).is_one_of(self._languages) for text in (stored, fresh))

    def _scores(self, one: Statement, others: Sequence[Statement]) -> list[float]:
        """Return the score of each of the others with `one`: the lower one of the two orders."""
        pairs = [pair for other in others for pair in ((one.text, other.text), (other.text, one.text))]
        scores = self._scorer.scores(pairs)
        return [min(scores[at : at + 2]) for at in range(0, len(pairs), 2)]

    def _denies(self, score: float, one: Statement, other: Statement, beside: Sequence[Statement]) -> bool:
        """Return whether the model is sure that two statements that differ in one place say different things.

        Not where the second is there in the first one's answer too: then that answer only says more.
        """
        if not 0 < score <= self._scorer.other_answer or not differ_in_one_place(one.text, other.text):
            return False
        return not any(_includes(third, other, english=False) for third in beside)

    def _nearest(
        self, ours: Sequence[Statement], theirs: Sequence[Statement]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Return for each statement of either answer the places of the other's, the nearest first."""
        if self._embed is None:
            near = np.array([[_in_common(one.text, other.text) for other in theirs] for one in ours])
        else:
            vectors = self._embed([one.text for one in (*ours, *theirs)])
            near = vectors[: len(ours)] @ vectors[len(ours) :].T
        order, back = (np.argsort(-likeness, axis=1, kind="stable").tolist() for likeness in (near, near.T))
        return order, back


def _are_english(stored: str, fresh: str, question: str) -> bool:
    return all(is_written_in(text, SCRIPTS) for text in (stored, fresh)) and is_english(stored, fresh, question)


class Statement(NamedTuple):
    """A sentence or an item of a list; `numbered`: a step of a list with numbers."""

    text: str
    numbered: bool = False


def statements(answer: str) -> list[Statement]:
    """Return the statements of an answer, without those that say nothing about the question."""
    found = []
    for line in _CODE.sub("\n", answer).splitlines():
        bare = line.strip()
        mark = _MARK.match(bare)
        numbered = _NUMBERED.match(bare) is not None
        for part in END.split(bare[mark.end() :] if mark else bare):
            text = part.strip(' \t*_`"')
            if any(map(str.isalnum, text)) and text.rstrip(".!:,。！،").casefold() not in _OPENERS:
                found.append(Statement(text, numbered))
                numbered = False
    return found


def _includes(whole: Statement, part: Statement, english: bool) -> bool:
    """Return whether one says by its words all that the other does, and nothing that may reverse it."""
    if _wording(whole.text) == _wording(part.text):
        return True
    if not english:
        return False
    one, other = read(whole.text), read(part.text)
    if not other.stems or not other.stems <= one.stems or not set(other.numbers) <= set(one.numbers):
        return False
    return not Pair(whole.text, part.text).refusal(("negation", "dates"), "answers")


def _wording(text: str) -> str:
    """Return a text without a capital in front, spaces and the signs at its end."""
    return f"{text[:1].lower()}{' '.join(text[1:].split())}".rstrip(".!:;,。！；،।… ")


def conflict(one: str, other: str, english: bool) -> bool:
    """Return whether two statements differ in their numbers, or in what the guards know of English."""
    if _numbers(one, english) != _numbers(other, english):
        return True
    if not english:
        return False
    # Of questions, a cross-encoder may read more opposites than an audit leaves to it.
    pair = Pair(one, other)
    return bool(pair.refusal(_CONFLICTS, "screened") or pair.refusal(("negation",), "answers"))


def _numbers(text: str, english: bool) -> list[str]:
    if english:
        return sorted(read(text).numbers)
    return sorted(str(int(digits)) for digits in _DIGITS.findall(text))


def differ_in_one_place(one: str, other: str) -> bool:
    """Return whether two statements differ in one short stretch only, with the same signs before and after it."""
    before = _equal_from_the_start(one, other)
    after = _equal_from_the_start(one[before:][::-1], other[before:][::-1])
    return before + after >= _AROUND * max(len(one), len(other))


def _equal_from_the_start(one: str, other: str) -> int:
    """Return how many signs two texts have in common from the start on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (some, more) in pairs if some != more), min(len(one), len(other)))


def _in_common(one: str, other: str) -> float:
    """Return the share of the pairs of neighbouring signs that two texts have in common (Dice's coefficient)."""
    some, others = (Counter(map(add, text, text[1:])) for text in (one, other))
    return 2 * (some & others).total() / max(1, some.total() + others.total())
