"""Split prompts into those that are fitted on and those that are tested."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.datasets import DataError, Example

Folds = NDArray[np.int64]
"""For each prompt, the number of the fold in which it is held out."""

NEVER_HELD = -1
"""Fold number of prompts that are only fitted on."""

MOST_PARTS = 10


@dataclass(frozen=True, slots=True)
class Round:
    """Prompts, by index, and their folds: each fold but NEVER_HELD is tested by a fit to all the others of `rows`."""

    rows: NDArray[np.intp]
    fold: Folds

    @property
    def held(self) -> NDArray[np.bool_]:
        """Mask of `rows`: the prompts that are tested by a fit to others."""
        return np.asarray(self.fold != NEVER_HELD)


def folds_of(count: int, folds: int, seed: int) -> Folds:
    """Return a fold number for each of `count` prompts: shuffled by the seed, sizes differing by at most one."""
    numbers: Folds = np.arange(count, dtype=np.int64) % folds
    return np.random.default_rng(seed).permutation(numbers)


def by_prompt(prompts: Sequence[str], folds: int, seed: int) -> Folds:
    """Return folds of prompts, equal ones together. Raises DataError when there are fewer prompts than folds."""
    if len(set(prompts)) < folds:
        raise DataError(
            f"{len(set(prompts))} prompts cannot be held out in {folds} folds; give more prompts, or a smaller --folds"
        )
    return by_text(prompts, folds, seed)


def by_text(prompts: Sequence[str], folds: int, seed: int) -> Folds:
    """Return the folds of `folds_of`, equal prompts (which data sets may share) together."""
    index = numbers_of_names(prompts)
    return folds_of(int(index.max()) + 1, folds, seed)[index]


def by_group(examples: Sequence[Example], seed: int) -> Folds:
    """Return folds of whole groups: one each, at most MOST_PARTS of about equal size. Raises DataError for one group.

    Groups are shuffled by the seed, then assigned largest first, each to the smallest fold so far.
    """
    names = [(example.dataset, example.group) for example in examples]
    index = numbers_of_names(names)
    sizes = np.bincount(index)
    if len(sizes) < 2:
        raise DataError(
            f"every prompt is of one group ({names[0][1]}), so none can be left out; omit --group-out, "
            "or give files with more groups"
        )
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    parts = np.zeros(min(len(sizes), MOST_PARTS), np.int64)
    part_of = np.zeros(len(sizes), np.int64)
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        part_of[group] = parts.argmin()
        parts[part_of[group]] += sizes[group]
    return np.asarray(part_of[index])


def whole_round(fold: Folds) -> list[Round]:
    """Return one round, in which every fit uses all labels of the other folds."""
    return [Round(np.arange(len(fold)), fold)]


def with_few_labels(fold: Folds, labels: int, seed: int) -> list[Round]:
    """Return a round per fold, fitted to `labels` random prompts of the others. Raises DataError if too few."""
    generator = np.random.default_rng(seed)
    rounds = []
    for number in np.unique(fold[fold != NEVER_HELD]):
        held, others = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        rounds.append(_round(held, _some(others, labels, generator)))
    return rounds


def calibrations(count: int, labels: int, draws: int, seed: int) -> list[Round]:
    """Return rounds that are each fitted to `labels` random prompts of `count`, and tested on all the rest."""
    generator = np.random.default_rng(seed)
    everything = np.arange(count)
    rounds = []
    for _ in range(draws):
        fitted = _some(everything, labels, generator)
        rounds.append(_round(np.setdiff1d(everything, fitted), fitted))
    return rounds


def numbers_of_names(names: Sequence[Hashable]) -> NDArray[np.intp]:
    """Return for each name the number of its first appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _some(rows: NDArray[np.intp], labels: int, generator: np.random.Generator) -> NDArray[np.intp]:
    if labels >= len(rows):
        raise DataError(f"{labels} labels were asked for, but there are only {len(rows)} prompts to take them from")
    return np.sort(generator.choice(rows, labels, replace=False))


def _round(held: NDArray[np.intp], fitted: NDArray[np.intp]) -> Round:
    fold = np.concatenate([np.zeros(len(held), np.int64), np.full(len(fitted), NEVER_HELD, np.int64)])
    return Round(np.concatenate([held, fitted]), fold)
