"""Estimate by how much a candidate changes the quality of answers, from ratings of answers like those it would serve.

Ratings are people's feedback and a judge's labels (`measures.quality`). An answer is like another one of the
same tier:

    judged      if its confidence has the same basis and is about the same. A draft that was rejected is not like one
                that was accepted: its rating has to come from drafts as doubtful, served as degraded or by another
                version, or shown to a judge. The answers are divided by confidence, as finely as the ratings go.
    not judged  if it comes from the same stratum, or else if it was not judged either

A tier that takes over from drafts that were accepted was rated on requests with worse drafts, and may do better on
these: the interval reaches to all of its answers being right. Hits are taken to change as the answers of tiers do.

Of answers of which fewer than FEWEST_BOTH like them were rated nothing is known. Where these are more than a few of the
requests that get another answer, there is no figure; where they are few, the interval holds whatever they are worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.cells import Floats, Ints
from gateway.parts.measures.quality import FEWEST_BOTH, Opinions, Quality, QualityDifference

if TYPE_CHECKING:
    from gateway.parts.lab.replay.outcomes import CourseFollower
    from gateway.parts.lab.replay.recording import RatedAnswers

_PARTS: Final = (8, 4, 2, 1)
"""Into how many equal parts, by confidence, answers of one tier are divided: the most that the ratings allow."""
_ON_EACH_SIDE: Final = 3
"""Fewest ratings up to the middle confidence of these answers, and from there on."""
_FEW: Final = 0.05
"""Largest share of the requests with another answer of which nothing need be known."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers, an array each: the tier's row, the number of the confidence's basis (0: not judged), the confidence."""

    tier: Ints
    basis: Ints
    confidence: Floats
    stratum: Ints

    @property
    def kind(self) -> Ints:
        """A number for each answer, equal for those of one tier and basis."""
        return self.tier * 128 + self.basis

    def only(self, which: Ints) -> _Answers:
        return _Answers(self.tier[which], self.basis[which], self.confidence[which], self.stratum[which])


def quality_change(answers: RatedAnswers, follower: CourseFollower, lost_hits: int) -> dict[str, Any]:
    """Return the quality of the replies, and by how much it would change; None where that is not known.

    `unrated` counts the requests whose answer would change and for which too few ratings exist, of the old answer or
    of the new one. It includes the `lost_hits`, which would get new answers.
    """
    result: dict[str, Any] = {
        "labels": answers.rated,
        "judged": answers.judged,
        "held_out": answers.held_out,
        "before": answers.before,
        "difference": None,
        "interval_95": None,
        "word": None,
        "unrated": 0,
    }
    if follower.last is None or not answers.rated + answers.judged:
        return result
    was, now = _replaced(follower)
    moved = len(was.tier)
    if not moved + lost_hits:
        return result | {"difference": 0.0, "interval_95": [0.0, 0.0]}
    rated = _rated(answers, follower)
    known = np.ones(moved, np.bool_)
    parts: list[tuple[_Answers, Ints, Opinions]] = []
    for side in (now, was):
        for kind in np.unique(side.kind).tolist():
            own, alike = np.flatnonzero(side.kind == kind), np.flatnonzero(rated.kind == kind)
            divide = _by_confidence if side.basis[own[0]] else _by_stratum
            found = divide(side.only(own), rated.only(alike))
            known[own] &= bool(found)
            parts += [(side, own[mine], answers.opinions.take(alike[theirs])) for mine, theirs in found]
    unrated = moved - int(known.sum()) + lost_hits
    if unrated > _FEW * (moved + lost_hits):
        return result | {"unrated": unrated}
    parts = [(side, own[known[own]], opinions) for side, own, opinions in parts]
    spoken = Opinions.in_one_word([opinions for _, _, opinions in parts])
    if spoken is None:
        return result | {"unrated": unrated}
    word, qualities = spoken
    history = follower.history
    answered = int(((history.basis >= 0) & (history.tier > 0)).sum())
    terms: list[tuple[float, Quality]] = []
    better = 0.0
    for (side, own, _), quality in zip(parts, qualities, strict=True):
        terms.append(((1 if side is now else -1) * len(own) / answered, quality))
        if side is now:
            accepted_before = (now.basis[own] == 0) & (was.basis[own] > 0) & (was.tier[own] < now.tier[own])
            better += int(accepted_before.sum()) / answered * (1 - quality.value)
    change, beyond = QualityDifference.of_sum(terms, word), unrated / answered
    interval = [change.low - beyond, change.high + beyond + better]
    return result | {"difference": change.value, "interval_95": interval, "word": word, "unrated": unrated}


def _replaced(follower: CourseFollower) -> tuple[_Answers, _Answers]:
    """Return the answers that requests got, and those that they get instead, where these are others."""
    history, outcome = follower.history, follower.last
    assert outcome is not None  # noqa: S101  (the caller has looked)
    rows, was = follower.rows, history.tier[follower.rows] - 1
    moved = np.flatnonzero((was >= 0) & (outcome.tier >= 0) & (was != outcome.tier) & ~follower.no_evidence)
    stratum = follower.strata[2][rows[moved]].astype(np.int64)
    source, tier = follower.asked_by[moved], was[moved].astype(np.int64)
    before = _Answers(tier, history.signal[tier, source].astype(np.int64), history.confidence[tier, source], stratum)
    after = _Answers(outcome.tier[moved], outcome.basis[moved], outcome.confidence[moved], stratum)
    return before, after


def _rated(answers: RatedAnswers, follower: CourseFollower) -> _Answers:
    tier = answers.tier - 1
    basis = follower.history.signal[tier, answers.row].astype(np.int64)
    confidence = follower.history.confidence[tier, answers.row]
    return _Answers(tier, basis, confidence, follower.strata[2][answers.row].astype(np.int64))


def _by_confidence(side: _Answers, rated: _Answers) -> list[tuple[Ints, Ints]]:
    """Return parts of these answers, each with the rated ones that are as sure; nothing if there are too few."""
    sure, theirs = side.confidence, rated.confidence
    for count in _PARTS:
        edges = np.quantile(sure, np.linspace(0, 1, count + 1))
        of_side = np.clip(np.searchsorted(edges, sure, "right") - 1, 0, count - 1)
        of_rated = np.clip(np.searchsorted(edges, theirs, "right") - 1, 0, count - 1)
        of_rated[~((theirs >= edges[0]) & (theirs <= edges[-1]))] = -1
        some = np.unique(of_side).tolist()  # where confidences recur, not every part has some
        parts = [(np.flatnonzero(of_side == part), np.flatnonzero(of_rated == part)) for part in some]
        if all(len(alike) >= FEWEST_BOTH for _, alike in parts):
            break
    else:
        return []
    within, middle = theirs[of_rated >= 0], np.median(sure)
    fewest = min(np.count_nonzero(within <= middle), np.count_nonzero(within >= middle))
    return parts if fewest >= _ON_EACH_SIDE else []


def _by_stratum(side: _Answers, rated: _Answers) -> list[tuple[Ints, Ints]]:
    """Return all of these answers with the rated ones of their strata, or of any; nothing if there are too few."""
    every, near = np.arange(len(rated.tier)), np.flatnonzero(np.isin(rated.stratum, side.stratum))
    alike = near if len(near) >= FEWEST_BOTH else every
    return [(np.arange(len(side.tier)), alike)] if len(alike) >= FEWEST_BOTH else []
