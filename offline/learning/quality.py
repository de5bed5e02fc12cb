"""Estimate one quality figure for each tier: the share of its answers that people would call right.

A judge's labels are many and may be wrong; people's feedback is right and rare. The prediction-powered estimate
(Angelopoulos, Bates, Fannjiang, Jordan, Zrnic, "Prediction-powered inference", Science 382, 2023; with the weight of
the predictions tuned as in "PPI++", Angelopoulos, Duchi, Zrnic 2023) takes the judge's mean over all judged answers and
corrects it by the mean difference between people and judge where both spoke. Feedback on answers that were not judged,
such as those of the holdout, is a second, independent estimate; both are weighed by their precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from offline.measures.curves import Floats
from offline.measures.intervals import wilson

Feedbacks = Mapping[tuple[str, str], float]
"""Scores by (tenant, request id), 0..1."""

_Z: Final = 1.959963984540054
_FEWEST_BOTH: Final = 10
"""Answers that judge and people rated, below which the judge's bias is unknown."""


@dataclass(frozen=True, slots=True)
class TierQuality:
    """The quality of one tier, 0..1, and its 95% interval; None without any label.

    `judged` answers have a judge's label, `both` of them feedback too, and `rated` have feedback alone. `corrected` is
    whether people's feedback corrects the judge; otherwise the figure is the judge's own opinion.
    """

    tier: str
    value: float
    low: float
    high: float
    judged: int
    both: int
    rated: int
    corrected: bool


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """How often a judge's "adequate" is what people say (a score of 0.5 or more), and the share's 95% interval."""

    count: int
    agreed: int

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval; 0 and 1 without any answer."""
        return wilson(self.agreed / self.count, self.count) if self.count else (0.0, 1.0)


def tier_qualities(
    rows: Sequence[Mapping[str, Any]], feedback: Feedbacks, unjudged: Mapping[str, Sequence[float]]
) -> list[TierQuality]:
    """Return the quality of each tier that labels or feedback speak of.

    `rows` are labels of one surface, `unjudged` the scores of feedback on each tier's answers without a label.
    """
    opinions: dict[str, list[float]] = {}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for answer in (row["small"], row["strong"]):
            opinions.setdefault(answer["tier"], []).append(float(answer["adequate"]))
            score = feedback.get((row["tenant"], row["request_id"])) if answer["served"] else None
            if score is not None:
                pairs.setdefault(answer["tier"], []).append((float(score), float(answer["adequate"])))
    tiers = dict.fromkeys([*opinions, *unjudged])
    return [
        _quality(tier, np.array(opinions.get(tier, [])), pairs.get(tier, []), np.array(unjudged.get(tier, [])))
        for tier in tiers
        if opinions.get(tier) or unjudged.get(tier)
    ]


def agreement(rows: Sequence[Mapping[str, Any]], feedback: Feedbacks) -> JudgeAgreement:
    """Return how often the judge of these labels and people agree on an answer that was served."""
    count = agreed = 0
    for row in rows:
        score = feedback.get((row["tenant"], row["request_id"]))
        served = row["small"] if row["small"]["served"] else row["strong"]
        if score is not None and served["adequate"] != 0.5:  # a judge that contradicts itself says neither
            count += 1
            agreed += (score >= 0.5) == (served["adequate"] > 0.5)
    return JudgeAgreement(count, agreed)


def prediction_powered(predicted: Floats, people: Floats, predicted_there: Floats) -> tuple[float, float]:
    """Return the estimate of the mean of people's ratings, and its variance.

    `predicted` are the judge's labels where people said nothing, `predicted_there` those where they gave `people`.
    """
    n, many = len(people), len(predicted)
    spread = float(np.var(np.concatenate([predicted, predicted_there])))
    together = float(np.mean((people - people.mean()) * (predicted_there - predicted_there.mean())))
    weight = 0.0 if not spread or not many else float(np.clip(together / ((1 + n / many) * spread), 0, 1))
    shift = people - weight * predicted_there
    value = float(shift.mean()) + (weight * float(predicted.mean()) if many else 0.0)
    variance = float(np.var(shift, ddof=1)) / n + (weight**2 * float(np.var(predicted)) / many if many else 0.0)
    return value, variance


def _quality(tier: str, opinions: Floats, pairs: Sequence[tuple[float, float]], rated: Floats) -> TierQuality:
    both = np.array(pairs, np.float64).reshape(-1, 2)
    estimates: list[tuple[float, float]] = []
    corrected = len(both) >= _FEWEST_BOTH
    if corrected:
        alone = list(opinions)
        for _, predicted in pairs:
            alone.remove(predicted)
        estimates.append(prediction_powered(np.array(alone), both[:, 0], both[:, 1]))
    people = rated if corrected else np.concatenate([rated, both[:, 0]])
    if len(people) >= _FEWEST_BOTH:
        estimates.append((float(people.mean()), float(np.var(people, ddof=1)) / len(people)))
    counts = len(opinions), len(both), len(rated)
    if not estimates:  # people say too little: it is the judge's opinion, or theirs as it is
        share = opinions if len(opinions) else people
        low, high = wilson(float(share.mean()), len(share))
        return TierQuality(tier, float(share.mean()), low, high, *counts, corrected=False)
    precision = [1 / max(variance, 1e-9) for _, variance in estimates]
    value = sum(w * one for w, (one, _) in zip(precision, estimates, strict=True)) / sum(precision)
    half = _Z / sum(precision) ** 0.5
    return TierQuality(tier, value, max(0.0, value - half), min(1.0, value + half), *counts, corrected=True)
