"""Fit logistic models of shares of right answers.

For few features Newton's method needs a few steps; for words, most of which a text does not have, L-BFGS does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gateway.parts.fit.curves import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_STEPS = 100
_NEAR = 1e-8
"""Largest slope of the mean loss at which the fit ends."""
_WIDE_STEPS = 200
_WIDE_NEAR = 1e-7


def fit_logistic(inputs: Floats, right: Floats, strength: float, offset: Floats | float = 0.0) -> Floats:
    """Return the weights, then the intercept: the least `strength` times log-loss plus half the weights' square.

    `inputs` (answers, features); `right` (answers,) is how right each answer was, 0..1. Where all are 0 or all are 1
    there is no finite optimum: the weights are then 0 and the intercept is the smoothed log-odds. `offset` (answers,)
    is added to the logits as it is.
    """
    if right.min() == right.max() and right[0] in (0.0, 1.0):
        odds = (right.sum() + 1.0) / (len(right) - right.sum() + 1.0)
        return np.append(np.zeros(inputs.shape[1]), np.log(odds))
    from scipy.optimize import minimize
    from scipy.special import expit

    columns = np.column_stack([inputs, np.ones(len(inputs))])
    penalty = np.append(np.ones(inputs.shape[1]), 0.0)

    def objective(at: Floats) -> tuple[float, Floats]:
        logits = columns @ at + offset
        loss = float((np.logaddexp(0.0, logits) - right * logits).sum())
        slope = strength * (columns.T @ (expit(logits) - right)) + penalty * at
        return strength * loss + 0.5 * float(penalty @ (at * at)), slope

    def curvature(at: Floats) -> Floats:
        p = expit(columns @ at + offset)
        return np.asarray(strength * (columns.T * (p * (1.0 - p))) @ columns + np.diag(penalty))

    options = {"gtol": _NEAR * strength * len(right), "maxiter": _STEPS}
    start = np.zeros(columns.shape[1])
    result = minimize(objective, start, jac=True, hess=curvature, method="trust-exact", options=options)
    return np.asarray(result.x, np.float64)


def fit_wide_logistic(words: csr_matrix, dense: Floats, right: Floats, weight: Floats) -> Floats:
    """Return the weights of `words` (answers, terms), of `dense` (answers, features), and the intercept.

    They minimise the log-loss of `right` (answers,), 0..1, each counted `weight` times, plus half the weights' square.
    """
    from scipy.optimize import minimize

    # Most columns are words that none of these texts has; their weight is 0.
    used = np.unique(words.indices)
    some = words[:, used].tocsr()
    turned = some.T.tocsr()
    count, total = len(used), float(weight.sum())

    def objective(at: Floats) -> tuple[float, Floats]:
        logits = some @ at[:count] + dense @ at[count:-1] + at[-1]
        loss = float(weight @ (np.logaddexp(0.0, logits) - right * logits))
        slope = weight * (1.0 / (1.0 + np.exp(-np.clip(logits, -500.0, 500.0))) - right)
        gradient = np.concatenate([turned @ slope + at[:count], dense.T @ slope + at[count:-1], [slope.sum()]])
        return (loss + 0.5 * float(at[:-1] @ at[:-1])) / total, gradient / total

    start = np.zeros(count + dense.shape[1] + 1)
    options = {"maxiter": _WIDE_STEPS, "gtol": _WIDE_NEAR, "ftol": 1e-10}
    result = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    weights = np.zeros(words.shape[1] + dense.shape[1] + 1)
    weights[used], weights[words.shape[1] :] = result[:count], result[count:]
    return weights
