"""Decide whether a stored answer may be served for another question, for one candidate and among several. No I/O.

Live lookups, the audit of hits and the evaluation on labelled pairs all use this module, so what is measured is what is
served.

    score      how likely both questions want the same answer: the verifier's score if there is one, else the cosine
    veto       a reason against serving at any score: a guard's or the verifier's
    threshold  the score from which a candidate without a veto is served; set by the policy or by `cache.risk.control`

Without a verifier the guards decide. A cosine does not show what changes an answer: a negation, another number, another
name, `before` for `after`, `A to B` for `B to A` all stay within 0.95 of each other. So both texts are parsed
(`cache.text.reading`) and compared. Fail closed: a word in only one of the texts counts as a difference unless it is
known to be a filler. A policy can switch `negation`, `numbers`, `entities` and `dates`; question words, the wording and
its order are always compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cache.text.reading import read

if TYPE_CHECKING:
    from policies.caching import SemanticCache


class Verdict(NamedTuple):
    """The result for one candidate: its score, and the veto that forbids serving it at any score ('' for none)."""

    score: float
    refused: str = ""

    def served(self, threshold: float) -> bool:
        """Return whether the candidate's answer is served at this threshold."""
        return not self.refused and self.score >= threshold


class Scored(Protocol):
    """A verifier's result for one candidate."""

    @property
    def score(self) -> float: ...
    @property
    def refused(self) -> str: ...


class PairScorer(Protocol):
    """A learned score for a pair of questions, with vetoes of its own; `cache.semantic.verifier` implements it."""

    @property
    def strict(self) -> float:
        """Score threshold used until the surface's own error rate has been measured."""

    def score(self, stored: str, asked: str, cosine: float, guards: Collection[str]) -> Scored:
        """Return the verdict on serving `stored`'s answer for `asked`, with the policy's `guards`."""


Decide = Callable[[str, str, float], Verdict]
"""Maps (stored question, new question, cosine of their vectors) to the verdict."""


def decide_by(semantic: SemanticCache, verifier: PairScorer | None = None) -> Decide:
    """Return the policy's decision for one candidate: its minimum cosine, then the verifier, or else the guards."""

    def decide(stored: str, asked: str, cosine: float) -> Verdict:
        if cosine < semantic.min_similarity:
            return Verdict(cosine, "similarity")
        if verifier is not None:
            result = verifier.score(stored, asked, cosine, semantic.guards)
            return Verdict(result.score, f"guard: {result.refused}" if result.refused else "")
        refused = difference(stored, asked, semantic.guards)
        return Verdict(cosine, f"guard: {refused}" if refused else "")

    return decide


def default_threshold(semantic: SemanticCache, verifier: PairScorer | None = None) -> float:
    """Return the threshold that applies without labels."""
    if semantic.cross_encoder is not None and semantic.cross_encoder.decides == "score":
        return semantic.cross_encoder.min_score
    return semantic.min_similarity if verifier is None else verifier.strict


def choose(decide: Decide, asked: str, near: Iterable[tuple[str, float]]) -> tuple[int, Verdict] | None:
    """Return the place and verdict of the best-scoring candidate without a veto.

    Candidates are (stored question, cosine), nearest first. If each has a veto, the nearest is returned; None without
    candidates.
    """
    best: tuple[int, Verdict] | None = None
    for place, (stored, cosine) in enumerate(near):
        verdict = decide(stored, asked, cosine)
        if best is None or (not verdict.refused and (best[1].refused or verdict.score > best[1].score)):
            best = place, verdict
    return best


_MAX_CHARS: Final = 2_000
"""Maximum characters: longer questions hardly recur in other words, and would make the guards slow."""


def difference(stored: str, asked: str, guards: Collection[str]) -> str | None:
    """Return the name of the guard that forbids serving `stored`'s answer for `asked`; None if none does."""
    if stored == asked:
        return None
    if len(stored) > _MAX_CHARS or len(asked) > _MAX_CHARS:
        return "length"
    a, b = read(stored), read(asked)
    if not a.content or not b.content:
        return "wording"
    if "numbers" in guards and a.numbers != b.numbers:
        return "numbers"
    if "negation" in guards and (a.negations != b.negations or a.poles != b.poles):
        return "negation"
    if "entities" in guards and not (a.names <= b.stems and b.names <= a.stems):
        return "entities"
    if "dates" in guards and a.times != b.times:
        return "dates"
    if a.asked != b.asked:
        return "asked"
    if a.content != b.content:
        return "order" if a.stems == b.stems else "wording"
    return None
