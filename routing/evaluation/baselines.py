"""The methods that any router must beat, and the parts that prompts are held out in."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from routing.dataset import DataError, Example
from routing.evaluation.curves import Floats
from routing.evaluation.figures import Method, Outcomes

Folds = NDArray[np.int64]
NEVER_HELD = -1
"""The fold of prompts that are only ever fitted on."""

MOST_PARTS = 10


def bounds(outcomes: Outcomes) -> tuple[Method, Method]:
    """Random, and the oracle, which knows where the large model gains."""
    gain = outcomes.large - outcomes.small
    return Method("random", np.zeros(len(gain))), Method("oracle", gain)


def by_length(examples: Sequence[Example]) -> Method:
    """The longer the prompt, the rather to the large model."""
    return Method("length", np.array([float(len(example.prompt)) for example in examples]))


def by_group(examples: Sequence[Example], outcomes: Outcomes, fold: Folds) -> Method:
    """Every prompt scored by its group's mean gain among the prompts of the other folds.

    It is how far that lies from the mean gain of all those prompts: tables of different folds are then on one scale,
    and a group that none of them has scores 0. P(small right) is the group's mean, or the mean of all.
    """
    groups = [(example.dataset, example.group) for example in examples]
    score, right = np.zeros(len(groups)), np.zeros(len(groups))
    for number in np.unique(fold[fold != NEVER_HELD]):
        held, seen = fold == number, fold != number
        score[held] = _deviation(groups, outcomes.large - outcomes.small, seen)[held]
        right[held] = outcomes.small[seen].mean() + _deviation(groups, outcomes.small, seen)[held]
    return Method("groups", score, right)


def folds_by_group(examples: Sequence[Example], seed: int) -> Folds:
    """A part for each group, or MOST_PARTS parts of whole groups, about equal in size. Raises DataError for one group.

    Groups are shuffled by the seed, then dealt out largest first, each to the smallest part so far.
    """
    names = [(example.dataset, example.group) for example in examples]
    groups = list(dict.fromkeys(names))
    if len(groups) < 2:
        raise DataError(
            f"every prompt is of one group ({names[0][1]}), so none can be left out; run it without --group-out, "
            "or give more files"
        )
    sizes = np.bincount(_numbers(names))
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    parts = np.zeros(min(len(groups), MOST_PARTS), np.int64)
    part_of = np.zeros(len(groups), np.int64)
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part_of[group] = parts.argmin()
        parts[part_of[group]] += sizes[group]
    return part_of[_numbers(names)]


def _deviation(groups: Sequence[Hashable], values: Floats, seen: NDArray[np.bool_]) -> Floats:
    index = _numbers(groups)
    count = np.bincount(index[seen], minlength=index.max() + 1)
    total = np.bincount(index[seen], weights=values[seen] - values[seen].mean(), minlength=index.max() + 1)
    return np.asarray((total / np.maximum(count, 1))[index])


def _numbers(names: Sequence[Hashable]) -> NDArray[np.intp]:
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names])
