"""Fit heads on top of a classifier to a surface's own labels (`routing.difficulty.own_heads`).

Each tier's logit is the classifier's own, plus a correction whose weights have a normal prior around zero. How wide the
prior is, is chosen by cross-validation over conversations within the labels that are fitted, "no correction but the
level" included; so few labels, or labels that the classifier explains already, leave it nearly as it is.

Beside this head stand a ridge over vector and counts, and the mean outcome of the nearest labels, which know nothing of
the classifier. A last logistic fit to the held-out folds' scores calibrates each, and the least log-loss chooses kind
and setting. What is held out of the call measures them and chooses nothing: the cross-validation is nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from routing.difficulty.own_heads import OwnHeads, base_logits, mean_outcome

_FOLDS: Final = 5
_WIDTHS: Final = (0.0, 0.5, 1.5, 4.0, 10.0)
"""Standard deviations of the prior of the logit's change by the vector; by the counts it is a third of that."""
_COUNTS_TO_VECTOR: Final = 1 / 3
_PENALTIES: Final = (1.0, 3.0, 10.0, 30.0)
"""Penalties of the ridge's weights, squared."""
_NEIGHBOURS: Final = (10, 20, 40, 80)
"""How many of the nearest labels may count; more than a third of the labels never do."""
MOST_STORED: Final = 1500
"""How many labels neighbours may be stored of: the request's vector is multiplied by each."""
KINDS: Final = ("head", "ridge", "neighbours")
_BASE: Final = 0.5
"""Standard deviation of the prior of the weight of the classifier's logit, around 1 within its domain and 0 outside."""
_CENTROIDS: Final = 32
_OUTSIDE: Final = 0.01
"""Share of the labelled requests that may lie further from all centroids than what counts as near."""


@dataclass(frozen=True, slots=True)
class OwnFit:
    """Fitted heads, their `kind`, and its setting that was chosen.

    The setting is the width of the prior of `head` (0: a correction of the level alone), the penalty of `ridge`, or how
    many `neighbours` count. `losses` has the least cross-validated log-loss of each kind.
    """

    heads: OwnHeads
    kind: str
    setting: float
    losses: Mapping[str, float]


def fit_own(
    labels: OwnLabels, kinds: int, seed: int, on_progress: OnProgress, offered: Sequence[str] = KINDS
) -> OwnFit:
    """Fit to all of these labels, by one of the kinds `offered`. Equal labels give equal heads. Raises LibraryMissing.

    `kinds` is how many kinds of requests the classifier tells apart.
    """
    with one_thread():
        fold = by_text(labels.conversation.tolist(), _FOLDS, seed)
        best: tuple[float, str, float, Floats, Floats] | None = None
        losses: dict[str, float] = {}
        candidates = [(kind, setting) for kind, setting in _candidates(len(labels)) if kind in offered]
        for done, (kind, setting) in enumerate(candidates):
            on_progress("cross-validating", done, len(candidates))
            scores = np.zeros((len(labels), 2))
            for number in range(_FOLDS):
                held = fold == number
                scores[held] = _scores(labels.take(~held), labels.take(held), kind, setting)
            lines, logits = _calibrated(scores, labels.right, keep=kind == "head")
            loss = float((np.logaddexp(0, logits) - labels.right * logits).mean())
            losses[kind] = min(loss, losses.get(kind, np.inf))
            if best is None or loss < best[0]:
                best = loss, kind, setting, lines, logits
        on_progress("cross-validating", len(candidates), len(candidates))
        if best is None:
            raise AssertionError("there are settings to choose from")
        _, kind, setting, lines, logits = best
        centroids, similarity = unit_centroids(labels.vectors, _CENTROIDS, _OUTSIDE, seed)
        if kind == "neighbours":
            weights = np.zeros((2, labels.vectors.shape[1] + labels.counts.shape[1] + 4))
        else:
            weights = _weights(labels, setting) if kind == "head" else _ridge(labels, setting)
            weights *= lines[:, :1]
        weights[:, -2:] += lines[:, 1:]
    p = 1 / (1 + np.exp(-logits))
    quantiles = np.tile(np.quantile(p[:, 1] - p[:, 0], QUANTILES), (kinds, 1))
    heads = _heads(labels, weights, centroids, similarity, quantiles)
    if kind == "neighbours":
        numbers = labels.vectors, labels.right, np.array([setting, *lines[:, 0]])
        stored, outcomes, nearest = (np.asarray(each, np.float32) for each in numbers)
        heads = replace(heads, stored=stored, outcomes=outcomes, nearest=nearest)
    return OwnFit(heads, kind, setting, losses)


def _candidates(labels: int) -> list[tuple[str, float]]:
    """Return the kinds and settings to choose from, for so many labels; the first is the correction of the level."""
    counts = [count for count in _NEIGHBOURS if 3 * count <= labels <= MOST_STORED]
    by_kind = zip(KINDS, (_WIDTHS, _PENALTIES, counts), strict=True)
    return [(kind, float(setting)) for kind, settings in by_kind for setting in settings]


def _scores(fitted: OwnLabels, held: OwnLabels, kind: str, setting: float) -> Floats:
    """Return the scores (n, 2) of the labels `held` by a fit to the others."""
    if kind == "neighbours":
        return np.asarray(mean_outcome(held.vectors, fitted.vectors, fitted.right, int(setting)), np.float64)
    return _logits(held, _weights(fitted, setting) if kind == "head" else _ridge(fitted, setting))


def _calibrated(scores: Floats, right: Floats, keep: bool) -> tuple[Floats, Floats]:
    """Return each tier's slope and level (2, 2) by Platt's calibration, and the logits (n, 2) that come of them.

    A slope never is negative. Where it would be, the scores stay as they are if `keep` (they are logits already), and
    else the level stands alone.
    """
    lines = np.zeros((2, 2))
    for tier in range(2):
        column = scores[:, tier]
        mean, spread = (0.0, 1.0) if keep else (column.mean(), max(column.std(), 1e-6))
        slope, level = fit_logistic(((column - mean) / spread)[:, None], right[:, tier], 1.0)
        if slope > 0:
            lines[tier] = slope / spread, level - slope * mean / spread
        elif keep:
            lines[tier] = 1.0, 0.0
        else:
            lines[tier] = 0.0, fit_logistic(np.zeros((len(right), 1)), right[:, tier], 1.0)[1]
    return lines, scores * lines[:, 0] + lines[:, 1]


def _ridge(labels: OwnLabels, penalty: float) -> Floats:
    """Return the weights of both tiers, as `_weights` does, of a ridge over vectors and counts."""
    from sklearn.linear_model import Ridge

    mean, spread = labels.counts.mean(axis=0), labels.counts.std(axis=0)
    scale = np.divide(_COUNTS_TO_VECTOR / np.sqrt(len(mean)), spread, out=np.zeros_like(spread), where=spread > 1e-6)
    model = Ridge(alpha=penalty).fit(np.hstack([labels.vectors, (labels.counts - mean) * scale]), labels.right)
    by_vector, by_counts = np.split(model.coef_, [labels.vectors.shape[1]], axis=1)
    by_counts = by_counts * scale
    level = (model.intercept_ - by_counts @ mean)[:, None]
    return np.hstack([by_vector, by_counts, np.zeros((2, 2)), level, level])


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
