"""Fit logistic models of shares of right answers by Newton's method, which needs a few steps for a few features."""

from __future__ import annotations

import numpy as np

from offline.measures.curves import Floats

_STEPS = 100
_HALVINGS = 30
_NEAR = 1e-8
"""Largest slope of the mean loss at which the fit ends."""


def fit_logistic(inputs: Floats, right: Floats, strength: float) -> Floats:
    """Return the weights, then the intercept: the least `strength` times log-loss plus half the weights' square.

    `inputs` (answers, features); `right` (answers,) is how right each answer was, 0..1. Where all are 0 or all are 1
    there is no finite optimum: the weights are then 0 and the intercept is the smoothed log-odds.
    """
    if right.min() == right.max() and right[0] in (0.0, 1.0):
        odds = (right.sum() + 1.0) / (len(right) - right.sum() + 1.0)
        return np.append(np.zeros(inputs.shape[1]), np.log(odds))
    columns = np.column_stack([inputs, np.ones(len(inputs))])
    penalty = np.append(np.ones(inputs.shape[1]), 0.0)
    at = np.zeros(columns.shape[1])
    value = _objective(columns, right, strength, penalty, at)
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(columns @ at, -500.0, 500.0)))
        slope = strength * (columns.T @ (p - right)) + penalty * at
        if np.abs(slope).max() <= _NEAR * strength * len(right):
            break
        curvature = strength * (columns.T * (p * (1.0 - p))) @ columns + np.diag(penalty)
        curvature.flat[:: len(at) + 1] += 1e-9 * (1.0 + curvature.diagonal().max())
        step = np.linalg.solve(curvature, slope)
        # A whole step can overshoot where the answers are nearly separable.
        for _ in range(_HALVINGS):
            candidate = _objective(columns, right, strength, penalty, at - step)
            if candidate <= value:
                break
            step = step / 2
        else:
            break
        at, value = at - step, candidate
    return at


def _objective(columns: Floats, right: Floats, strength: float, penalty: Floats, at: Floats) -> float:
    logits = columns @ at
    loss = np.logaddexp(0.0, logits) - right * logits
    return float(strength * loss.sum() + 0.5 * (penalty * at * at).sum())
