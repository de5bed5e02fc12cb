"""Let the cosine count beside a cross-encoder's score, and choose by both. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cache.semantic.decision import GUARD, UNREAD, Shortlist, Verdict


@dataclass(frozen=True, slots=True)
class Blend:
    """Let nearer candidates score higher where the cross-encoder trusts them.

    On questions unlike those it was trained on, a cross-encoder is sure of pairs that have little in common, and the
    cosine tells some of those apart; of traps, which are near on purpose, the cosine says nothing. So what is served
    without labels is the cross-encoder's choice alone: a score below `strict` stays as it is, and others stay at or
    above it. Above it, where labels move a surface's threshold, the order is by the logit plus `weight` for each 1 of
    the cosine. The score never falls as the cross-encoder's or the cosine rises.
    """

    strict: float
    weight: float

    def score(self, read: float, cosine: float) -> float:
        """Return the final score of a candidate, from the cross-encoder's score `read` and the cosine of its vector."""
        if not self.weight or not 0.0 < self.strict <= read < 1.0:
            return read
        logit = math.log(read / (1 - read)) - math.log(self.strict / (1 - self.strict)) + self.weight * (cosine - 1)
        return self.strict + (1 - self.strict) / (1 + math.exp(-logit))


def settled(chosen: Shortlist, scores: Sequence[float], blend: Blend) -> Shortlist:
    """Return the first candidate that is trusted without labels, or the one with the highest score.

    `scores` are a cross-encoder's, in the order of `doubtful`; those after one that is trusted need not be there.
    """
    place, read = chosen.doubtful[0].place, scores[0]
    score = -math.inf
    for other, checked in zip(scores, chosen.doubtful, strict=False):
        blended = blend.score(other, checked.cosine)
        if blended > score:
            score, place, read = blended, checked.place, other
        if other >= blend.strict:
            break
    unread = f"{GUARD}unknown_token" if read == UNREAD else ""
    return Shortlist(place, Verdict(score, unread, "cross_encoder", None if unread else read))
