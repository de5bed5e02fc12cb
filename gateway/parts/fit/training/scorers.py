"""Fit the scorers of one part of an answer, best first; the last one uses the raw value alone.

The last one never decreases in the mean log-probability. Before it, if there are enough labels, come ridge logistic
scorers over all features of the tokens and of their alternatives: each only if it beats the simpler one on held-out
answers by more than chance. Probabilities are calibrated on held-out answers: by Platt scaling (two numbers), or by
isotonic regression where that does better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.folds import folds_of
from gateway.parts.fit.training.logistic import fit_logistic
from gateway.parts.heads.head import ALTERNATIVE_FEATURES, TOKEN_FEATURES, LogisticScorer

FEW_LABELS = 200
"""Up to this many labelled answers the ranking stays that of the raw log-probability."""

_FOLDS = 5
_ISOTONIC_LABELS = 150
_STRENGTHS = (0.003, 0.01, 0.03, 0.1)
_LEAST_SLOPE = 1e-3
_SURE = 1e-3  # probabilities are kept at least this far from 0 and 1

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ScorerPart:
    """One part of every answer that has it: features by answer, and how right each answer was (0..1)."""

    name: str
    values: tuple[Values, ...]
    right: Floats
    raw: str = "mean"
    """The feature that the last scorer ranks by."""
    kinds: tuple[tuple[str, ...], ...] = ()
    """The kinds of answers that each belongs to, which are left out whole to see what the scorers are worth there."""

    def take(self, rows: NDArray[np.intp]) -> ScorerPart:
        chosen = rows.tolist()
        kinds = tuple(self.kinds[row] for row in chosen) if self.kinds else ()
        return replace(self, values=tuple(self.values[row] for row in chosen), right=self.right[rows], kinds=kinds)

    def columns(self, names: Sequence[str]) -> Floats:
        return np.array([[values[name] for name in names] for values in self.values], np.float64)

    def has(self, names: Sequence[str]) -> bool:
        return all(name in values for values in self.values for name in names)


def scorers_of(part: ScorerPart, seed: int, *, learned_too: bool = True) -> list[LogisticScorer]:
    """Fit the scorers of a part, in the order in which serving tries them. Needs scikit-learn.

    Without `learned_too` it is the last one alone, which keeps the raw value's order.
    """
    plain = _plain(part, seed)
    if len(part.right) <= FEW_LABELS or not learned_too:
        return [plain]
    fold = folds_of(len(part.right), _FOLDS, seed)
    losses = log_losses(_out_of_fold(part, fold, lambda some: _plain(some, seed)), part.right)
    learned: list[LogisticScorer] = []
    for names in (TOKEN_FEATURES, (*TOKEN_FEATURES, *ALTERNATIVE_FEATURES)):
        if part.has(names):
            scorer, logits = _learned(part, names, fold)
            own = log_losses(1.0 / (1.0 + np.exp(-logits)), part.right)
            better = losses - own
            # It must beat the simpler scorer by more than one standard error.
            if better.mean() > better.std() / np.sqrt(len(better)):
                learned.insert(0, _calibrated(scorer, logits, part.right, seed))
                losses = own
    return [*learned, plain]


def _plain(part: ScorerPart, seed: int) -> LogisticScorer:
    """Fit a scorer over the raw value alone that never decreases in it."""
    scorer = _logistic(part, (part.raw,), 100.0)
    if scorer.weights[0] < _LEAST_SLOPE:
        share = (part.right.sum() + 1.0) / (len(part.right) + 2.0)
        scorer = replace(scorer, weights=(_LEAST_SLOPE,), bias=float(np.log(share / (1.0 - share))))
    return _calibrated(scorer, _logits(scorer, part), part.right, seed, rescale=False)


def _learned(part: ScorerPart, names: Sequence[str], fold: NDArray[np.int64]) -> tuple[LogisticScorer, Floats]:
    """Fit a ridge logistic scorer of the best strength; return it and its held-out logits."""
    candidates = []
    for strength in _STRENGTHS:
        logits = np.zeros(len(fold))
        for number in np.unique(fold):
            held = np.flatnonzero(fold == number)
            scorer = _logistic(part.take(np.flatnonzero(fold != number)), names, strength)
            logits[held] = _logits(scorer, part.take(held))
        loss = log_losses(1.0 / (1.0 + np.exp(-logits)), part.right).mean()
        candidates.append((float(loss), strength, logits))
    _, strength, logits = min(candidates, key=lambda candidate: candidate[0])
    return _logistic(part, names, strength), logits


def _calibrated(
    scorer: LogisticScorer, logits: Floats, right: Floats, seed: int, *, rescale: bool = True
) -> LogisticScorer:
    """Calibrate the scorer on these logits; with `rescale` they are of held-out answers and its weights change too."""
    if rescale:
        slope, offset = _platt(logits, right)
        weights = tuple(weight * slope for weight in scorer.weights)
        scorer, logits = replace(scorer, weights=weights, bias=scorer.bias * slope + offset), logits * slope + offset
    if len(right) < _ISOTONIC_LABELS:
        return scorer
    fold = folds_of(len(right), _FOLDS, seed + 1)
    stepped, straight = np.zeros(len(right)), np.zeros(len(right))
    for number in np.unique(fold):
        seen, held = fold != number, fold == number
        stepped[held] = np.interp(logits[held], *np.array(_isotonic(logits[seen], right[seen])).T)
        slope, offset = _platt(logits[seen], right[seen])
        straight[held] = 1.0 / (1.0 + np.exp(-(logits[held] * slope + offset)))
    if log_losses(stepped, right).mean() < log_losses(straight, right).mean():
        return replace(scorer, knots=_isotonic(logits, right))
    return scorer


def _logistic(part: ScorerPart, names: Sequence[str], strength: float) -> LogisticScorer:
    """Fit a logistic model of these features; `strength` is the inverse regularisation relative to the mean loss."""
    columns = part.columns(names)
    centre, deviation = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    *weights, bias = fit_logistic((columns - centre) / scale, part.right, strength * len(part.right)).tolist()
    numbers = (centre, scale, weights, columns.min(axis=0), columns.max(axis=0))
    rounded = [tuple(float(f"{value:.8g}") for value in column) for column in numbers]
    low = tuple(value - 1e-6 for value in rounded[3])
    high = tuple(value + 1e-6 for value in rounded[4])
    return LogisticScorer(tuple(names), rounded[0], rounded[1], rounded[2], float(f"{bias:.8g}"), low, high)


def _platt(logits: Floats, right: Floats) -> tuple[float, float]:
    """Return the scale (at least 0) and the offset of Platt scaling."""
    scale, offset = fit_logistic(logits[:, None], right, 100.0).tolist()
    if scale > 0:
        return scale, offset
    share = (right.sum() + 1.0) / (len(right) + 2.0)
    return 0.0, float(np.log(share / (1.0 - share)))


def _isotonic(logits: Floats, right: Floats) -> tuple[tuple[float, float], ...]:
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=_SURE, y_max=1.0 - _SURE).fit(logits, right)
    x, y = np.round(fitted.X_thresholds_, 6), np.round(fitted.y_thresholds_, 6)
    kept = np.append(True, np.diff(x) > 0)
    return tuple((float(a), float(b)) for a, b in zip(x[kept], y[kept], strict=True))


def _out_of_fold(part: ScorerPart, fold: NDArray[np.int64], fit: Callable[[ScorerPart], LogisticScorer]) -> Floats:
    """Return each answer's probability by a scorer fitted without its fold."""
    predicted = np.zeros(len(fold))
    for number in np.unique(fold):
        scorer = fit(part.take(np.flatnonzero(fold != number)))
        for row in np.flatnonzero(fold == number):
            predicted[row] = scorer.p_right(part.values[row])
    return predicted


def _logits(scorer: LogisticScorer, part: ScorerPart) -> Floats:
    columns = (part.columns(scorer.features) - np.array(scorer.centre)) / np.array(scorer.scale)
    return np.asarray(columns @ np.array(scorer.weights) + scorer.bias)


def log_losses(predicted: Floats, right: Floats) -> Floats:
    """Return the log-loss of each answer."""
    p = np.clip(predicted, _SURE, 1.0 - _SURE)
    return np.asarray(-(right * np.log(p) + (1.0 - right) * np.log(1.0 - p)))
