"""Fit the difficulty classifier's heads: logistic regressions over words, vectors and counts.

Each kind of task has a head for each tier, and one that separates the task from the others. One fit over all kinds
ranks MMLU at an APGR of 0.643, heads of its own at 0.677. kNN over labelled neighbours (0.641) and gradient boosting
(0.625) over the same vectors rank worse than the logistic heads (0.661), and so does every average with them; words
improve it (5-fold on routellm_mmlu, static vectors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline.measures.curves import Floats
from offline.training.table import TrainingTable
from routing.difficulty.model import mix
from routing.difficulty.text_statistics import ENOUGH

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_RAREST = 5  # texts: words that occur in fewer do not generalise
# Standard deviations of the prior of a weight: of a word's, of a coordinate of the unit vector's, of a standardised
# count's. They do not depend on the number of labels, so more labels weigh more. Chosen by 5-fold APGR on
# routellm_mmlu (whole, and by 1,500 labels) and routellm_gsm8k.
_WORD_PRIOR = 0.8
_VECTOR_PRIOR = 0.35
_COUNT_PRIOR = 0.13
_TASK_LOOSENESS = 100.0  # kinds of task are easy to separate, and a blurred separation costs each its ranking
_QUESTION_WEIGHT = 0.5  # a question without its choices takes the full prompt's label, which may not hold for it


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads for `tasks` (k,) kinds of task: a logit for each tier, then one for the kind itself.

    Shapes: `rarity` (BUCKETS,), `words` (BUCKETS, k, tiers + 1), `vector` (k, tiers + 1, dimension), `counts`
    (k, tiers + 1, counts), `bias` (k, tiers + 1).
    """

    tasks: NDArray[np.int64]
    rarity: Floats
    words: Floats
    vector: Floats
    counts: Floats
    bias: Floats

    def logits(self, table: TrainingTable, rows: NDArray[np.intp]) -> Floats:
        """Return the logits, shape (rows, k, tiers + 1)."""
        words = _weighted(table.terms[rows], self.rarity) @ self.words.reshape(len(self.rarity), -1)
        dense = np.einsum("nd,thd->nth", table.vectors[rows], self.vector, optimize=True)
        dense += np.einsum("nd,thd->nth", table.counts[rows], self.counts, optimize=True)
        return np.asarray(dense + words.reshape(dense.shape) + self.bias)

    def probabilities(self, table: TrainingTable, rows: NDArray[np.intp]) -> Floats:
        """Return P(right), shape (rows, tiers)."""
        return mix(self.logits(table, rows))

    def moved_to(self, mean: float, table: TrainingTable) -> tuple[Heads, float]:
        """Shift the cheapest tier's heads so that its mean P(right) is `mean`; return the heads and the offset."""
        logits = self.logits(table, np.arange(table.prompts))
        cheapest = np.zeros(self.bias.shape)
        cheapest[:, 0] = 1.0
        step = _rising_to(mean, lambda step: float(mix(logits + step * cheapest)[:, 0].mean()))
        return replace(self, bias=self.bias + step * cheapest), step


@dataclass(frozen=True, slots=True)
class GeneralHeads:
    """Heads over the counts alone, for texts outside the domain: `counts` (tiers, counts), `bias` (tiers,)."""

    counts: Floats
    bias: Floats

    def probabilities(self, table: TrainingTable, rows: NDArray[np.intp]) -> Floats:
        """Return P(right), shape (rows, tiers)."""
        return np.asarray(1 / (1 + np.exp(-(table.counts[rows] @ self.counts.T + self.bias))))

    def moved_to(self, mean: float, table: TrainingTable) -> GeneralHeads:
        """Shift the cheapest tier's head so that its mean P(right) is `mean`."""
        logits = (table.counts[: table.prompts] @ self.counts.T + self.bias)[:, 0]
        step = _rising_to(mean, lambda step: float((1 / (1 + np.exp(-(logits + step)))).mean()))
        return replace(self, bias=self.bias + step * (np.arange(len(self.bias)) == 0))


