"""Compute cost-quality curves: the gain as ever more prompts go to the large model, in the order of a score.

Prompts of equal score are taken in random order and the curve shows the average gain: a straight line over them. So a
constant score equals random, and a coarse score gets no credit for an arbitrary order. Every function takes weights,
one row for each resample, and returns a value for each row: a bootstrap is one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
_BINS = 10


@dataclass(frozen=True, slots=True)
class Blocks:
    """Items in descending order of a score, equal scores in one block; computed once, used for every resample."""

    order: NDArray[np.intp]
    starts: NDArray[np.intp] | None
    """Where in the order each block starts; None where no two scores are equal."""

    @classmethod
    def of(cls, score: Floats) -> Blocks:
        """Return the blocks of these scores, shape (items,)."""
        order = np.argsort(-score, kind="stable")
        ordered = score[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        return cls(order, None if len(starts) == len(order) else starts)

    def total(self, values: Floats) -> Floats:
        """Return the sum of `values` (resamples, items) over each block: shape (resamples, blocks)."""
        ordered = values[:, self.order]
        return ordered if self.starts is None else np.add.reduceat(ordered, self.starts, axis=1)


@dataclass(frozen=True, slots=True)
class Curve:
    """Cumulative gain against calls for each resample: shapes (resamples, blocks); `d_` values are each block's own.

    `calls` counts prompts that go to the large model, `gain` the additional right answers relative to sending none.
    """

    d_calls: Floats
    d_gain: Floats
    calls: Floats
    gain: Floats

    @classmethod
    def of(cls, blocks: Blocks, gain: Floats, weights: Floats) -> Curve:
        """Compute the curve of items with this `gain` (items,), each counted `weights` (resamples, items) times."""
        d_calls, d_gain = blocks.total(weights), blocks.total(weights * gain)
        return cls(d_calls, d_gain, np.cumsum(d_calls, axis=1), np.cumsum(d_gain, axis=1))

    def recovered(self) -> Floats:
        """Return APGR (RouteLLM, Ong et al. 2024) for each resample: the mean over all shares of large calls of the
        share of the whole gain that is recovered. NaN where there is nothing to gain."""
        area = (self.d_calls * (self.gain - self.d_gain / 2)).sum(axis=1)
        gap = np.where(self.gain[:, -1] > 0, self.gain[:, -1], np.nan)
        return np.asarray(area / (self.calls[:, -1] * gap))

    def calls_for(self, gain: Floats) -> Reached:
        """Return where each resample's curve first reaches its `gain`, shape (resamples,)."""
        reached = self.gain >= gain[:, None]
        block = reached.argmax(axis=1)
        rows = np.arange(len(gain))
        missing = gain - (self.gain[rows, block] - self.d_gain[rows, block])
        step = self.d_gain[rows, block]
        part = np.divide(missing, step, out=np.zeros_like(missing), where=step > 0).clip(0, 1)
        never = ~reached[rows, block] & (gain > 0)
        return Reached(block, np.where(never, np.nan, np.where(gain > 0, part, 0.0)), gain <= 0)


@dataclass(frozen=True, slots=True)
class Reached:
    """A point on each resample's curve: the share `part` (0..1, NaN for never) of `block`; `at_once` for the start."""

    block: NDArray[np.intp]
    part: Floats
    at_once: NDArray[np.bool_]

    def sum_of(self, d_values: Floats) -> Floats:
        """Return, for each resample, the sum of the values of the blocks (resamples, blocks) up to its point."""
        rows = np.arange(len(self.block))
        own = d_values[rows, self.block]
        before = np.cumsum(d_values, axis=1)[rows, self.block] - own
        return np.where(self.at_once, 0.0, before + self.part * own)


def heights(curve: Curve, shares: Floats) -> Floats:
    """Return the gain at these shares of large calls for each resample: shape (resamples, shares)."""
    rows = zip(curve.calls, curve.gain, strict=True)
    return np.array([np.interp(shares * x[-1], np.append(0.0, x), np.append(0.0, y)) for x, y in rows])


def calibration_errors(blocks: Blocks, error: Floats, weights: Floats) -> Floats:
    """Return the expected calibration error in ten bins of equal count for each resample.

    `blocks` orders the probabilities; `error` (items,) is each probability minus the outcome. Where a bin ends among
    equal probabilities, each counts in part.
    """
    count = np.cumsum(blocks.total(weights), axis=1)
    total = np.cumsum(blocks.total(weights * error), axis=1)
    edges = np.linspace(0, 1, _BINS + 1)
    rows = zip(count, total, strict=True)
    sums = np.array([np.interp(edges * x[-1], np.append(0.0, x), np.append(0.0, y)) for x, y in rows])
    return np.asarray(np.abs(np.diff(sums, axis=1)).sum(axis=1) / count[:, -1])


def calibration_error(probability: Floats, correct: Floats) -> float:
    """Return the expected calibration error: mean distance of probability and outcome, in ten bins of equal count."""
    once = np.ones((1, len(probability)))
    return float(calibration_errors(Blocks.of(probability), probability - correct, once)[0])


def auroc(score: Floats, right: Floats) -> float:
    """Return the probability that a right answer scores higher than a wrong one; ties count half.

    A fractional label counts as right and as wrong in proportion. NaN where all are right, or all wrong.
    """
    return float(aurocs(Blocks.of(score), right, np.ones((1, len(score))))[0])


def aurocs(blocks: Blocks, right: Floats, weights: Floats) -> Floats:
    """Return the AUROC of each resample; `blocks` orders the scores of the labels `right` (items,)."""
    positive, negative = blocks.total(weights * right), blocks.total(weights * (1 - right))
    below = negative.sum(axis=1, keepdims=True) - np.cumsum(negative, axis=1)
    pairs = positive.sum(axis=1) * negative.sum(axis=1)
    hits = (positive * (below + negative / 2)).sum(axis=1)
    return np.asarray(np.divide(hits, pairs, out=np.full_like(hits, np.nan), where=pairs > 0))
