"""Estimate the quality of answers: the share of them that people would call right. Every view of quality asks here.

A judge's labels are many and may be wrong; people's feedback is right and rare. The prediction-powered estimate
(Angelopoulos, Bates, Fannjiang, Jordan, Zrnic, "Prediction-powered inference", Science 382, 2023; with the weight of
the predictions tuned as in "PPI++", Angelopoulos, Duchi, Zrnic 2023) takes the judge's mean over all judged answers and
corrects it by the mean difference between people and judge where both spoke. Feedback on answers that were not judged,
such as those of the holdout, is a second, independent estimate; both are weighed by their precision.

What is compared is always in one word: people's on both sides, or the judge's on both. The interval of a difference
comes from those of its parts (G. Zou and A. Donner, "Construction of confidence limits about effect measures",
Statistics in Medicine 27, 2008), which is Newcombe's for two shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from gateway.parts.measures.intervals import wilson
from policies.quantities import percent, points

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Feedbacks = Mapping[tuple[str, str], float]
"""Scores by (tenant, request id), 0..1."""
Word = Literal["people", "judge"]

_Z: Final = 1.959963984540054
FEWEST_BOTH: Final = 10
"""Answers that judge and people rated, below which the judge's bias is unknown; and rated, below which it speaks."""


@dataclass(frozen=True, slots=True)
class Opinions:
    """What people and a judge say of n answers, 0..1, NaN where they say nothing; of each answer at least one speaks.

    Answers of one `unit` (a conversation) resemble each other; without units all are independent.
    """

    people: Floats
    judge: Floats
    unit: Ints | None = None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float | None, float | None]]) -> Opinions:
        """Return what each pair of a person's and the judge's opinion says; None for nothing."""
        columns = np.array([[math.nan if score is None else score for score in pair] for pair in pairs], np.float64)
        people, judge = columns.reshape(-1, 2).T
        return cls(people, judge)

    def __len__(self) -> int:
        """Return the number of answers."""
        return len(self.people)

    @property
    def word(self) -> Word:
        """Whose word the estimate is: the judge's only where people said too little to correct it."""
        judged = bool((~np.isnan(self.judge)).any())
        return "judge" if judged and np.count_nonzero(~np.isnan(self.people)) < FEWEST_BOTH else "people"

    def take(self, rows: NDArray[Any]) -> Opinions:
        """Return the opinions at these indices, or under this mask."""
        return Opinions(self.people[rows], self.judge[rows], None if self.unit is None else self.unit[rows])

    def estimate(self, word: Word | None = None) -> Quality:
        """Return the quality of the answers, at least one, in `word`: by default the better that there is.

        `word` must be one that says something of them.
        """
        word = word or self.word
        rated, judged = ~np.isnan(self.people), ~np.isnan(self.judge)
        both = rated & judged
        counts = int(judged.sum()), int(both.sum()), int((rated & ~judged).sum())
        if word == "judge":
            return _alone(self.judge, self.unit, judged, counts, corrected=False)
        if counts[1] < FEWEST_BOTH:
            return _alone(self.people, self.unit, rated, counts, corrected=int(rated.sum()) >= FEWEST_BOTH)
        estimates = [_powered(self, judged & ~both, both)]
        if counts[2] >= FEWEST_BOTH:
            estimates.append(_mean(self.people, self.unit, rated & ~both))
        precision = [1 / variance for _, variance in estimates]
        value = sum(w * interval for w, (interval, _) in zip(precision, estimates, strict=True)) / sum(precision)
        value, variance = min(max(value, 0.0), 1.0), 1 / sum(precision)
        half = _Z * math.sqrt(variance)
        return Quality(value, max(0.0, value - half), min(1.0, value + half), variance, *counts, corrected=True)

    @staticmethod
    def common_word(parts: Sequence[Opinions]) -> Word | None:
        """Return in whose ratings these parts can be compared; None if neither people nor the judge rated all."""
        people = all((~np.isnan(part.people)).any() for part in parts)
        judge = all((~np.isnan(part.judge)).any() for part in parts)
        if not parts or not (people or judge):
            return None
        best = all(part.word == "people" for part in parts)
        return "people" if people and (best or not judge) else "judge"

    @staticmethod
    def in_one_word(parts: Sequence[Opinions]) -> tuple[Word, list[Quality]] | None:
        """Return whose ratings all parts have (`common_word`), and each part's quality by them; None if nobody's."""
        word = Opinions.common_word(parts)
        return None if word is None else (word, [part.estimate(word) for part in parts])


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of some answers, 0..1, and its 95% interval; `variance` is that of `value` as an estimate.

    `judged` answers have a judge's label, `both` of them feedback too, and `rated` have feedback alone. `corrected` is
    whether people's feedback corrects the judge, or is enough by itself; otherwise the figure is the judge's own
    opinion, or that of a few people.
    """

    value: float
    low: float
    high: float
    variance: float
    judged: int
    both: int
    rated: int
    corrected: bool

    @property
    def whose(self) -> str:
        """Whose ratings the figure rests on, in words: people's, the judge's, or both."""
        if not self.corrected:
            return "the judge's alone" if self.judged else "people's"
        return "people's, with the judge's help" if self.both >= FEWEST_BOTH else "people's"

    def as_json(self) -> dict[str, Any]:
        """Return all fields but the variance, and whose word it is."""
        fields = asdict(self) | {"whose": self.whose}
        del fields["variance"]
        return fields


@dataclass(frozen=True, slots=True)
class QualityDifference:
    """A difference of qualities with its 95% interval, and whose word it is."""

    value: float
    low: float
    high: float
    word: Word

    @classmethod
    def of_sum(cls, terms: Sequence[tuple[float, Quality]], word: Word) -> Self:
        """Return the sum of factor times quality, with its interval; the terms are taken to be independent."""
        value = math.fsum(factor * term.value for factor, term in terms)
        ends = [[factor * (end - term.value) for end in (term.low, term.high)] for factor, term in terms]
        below, above = (math.hypot(*(move(pair) for pair in ends)) for move in (min, max))
        return cls(value, value - below, value + above, word)


@dataclass(frozen=True, slots=True)
class JudgeAgreement:
    """How often a judge's "adequate" is what people say (a score of 0.5 or more), and the share's 95% interval.

    `people` and `judge` are how many of the answers each calls right.
    """

    count: int
    agreed: int
    people: int
    judge: int

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval; 0 and 1 without any answer."""
        return wilson(self.agreed / self.count, self.count) if self.count else (0.0, 1.0)

    @property
    def kappa(self) -> tuple[float, float, float] | None:
        """Cohen's kappa (1960), the agreement beyond what chance gives, with the 95% interval that the share's gives.

        None where both call every answer the same, so that chance alone would agree always, or there is none.
        """
        if not self.count:
            return None
        people, judge = self.people / self.count, self.judge / self.count
        chance = people * judge + (1 - people) * (1 - judge)
        if chance >= 1:
            return None
        value, low, high = ((share - chance) / (1 - chance) for share in (self.agreed / self.count, *self.interval))
        return value, max(-1.0, low), high

    def __str__(self) -> str:
        """Say how often judge and people agree."""
        if not self.count:
            return "judge and people: nobody has given feedback on a judged answer yet"
        (low, high), kappa = self.interval, self.kappa
        beyond = "" if kappa is None else f"; kappa {kappa[0]:.2f}, {kappa[1]:.2f} to {kappa[2]:.2f}"
        return (
            f"judge and people agree on {self.agreed} of {self.count} answers "
            f"({percent(self.agreed / self.count, 0)}, 95% interval {percent(low, 0)} to {percent(high, 0)}){beyond}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {"answers": self.count, "agreed": self.agreed, "interval": self.interval, "kappa": self.kappa}


def tier_opinions(
    rows: Sequence[Mapping[str, Any]], feedback: Feedbacks, unjudged: Mapping[str, Sequence[float]]
) -> dict[str, Opinions]:
    """Return what is said of the answers of each tier that labels or feedback speak of.

    `rows` are labels of one surface, `unjudged` the scores of feedback on each tier's answers without a label.
    """
    by_tier: dict[str, list[tuple[float | None, float | None]]] = {}
    for row in rows:
        for answer in (row["small"], row["strong"]):
            score = feedback.get((row["tenant"], row["request_id"])) if answer["served"] else None
            by_tier.setdefault(answer["tier"], []).append((score, float(answer["adequate"])))
    for tier, scores in unjudged.items():
        if scores:
            by_tier.setdefault(tier, []).extend((score, None) for score in scores)
    return {tier: Opinions.of(pairs) for tier, pairs in by_tier.items()}


def tier_qualities(
    rows: Sequence[Mapping[str, Any]], feedback: Feedbacks, unjudged: Mapping[str, Sequence[float]]
) -> dict[str, Quality]:
    """Estimate the quality of each tier from the opinions that `tier_opinions` returns for these arguments."""
    return {tier: opinions.estimate() for tier, opinions in tier_opinions(rows, feedback, unjudged).items()}


def comparable(opinions: Mapping[str, Opinions]) -> tuple[Word, dict[str, Quality]] | None:
    """Return in one word the quality of the tiers of which at least FEWEST_BOTH answers were rated.

    None where there are not two of them, or neither people nor judge speak of all.
    """
    known = {tier: opinion for tier, opinion in opinions.items() if len(opinion) >= FEWEST_BOTH}
    qualities = Opinions.in_one_word([*known.values()]) if len(known) > 1 else None
    return None if qualities is None else (qualities[0], dict(zip(known, qualities[1], strict=True)))


def agreement(rows: Sequence[Mapping[str, Any]], feedback: Feedbacks) -> JudgeAgreement:
    """Return how often the judge of these labels and people agree on an answer that was served."""
    count = agreed = people = judge = 0
    for row in rows:
        score = feedback.get((row["tenant"], row["request_id"]))
        served = row["small"] if row["small"]["served"] else row["strong"]
        if score is not None and served["adequate"] != 0.5:  # a judge that contradicts itself says neither
            count += 1
            agreed += (score >= 0.5) == (served["adequate"] > 0.5)
            people += score >= 0.5
            judge += served["adequate"] > 0.5
    return JudgeAgreement(count, agreed, people, judge)


def surface_quality(
    rows: Sequence[Mapping[str, Any]],
    feedback: Feedbacks,
    unjudged: Mapping[str, Sequence[float]],
    shadows: Mapping[str, Sequence[tuple[int, float, float, str]]],
) -> dict[str, Any]:
    """Return as JSON values what is known of one surface's answers: its tiers, judge and people, and shadows.

    `rows`, `feedback` and `unjudged` are as `tier_qualities` takes them, `shadows` by candidate as `paired_quality`.
    """
    tiers = tier_qualities(rows, feedback, unjudged)
    return {
        "tiers": [{"tier": tier, **figures.as_json()} for tier, figures in tiers.items()],
        "judge_and_people": agreement(rows, feedback).as_json(),
        "shadows": [{"candidate": name, **paired_quality(pairs).as_json()} for name, pairs in shadows.items()],
    }


@dataclass(frozen=True, slots=True)
class PairedQuality:
    """What a judge says of two answers to each of `pairs` requests, the new and the present one."""

    pairs: int
    new: float
    """Share of the new answers that are adequate, 0..1."""
    present: float
    new_better: int
    present_better: int
    difference: QualityDifference
    """New less present, request by request."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """Say it in one line."""
        alike, change = self.pairs - self.new_better - self.present_better, self.difference
        return (
            f"{self.pairs} pairs judged: better {self.new_better}, worse {self.present_better}, alike {alike}; "
            f"adequate {percent(self.new)} against {percent(self.present)}: {points(change.value)} points (95% "
            f"interval {points(change.low)} to {points(change.high)}, by the judge alone)"
        )


def paired_quality(rows: Sequence[tuple[int, float, float, str]]) -> PairedQuality:
    """Return how new answers compare with the present ones to the same requests, at least one.

    Each row has the conversation, how adequate the new and the present answer are, and which is better: `new`,
    `present` or anything else for neither. The interval is that of a difference of pairs, between conversations.
    """
    new, present = (np.array([row[at] for row in rows], np.float64) for at in (1, 2))
    value, variance = _mean_of(new - present, np.array([row[0] for row in rows], np.int64))
    half = _Z * math.sqrt(variance)
    return PairedQuality(
        len(rows),
        float(new.mean()),
        float(present.mean()),
        sum(row[3] == "new" for row in rows),
        sum(row[3] == "present" for row in rows),
        QualityDifference(value, max(-1.0, value - half), min(1.0, value + half), "judge"),
    )


def prediction_powered(
    predicted: Floats, people: Floats, predicted_there: Floats, units: tuple[Ints | None, Ints | None] = (None, None)
) -> tuple[float, float]:
    """Return the estimate of the mean of people's ratings, and its variance.

    `predicted` are the judge's labels where people said nothing, `predicted_there` those where they gave `people`.
    `units` are those of both.
    """
    n, many = len(people), len(predicted)
    spread = float(np.var(np.concatenate([predicted, predicted_there])))
    together = float(np.mean((people - people.mean()) * (predicted_there - predicted_there.mean())))
    weight = 0.0 if not spread or not many else float(np.clip(together / ((1 + n / many) * spread), 0, 1))
    value, variance = _mean_of(people - weight * predicted_there, units[1])
    if many and weight:
        more, its_variance = _mean_of(predicted, units[0])
        value, variance = value + weight * more, variance + weight**2 * its_variance
    return value, variance


def _powered(opinions: Opinions, alone: NDArray[np.bool_], both: NDArray[np.bool_]) -> tuple[float, float]:
    unit = opinions.unit
    units = (None, None) if unit is None else (unit[alone], unit[both])
    return prediction_powered(opinions.judge[alone], opinions.people[both], opinions.judge[both], units)


def _mean(values: Floats, unit: Ints | None, rows: NDArray[np.bool_]) -> tuple[float, float]:
    return _mean_of(values[rows], None if unit is None else unit[rows])


def _mean_of(values: Floats, unit: Ints | None) -> tuple[float, float]:
    """Return the mean and its variance, from the differences between units."""
    n, mean = len(values), float(values.mean())
    residuals: Floats = values - mean
    if unit is not None:
        _, which = np.unique(unit, return_inverse=True)
        residuals = np.asarray(np.bincount(which, residuals), np.float64)
    units = len(residuals)
    if units < 2:
        return mean, 1.0
    # No fewer than one that differs: that none of a few did does not mean that none ever does.
    return mean, max(float(residuals @ residuals), 1.0) * units / (units - 1) / n**2


def _alone(
    values: Floats, unit: Ints | None, rows: NDArray[np.bool_], counts: tuple[int, int, int], *, corrected: bool
) -> Quality:
    """Return the mean of these opinions alone, with the score interval of as many independent ones."""
    mean, variance = _mean(values, unit, rows)
    n = int(rows.sum())
    independent = mean * (1 - mean) / n
    if unit is not None and independent and variance > independent:
        n = max(1, round(n * independent / variance))
    low, high = wilson(mean, n)
    return Quality(mean, low, high, variance, *counts, corrected=corrected)
