"""How well a router ranks prompts, and how true its probabilities are.

APGR (RouteLLM, Ong et al. 2024): send the prompts to the large model in order of a score, and take the share of the
gap between the small and the large model that is recovered, averaged over every share of large calls. Random is 0.5.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.dataset import Example
from routing.evaluation.curves import Blocks, Curve, Floats, calibration_errors

__all__ = ("Floats", "apgr", "calibration_error", "folds_of", "group_gains", "measure")


def apgr(score: Floats, small: Floats, large: Floats) -> float:
    """The APGR of sending the highest `score` to the large model first; `small` and `large` (0..1) say who was right.

    Prompts of equal score are taken in random order. NaN when the large model is no better than the small one: there is
    no gap to recover.
    """
    return float(Curve.of(Blocks.of(score), large - small, np.ones((1, len(score)))).recovered()[0])


def calibration_error(probability: Floats, correct: Floats) -> float:
    """Expected calibration error in ten bins of equal count: the mean distance of what was said from what was so."""
    once = np.ones((1, len(probability)))
    return float(calibration_errors(Blocks.of(probability), probability - correct, once)[0])


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


def measure(examples: Sequence[Example], probability: Floats, fold: NDArray[np.int64]) -> dict[str, Any]:
    """Figures over everything ("all") and for each data set, as JSON values.

    `probability` (examples, 2) holds, for each example, what a fit without its fold said of the small and of the large
    model being right. APGR is the mean over the folds, because scores of different fits are not on one scale.
    """
    datasets = np.array([example.dataset for example in examples])
    measured: dict[str, Any] = {}
    for name in ["all", *dict.fromkeys(datasets.tolist())]:
        chosen = np.flatnonzero((datasets == name) | (name == "all"))
        measured[name] = _figures([examples[i] for i in chosen.tolist()], probability[chosen], fold[chosen])
    return measured


def _figures(examples: Sequence[Example], probability: Floats, fold: NDArray[np.int64]) -> dict[str, Any]:
    small = np.array([example.small for example in examples])
    large = np.array([example.large for example in examples])
    scores = {
        "ours": probability[:, 1] - probability[:, 0],
        "small_is_wrong": -probability[:, 0],
        "groups": group_gains([(example.dataset, example.group) for example in examples], large - small, fold),
        "length": np.array([float(len(example.prompt)) for example in examples]),
    }
    each_fold = [fold == number for number in np.unique(fold)]
    values = {
        name: round(float(np.mean([apgr(score[held], small[held], large[held]) for held in each_fold])), 4)
        for name, score in scores.items()
    }
    return {
        "n": len(examples),
        "small_accuracy": round(float(small.mean()), 4),
        "large_accuracy": round(float(large.mean()), 4),
        "apgr": {"random": 0.5, **values},
        "ece_small": round(calibration_error(probability[:, 0], small), 4),
        "ece_large": round(calibration_error(probability[:, 1], large), 4),
    }
