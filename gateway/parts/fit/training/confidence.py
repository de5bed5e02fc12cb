"""Evaluate confidence heads on labelled prompts: fit one to some of them and judge the others.

Answers are ranked by the expected gain of calling the large model, P(large right) - P(small right), given the small
answer's evidence and the prompt's vector. Each data set is a kind of task of its own, because the same log-probability
means different things in each. Four rules keep the ranking from being worse than that of the raw log-probability:
  - within a task, what learned heads add is weighted by how reliably it helps (`gateway.parts.fit.training.gain`);
  - with few labels, only the probabilities change, not the ranking;
  - nor does it for answers outside the fitted data: vectors far from the task's, or evidence beyond its range;
  - answers of a data set without labels keep its order whatever they look like, and their probabilities rise with it:
    prompts that look like a task's need not be like it in what makes them hard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import Example
from gateway.parts.fit.libraries import one_thread
from gateway.parts.fit.training.gain import (
    GainLine,
    GainTable,
    GainTask,
    JudgedPair,
    Scale,
    applied,
    logistic,
    share_below,
)
from gateway.report import OnProgress

__all__ = ["JudgedPair", "fit_and_judge", "judge_left_out"]

_ORDER_LABELS = 300  # minimum labels of a task for a ranking of its own
_PRESENT = 0.7  # a task counts as present if this share of the answers most like it lies within its domain
_TASK_SCALE = 0.7
_LOGPROB_SCALE = 5.0
_LEVEL_LABELS = 30.0  # a task's mean gain is shrunk towards the overall mean as if by so many labels


def judge_left_out(
    examples: Sequence[Example], vectors: NDArray[Any], fold: NDArray[np.int64], on_progress: OnProgress
) -> JudgedPair:
    """Judge each answer by a fit without its fold.

    `vectors` (n, dimension) are the prompts' unit vectors, `fold` (n,) the number of the part in which each is held
    out. Gains of different fits are not on one scale, so each is replaced by its rank among the gains that its own fit
    gives to all n examples, which uses no label of the fold. Raises DataError where an answer of the small model has no
    log-probability, and LibraryMissing.
    """
    table = GainTable.of(examples, vectors)
    p_right, gain = np.zeros(len(fold)), np.zeros(len(fold))
    numbers = np.unique(fold)
    for done, number in enumerate(numbers):
        on_progress("cross-validating", done, len(numbers))
        held = fold == number
        judged = _fitted(table.take(np.flatnonzero(~held))).judge(table)
        p_right[held] = judged.p_right[held]
        gain[held] = share_below(np.sort(judged.gain), judged.gain[held])
    on_progress("cross-validating", len(numbers), len(numbers))
    return JudgedPair(p_right, gain)


def fit_and_judge(
    fit_examples: Sequence[Example],
    fit_vectors: NDArray[Any],
    test_examples: Sequence[Example],
    test_vectors: NDArray[Any],
    *,
    carried: bool = False,
) -> JudgedPair:
    """Judge the test examples by a fit to the others, whose answers may be few or of other data sets.

    With `carried` heads of other data sets judge them too, to see what that would do.
    Vectors are unit vectors, shape (n, dimension), all of one encoder. Raises DataError or LibraryMissing.
    """
    return _fitted(GainTable.of(fit_examples, fit_vectors)).judge(
        GainTable.of(test_examples, test_vectors), carried=carried
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """The complete fit: heads for each task with enough labels, and for all others the log-probability alone."""

    names: tuple[str, ...]
    likeness: Floats
    """Shape (dimension, tasks): a prompt belongs to the task whose column has the largest product with its vector."""
    scale: Scale
    plain: Floats
    alone: Floats
    """Coefficients of the log-probability alone, for data sets without labels."""
    level: float
    line: GainLine
    tasks: dict[str, GainTask]

    @classmethod
    def of(cls, table: GainTable) -> _Fit:
        names = tuple(dict.fromkeys(table.task))
        own = {name: np.flatnonzero([task == name for task in table.task]) for name in names}
        # Tasks differ in how their prompts are worded; a ridge fit detects that, a centroid averages it out.
        member = np.stack([np.isin(np.arange(len(table.task)), rows) for rows in own.values()], axis=1) - 1 / len(names)
        gram = table.vectors.T @ table.vectors + np.eye(table.vectors.shape[1])
        likeness = np.asarray(np.linalg.solve(gram, table.vectors.T @ member), np.float64)
        level = float(table.gain.mean())
        enough = {name: rows for name, rows in own.items() if len(rows) >= _ORDER_LABELS}
        tasks = {}
        for name, rows in enough.items():
            some = table.take(rows)
            shrunk = (some.gain.sum() + _LEVEL_LABELS * level) / (len(rows) + _LEVEL_LABELS)
            tasks[name] = GainTask.of(some, float(shrunk))
        scale, line, none = Scale.of(table.evidence), GainLine.of(table), np.zeros(0)
        inputs = cls(names, likeness, scale, none, none, level, line, tasks)._plain_inputs(table)
        plain, alone = logistic(inputs, table.small), logistic(inputs[:, :1], table.small)
        return cls(names, likeness, scale, plain, alone, level, line, tasks)

    def _plain_inputs(self, table: GainTable) -> Floats:
        """Return the log-probability, one-hot columns of the likeliest task, and their products."""
        logprob = self.scale(table.evidence)[:, :1] * _LOGPROB_SCALE
        if len(self.names) < 2:
            return logprob
        like = np.eye(len(self.names))[self._nearest(table)] * _TASK_SCALE
        return np.hstack([logprob, like, like * logprob / _LOGPROB_SCALE])

    def _nearest(self, table: GainTable) -> NDArray[np.intp]:
        return np.asarray((table.vectors @ self.likeness).argmax(axis=1))

    def judge(self, table: GainTable, *, carried: bool = False) -> JudgedPair:
        """Judge the answers; with `carried` also those of unlabelled data sets by the heads of what they are like."""
        inputs, own = self._plain_inputs(table), np.array(table.task)
        familiar = np.isin(own, self.names) | carried
        p_right = np.where(familiar, applied(self.plain, inputs), applied(self.alone, inputs[:, :1]))
        gain = self.level + self.line(table.logprob)
        nearest = self._nearest(table)
        for name, task in self.tasks.items():
            like = np.flatnonzero(nearest == self.names.index(name))
            rows = like[task.knows(table.take(like))]
            if len(rows) < _PRESENT * len(like):
                # Most answers that look like the task lie outside its domain, so they belong to some other task.
                continue
            rows = rows[(own[rows] == name) | carried]
            judged = task.judge(table.take(rows))
            p_right[rows], gain[rows] = judged.p_right, judged.gain
        # Ties in the line's value are broken by the log-probability.
        return JudgedPair(p_right, gain - 1e-6 * share_below(np.sort(table.logprob), table.logprob))


def _fitted(table: GainTable) -> _Fit:
    with one_thread():
        return _Fit.of(table)
