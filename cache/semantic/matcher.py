"""Find the stored question with the same meaning and decide whether its answer may be served, for live requests.

The index gives the nearest questions, the verifier or the guards choose among them (`cache.semantic.decision`), a
cross-encoder may check the choice, and the surface's threshold decides. A random sample of requests is answered by a
model all the same, to compare the answers: see `cache.risk.audit`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from cache.entry import Lookup, id_of
from cache.semantic.cross_encoder import SecondOpinion, second
from cache.semantic.decision import PairScorer, Verdict, choose, decide_by, default_threshold

if TYPE_CHECKING:
    from cache.index import ChosenIndex, Neighbour, Vector
    from cache.planning.plan import CachePlan, Fingerprint
    from cache.risk.audit import AuditedSurface, Audits
    from policies.caching import CachePolicy, SemanticCache

_NEIGHBOURS: Final = 5


class SemanticMatcher:
    """Choose candidates. Without a `verifier` the guards decide; without `audits` thresholds stay fixed."""

    def __init__(
        self, index: ChosenIndex, verifier: PairScorer | None, opinion: SecondOpinion | None, audits: Audits | None
    ) -> None:
        self._index = index
        self._verifier = verifier
        self._opinion = opinion
        self._audits = audits

    async def best(
        self, keys: Fingerprint, vector: Vector, policy: CachePolicy, left_s: float
    ) -> tuple[Neighbour | None, Verdict]:
        """Return the best of the nearest neighbours without a veto (else the nearest) and the verdict on it.

        Raises StoreUnavailable where the index is in the store.
        """
        semantic, question = policy.semantic, keys.question
        if semantic is None or question is None:
            return None, Verdict(-math.inf, "no_neighbour")
        near = await self._index.nearest(keys.partition, vector, _NEIGHBOURS, semantic.min_similarity)
        # The index alone does not prove that a key belongs to this scope.
        own = [candidate for candidate in near if candidate.key.startswith(keys.scope)]
        decide = decide_by(semantic, self._verifier_of(semantic))
        chosen = choose(decide, question, [(one.question, one.similarity) for one in own])
        if chosen is not None:
            best, verdict = own[chosen[0]], chosen[1]
            if semantic.cross_encoder is not None:
                verdict = await second(self._opinion, semantic.cross_encoder, best.question, question, verdict, left_s)
            return best, verdict
        return (near[0], Verdict(-math.inf, "guard: scope")) if near else (None, Verdict(-math.inf, "no_neighbour"))

    def _verifier_of(self, semantic: SemanticCache) -> PairScorer | None:
        return self._verifier if semantic.verify == "default" else None

    def learned(self, name: str, semantic: SemanticCache) -> AuditedSurface | None:
        """Return the audit state of the surface of this name; None where thresholds are fixed."""
        if self._audits is None:
            return None
        return self._audits.surface(name, semantic, default_threshold(semantic, self._verifier_of(semantic)))

    def refused(
        self, plan: CachePlan, semantic: SemanticCache, near: Neighbour | None, verdict: Verdict, *, certain: bool
    ) -> str:
        """Return why this candidate is not served, or ''. A `certain` request is not sampled for comparison."""
        surface, owner = self.learned(plan.surface, semantic), "" if plan.scope is None else plan.scope.owner
        if surface is None:
            threshold = default_threshold(semantic, self._verifier_of(semantic))
        else:
            surface.count(owner)
            threshold = surface.control.threshold_for(owner)
        if verdict.refused or near is None:
            return verdict.refused
        compared = None
        if self._audits is not None and surface is not None and not certain:
            compared = self._audits.drawn(surface, near.key, verdict.score)
        if compared is not None:
            plan.drawn.append(compared)
        if not verdict.served(threshold):
            return "similarity"
        return "" if compared is None else "audit"


def missed(reason: str, near: Neighbour | None, verdict: Verdict) -> Lookup:
    """Return a miss for that reason, with the nearest neighbour if there is one."""
    miss = Lookup("miss", reason=reason)
    return miss if near is None else beside(near, verdict, miss)


def beside(near: Neighbour, verdict: Verdict, lookup: Lookup) -> Lookup:
    """Add the neighbour under consideration to the result of a lookup; its score only if there was no veto."""
    score = None if verdict.refused else verdict.score
    return Lookup(lookup.outcome, lookup.hit, lookup.reason, id_of(near.key), near.question, near.similarity, score)
