"""Do a stored answer and a fresh one to the same question come to the same? What the audit's labels are made of.

guards    what a vector does not show: whether they say yes or no, a negation, and most of the numbers and names that
          the shorter one gives. A difference there settles it.
judge     where the policy names one, a model that reads the question and both answers
vectors   else, two answers are the same when their vectors are near each other
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from cache.reading import read
from policies.model import AuditJudge

ALIKE: Final = 0.75
"""The cosine from which on two answers that nothing sets apart count as the same."""
_SHARED: Final = 0.5
_READ_CHARS: Final = 2_000
_POLAR: Final = {"yes": True, "no": False}


class Judge(Protocol):
    """A model that compares two answers. The gateway has one; the cache only knows what it asks."""

    async def __call__(self, surface: str, rule: AuditJudge, question: str, stored: str, fresh: str) -> bool | None:
        """Whether both come to the same; None where it did not say. Never raises for what the model does."""


def contradict(one: str, other: str) -> bool:
    """Whether two answers differ in what a vector does not show. What stands first in them counts."""
    if one == other:
        return False
    a, b = read(one[:_READ_CHARS]), read(other[:_READ_CHARS])
    first = [_POLAR.get(text.lstrip().partition(" ")[0].strip(",.!:;").lower()) for text in (one, other)]
    if None not in first and first[0] != first[1]:
        return True
    if (
        len(a.content) <= 12
        and len(b.content) <= 12
        and {word for _, word in a.negations} != {w for _, w in b.negations}
    ):
        return True
    return not all(_agree(*facts) for facts in ((set(a.numbers), set(b.numbers)), (set(a.names), set(b.names))))


def _agree(one: set[str], other: set[str]) -> bool:
    fewer = min(len(one), len(other))
    return fewer == 0 or len(one & other) >= _SHARED * fewer


def text_of(completion: Mapping[str, Any]) -> str:
    """What all choices of a completion say; '' for what says nothing, or is none."""
    choices = completion.get("choices")
    messages = [choice.get("message") for choice in choices if isinstance(choice, dict)] if choices else []
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
