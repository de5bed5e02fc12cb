"""Fit the expected gain of calling the large model on one kind of task, given the small model's answer.

The gain is a decreasing line in the rank of the log-probability, plus a correction by logistic heads over the evidence
and the prompt's vector. The correction's weight is decided on held-out answers: the least-squares weight, less what
chance alone would give it (James and Stein's positive part). Where the heads do no better than chance the ranking is
exactly that of the raw log-probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import DataError, Example
from gateway.parts.fit.training.logistic import fit_logistic

Rows = NDArray[np.intp]

_INNER_FOLDS = 5
# Scales of the inputs, which set how weakly each is regularised; by 5-fold APGR of six pairs of models on three data
# sets. The small answer's evidence says next to nothing of the large model and costs ranking: it is held tightly.
_VECTOR_SCALE = 0.4
_LARGE_EVIDENCE_SCALE = 0.1
_SOFT = 1e-3  # log-probabilities nearer to 0 count as equal
_LEAST_SLOPE = 0.05  # keeps the gain decreasing in the log-probability, whatever few labels suggest
_FAR = 0.02  # share of a task's own prompts that are too far from its others
_NEIGHBOURS = 5
_KNOWN = 2000  # prompts to compare others with, at most: sufficient, and it bounds the memory


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """For each answer of the small model, in order: P(right), and the score that prompts are ranked by.

    `p_right` (n,) is calibrated. `gain` (n,) is ordinal: the highest go to the large model first.
    """

    p_right: Floats
    gain: Floats


@dataclass(frozen=True, slots=True)
class GainTable:
    """Examples as arrays, one row each. `evidence` (n, 4) starts with the softened log-probability."""

    logprob: Floats
    evidence: Floats
    vectors: Floats
    small: Floats
    large: Floats
    task: tuple[str, ...]

    @classmethod
    def of(cls, examples: Sequence[Example], vectors: NDArray[Any]) -> GainTable:
        confidences = [example.answers[0].confidence for example in examples]
        logprob = np.array([np.nan if value is None else value for value in confidences], np.float64)
        if not np.isfinite(logprob).all():
            raise DataError(
                f"{int((~np.isfinite(logprob)).sum())} of {len(examples)} answers of the small model have no "
                "confidence; a head is fitted to answers with log-probabilities"
            )
        tokens = [float(example.answers[0].tok_out or 0) for example in examples]
        negative = np.minimum(logprob, 0.0)
        evidence = np.stack(
            [-np.log(_SOFT - negative), np.exp(negative), np.maximum(negative, -6.0), np.log1p(tokens)], axis=1
        )
        return cls(
            logprob,
            evidence,
            np.asarray(vectors, np.float64),
            np.array([example.small for example in examples]),
            np.array([example.large for example in examples]),
            tuple(example.dataset for example in examples),
        )

    def take(self, rows: Rows) -> GainTable:
        return GainTable(
            self.logprob[rows],
            self.evidence[rows],
            self.vectors[rows],
            self.small[rows],
            self.large[rows],
            tuple(self.task[row] for row in rows.tolist()),
        )

    @property
    def gain(self) -> Floats:
        return self.large - self.small


@dataclass(frozen=True, slots=True)
class Scale:
    """Standardises columns by the mean and deviation of its training columns; constant columns become 0."""

    mean: Floats
    factor: Floats

    @classmethod
    def of(cls, columns: Floats) -> Scale:
        deviation = columns.std(axis=0)
        factor = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
        return cls(columns.mean(axis=0), factor)

    def __call__(self, columns: Floats) -> Floats:
        return (columns - self.mean) * self.factor


@dataclass(frozen=True, slots=True)
class GainLine:
    """The gain as a decreasing line in the share of a task's answers whose log-probability is lower."""

    logprobs: Floats
    slope: float

    @classmethod
    def of(cls, table: GainTable) -> GainLine:
        logprobs = np.sort(table.logprob)
        rank = share_below(logprobs, table.logprob) - 0.5
        slope = float(rank @ (table.gain - table.gain.mean())) / max(float(rank @ rank), 1e-9)
        return cls(logprobs, min(slope, -_LEAST_SLOPE))

    def __call__(self, logprob: Floats) -> Floats:
        return self.slope * (share_below(self.logprobs, logprob) - 0.5)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Logistic heads of one task: P(small right) and P(large right) from the evidence and the prompt's vector."""

    scale: Scale
    centre: Floats
    small: Floats
    large: Floats

    @classmethod
    def of(cls, table: GainTable) -> _Heads:
        scale, centre = Scale.of(table.evidence), table.vectors.mean(axis=0)
        unfitted = cls(scale, centre, np.zeros(0), np.zeros(0))
        small, large = unfitted._inputs(table)
        return cls(scale, centre, logistic(small, table.small), logistic(large, table.large))

    def _inputs(self, table: GainTable) -> tuple[Floats, Floats]:
        evidence = self.scale(table.evidence)
        vectors = (table.vectors - self.centre) * _VECTOR_SCALE
        return np.hstack([evidence, vectors]), np.hstack([evidence * _LARGE_EVIDENCE_SCALE, vectors])

    def __call__(self, table: GainTable) -> tuple[Floats, Floats]:
        """Return P(small right) and P(large right)."""
        small, large = self._inputs(table)
        return applied(self.small, small), applied(self.large, large)


