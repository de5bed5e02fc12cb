"""The methods that any router must beat."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from routing.offline.dataset import Example
from routing.offline.evaluation.curves import Floats
from routing.offline.evaluation.figures import Method, Outcomes
from routing.offline.evaluation.parts import NEVER_HELD, Folds, numbered


def bounds(outcomes: Outcomes) -> tuple[Method, Method]:
    """Random, and the oracle, which knows where the large model gains."""
    gain = outcomes.large - outcomes.small
    return Method("random", np.zeros(len(gain))), Method("oracle", gain)


def by_length(examples: Sequence[Example]) -> Method:
    """The longer the prompt, the rather to the large model."""
    return Method("length", np.array([float(len(example.prompt)) for example in examples]))


def by_table(examples: Sequence[Example], outcomes: Outcomes, fold: Folds) -> Floats:
    """The group's mean gain among the prompts of the other folds, and its P(small right): shape (prompts, 2).

    The gain is told by how far it lies from the mean of all those prompts: tables of different folds are then on one
    scale, and a group that none of them has scores 0, with the P(small right) of them all. What is never held is 0.
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
    # Groups that are equally far from the mean must not be told apart by the last bit of a sum.
    return np.asarray(np.round(total / np.maximum(count, 1), 12)[index])