def _rising_to(goal: float, at: Callable[[float], float]) -> float:
    """Return where an increasing function reaches the goal, by bisection of -30..30."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) < goal else (low, middle)
    return (low + high) / 2


def fit(table: TrainingTable, chosen: NDArray[np.bool_]) -> Heads:
    """Fit the heads of every kind of task to the chosen prompts, with and without their choices."""
    rows = np.flatnonzero(chosen[table.owner])
    mean, scale = _standard(table.counts[rows])
    rarity = _rarity(table.terms[rows])
    inputs = _inputs(table, rows, rarity, mean, scale)
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    owner = table.owner[rows]
    tasks, task = np.unique(table.task[owner], return_inverse=True)
    coefficients = np.zeros((len(tasks), table.tiers + 1, inputs.shape[1] + 1))
    for number in range(len(tasks)):
        own = np.flatnonzero(task == number)
        for tier in range(table.tiers):
            coefficients[number, tier] = _binary(inputs[own], table.labels[owner[own], tier], weight[own])
    if len(tasks) > 1:
        separating = _logistic(inputs, task, weight, _TASK_LOOSENESS)
        coefficients[-len(separating) :, -1] = separating
    return _unscaled(tasks, coefficients, rarity, mean, scale, table.vectors.shape[1])


def fit_general(table: TrainingTable, chosen: NDArray[np.bool_]) -> GeneralHeads:
    """Fit the general heads to the chosen prompts, whatever their kind of task."""
    from scipy.sparse import csr_matrix

    rows = np.flatnonzero(chosen[table.owner])
    mean, scale = _standard(table.counts[rows])
    inputs = csr_matrix((table.counts[rows] - mean) * scale)
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    fitted = np.array([_binary(inputs, right, weight) for right in table.labels[table.owner[rows]].T])
    counts = fitted[:, :-1] * scale
    return GeneralHeads(counts, fitted[:, -1] - counts @ mean)


def _standard(counts: Floats) -> tuple[Floats, Floats]:
    """Return the mean of the counts, and the factor that standardises the rest."""
    spread = counts.std(axis=0)
    # A count that is constant in the data gets weight 0, so that it has no effect when it varies in traffic.
    return counts.mean(axis=0), np.divide(_COUNT_PRIOR, spread, out=np.zeros_like(spread), where=spread > 1e-6)


def _unscaled(
    tasks: NDArray[np.int64], coefficients: Floats, rarity: Floats, mean: Floats, scale: Floats, width: int
) -> Heads:
    """Convert coefficients over scaled inputs to heads over raw words, vectors and counts."""
    at = len(rarity)
    counts = coefficients[..., at + width : -1] * scale
    words = np.moveaxis(coefficients[..., :at], -1, 0) * _WORD_PRIOR
    vector = coefficients[..., at : at + width] * _VECTOR_PRIOR
    return Heads(tasks, rarity, words, vector, counts, coefficients[..., -1] - counts @ mean)


def _rarity(terms: csr_matrix) -> Floats:
    """Return each bucket's inverse document frequency, 1 + log((1 + texts) / (1 + texts with it)); 0 for the rarest."""
    texts = np.bincount(terms.indices, minlength=terms.shape[1])
    return np.where(texts < _RAREST, 0.0, 1.0 + np.log((1 + terms.shape[0]) / (1 + texts)))


def _weighted(terms: csr_matrix, rarity: Floats) -> csr_matrix:
    """Weight each text's terms by rarity and scale them as `routing.difficulty.text_statistics.shortened` does."""
    weighted = terms.multiply(rarity).tocsr()
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return weighted.multiply(1 / np.maximum(length, ENOUGH)[:, None]).tocsr()


def _inputs(table: TrainingTable, rows: NDArray[np.intp], rarity: Floats, mean: Floats, scale: Floats) -> csr_matrix:
    from scipy.sparse import csr_matrix, hstack

    words = _weighted(table.terms[rows], rarity) * _WORD_PRIOR
    dense = np.hstack([table.vectors[rows] * _VECTOR_PRIOR, (table.counts[rows] - mean) * scale])
    return hstack([words, csr_matrix(dense)]).tocsr()


def _binary(inputs: csr_matrix, right: Floats, weight: Floats) -> Floats:
    """Fit P(right) and return the coefficients, intercept last; a fractional label counts for both classes."""
    from scipy.sparse import vstack

    if np.all((right == 0) | (right == 1)):
        labels = right > 0.5
    else:
        inputs, weight = vstack([inputs, inputs]).tocsr(), np.concatenate([weight * right, weight * (1 - right)])
        labels = np.arange(len(weight)) < len(right)
    if not (0 < weight[labels].sum() < weight.sum()):
        return _constant(inputs.shape[1], float(weight[labels].sum()), float(weight.sum()))
    return np.asarray(_logistic(inputs, labels, weight, 1.0)[0])


def _constant(width: int, right: float, total: float) -> Floats:
    """Return an intercept-only fit for answers that are all right or all wrong (Laplace's rule of succession)."""
    coefficients = np.zeros(width + 1)
    coefficients[-1] = np.log((right + 1) / (total - right + 1))
    return coefficients


def _logistic(inputs: csr_matrix, labels: NDArray[Any], weight: Floats | None, looseness: float) -> Floats:
    """Return coefficients with the intercept last: one row for two classes (the second's), else one per class."""
    from sklearn.linear_model import LogisticRegression

    # The solver's time grows with the columns, most of which are words that none of these texts has; with the penalty
    # on its size, the coefficient of an empty column is 0.
    used = np.unique(inputs.indices)
    if not len(used):
        used = np.zeros(1, dtype=np.int64)  # one empty column: then the shares alone are learned
    fitted = LogisticRegression(C=looseness, max_iter=1000, tol=1e-3).fit(inputs[:, used], labels, sample_weight=weight)
    coefficients = np.zeros((len(fitted.coef_), inputs.shape[1] + 1))
    coefficients[:, used] = fitted.coef_
    coefficients[:, -1] = fitted.intercept_
    return coefficients
