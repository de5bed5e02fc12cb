"""Compare what a head predicted with what was observed: is of the answers that it calls 80% right one in five wrong?

A prediction is the probability that an answer is right (0..1), an observation what people or a judge say of it (0..1).
The expected calibration error (ECE) of any finite sample is above 0, so it comes with what it would be if the head were
right: the mean over many samples of as many predictions, of which each came true as often as it says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from gateway.parts.fit.curves import Floats, calibration_error
from gateway.parts.measures.intervals import wilson

FEWEST: Final = 50
"""Predictions with an observation, below which nothing is said of a head."""
_BINS: Final = 10
_IN_A_BIN: Final = 20
"""Fewest predictions of a bin, so that fewer predictions have fewer bins."""


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Predictions near each other: their mean, and the mean of what was observed with its 95% interval."""

    predicted: float
    observed: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class Reliability:
    """How predictions fit what was observed, over all and in bins of equal count; `low` to `high` is of `observed`.

    `ece_by_chance` is the ECE that as many predictions have on average whose head is right.
    """

    count: int
    predicted: float
    observed: float
    low: float
    high: float
    ece: float
    ece_by_chance: float
    bins: tuple[ReliabilityBin, ...]

    @property
    def verdict(self) -> str:
        """The difference of both means in a word: fits, too sure or too modest."""
        if self.low <= self.predicted <= self.high:
            return "fits"
        return "too sure" if self.predicted > self.high else "too modest"


def reliability(predicted: Sequence[float], observed: Sequence[float]) -> Reliability:
    """Return how these predictions, at least one, fit what was observed."""
    p, y = np.asarray(predicted, np.float64), np.asarray(observed, np.float64)
    order = np.argsort(p, kind="stable")
    bins = tuple(_bin(p[rows], y[rows]) for rows in np.array_split(order, max(1, min(_BINS, len(p) // _IN_A_BIN))))
    low, high = wilson(float(y.mean()), len(y))
    by_chance = _by_chance(p[order])
    return Reliability(len(p), float(p.mean()), float(y.mean()), low, high, calibration_error(p, y), by_chance, bins)


def _bin(p: Floats, y: Floats) -> ReliabilityBin:
    low, high = wilson(float(y.mean()), len(y))
    return ReliabilityBin(float(p.mean()), float(y.mean()), low, high, len(p))


def _by_chance(ordered: Floats) -> float:
    """Return the mean ECE of a right head: in each bin the mean distance of a normal error from 0."""
    total = 0.0
    for some in np.array_split(ordered, min(_BINS, len(ordered))):
        total += math.sqrt(2 / math.pi * float((some * (1 - some)).sum()))
    return total / len(ordered)


@dataclass(frozen=True, slots=True)
class HeadClaim:
    """One prediction with its observation. `head` is difficulty or confidence; `whose` word it is: judge or people."""

    head: str
    tier: str
    model: str
    whose: str
    predicted: float
    observed: float


def head_claims(
    labels: Iterable[Mapping[str, Any]], rated: Iterable[Mapping[str, Any]], ladder: Sequence[str]
) -> list[HeadClaim]:
    """Return what the heads of one surface predicted of answers that a judge labelled or that people rated.

    `labels` are of the archive's table. `rated` are requests with `tier`, `model`, `confidence`, `in_domain`,
    `p_right`, `ladder` and `score`. `ladder` has the tiers of the surface, the cheapest first; without it, a label's
    two answers are taken as those of the cheapest and of the strongest tier.
    """
    claims: list[HeadClaim] = []
    for row in labels:
        for place, answer in ((0.0, row["small"]), (1.0, row["strong"])):
            tier, model, observed = answer["tier"], answer["model"], float(answer["adequate"])
            if answer["confidence"] is not None:
                claims.append(HeadClaim("confidence", tier, model, "judge", answer["confidence"], observed))
            if row["in_domain"] and row["p_right"]:
                share = _place(ladder, tier) if tier in ladder else place
                predicted = _of_tier(row["p_right"], share)
                claims.append(HeadClaim("difficulty", tier, "", "judge", predicted, observed))
    for row in rated:
        tier, observed = row["tier"], float(row["score"])
        if row["confidence"] is not None:
            claims.append(HeadClaim("confidence", tier, row["model"], "people", row["confidence"], observed))
        if row["in_domain"] and row["p_right"] and tier in (row["ladder"] or ()):
            predicted = _of_tier(row["p_right"], _place(row["ladder"], tier))
            claims.append(HeadClaim("difficulty", tier, "", "people", predicted, observed))
    return claims


def _place(ladder: Sequence[str], tier: str) -> float:
    """Return where a tier stands, from 0 for the cheapest to 1 for the strongest."""
    return list(ladder).index(tier) / max(len(ladder) - 1, 1)


def _of_tier(p_right: Sequence[float], share: float) -> float:
    """Return the prediction for a tier, as routing reads it (`Difficulty.p_right_of`)."""
    return p_right[int(share * (len(p_right) - 1) + 1e-9)]


def head_reliabilities(claims: Iterable[HeadClaim]) -> list[dict[str, Any]]:
    """Return the reliability of each head, in the judge's word where it said enough, else in people's, as JSON values.

    A head of which neither said enough has `reliability` None, and `missing` says how many more there must be.
    """
    of_head: dict[tuple[str, str, str], dict[str, list[HeadClaim]]] = {}
    for claim in claims:
        of_head.setdefault((claim.head, claim.tier, claim.model), {}).setdefault(claim.whose, []).append(claim)
    shown = []
    for (head, tier, model), by_word in sorted(of_head.items()):
        judged, rated = by_word.get("judge", []), by_word.get("people", [])
        chosen = judged if len(judged) >= FEWEST or len(judged) > len(rated) else rated
        enough = len(chosen) >= FEWEST
        figures = reliability([row.predicted for row in chosen], [row.observed for row in chosen]) if enough else None
        shown.append(
            {
                "head": head,
                "tier": tier,
                "model": model,
                "whose": chosen[0].whose,
                "count": len(chosen),
                "missing": max(0, FEWEST - len(chosen)),
                "reliability": None if figures is None else {**asdict(figures), "verdict": figures.verdict},
            }
        )
    return shown
