"""Find the stored question with the same meaning and decide whether its answer may be served, for live requests.

The index gives the nearest questions, the stages of `cache.semantic.decision` choose among them and score the choice,
and the surface's threshold decides. `search` is the part without a model; `check` asks the cross-encoder about what it
leaves open, so that other work can begin between the two. A random sample of requests is answered by a model all the
same, to compare the answers: see `cache.semantic.hit_bound`.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from cache.entry import NO_DEMANDS, Lookup, id_of
from cache.planning.eligibility import why_not_semantic
from cache.semantic.cross_encoder import Checked
from cache.semantic.decision import (
    EQUAL,
    Decide,
    PairScorer,
    Shortlist,
    Verdict,
    decide_by,
    default_threshold,
    shortlist,
)
from cache.text.conversation import LONG, SEPARATOR
from policies.value_type import from_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cache.index import Neighbour, SemanticIndex, Vector
    from cache.planning.plan import CachePlan, Fingerprint
    from cache.semantic.cross_encoder import PairQueue, TurnByTurn
    from cache.semantic.hit_bound import Complaint, HitBound
    from policies.caching import CachePolicy, SemanticCache

NEIGHBOURS: Final = 5
"""Nearest questions that a search returns at most."""
_NOT_ASKED: Final = Checked()


class BestNeighbour(NamedTuple):
    """The best neighbour, if any, and the verdict on it. `checked`: what the cross-encoder gave, where it was asked."""

    near: Neighbour | None
    verdict: Verdict
    checked: Checked = _NOT_ASKED
    vetoed: tuple[str, ...] = ()
    """The guards that vetoed other neighbours, each with the neighbour's cosine."""


class Candidates(NamedTuple):
    """The result of a search: the neighbours, and the best of them before any cross-encoder was asked.

    `chosen` says which of the neighbours `near` a cross-encoder still has to score.
    """

    best: BestNeighbour
    chosen: Shortlist | None = None
    near: Sequence[Neighbour] = ()

    @property
    def doubtful(self) -> bool:
        """Whether the cross-encoder has to be asked."""
        return self.chosen is not None and bool(self.chosen.doubtful)


class MatchRules(NamedTuple):
    """How one `semantic` section decides: on two questions (`decide`), on two long texts or conversations (`by_turns`).

    `most` is the number of candidates that a cross-encoder scores, `strict` the threshold without labels. `semantic` is
    kept so that no other section gets its `id`, by which these are found.
    """

    semantic: SemanticCache
    decide: Decide
    by_turns: Decide
    most: int
    strict: float


_MOST_RULES: Final = 1_000
_TEXT_AND_COSINE: Final = itemgetter(1, 2)
_best = from_fields(BestNeighbour)
_candidates = from_fields(Candidates)
_lookup = from_fields(Lookup)
_NO_CANDIDATES: Final = Candidates(BestNeighbour(None, Verdict(-math.inf, "no_neighbour")))


