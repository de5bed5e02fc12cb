"""What a confidence head is worth on labelled prompts: it is fitted to some and judges others.

What is ranked by is the expected gain of asking the large model, P(large right) - P(small right), given the small
answer's evidence and the prompt's vector. Each data set is a kind of task of its own, for a log-probability means
another thing in each. Three rules keep the order from falling behind that of the raw log-probability:
  - within a task, what learned heads add to it is weighed by how surely it helps (`routing.offline.training.gain`);
  - few labels give probabilities, and leave the order as it is;
  - so do answers from outside of what was fitted: vectors far from the task's, or evidence beyond its range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.offline.dataset import Example
from routing.offline.training.answer_heads import OnProgress
from routing.offline.training.difficulty import TrainingUnavailable
from routing.offline.training.gain import (
    Floats,
    GainLine,
    GainTable,
    GainTask,
    JudgedPair,
    Scale,
    applied,
    logistic,
    share_below,
)

__all__ = ["JudgedPair", "cross_validate", "fit_and_judge"]

_ORDER_LABELS = 300  # fewer of a task leave its order alone
_PRESENT = 0.7  # of the answers that look most like a task, the share within its domain without which it is absent
_TASK_SCALE = 0.7
_LOGPROB_SCALE = 5.0
_LEVEL_LABELS = 30.0  # a task's mean gain is drawn to the others' as if by so many labels


def cross_validate(
    examples: Sequence[Example], vectors: NDArray[Any], fold: NDArray[np.int64], on_progress: OnProgress
) -> JudgedPair:
    """Each answer as judged by a fit without its fold.

    `vectors` (n, dimension) are the prompts' unit vectors, `fold` (n,) one number for each part that is held out at
    once. Gains of different fits are not on one scale, so each is replaced by its rank among the gains that its own fit
    gives to all n examples; no label of the fold has a part in that. Raises DataError where an answer of the small
    model has no log-probability, TrainingUnavailable.
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
) -> JudgedPair:
    """The test examples as judged by a fit to the others, whose answers may be few or of other data sets.

    Vectors are unit vectors, shape (n, dimension), all of one encoder. Raises DataError, TrainingUnavailable.
    """
    return _fitted(GainTable.of(fit_examples, fit_vectors)).judge(GainTable.of(test_examples, test_vectors))


@dataclass(frozen=True, slots=True)
class _Fit:
    """All that was fitted: by task where labels are enough, and for everything the log-probability alone."""

    names: tuple[str, ...]
    likeness: Floats
    """Shape (dimension, tasks): a prompt is of the task whose column has the largest product with its vector."""
    scale: Scale
    plain: Floats
    level: float
    line: GainLine
    tasks: dict[str, GainTask]

    @classmethod
    def of(cls, table: GainTable) -> _Fit:
        names = tuple(dict.fromkeys(table.task))
        own = {name: np.flatnonzero([task == name for task in table.task]) for name in names}
        # Tasks are told apart by how their prompts are put, which a ridge fit sees and a centroid hides.
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
        unfitted = cls(names, likeness, Scale.of(table.evidence), np.zeros(0), level, GainLine.of(table), tasks)
        plain = logistic(unfitted._plain_inputs(table), table.small)
        return cls(names, likeness, unfitted.scale, plain, level, unfitted.line, tasks)

    def _plain_inputs(self, table: GainTable) -> Floats:
        """The log-probability, and which task the prompt looks most like."""
        logprob = self.scale(table.evidence)[:, :1] * _LOGPROB_SCALE
        if len(self.names) < 2:
            return logprob
        like = np.eye(len(self.names))[self._nearest(table)] * _TASK_SCALE
        return np.hstack([logprob, like, like * logprob / _LOGPROB_SCALE])

    def _nearest(self, table: GainTable) -> NDArray[np.intp]:
        return np.asarray((table.vectors @ self.likeness).argmax(axis=1))

    def judge(self, table: GainTable) -> JudgedPair:
        p_right = applied(self.plain, self._plain_inputs(table))
        gain = self.level + self.line(table.logprob)
        nearest = self._nearest(table)
        for name, task in self.tasks.items():
            like = np.flatnonzero(nearest == self.names.index(name))
            rows = like[task.knows(table.take(like))]
            if len(rows) < _PRESENT * len(like):
                # Most of what looks like the task is not: another one has its look, and its order is not this one's.
                continue
            judged = task.judge(table.take(rows))
            p_right[rows], gain[rows] = judged.p_right, judged.gain
        # Ties of the line are broken as the log-probability would.
        return JudgedPair(p_right, gain - 1e-6 * share_below(np.sort(table.logprob), table.logprob))


def _fitted(table: GainTable) -> _Fit:
    # On one thread sums are always made in one order; and the matrices are small enough that it is faster, too.
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        raise TrainingUnavailable from None
    with threadpool_limits(limits=1):
        return _Fit.of(table)
