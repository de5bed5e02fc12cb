"""The decision on one candidate, and the choice among several."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cache.semantic.decision import Verdict, choose, decide_by, default_threshold
from policies.caching import SemanticCache
from tests.cache.samples import policy

ITALY, SAME, SPAIN = "What is the capital of Italy?", "what's the capital of Italy", "What is the capital of Spain?"


def semantic(**fields: object) -> SemanticCache:
    found = policy(semantic={"ttl": "6h", "min_similarity": 0.85, **fields}).cache.semantic
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class Always:
    """A verifier that says the same of every pair."""

    verdict: Verdict
    strict: float = 0.97

    def score(self, stored: str, asked: str, cosine: float, guards: Collection[str]) -> Verdict:
        return self.verdict


def test_without_a_verifier_the_cosine_decides_and_the_guards_refuse() -> None:
    """A near question that asks the same is served from the policy's similarity on; one with another name never."""
    decide = decide_by(semantic())
    threshold = default_threshold(semantic())
    assert decide(ITALY, SAME, 0.85).served(threshold)
    assert not decide(ITALY, SAME, 0.84).served(threshold)
    assert decide(ITALY, SPAIN, 1.0).refused.startswith("guard: ")
    assert not decide(ITALY, SPAIN, 1.0).served(-1.0)


def test_with_a_verifier_its_score_and_its_veto_count() -> None:
    """The cosine is then only the least that the policy asks for."""
    sure = decide_by(semantic(), Always(Verdict(0.99)))
    assert sure(ITALY, SAME, 0.9) == Verdict(0.99)
    assert sure(ITALY, SAME, 0.8).refused == "similarity"
    assert decide_by(semantic(), Always(Verdict(0.99, "roles")))(ITALY, SAME, 0.9).refused == "guard: roles"
    assert default_threshold(semantic(), Always(Verdict(0.99))) == 0.97


def test_the_best_of_the_candidates_without_a_veto_is_chosen() -> None:
    """A veto on the nearest leaves the next ones their chance; where all have one, the nearest's is told."""
    decide = decide_by(semantic())
    assert choose(decide, SAME, [(SPAIN, 0.99), (ITALY, 0.95), (ITALY, 0.9)]) == (1, Verdict(0.95))
    chosen = choose(decide, SAME, [(SPAIN, 0.99), ("What is the capital of France?", 0.98)])
    assert chosen is not None
    assert chosen[0] == 0
    assert chosen[1].refused
    assert choose(decide, SAME, []) is None
