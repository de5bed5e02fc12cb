"""Define the baselines that any router must beat."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from offline.datasets import Example
from offline.evaluation.curves import Floats
from offline.evaluation.figures import Method, Outcomes
from offline.evaluation.parts import NEVER_HELD, Folds, numbered


def bounds(outcomes: Outcomes) -> tuple[Method, Method]:
    """Return the random method, and the oracle, which ranks by the true gain of the large model."""
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
    index = numbered(groups)
    count = np.bincount(index[seen], minlength=index.max() + 1)
    total = np.bincount(index[seen], weights=values[seen] - values[seen].mean(), minlength=index.max() + 1)
    # Rounding keeps groups that are equally far from the mean equal: sums may differ in the last bit.
    return np.asarray(np.round(total / np.maximum(count, 1), 12)[index])
