"""Measure how well a router ranks prompts, and how well its probabilities are calibrated, beside baselines.

APGR (RouteLLM, Ong et al. 2024): send the prompts to the large model in order of a score, and take the share of the
gap between the small and the large model that is recovered, averaged over every share of large calls. Random is 0.5.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Blocks, Curve, Floats, calibration_error
from gateway.parts.fit.datasets import Example
from gateway.parts.fit.figures import Method, Outcomes
from gateway.parts.fit.folds import NEVER_HELD, Folds, numbers_of_names


def apgr(score: Floats, small: Floats, large: Floats) -> float:
    """Return the APGR of sending the highest `score` to the large model first; `small`, `large` (0..1) are correctness.

    Prompts of equal score are taken in random order. NaN when the large model is no better than the small one: there is
    no gap to recover.
    """
    return float(Curve.of(Blocks.of(score), large - small, np.ones((1, len(score)))).recovered()[0])


def measure(examples: Sequence[Example], probability: Floats, fold: Folds) -> dict[str, Any]:
    """Return the figures over all prompts ("all") and for each data set as JSON values, as `fit eval route` does.

    `probability` (examples, tiers), cheapest first, is P(right) of each tier by a fit without the example's fold. APGR
    pools the scores of all folds, as one classifier would have to rank them; it is left out where the large model is no
    better than the small one. Of tiers between the two, accuracy and ECE are listed.
    """
    outcomes = Outcomes.of(examples)
    methods = (
        bounds(outcomes)[0],
        by_length(examples),
        Method("groups", by_table(examples, outcomes, fold)[:, 0]),
        Method("small_is_wrong", -probability[:, 0]),
        Method("ours", probability[:, -1] - probability[:, 0]),
    )
    right = np.array([[answer.correct for answer in example.answers] for example in examples])
    datasets = np.array([example.dataset for example in examples])
    names = list(dict.fromkeys(datasets.tolist()))
    chosen = {"all": np.arange(len(examples)), **{name: np.flatnonzero(datasets == name) for name in names}}
    return {
        name: _figures([method.take(rows) for method in methods], probability[rows], right[rows])
        for name, rows in chosen.items()
    }


def _figures(methods: Sequence[Method], probability: Floats, right: Floats) -> dict[str, Any]:
    worth = {method.name: apgr(method.score, right[:, 0], right[:, -1]) for method in methods}
    accuracy = [round(float(share), 4) for share in right.mean(axis=0)]
    errors = [round(calibration_error(*both), 4) for both in zip(probability.T, right.T, strict=True)]
    middle = {"middle_accuracy": accuracy[1:-1], "ece_middle": errors[1:-1]} if right.shape[1] > 2 else {}
    return {
        "n": len(right),
        "small_accuracy": accuracy[0],
        "large_accuracy": accuracy[-1],
        "apgr": {name: round(value, 4) for name, value in worth.items() if np.isfinite(value)},
        "ece_small": errors[0],
        "ece_large": errors[-1],
        **middle,
    }


# --- baselines that any router must beat ------------------------------------------------------------------------------


def bounds(outcomes: Outcomes) -> tuple[Method, Method]:
    """Return the lower and the upper bound of methods: random order, and an oracle that ranks by the true gain."""
    gain = outcomes.large - outcomes.small
    return Method("random", np.zeros(len(gain))), Method("oracle", gain)


def by_length(examples: Sequence[Example]) -> Method:
    """Return the method that sends the longest prompts to the large model first."""
    return Method("length", np.array([float(len(example.prompt)) for example in examples]))


def by_table(examples: Sequence[Example], outcomes: Outcomes, fold: Folds) -> Floats:
    """Return each prompt's group mean, over the other folds, of the gain and of P(small right): shape (prompts, 2).

    The gain is relative to the mean of all those prompts: values of different folds are then on one scale, and a group
    that the other folds lack scores 0, with their overall P(small right). Prompts that are never held out get 0.
    """
    groups = [(example.dataset, example.group) for example in examples]
    table = np.zeros((len(groups), 2))
    for number in np.unique(fold[fold != NEVER_HELD]):
        held, seen = fold == number, fold != number
        table[held, 0] = _deviation(groups, outcomes.large - outcomes.small, seen)[held]
        table[held, 1] = outcomes.small[seen].mean() + _deviation(groups, outcomes.small, seen)[held]
    return table


def _deviation(groups: Sequence[Hashable], values: Floats, seen: NDArray[np.bool_]) -> Floats:
    index = numbers_of_names(groups)
    count = np.bincount(index[seen], minlength=index.max() + 1)
    total = np.bincount(index[seen], weights=values[seen] - values[seen].mean(), minlength=index.max() + 1)
    # Rounding keeps groups that are equally far from the mean equal: sums may differ in the last bit.
    return np.asarray(np.round(total / np.maximum(count, 1), 12)[index])
