"""Decide whether a stored and a new answer to the same question agree; the audit's labels come from this.

    yes or no   An answer that begins with the one differs from an answer that begins with the other.
    words       Two answers agree when one says nothing that the other does not say too: `Canberra.` and `Canberra, a
                compromise between two larger cities.`
    statements  Where a cross-encoder can read both, they agree when it finds a counterpart to each statement of either,
                and differ when one denies the other (`statements`).
    judge       Where the policy names one, a model reads the question and both answers, unless they differ already.
    two signs   Else they differ when two signs of it agree: the cross-encoder is sure that they do not say the same,
                and they have other numbers beyond the question's (`3 p.m.` is `15:00`), or no number in common and
                vectors that are far apart. One of these alone is often wrong about the same in other words; without
                a cross-encoder the second one decides. Near vectors prove nothing, nor does a negation or a name.
    unknown     What is left gives no label, and moves nothing.

All but the judge are a coarse measure: `python -m tests.bench.answers` measures how coarse. So they may raise a
threshold, and never lower it under the one that holds without labels. What they say is corrected by how often they err
(`gateway.parts.hit_audits.label_errors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from cache.text.guards import Pair
from cache.text.reading import LISTS, SCRIPTS, is_english, is_written_in, read
from cache.text.thesaurus import word_set
from gateway.parts.hit_audits.label_errors import AS_THEY_ARE, LabelErrors
from gateway.parts.hit_audits.statements import Embed, StatementComparer, StatementScorer, Verdict

if TYPE_CHECKING:
    from policies.caching import AuditJudgeRules

ALIKE: Final[Mapping[str, float]] = {"static": 0.25, "minilm": 0.25}
"""Cosine, by kind of embedding, below which two answers are far apart."""
COMPARISON: Final = "4"
"""Raised with every change to what counts as the same: labels of another comparison are left aside."""
_ITEM: Final = re.compile(r"(?m)^[^\S\n]*+\d++[.)]\s++")
_AMOUNT: Final = re.compile(r"\d+")
_HOURS: Final = 12
_EXCHANGED: Final = 3
"""Words that each of two answers has of its own, or one for every four that they share: a text of which so few are
exchanged may say the contrary."""
_READ_CHARS: Final = 2_000
_YES: Final = word_set(LISTS["yes"])
_NO: Final = word_set(LISTS["no"])
_SIGNS: Final = "¡,.!:;،"
_JOINED_YES: Final = tuple(LISTS["joined_yes"].split())
_JOINED_NO: Final = tuple(LISTS["joined_no"].split())


class SampleJudge(Protocol):
    """A model that compares two answers. The gateway implements it; the cache defines the interface."""

    async def __call__(
        self, surface: str, rule: AuditJudgeRules, question: str, stored: str, fresh: str, owner: str
    ) -> bool | None:
        """Return whether both agree; None where the model abstained, or is not asked. Raises StoreUnavailable.

        `owner` is whose answers they are.
        """


class AnswerComparer:
    """Compare answers by words, by statements if there is a `scorer`, and by the vectors of `embed` if that is there.

    Both must be safe to call in a thread. A cosine below `alike` is low.
    """

    def __init__(
        self, embed: Embed | None = None, scorer: StatementScorer | None = None, *, alike: float = ALIKE["static"]
    ) -> None:
        self.errors = AS_THEY_ARE if scorer is None else LabelErrors.of(scorer.label_errors)
        self._embed = embed
        self._alike = alike
        self._statements = None if scorer is None else StatementComparer(scorer, embed)

    def compare(self, stored: str, fresh: str, question: str = "") -> Verdict:
        """Return whether two answers to this question agree. Slow: the models read them."""
        if stored == fresh:
            return "same"
        contradiction = contradict(stored, fresh, question)
        verdict = self.read(stored, fresh, question, contradiction)
        return self.settle(stored, fresh, question, verdict, contradiction)

    def read(self, stored: str, fresh: str, question: str, contradiction: Contradiction) -> Verdict:
        """Return whether answers agree by their words and by what each says; see `contradict`."""
        if contradiction == "different":
            return "different"
        if not contradiction and includes(stored, fresh, question):
            return "same"
        return "unknown" if self._statements is None else self._statements.compare(stored, fresh, question)

    def settle(self, stored: str, fresh: str, question: str, verdict: Verdict, contradiction: Contradiction) -> Verdict:
        """Return the verdict, or where that is unknown, whether two signs show that they differ."""
        if verdict != "unknown" or (contradiction == "unreadable" and self._statements is None):
            return verdict
        if not self._look_apart(stored, fresh, question):
            return "unknown"
        return (
            "different" if self._statements is None or self._statements.denies(stored, fresh, question) else "unknown"
        )

    def _look_apart(self, stored: str, fresh: str, question: str) -> bool:
        """Return whether two answers have other numbers, or none in common and vectors that are far apart."""
        asked = _amounts(question)
        some, others = (_amounts(text) - asked for text in (stored, fresh))
        if some and others:
            return not some & others
        spelled = [_amounts(" ".join(read(text[:_READ_CHARS]).numbers)) for text in (stored, fresh)]
        if spelled[0] & spelled[1]:
            return False
        if self._embed is None:
            return False
        vectors = self._embed((stored, fresh))
        return float(vectors[0] @ vectors[1]) < self._alike


Contradiction = Literal["", "different", "doubtful", "unreadable"]


def contradict(one: str, other: str, question: str = "") -> Contradiction:
    """Return how two answers differ in what a vector does not show; '' where words and vectors decide.

    `doubtful`: they may be opposites, so words and vectors can only show that they differ. `unreadable`: not even that.
    """
    if one == other:
        return ""
    first = [_polar(text) for text in (one, other)]
    if None not in first and first[0] != first[1]:
        return "different"
    if not (is_written_in(one, SCRIPTS) and is_written_in(other, SCRIPTS)):
        return "unreadable"
    stored, asked = (_ITEM.sub("", text)[:_READ_CHARS] for text in (one, other))
    if not is_english(stored, asked, question):
        return "unreadable"
    pair = Pair(stored, asked)
    return "doubtful" if _may_be_opposed(pair, included=includes(one, other, question)) else ""


def _polar(answer: str) -> bool | None:
    """Return whether an answer begins with a yes or with a no; None for neither."""
    text = answer.lstrip()
    word = text.partition(" ")[0].strip(_SIGNS).lower()
    if word in _YES or text.startswith(_JOINED_YES):
        return True
    return False if word in _NO or text.startswith(_JOINED_NO) else None


def _amounts(text: str) -> set[int]:
    """Return the whole numbers in digits; hours of the afternoon as the clock shows them."""
    numbers = {int(digits) for digits in _AMOUNT.findall(text[:_READ_CHARS])} - {0}
    return {number - _HOURS if _HOURS < number <= 2 * _HOURS else number for number in numbers}


def _may_be_opposed(pair: Pair, *, included: bool) -> bool:
    """Return whether the guards on two questions see a difference between the answers, or only a few words differ.

    An answer that says all that the other does (`included`) may have more numbers and names.
    """
    guards = ("negation",) if included else ("negation", "numbers", "entities")
    if pair.stored == pair.asked:
        return False
    if pair.refusal(guards, "answers"):
        return True
    numbers, others = (set(read(text).numbers) for text in (pair.stored, pair.asked))
    if numbers - others and others - numbers:
        return True
    rest = pair.rest
    own = [sum(not word.vague for word in side) for side in (rest.left, rest.right)]
    shared = rest.exact + rest.inflected + rest.synonyms
    if max(own) > min(shared, max(_EXCHANGED, shared // 4)):
        return False
    small = [{*one.function, *one.times} for one in (pair.a, pair.b)]
    return all((own[0] or small[0] - small[1], own[1] or small[1] - small[0]))


def includes(one: str, other: str, question: str = "") -> bool:
    """Return whether all words of one of two answers, by their stems and beyond the question's, are in the other."""
    asked = read(question[:_READ_CHARS]).stems
    some, others = (read(text[:_READ_CHARS]).stems - asked for text in (one, other))
    return bool(some and others) and (some <= others or others <= some)


def text_of(completion: Mapping[str, Any]) -> str:
    """Return the text of all choices of a completion; '' if there is none."""
    choices = completion.get("choices")
    messages = [choice.get("message") for choice in choices if isinstance(choice, dict)] if choices else []
    texts = [message.get("content") for message in messages if isinstance(message, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
