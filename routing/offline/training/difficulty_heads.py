"""The difficulty classifier's heads: logistic regressions over words, vectors and counts.

Each kind of task has a head for each tier, and one that tells the task from the others. One fit over all kinds ranks
MMLU at an APGR of 0.643 where its own heads reach 0.677. kNN over labelled neighbours (0.641) and gradient boosting
(0.625) over the same vectors rank worse than the logistic heads (0.661), and so does every average with them; what
helps is the words (5-fold on routellm_mmlu, static vectors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from routing.difficulty.lexicon import ENOUGH
from routing.difficulty.model import mix
from routing.offline.evaluation.metrics import Floats
from routing.offline.training.table import TrainingTable

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_RAREST = 5  # texts: the words of fewer teach nothing that carries over
# What is believed of the heads before any label, as the deviation of a weight: a word's, a coordinate's of the unit
# vector, a standardised count's. The same for any number of labels, so that many may say more than few. Chosen by
# 5-fold APGR on routellm_mmlu (whole, and by 1,500 labels) and routellm_gsm8k.
_WORD_PRIOR = 0.8
_VECTOR_PRIOR = 0.35
_COUNT_PRIOR = 0.13
_TASK_LOOSENESS = 100.0  # kinds of task are easily told apart, and doubt between them costs each its ranking
_QUESTION_WEIGHT = 0.5  # the label of a question without its choices is borrowed


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of `tasks` (k,) kinds of task: a logit for each tier, then one for the kind itself.

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
        """Shape (rows, k, tiers + 1)."""
        words = _weighted(table.terms[rows], self.rarity) @ self.words.reshape(len(self.rarity), -1)
        dense = np.einsum("nd,thd->nth", table.vectors[rows], self.vector, optimize=True)
        dense += np.einsum("nd,thd->nth", table.counts[rows], self.counts, optimize=True)
        return np.asarray(dense + words.reshape(dense.shape) + self.bias)

    def probabilities(self, table: TrainingTable, rows: NDArray[np.intp]) -> Floats:
        """P(right), shape (rows, tiers)."""
        return mix(self.logits(table, rows))

    def moved_to(self, mean: float, table: TrainingTable) -> tuple[Heads, float]:
        """The cheapest tier's heads moved by one offset, which is returned too, so that it is right that often."""
        logits = self.logits(table, np.arange(table.prompts))
        cheapest = np.zeros(self.bias.shape)
        cheapest[:, 0] = 1.0
        step = _rising_to(mean, lambda step: float(mix(logits + step * cheapest)[:, 0].mean()))
        return replace(self, bias=self.bias + step * cheapest), step


@dataclass(frozen=True, slots=True)
class GeneralHeads:
    """What the counts alone say of any text: `counts` (tiers, counts), `bias` (tiers,)."""

    counts: Floats
    bias: Floats

    def probabilities(self, table: TrainingTable, rows: NDArray[np.intp]) -> Floats:
        """P(right), shape (rows, tiers)."""
        return np.asarray(1 / (1 + np.exp(-(table.counts[rows] @ self.counts.T + self.bias))))

    def moved_to(self, mean: float, table: TrainingTable) -> GeneralHeads:
        """As `Heads.moved_to`."""
        logits = (table.counts[: table.prompts] @ self.counts.T + self.bias)[:, 0]
        step = _rising_to(mean, lambda step: float((1 / (1 + np.exp(-(logits + step)))).mean()))
        return replace(self, bias=self.bias + step * (np.arange(len(self.bias)) == 0))


def _rising_to(goal: float, at: Callable[[float], float]) -> float:
    """Where a rising function reaches the goal."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) < goal else (low, middle)
    return (low + high) / 2


def fit(table: TrainingTable, chosen: NDArray[np.bool_]) -> Heads:
    """The heads of every kind of task among the chosen prompts, with and without their choices."""
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
        told = _logistic(inputs, task, weight, _TASK_LOOSENESS)
        coefficients[-len(told) :, -1] = told
    return _unscaled(tasks, coefficients, rarity, mean, scale, table.vectors.shape[1])


def fit_general(table: TrainingTable, chosen: NDArray[np.bool_]) -> GeneralHeads:
    """The general heads of the chosen prompts, whatever their kind of task."""
    from scipy.sparse import csr_matrix

    rows = np.flatnonzero(chosen[table.owner])
    mean, scale = _standard(table.counts[rows])
    inputs = csr_matrix((table.counts[rows] - mean) * scale)
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    fitted = np.array([_binary(inputs, right, weight) for right in table.labels[table.owner[rows]].T])
    counts = fitted[:, :-1] * scale
    return GeneralHeads(counts, fitted[:, -1] - counts @ mean)


def _standard(counts: Floats) -> tuple[Floats, Floats]:
    """The mean of the counts, and what to multiply the rest by."""
    spread = counts.std(axis=0)
    # What never varies in the data teaches nothing, and must not weigh when it varies in traffic.
    return counts.mean(axis=0), np.divide(_COUNT_PRIOR, spread, out=np.zeros_like(spread), where=spread > 1e-6)


def _unscaled(
    tasks: NDArray[np.int64], coefficients: Floats, rarity: Floats, mean: Floats, scale: Floats, width: int
) -> Heads:
    """Heads over raw words, vectors and counts, of coefficients over scaled ones."""
    at = len(rarity)
    counts = coefficients[..., at + width : -1] * scale
    words = np.moveaxis(coefficients[..., :at], -1, 0) * _WORD_PRIOR
    vector = coefficients[..., at : at + width] * _VECTOR_PRIOR
    return Heads(tasks, rarity, words, vector, counts, coefficients[..., -1] - counts @ mean)


def _rarity(terms: csr_matrix) -> Floats:
    """How much a bucket's words weigh: the log of one in how many texts says them; 0 for the rarest."""
    texts = np.bincount(terms.indices, minlength=terms.shape[1])
    return np.where(texts < _RAREST, 0.0, 1.0 + np.log((1 + terms.shape[0]) / (1 + texts)))


def _weighted(terms: csr_matrix, rarity: Floats) -> csr_matrix:
    """Each text's terms by their rarity, as `routing.difficulty.lexicon.shortened` has them."""
    weighted = terms.multiply(rarity).tocsr()
    length = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
    return weighted.multiply(1 / np.maximum(length, ENOUGH)[:, None]).tocsr()


def _inputs(table: TrainingTable, rows: NDArray[np.intp], rarity: Floats, mean: Floats, scale: Floats) -> csr_matrix:
    from scipy.sparse import csr_matrix, hstack

    words = _weighted(table.terms[rows], rarity) * _WORD_PRIOR
    dense = np.hstack([table.vectors[rows] * _VECTOR_PRIOR, (table.counts[rows] - mean) * scale])
    return hstack([words, csr_matrix(dense)]).tocsr()


def _binary(inputs: csr_matrix, right: Floats, weight: Floats) -> Floats:
    """Coefficients, the intercept last, of P(right); a label between 0 and 1 counts as that share of an answer."""
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
    """All were right, or all wrong: nothing to tell apart but how often (Laplace's rule of succession)."""
    coefficients = np.zeros(width + 1)
    coefficients[-1] = np.log((right + 1) / (total - right + 1))
    return coefficients


def _logistic(inputs: Any, labels: NDArray[Any], weight: Floats | None, looseness: float) -> Floats:
    """Coefficients with the intercept last: one row for two classes (the second's), else one for each class."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=looseness, max_iter=1000, tol=1e-3).fit(inputs, labels, sample_weight=weight)
    return np.hstack([fitted.coef_, fitted.intercept_[:, None]])
