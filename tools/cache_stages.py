"""Score labelled pairs as the cache would, and compute the three figures that measure it, with intervals.

served     of the pairs that want the same answer, the share for which the stored one was served
wrong      of the pairs that want different answers, the share for which it was served nevertheless
precision  of the pairs for which it was served, the share that wants the same answer
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cache.planning.plan import CachePlan
from cache.semantic.cross_encoder import TextPair, TextPairScorer
from cache.semantic.decision import Decide, Shortlist, Verdict, shortlist
from gateway.parts.encoders.blend import Blend, settled
from gateway.parts.fit.curves import Flags, Floats
from gateway.parts.measures.intervals import wilson
from gateway.report import OnProgress, silent

NEVER = -math.inf
SAME_REQUEST = math.inf
INELIGIBLE = "ineligible"
_DIGITS = 6
_BATCH = 32
_SHOWN_EVERY = 1_000
_PLAIN = Blend(1.0, 0.0)
"""The cross-encoder's own score."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A share of `n` cases and its 95% interval. Without cases `value` is None and the interval is 0..1."""

    value: float | None
    lo: float
    hi: float
    n: int

    def as_json(self) -> dict[str, float | None]:
        """Return the figure as JSON values, rounded to six digits."""
        value = None if self.value is None else round(self.value, _DIGITS)
        return {"value": value, "lo": round(self.lo, _DIGITS), "hi": round(self.hi, _DIGITS), "n": self.n}

    def __str__(self) -> str:
        """Format the share in percent."""
        return "-" if self.value is None else f"{self.value:.1%} [{100 * self.lo:.1f}, {100 * self.hi:.1f}]"


@dataclass(frozen=True, slots=True)
class ServedPairs:
    """The three figures of the module's docstring."""

    served: Figure
    wrong: Figure
    precision: Figure


def share_shown(count: int, n: int) -> Figure:
    """Return `count` of `n` cases with its score interval."""
    if n == 0:
        return Figure(None, 0.0, 1.0, 0)
    return Figure(count / n, *wilson(count / n, n), n)


def served_of(out: Flags, same: Flags) -> ServedPairs:
    """Return the figures of pairs, shape (n,): whether the stored answer was served (`out`), and whether both want the
    `same`.
    """
    right = int((out & same).sum())
    return ServedPairs(
        share_shown(right, int(same.sum())),
        share_shown(int((out & ~same).sum()), int((~same).sum())),
        share_shown(right, int(out.sum())),
    )


def best_within(scores: Floats, same: Flags, most_wrong: float) -> tuple[Figure, float]:
    """Return the largest share that one threshold serves with at most `most_wrong` served wrongly, and that threshold.

    It is chosen on the pairs it is measured on, so it is an upper bound for such a score, not an expectation. Scores of
    -inf are never served. The threshold is infinite where none satisfies the limit.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, truth = scores[order], same[order]
    last = np.append(ranked[1:] != ranked[:-1], True) & (ranked > -np.inf)
    right, wrong = np.cumsum(truth), np.cumsum(~truth)
    fits = np.flatnonzero(last & (wrong <= most_wrong * max(1, int((~same).sum()))))
    if not len(fits):
        return share_shown(0, int(same.sum())), math.inf
    at = int(fits[np.argmax(right[fits])])
    return share_shown(int(right[at]), int(same.sum())), float(ranked[at])


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the cache sees it.

    `text` is the last user text, or a conversation's user turns, which are embedded; `question` is what candidates are
    compared by; `key` the exact key;
    `partition` the semantic one, '' where the semantic cache does not apply to the request.
    """

    text: str
    question: str
    key: str
    partition: str

    @classmethod
    def of(cls, plan: CachePlan, text: str) -> Asked:
        """Return what the plan of a request allows."""
        keys = plan.keys
        if keys is None:
            return cls(text, "", "", "")
        return cls(
            keys.user_turns or text, keys.question or "", keys.key, "" if plan.why_not_semantic() else keys.partition
        )


class Stages:
    """The stages of `cache.semantic.decision` as a lookup runs them.

    `decide` is the decision without a model. A cross-encoder then scores at most `candidates` of a request, 0 without
    one.
    """

    def __init__(
        self, decide: Decide, scorer: TextPairScorer | None = None, candidates: int = 0, blend: Blend = _PLAIN
    ) -> None:
        """Take the decision, and the cross-encoder if there is one; it scores each pair once."""
        self.decide = decide
        self.blend = blend
        self.candidates = candidates if scorer is not None else 0
        self._scorer = scorer
        self._scored: dict[TextPair, float] = {}

    def scores(self, pairs: Sequence[TextPair], on_progress: OnProgress = silent) -> list[float]:
        """Return the cross-encoder's scores."""
        if self._scorer is not None:
            self._scored |= pair_scores(self._scorer, [pair for pair in pairs if pair not in self._scored], on_progress)
        return [self._scored[pair] for pair in pairs]


def pair_scores(scorer: TextPairScorer, pairs: Sequence[TextPair], on_progress: OnProgress) -> dict[TextPair, float]:
    """Return the cross-encoder's score of each different pair."""
    ordered = sorted(dict.fromkeys(pairs), key=lambda pair: len(pair[0]) + len(pair[1]))  # padding costs as words do
    scores: dict[TextPair, float] = {}
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        scores.update(zip(batch, scorer.scores(batch), strict=True))
        on_progress("scoring", start + len(batch), len(ordered))
    return scores


def score_pairs(
    pairs: Sequence[tuple[Asked, Asked]], cosines: Floats, stages: Stages, on_progress: OnProgress
) -> tuple[Floats, list[str]]:
    """Return the score of each pair, shape (n,), to which a threshold applies, and what decided on it.

    NEVER where no threshold would serve it: another system prompt or number of turns, a question that no
    neighbour's answer may be served for, or a veto. SAME_REQUEST where the exact cache answers.
    """
    scores = np.full(len(pairs), NEVER)
    decided = [INELIGIBLE] * len(pairs)
    doubtful: dict[int, Shortlist] = {}
    for row, (stored, asked) in enumerate(pairs):
        if row % _SHOWN_EVERY == 0:
            on_progress("deciding", row, len(pairs))
        if stored.key and stored.key == asked.key:
            scores[row], decided[row] = SAME_REQUEST, "exact"
        elif stored.partition and stored.partition == asked.partition:
            chosen = shortlist(
                stages.decide, asked.question, [(stored.question, float(cosines[row]))], stages.candidates
            )
            verdict = chosen.verdict if chosen is not None else Verdict(NEVER, "similarity")
            decided[row] = verdict.stage or "cosine"
            if verdict.refused:
                decided[row] += ": veto" if verdict.refused.startswith("guard: ") else ": refused"
            elif chosen is not None and chosen.doubtful:
                doubtful[row] = chosen
            else:
                scores[row] = verdict.score
    on_progress("deciding", len(pairs), len(pairs))
    made = stages.scores([(pairs[row][0].question, pairs[row][1].question) for row in doubtful], on_progress)
    for (row, chosen), score in zip(doubtful.items(), made, strict=True):
        verdict = settled(chosen, [score], stages.blend).verdict
        decided[row] = "cross_encoder: veto" if verdict.refused else "cross_encoder"
        scores[row] = NEVER if verdict.refused else verdict.score
    return scores, decided
