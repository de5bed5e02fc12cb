"""Decide whether a stored and a new answer to the same question agree; the audit's labels come from this.

    guards    what a vector does not show: yes or no, a negation, most of the numbers and names in the shorter answer.
              A difference there decides. What the question itself names is ignored.
    judge     where the policy names one, a model that reads the question and both answers
    words     else, two answers agree when one says nothing that the other does not say too: `Canberra.` and
              `Canberra, a compromise between two larger cities.`
    vectors   else, when the cosine of their vectors is high

All but the judge are a coarse measure: `python -m tests.bench.answers` measures how coarse. Let `f` be the share of
good hits that they call wrong, `m` the share of wrong hits that they call good, and `w` the share of would-be hits that
are wrong. Labels then give `w (1 - m) + (1 - w) f`, which is too high as long as `w < f / (f + m)`: the bound on the
error holds, at the cost of hits. The thresholds are set where `f` and `m` are about equal: the bound holds while fewer
than about two in five would-be hits are wrong, and hits are at most `max_error / f` of the requests. A judge removes
this limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any, Final, Protocol

from cache.text.reading import QuestionReading, read

if TYPE_CHECKING:
    from policies.caching import AuditJudgeRules

ALIKE: Final[Mapping[str, float]] = {"static": 0.50, "minilm": 0.60}
"""Minimum cosine, by kind of embedding, at which two answers without other differences count as the same."""
_ITEM: Final = re.compile(r"(?m)^\s*\d+[.)]\s+")
_SHARED: Final = 0.5
_FEW: Final = 12
"""Words. Longer answers nearly always contain some negation, whatever they state."""
_READ_CHARS: Final = 2_000
_POLAR: Final = {"yes": True, "no": False}


class Judge(Protocol):
    """A model that compares two answers. The gateway implements it; the cache defines the interface."""

    async def __call__(
        self, surface: str, rule: AuditJudgeRules, question: str, stored: str, fresh: str
    ) -> bool | None:
        """Return whether both agree; None where the model abstained. Never raises for the model's failures."""


def contradict(one: str, other: str, question: str = "") -> bool:
    """Return whether two answers differ in what a vector does not show; a leading yes or no counts first."""
    if one == other:
        return False
    first = [_POLAR.get(text.lstrip().partition(" ")[0].strip(",.!:;").lower()) for text in (one, other)]
    if None not in first and first[0] != first[1]:
        return True
    a, b = (read(_ITEM.sub("", text)[:_READ_CHARS]) for text in (one, other))
    if len(a.content) <= _FEW and len(b.content) <= _FEW and _negated(a) != _negated(b):
        return True
    asked = read(question[:_READ_CHARS])
    some, others = set(a.numbers).difference(asked.numbers), set(b.numbers).difference(asked.numbers)
    if _apart(some, others, some, others):
        return True
    # `Rome.` opens a sentence, so its capital does not mark it as a name.
    return _apart(a.names - asked.stems, b.names - asked.stems, a.stems, b.stems)


def includes(one: str, other: str, question: str = "") -> bool:
    """Return whether all words of one of two answers, by their stems and beyond the question's, are in the other."""
    asked = read(question[:_READ_CHARS]).stems
    some, others = (read(text[:_READ_CHARS]).stems - asked for text in (one, other))
    return bool(some and others) and (some <= others or others <= some)


def _negated(text: QuestionReading) -> set[str]:
    return {word for _, word in text.negations}


def _apart(one: Set[str], other: Set[str], in_one: Set[str], in_other: Set[str]) -> bool:
    """Return whether both have items of their own, and neither contains half or more of the other's."""
    return bool(one and other) and max(len(one & in_other) / len(one), len(other & in_one) / len(other)) < _SHARED


def text_of(completion: Mapping[str, Any]) -> str:
    """Return the text of all choices of a completion; '' if there is none."""
    choices = completion.get("choices")
    messages = [choice.get("message") for choice in choices if isinstance(choice, dict)] if choices else []
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
