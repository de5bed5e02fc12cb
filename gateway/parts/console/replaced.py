"""Say of each judged attempt what its answer was judged by, and which answer the client got in its place.

With `telemetry.prompts` both texts are recorded; without, there are lengths and scores only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.parts.reasons import detail_names as detail
from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.parts.console.bar import Bar


@dataclass(frozen=True, slots=True)
class AnswerSide:
    """One of two answers that stand beside each other. `text` is None where texts are not captured."""

    label: str
    text: str | None
    whole: bool
    """Whether `text` is the whole answer; else its judged beginning."""
    tokens_out: int | None
    """Length of the answer as far as it came, in tokens; None where the backend did not say."""
    judged: int | None
    """Tokens of it that were judged."""
    confidence: float | None
    least: float | None
    """Confidence that was needed."""
    outcome: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """A judged answer that was rejected, and the one that the client got instead; `after` is None if it got none."""

    before: AnswerSide
    after: AnswerSide | None
    captured: bool
    """Whether the texts are recorded."""


def replaced_in(bars: Sequence[Bar]) -> dict[int, Replaced]:
    """Return the judged attempts whose text the client did not get, by the number of their hop."""
    root: Mapping[str, Any] = bars[0].attributes if bars else {}
    answer = root.get(names.ANSWER)
    served = [bar for bar in bars if bar.served]
    found: dict[int, Replaced] = {}
    for bar in bars:
        if bar.served or bar.lost or bar.verdict_ms is None:
            continue
        before = _side(bar, _beginning(bar.attributes), whole=False)
        after = _side(served[-1], answer, whole=True) if served else None
        captured = before.text is not None or answer is not None
        found[bar.number] = Replaced(before, after, captured)
    return found


def _beginning(attributes: Mapping[str, Any]) -> str | None:
    """Return the judged text of an attempt, which is captured as its tokens or whole."""
    tokens = attributes.get(names.PREFIX_TOKENS)
    return "".join(tokens) if tokens else attributes.get(names.PREFIX_TEXT)


def _side(bar: Bar, text: str | None, *, whole: bool) -> AnswerSide:
    attributes = bar.attributes
    return AnswerSide(
        bar.label,
        text,
        whole,
        attributes.get(names.GEN_AI_TOKENS_OUT),
        attributes.get(names.TOKENS_JUDGED),
        attributes.get(names.CONFIDENCE),
        attributes.get(detail.MIN_CONFIDENCE),
        str(attributes.get(names.OUTCOME) or bar.error or ""),
    )
