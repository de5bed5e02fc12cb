"""How well a router ranks prompts, and how true its probabilities are.

APGR (RouteLLM, Ong et al. 2024): send the prompts to the large model in order of a score, and take the share of the
gap between the small and the large model that is recovered, averaged over every share of large calls. Random is 0.5.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_BINS = 10


def apgr(score: Floats, small: Floats, large: Floats) -> float:
    """The APGR of sending the highest `score` to the large model first; `small` and `large` (0..1) say who was right.

    NaN when the large model is no better than the small one: there is no gap to recover.
    """
    gain = (large - small)[np.argsort(-score, kind="stable")]
    if gain.sum() <= 0:
        return float("nan")
    recovered = np.concatenate([[0.0], np.cumsum(gain)]) / gain.sum()
    return float(np.trapezoid(recovered, dx=1 / len(gain)))


def calibration_error(probability: Floats, correct: Floats) -> float:
    """Expected calibration error in ten bins of equal count: the mean distance of what was said from what was so."""
    order = np.argsort(probability, kind="stable")
    bins = [part for part in np.array_split(order, _BINS) if len(part)]
    return float(sum(len(part) * abs(probability[part].mean() - correct[part].mean()) for part in bins) / len(order))


def folds_of(count: int, folds: int, seed: int) -> NDArray[np.int64]:
    """A fold number for each of `count` prompts: shuffled by the seed, equal in size to one."""
    numbers: NDArray[np.int64] = np.arange(count, dtype=np.int64) % folds
    return np.random.default_rng(seed).permutation(numbers)


def group_gains(groups: Sequence[Hashable], gain: Floats, fold: NDArray[np.int64]) -> Floats:
    """The baseline to know: every prompt scored by its group's mean gain in the other folds (0 for an unseen group)."""
    names = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    index = np.array([names[group] for group in groups])
    score = np.zeros(len(gain))
    for number in np.unique(fold):
        seen = fold != number
        total = np.bincount(index[seen], weights=gain[seen], minlength=len(names))
        count = np.bincount(index[seen], minlength=len(names))
        score[~seen] = (total / np.maximum(count, 1))[index[~seen]]
    return score