class SemanticMatcher:
    """Choose candidates. Without a `verifier` the guards decide; without a `bound` thresholds stay fixed.

    `cosine_weight` is the weight of the cosine beside the cross-encoder's logit. Without `turn_by_turn`
    texts are compared whole.
    """

    def __init__(
        self,
        index: SemanticIndex,
        verifier: PairScorer | None,
        cross_encoder: PairQueue | None,
        bound: HitBound | None,
        cosine_weight: float = 0.0,
        turn_by_turn: TurnByTurn | None = None,
    ) -> None:
        self._turn_by_turn = turn_by_turn
        self._index = index
        self._verifier = verifier
        self._cross_encoder = cross_encoder
        self._bound = bound
        self._cosine_weight = cosine_weight
        self._rules: dict[int, MatchRules] = {}

    def respaced(self, plan: CachePlan) -> Candidates | None:
        """Return the stored question that differs from the request's in spaces alone, which the rule serves, where one
        is known without a search. None for conversations and long texts, which are compared in parts, and for a request
        with conditions on the answer, which another question's may meet.
        """
        semantic, keys = plan.policy.semantic, plan.keys
        if semantic is None or keys is None or not plan.read or plan.demands is not NO_DEMANDS:
            return None
        question = keys.question
        if question is None or len(question) >= LONG or keys.user_turns:
            return None
        if self._verifier is None or semantic.verify == "none":
            return None
        near = self._index.current.respaced(keys.partition, question)
        if near is None or not near.key.startswith(keys.scope):
            return None
        # Spaces change nothing in whether a question may have another's answer, and the stored one's is remembered.
        if why_not_semantic(plan.policy, plan.body, plan.facts, near.question, plan.longest):
            return None
        plan.same_as = near.question
        return _candidates((_best((near, EQUAL, _NOT_ASKED, ())), None, ()))

    async def search(self, keys: Fingerprint, vector: Vector, policy: CachePolicy) -> Candidates:
        """Return the best of the nearest neighbours without a veto (else the nearest), and which are left open.

        Raises StoreUnavailable where the index is in the store.
        """
        semantic, question = policy.semantic, keys.question
        if semantic is None or question is None:
            return _NO_CANDIDATES
        near = await self._index.current.nearest(keys.partition, vector, NEIGHBOURS, semantic.min_similarity)
        if not near:
            return _NO_CANDIDATES
        # The index alone does not prove that a key belongs to this scope.
        own = [candidate for candidate in near if candidate.key.startswith(keys.scope)]
        chosen = self._shortlist(semantic, question, own)
        if chosen is not None:
            best = _best((own[chosen.place], chosen.verdict, _NOT_ASKED, chosen.vetoed))
            return _candidates((best, chosen, own))
        return Candidates(BestNeighbour(near[0], Verdict(-math.inf, "guard: scope")))

    async def check(self, found: Candidates, question: str, semantic: SemanticCache, left_s: float) -> BestNeighbour:
        """Return the best candidate after the cross-encoder, which is asked only where the search leaves it open.

        `left_s` is the request's time left in seconds.
        """
        chosen, queue = found.chosen, self._cross_encoder
        if chosen is None or not chosen.doubtful or queue is None:
            return found.best
        pairs = [(found.near[candidate.place].question, question) for candidate in chosen.doubtful]
        strict = (self._rules.get(id(semantic)) or self._made_rules(semantic)).strict
        checked = await queue.check(pairs, min(semantic.cross_encoder.within, left_s), strict)
        if checked.refused:
            verdict = Verdict(chosen.verdict.score, checked.refused, "cross_encoder")
            return BestNeighbour(found.best.near, verdict, checked, chosen.vetoed)
        blend = queue.blend(strict, self._cosine_weight)
        best = queue.settled(chosen, checked.scores, blend)
        return BestNeighbour(found.near[best.place], best.verdict, checked, chosen.vetoed)

    def without(
        self, candidates: Candidates, passed: Neighbour, question: str, semantic: SemanticCache
    ) -> Candidates | None:
        """Return the candidates that remain if the neighbour `passed` is left out; None if it was the only one."""
        near = [neighbour for neighbour in candidates.near if neighbour is not passed]
        chosen = self._shortlist(semantic, question, near)
        return None if chosen is None else Candidates(BestNeighbour(near[chosen.place], chosen.verdict), chosen, near)

    def _shortlist(self, semantic: SemanticCache, question: str, near: Sequence[Neighbour]) -> Shortlist | None:
        if not near:
            return None
        rules = self._rules.get(id(semantic)) or self._made_rules(semantic)
        taken_apart = len(question) >= LONG or question[:1] == SEPARATOR
        decide = rules.by_turns if taken_apart else rules.decide
        return shortlist(decide, question, list(map(_TEXT_AND_COSINE, near)), rules.most)

    def _made_rules(self, semantic: SemanticCache) -> MatchRules:
        """Make and remember how this section of a policy decides."""
        if len(self._rules) >= _MOST_RULES:
            self._rules.clear()
        queue = self._cross_encoder if semantic.verify == "default" else None
        verifier = None if semantic.verify == "none" else self._verifier
        most, strict = 0, None
        if queue is None:
            decide = decide_by(semantic, verifier)
        else:
            most, strict = semantic.cross_encoder.candidates, queue.strict
            decide = decide_by(semantic, verifier, screening=True, scripts=queue.scripts, languages=queue.languages)
        by_turns = decide if self._turn_by_turn is None else self._turn_by_turn(decide, semantic)
        strict = default_threshold(semantic, verifier, screening=queue is not None, strict=strict)
        rules = self._rules[id(semantic)] = MatchRules(semantic, decide, by_turns, most, strict)
        return rules

    def complain(self, surface: str, semantic: SemanticCache, complaint: Complaint) -> None:
        """Record that a hit of the surface of this name was wrong, where anything learns from it."""
        if self._bound is not None:
            rules = self._rules.get(id(semantic)) or self._made_rules(semantic)
            self._bound.complain(surface, semantic, rules.strict, complaint)

    def refused(
        self, plan: CachePlan, semantic: SemanticCache, best: BestNeighbour, *, certain: bool, again: bool
    ) -> str:
        """Return why the best candidate is not served, such as `similarity` or `audit`; '' if it is.

        Counts the request with the surface's hit bound, unless `again`: it was counted with an earlier candidate. The
        bound may take the candidate as a sample, which is compared with a fresh answer instead of served (`audit`);
        never that of a `certain` request.
        """
        bound, surface, owner, language = self._bound, plan.surface, plan.owner, plan.language
        near, verdict = best.near, best.verdict
        rules = self._rules.get(id(semantic)) or self._made_rules(semantic)
        threshold = rules.strict
        if bound is not None:
            threshold = bound.threshold(surface, semantic, threshold, owner, language, again=again)
        if verdict.refused or near is None:
            return verdict.refused
        sample = None
        if bound is not None and not certain:
            sample = bound.drawn(surface, near.key, verdict.score, threshold, language, owner)
        if sample is not None:
            plan.drawn.append(sample)
        if not verdict.served(threshold):
            return "similarity"
        return "" if sample is None else "audit"


def missed(reason: str, best: BestNeighbour) -> Lookup:
    """Return a miss for that reason, with the nearest neighbour if there is one."""
    return with_neighbour(best, Lookup("miss", reason=reason))


def with_neighbour(best: BestNeighbour, lookup: Lookup) -> Lookup:
    """Add the candidate to the result of a lookup; its score only if there was no veto."""
    near, verdict, checked, vetoed = best
    if near is None:
        return lookup
    key, question, similarity = near
    score = None if verdict.refused else verdict.score
    read, stage, waited_s, batch = verdict.read, verdict.stage, checked.waited_s, checked.batch
    return _lookup((*lookup[:3], id_of(key), question, similarity, score, stage, read, waited_s, batch, vetoed))
