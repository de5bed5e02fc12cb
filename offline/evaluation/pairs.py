"""Score labelled pairs as the cache would: the first request is answered and stored, then the second one arrives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cache.planning.plan import CachePlan
from cache.semantic.decision import Decide
from offline.evaluation.served import Floats

NEVER = -math.inf
SAME_REQUEST = math.inf


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the cache sees it.

    `text` is the last user text, which is embedded; `question` is what candidates are compared by; `key` the exact key;
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
        return cls(text, keys.question or "", keys.key, "" if plan.why_not_semantic() else keys.partition)


def score_pairs(pairs: Sequence[tuple[Asked, Asked]], cosines: Floats, decide: Decide) -> Floats:
    """Return the score of each pair, shape (n,), to which a threshold applies.

    NEVER where no threshold would serve it: another history or system prompt, a question that no neighbour's answer may
    be served for, or a veto. SAME_REQUEST where the exact cache answers.
    """
    scores = np.full(len(pairs), NEVER)
    for row, (stored, asked) in enumerate(pairs):
        if stored.key and stored.key == asked.key:
            scores[row] = SAME_REQUEST
        elif stored.partition and stored.partition == asked.partition:
            verdict = decide(stored.question, asked.question, float(cosines[row]))
            if not verdict.refused:
                scores[row] = verdict.score
    return scores
