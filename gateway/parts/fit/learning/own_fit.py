"""Fit heads on top of a classifier to a surface's own labels (`routing.difficulty.own_heads`).

Each tier's logit is the classifier's own, plus a correction whose weights have a normal prior around zero. How wide the
prior is, is chosen by cross-validation over conversations within the labels that are fitted, "no correction but the
level" included; so few labels, or labels that the classifier explains already, leave it nearly as it is. A last
logistic fit to the held-out folds' logits calibrates the probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.folds import by_text
from gateway.parts.fit.learning.labels import OwnLabels
from gateway.parts.fit.libraries import one_thread
from gateway.parts.fit.training.domain import unit_centroids
from gateway.parts.fit.training.logistic import fit_logistic
from gateway.report import OnProgress
from routing.difficulty.model import QUANTILES
from routing.difficulty.own_heads import OwnHeads, base_logits

_FOLDS: Final = 5
_WIDTHS: Final = (0.0, 0.5, 1.5, 4.0, 10.0)
"""Standard deviations of the prior of the logit's change by the vector; by the counts it is a third of that."""
_COUNTS_TO_VECTOR: Final = 1 / 3
_BASE: Final = 0.5
"""Standard deviation of the prior of the weight of the classifier's logit, around 1 within its domain and 0 outside."""
_CENTROIDS: Final = 32
_OUTSIDE: Final = 0.01
"""Share of the labelled requests that may lie further from all centroids than what counts as near."""


@dataclass(frozen=True, slots=True)
class OwnFit:
    """Fitted heads; `width` is the prior's that was chosen, 0 for a correction of the level alone."""

    heads: OwnHeads
    width: float


def fit_own(labels: OwnLabels, kinds: int, seed: int, on_progress: OnProgress) -> OwnFit:
    """Fit to all of these labels. Equal labels give equal heads. Raises LibraryMissing."""
    with one_thread():
        fold = by_text(labels.conversation.tolist(), _FOLDS, seed)
        best: tuple[float, float, Floats] | None = None
        for done, width in enumerate(_WIDTHS):
            on_progress("cross-validating", done, len(_WIDTHS))
            logits = np.zeros((len(labels), 2))
            for number in range(_FOLDS):
                held = fold == number
                weights = _weights(labels.take(~held), width)
                logits[held] = _logits(labels.take(held), weights)
            loss = float((np.logaddexp(0, logits) - labels.right * logits).mean())
            if best is None or loss < best[0]:
                best = loss, width, logits
        on_progress("cross-validating", len(_WIDTHS), len(_WIDTHS))
        if best is None:
            raise AssertionError("there are widths to choose from")
        _, width, logits = best
        weights = _weights(labels, width)
        for tier in range(2):  # Platt's calibration; being linear in the logit, it becomes part of the weights
            slope, level = fit_logistic(logits[:, tier : tier + 1], labels.right[:, tier], 1.0)
            if slope > 0:
                weights[tier] *= slope
                weights[tier][-2:] += level
                logits[:, tier] = logits[:, tier] * slope + level
        centroids, similarity = unit_centroids(labels.vectors, _CENTROIDS, _OUTSIDE, seed)
    p = 1 / (1 + np.exp(-logits))
    quantiles = np.quantile(p[:, 1] - p[:, 0], QUANTILES)
    return OwnFit(_heads(labels, weights, centroids, similarity, np.tile(quantiles, (kinds, 1))), width)


def _features(labels: OwnLabels) -> tuple[Floats, Floats]:
    """Return the columns that are weighed besides vector and counts: the classifier's logit, apart inside and outside.

    Shape (n, 2) for each tier: (n, 2, 2).
    """
    base = base_logits(labels.p_right)
    inside = labels.in_domain[:, None]
    return np.stack([base * inside, base * ~inside], axis=-1), np.where(inside, base, 0.0)


def _weights(labels: OwnLabels, width: float) -> Floats:
    """Return the weights of both tiers, shape (2, dimension + counts + 4): those of the classifier's logit inside and
    outside its domain, and both intercepts, stand last.
    """
    columns, offset = _features(labels)
    mean, spread = labels.counts.mean(axis=0), labels.counts.std(axis=0)
    scale = np.divide(width * _COUNTS_TO_VECTOR, spread, out=np.zeros_like(spread), where=spread > 1e-6)
    outside = (~labels.in_domain).astype(np.float64)[:, None]
    both = labels.in_domain.any() and not labels.in_domain.all()
    made = []
    for tier in range(2):
        inputs = np.hstack(
            [
                labels.vectors * width,
                (labels.counts - mean) * scale,
                columns[:, tier] * _BASE,
                outside * (1.0 if both else 0.0),
            ]
        )
        right = labels.right[:, tier]
        start = 0.0 if right.min() == right.max() else 1.0  # then the level says it all
        at = fit_logistic(inputs, right, 1.0, offset[:, tier] * start)
        *by_input, more_outside, level = at
        by_vector, by_counts, by_base = np.split(by_input, [labels.vectors.shape[1], len(by_input) - 2])
        by_counts = by_counts * scale
        level -= float(by_counts @ mean)
        base = by_base * _BASE + np.array([start, 0.0])
        made.append(np.concatenate([by_vector * width, by_counts, base, [level, level + more_outside]]))
    return np.array(made)


def _logits(labels: OwnLabels, weights: Floats) -> Floats:
    """Return the logits of both tiers, shape (n, 2)."""
    columns, _ = _features(labels)
    inside = labels.in_domain[:, None]
    logits = np.hstack([labels.vectors, labels.counts]) @ weights[:, :-4].T
    logits += np.einsum("ntb,tb->nt", columns, weights[:, -4:-2])
    return np.asarray(logits + np.where(inside, weights[:, -2], weights[:, -1]))


def _heads(labels: OwnLabels, weights: Floats, centroids: Floats, similarity: float, quantiles: Floats) -> OwnHeads:
    width = labels.vectors.shape[1]
    low, high = labels.counts.min(axis=0), labels.counts.max(axis=0)
    parts = weights[:, :width], weights[:, width:-4], weights[:, -4:-2], weights[:, -2:]
    numbers = (*parts, low, high, centroids, np.array([similarity]), quantiles)
    return OwnHeads(*(np.asarray(each, np.float32) for each in numbers))
