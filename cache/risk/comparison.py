"""Do a stored answer and a fresh one to the same question come to the same? What the audit's labels are made of.

    guards    what a vector does not show: whether they say yes or no, a negation, most of the numbers and names that
              the shorter one gives. A difference there settles it. What the question names already says nothing.
    judge     where the policy names one, a model that reads the question and both answers
    vectors   else, two answers are the same when their vectors are near each other

Guards and vectors are a coarse measure: `python -m tests.bench.answers` says how coarse. Let `f` be the share of good
hits that they call wrong, `m` the share of wrong hits that they call good, and `w` the share of would-be hits that are
wrong. Labels then say `w (1 - m) + (1 - w) f`, which is too much as long as `w < f / (f + m)`: the bound on the error
is kept, at the price of hits. The thresholds are where `f` and `m` are about equal: it is kept while fewer than about
two in five would-be hits are wrong, and hits are at most `max_error / f` of the requests. A judge lifts that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any, Final, Protocol

from cache.text.reading import QuestionReading, read
from policies.caching import AuditJudgeRules

ALIKE: Final[Mapping[str, float]] = {"static": 0.50, "minilm": 0.60}
"""By the kind of embedding, the cosine from which on two answers that nothing sets apart count as the same."""
_ITEM: Final = re.compile(r"(?m)^\s*\d+[.)]\s+")
_SHARED: Final = 0.5
_FEW: Final = 12
"""Words. In longer answers some negation stands on either side, whatever they say."""
_READ_CHARS: Final = 2_000
_POLAR: Final = {"yes": True, "no": False}


class Judge(Protocol):
    """A model that compares two answers. The gateway has one; the cache only knows what it asks."""

    async def __call__(
        self, surface: str, rule: AuditJudgeRules, question: str, stored: str, fresh: str
    ) -> bool | None:
        """Whether both come to the same; None where it did not say. Never raises for what the model does."""


def contradict(one: str, other: str, question: str = "") -> bool:
    """Whether two answers differ in what a vector does not show. What stands first in them counts."""
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
    # `Rome.` opens a sentence, and is no name by its looks.
    return _apart(a.names - asked.stems, b.names - asked.stems, a.stems, b.stems)


def _negated(text: QuestionReading) -> set[str]:
    return {word for _, word in text.negations}


def _apart(one: Set[str], other: Set[str], in_one: Set[str], in_other: Set[str]) -> bool:
    """Whether both give some of their own, and neither has much of what the other gives."""
    return bool(one and other) and max(len(one & in_other) / len(one), len(other & in_one) / len(other)) < _SHARED


def text_of(completion: Mapping[str, Any]) -> str:
    """What all choices of a completion say; '' for what says nothing, or is none."""
    choices = completion.get("choices")
    messages = [choice.get("message") for choice in choices if isinstance(choice, dict)] if choices else []
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
