"""May one kept answer be given to another question? The decision on one candidate, and the choice among several. Pure.

Whoever needs it asks here: the lookup of a live request, the audit of a hit, the evaluation on labelled pairs. So what
is measured is what is served.

    score      how surely both questions want the same answer: the verifier's where there is one, else the cosine
    veto       a reason why not, whatever the score: a guard's word, or the verifier's
    threshold  the score from which a candidate without a veto is served; set outside, by the policy or by
    `cache.risk.control`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from cache.semantic import guards
from policies.caching import SemanticCache


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one candidate: its score, and why it must not be served at any score ('' when nothing says so)."""

    score: float
    refused: str = ""

    def served(self, threshold: float) -> bool:
        """Whether the candidate's answer goes out."""
        return not self.refused and self.score >= threshold


class Scored(Protocol):
    """What a verifier says of one candidate."""

    @property
    def score(self) -> float: ...
    @property
    def refused(self) -> str: ...


class PairScorer(Protocol):
    """A learned judgement of a pair of questions, with vetoes of its own (`cache.semantic.verifier` is one)."""

    @property
    def strict(self) -> float:
        """The threshold on its score while nothing is known of the surface's own traffic."""

    def score(self, stored: str, asked: str, cosine: float, guards: Collection[str]) -> Scored:
        """The verdict on `stored`'s answer for whoever asks `asked`, with these of the policy's guards."""


Decide = Callable[[str, str, float], Verdict]
"""From (stored question, asked question, cosine of their vectors) to the verdict."""


def decide_by(semantic: SemanticCache, verifier: PairScorer | None = None) -> Decide:
    """How one candidate is judged under a policy: its least cosine, then the verifier, or else the guards alone."""

    def decide(stored: str, asked: str, cosine: float) -> Verdict:
        if cosine < semantic.min_similarity:
            return Verdict(cosine, "similarity")
        if verifier is not None:
            found = verifier.score(stored, asked, cosine, semantic.guards)
            return Verdict(found.score, f"guard: {found.refused}" if found.refused else "")
        refused = guards.difference(stored, asked, semantic.guards)
        return Verdict(cosine, f"guard: {refused}" if refused else "")

    return decide


def default_threshold(semantic: SemanticCache, verifier: PairScorer | None = None) -> float:
    """The threshold that holds where no labels say better."""
    if semantic.cross_encoder is not None and semantic.cross_encoder.decides == "score":
        return semantic.cross_encoder.min_score
    return semantic.min_similarity if verifier is None else verifier.strict


def choose(decide: Decide, asked: str, near: Iterable[tuple[str, float]]) -> tuple[int, Verdict] | None:
    """Of candidates (stored question, cosine), nearest first: the one without a veto that scores best, and its place.

    The nearest where each has a veto; None where there is no candidate.
    """
    best: tuple[int, Verdict] | None = None
    for place, (stored, cosine) in enumerate(near):
        verdict = decide(stored, asked, cosine)
        if best is None or (not verdict.refused and (best[1].refused or verdict.score > best[1].score)):
            best = place, verdict
    return best
