"""Define what scores pairs of questions in a model of its own, a cross-encoder, and how requests ask it.

The cache works without one: the verifier then decides alone. `gateway/seams.py` says which part brings one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cache.semantic.decision import Decide, Shortlist
    from policies.caching import SemanticCache

TextPair = tuple[str, str]
"""(stored question, new question)"""


class CrossEncoderError(ValueError):
    """A folder cannot be loaded as a cross-encoder; the message gives the file, the reason and the remedy."""


class PairReader(Protocol):
    """Say, by its data sheet, which pairs of questions a cross-encoder can score."""

    @property
    def strict(self) -> float | None:
        """Score from which a pair is trusted without labels; None if it is not known."""

    @property
    def scripts(self) -> Collection[str]:
        """Scripts in which it can score texts, by its data sheet."""

    @property
    def languages(self) -> Collection[str]:
        """Codes of the languages in which it can score texts, by its data sheet."""


class TextPairScorer(PairReader, Protocol):
    """Score pairs of questions; called on a thread of its own."""

    def scores(self, pairs: Sequence[TextPair]) -> Sequence[float]:
        """Return for each pair the probability that both want the same answer, 0..1; 0 for one that is too long, UNREAD
        for one with an unknown token.
        """


class TokenSums(Protocol):
    """Embed questions in other languages than English for the search."""

    @property
    def languages(self) -> Collection[str]:
        """The languages that it knows, by their code."""

    def embed(self, text: str, dimension: int) -> NDArray[np.float32]:
        """Return the vector of a text, shape (dimension,), of norm 1; zeros for one without a token.

        Raises ValueError where the vectors have more dimensions.
        """


@dataclass(frozen=True, slots=True)
class ComparedPairs:
    """How often a comparison of answers erred, as counted on pairs of which it was known whether they say the same.

    Of `same` pairs that say the same, `false_alarms` were called different; of `other` pairs that do not, `found` were.
    `by_language` has (found, other) for each language that was measured. Without pairs, an audit's labels are taken as
    they are.
    """

    same: int = 0
    false_alarms: int = 0
    other: int = 0
    found: int = 0
    by_language: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the counts. Raises ValueError, TypeError."""
        counts = [(self.false_alarms, self.same), (self.found, self.other), *self.by_language.values()]
        if any(not 0 <= some <= every for some, every in counts):
            raise ValueError("each number of pairs must be from 0 to the number that was compared")


class StatementScorer(TextPairScorer, Protocol):
    """A cross-encoder whose data sheet states how it reads two statements of answers."""

    @property
    def same_answer(self) -> float | None:
        """Score from which two statements of answers say the same; None if it is not known."""

    @property
    def other_answer(self) -> float:
        """Score up to which two statements of answers, in almost the same words, say different things."""

    @property
    def label_errors(self) -> ComparedPairs:
        """How often an audit errs that compares answers with it."""


class MeasuredPairScorer(StatementScorer, Protocol):
    """A cross-encoder with what its data sheet states beside it."""

    @property
    def version(self) -> str:
        """Version of the model."""

    @property
    def failure(self) -> str:
        """Why it cannot be opened, '' where it can or was not tried."""

    @property
    def is_open(self) -> bool:
        """Whether it can score without being opened."""

    def open(self) -> None:
        """Open the model, which `scores` does otherwise. Raises CrossEncoderError."""

    @property
    def cosine_weights(self) -> Mapping[str, float]:
        """Weight of the cosine beside the logit, by the encoder that the cosine is from."""

    @property
    def vectors(self) -> TokenSums | None:
        """Vectors that search in other languages than English; None where it has none."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The scores of one request's pairs, up to the first that is enough, or why there are none (`refused`).

    `waited_s` is the time until then in seconds, `batch` the number of pairs in the model's call, 0 without a call.
    """

    scores: tuple[float, ...] = ()
    refused: str = ""
    waited_s: float = 0.0
    batch: int = 0


class PairQueue(PairReader, Protocol):
    """Have a cross-encoder score the pairs of one event loop's requests. Close it when done."""

    def start(self) -> None:
        """Open the model soon, in the event loop that runs, unless it is open."""

    async def check(self, pairs: Sequence[TextPair], limit_s: float, enough: float) -> Checked:
        """Score the pairs of one request within `limit_s` seconds, one after the other until a score is `enough`.

        Never raises but for a cancellation.
        """

    @property
    def blend(self) -> Callable[[float, float], Any]:
        """Returns by which the cosine counts, from the score that is trusted without labels and the cosine's weight."""

    @property
    def settled(self) -> Callable[[Shortlist, Sequence[float], Any], Shortlist]:
        """Returns the first candidate that is trusted without labels, or the one with the highest score, from scores in
        the order of `doubtful` and such a `blend`.
        """

    def close(self) -> None:
        """End it, and cancel what waits."""


TurnByTurn = Callable[["Decide", "SemanticCache"], "Decide"]
"""Returns a decision that takes conversations and long texts apart, and leaves what is left to the one given."""