@dataclass(frozen=True, slots=True)
class GainTask:
    """The fit of one task with enough labels: its line, its heads, and the weight of the heads' correction."""

    level: float
    line: GainLine
    heads: _Heads
    offset: float
    weight: float
    low: Floats
    high: Floats
    nearest: Floats
    """Vectors of the task's prompts, at most _KNOWN of them."""
    near: float

    @classmethod
    def of(cls, table: GainTable, level: float) -> GainTask:
        weight = _trust(table)
        heads, line = _Heads.of(table), GainLine.of(table)
        small, large = heads(table)
        some = table.vectors[:: -(-len(table.vectors) // _KNOWN)]
        near = _nearness(some, some, itself=True)
        return cls(
            level,
            line,
            heads,
            float((large - small).mean()),
            weight,
            table.evidence.min(axis=0),
            table.evidence.max(axis=0),
            some,
            float(np.quantile(near, _FAR)),
        )

    def knows(self, table: GainTable) -> NDArray[np.bool_]:
        within = (table.evidence >= self.low - 1e-9) & (table.evidence <= self.high + 1e-9)
        return np.asarray(within.all(axis=1) & (_nearness(table.vectors, self.nearest, itself=False) >= self.near))

    def judge(self, table: GainTable) -> JudgedPair:
        small, large = self.heads(table)
        line = self.line(table.logprob)
        return JudgedPair(small, self.level + line + self.weight * (large - small - self.offset - line))


def _trust(table: GainTable) -> float:
    """Return the weight, 0..1, of the heads' correction to the line, by how much it helps on held-out parts."""
    fold = np.random.default_rng(0).permutation(np.arange(len(table.logprob)) % _INNER_FOLDS)
    beyond, left, raw = np.zeros(len(fold)), np.zeros(len(fold)), np.zeros(len(fold))
    for number in range(_INNER_FOLDS):
        fitted, held = table.take(np.flatnonzero(fold != number)), table.take(np.flatnonzero(fold == number))
        heads, line = _Heads.of(fitted), GainLine.of(fitted)
        small, large = heads(held)
        own = raw[fold == number] = line(held.logprob)
        difference = large - small - own
        # Only differences within the fold count: its mean belongs to the level, and would leak the held-out labels.
        beyond[fold == number] = difference - difference.mean()
        left[fold == number] = held.gain - own - (held.gain - own).mean()
    power = float(beyond @ beyond)
    if power <= 0:
        return 0.0
    weight = float(beyond @ left) / power
    variance = float(((left - weight * beyond) ** 2).mean()) / power
    weight = float(np.clip(weight - variance / weight, 0.0, 1.0)) if weight > 0 else 0.0
    return weight if weight > 0 and _ranks_better(table, raw, beyond * weight, fold) else 0.0


def _ranks_better(table: GainTable, raw: Floats, correction: Floats, fold: NDArray[np.int64]) -> bool:
    """Return whether the corrected order recovers more of the gain than `raw` does, by more than one standard error.

    Both (n,) were fitted without the row's `fold`. The error is that of the parts' mean difference: what helps the
    squared error may still cost ranking, and then the raw order is kept.
    """
    saved = []
    for number in range(_INNER_FOLDS):
        held = fold == number
        gain = table.gain[held]
        both = (raw[held] + correction[held], raw[held])
        corrected, plain = (_area(score, gain) for score in both)
        saved.append(corrected - plain)
    values = np.array(saved)
    return bool(values.mean() > values.std(ddof=1) / np.sqrt(_INNER_FOLDS))


def _area(score: Floats, gain: Floats) -> float:
    """Return how much gain sending the highest scores first recovers, as a covariance of rank and gain."""
    ranks = share_below(np.sort(score), score) - 0.5
    return float((ranks * (gain - gain.mean())).mean())


def logistic(inputs: Floats, right: Floats) -> Floats:
    """Fit shares of right answers; return the coefficients, intercept last. One class only gives smoothed log-odds."""
    if len(right) == 0:
        raise DataError("there are no labelled answers to fit to")
    return fit_logistic(inputs, right, 1.0)


def applied(coefficients: Floats, inputs: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(inputs @ coefficients[:-1] + coefficients[-1], -30.0, 30.0))))


def share_below(ordered: Floats, values: Floats) -> Floats:
    """Return for each value the share of the ordered ones below it, equal ones counting half."""
    left, right = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((left + right) / (2.0 * max(len(ordered), 1)))


def _nearness(vectors: Floats, others: Floats, *, itself: bool) -> Floats:
    """Return the mean cosine with the nearest few of the others; with `itself`, each one's own vector is excluded."""
    cosines = vectors @ others.T
    if itself:
        np.fill_diagonal(cosines, -1.0)
    count = min(_NEIGHBOURS, max(1, cosines.shape[1] - 1))
    return np.asarray(np.partition(cosines, -count, axis=1)[:, -count:].mean(axis=1)) if len(vectors) else np.zeros(0)
