"""Fit what tells the kinds of requests apart, and the domain of a kind from everything else.

Both are logistic regressions over the vector, the counts and the words that occur, whatever their number and the length
of the text: a template around a request adds words, and takes none away. They are fitted to prompts as they are and in
templates (`wrappers`), so that the words of templates say nothing of the kind. Where vectors are to have no say
(`TrainingTable.kinds_by_vector`), counts and words decide. A question without its choices is no example of a kind: such
questions are asked in chats too.

The domain of a kind is where its labels are: its own prompts as they are, not in the templates of exams, and no prompt
of another kind. All but _OUTSIDE of its prompts lie within, judged by fits without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Floats
from gateway.parts.fit.training.table import EXAM, QUESTION, TrainingTable
from routing.difficulty.text_statistics import ENOUGH, SHAPE, STYLE

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

NEVER: Final = 30.0
"""Minus the logit of what no text is."""

_MOST: Final = 1500  # texts of each source and form, at most
# Standard deviations of priors: of the weight of a coordinate of the unit vector, a standardised count, and a word.
_OF_KINDS: Final = (1.0, 0.5, 10.0)
_OF_DOMAINS: Final = (3.0, 0.0, 10.0)
_OUTSIDE: Final = 0.07
_FOLDS: Final = 3


@dataclass(frozen=True, slots=True)
class KindHeads:
    """The logit of each kind, then whether a text lies in its domain (where above 0): k kinds, 2 k rows.

    Shapes: `vector` (2 k, dimension), `counts` (2 k, counts), `words` (2 k, BUCKETS), `bias` (2 k,).
    """

    vector: Floats
    counts: Floats
    words: Floats
    bias: Floats

    def logits(self, table: TrainingTable, rows: NDArray[np.intp], counts: Floats, rarity: Floats) -> Floats:
        """Return the logits of texts with these counts, shape (rows, 2 k)."""
        by_words = _present(table, rows, rarity) @ self.words.T
        return np.asarray(table.vectors[rows] @ self.vector.T + counts @ self.counts.T + by_words + self.bias)


def fit_kinds(
    table: TrainingTable,
    chosen: NDArray[np.bool_],
    rarity: Floats,
    tasks: NDArray[np.int64],
    claimed: Collection[int],
) -> KindHeads:
    """Fit to the chosen prompts; `tasks` (k,) are the kinds, and only those of `claimed` get a domain."""
    rows = _sampled(table, np.flatnonzero(chosen[table.owner]))
    task = table.task[table.owner[rows]]
    inputs = _Inputs.of(table, rows, rarity)
    parts = len(tasks)
    width, counted, known = table.vectors.shape[1], table.counts.shape[1], len(rarity)
    made = KindHeads(
        np.zeros((2 * parts, width)),
        np.zeros((2 * parts, counted)),
        np.zeros((2 * parts, known)),
        np.full(2 * parts, -NEVER),
    )
    form = table.form[rows]
    examples = np.flatnonzero(form != QUESTION)
    position = np.searchsorted(tasks, task)
    present = np.unique(position[examples])
    made.bias[present] = 0.0
    if len(present) > 1:
        source = table.source[rows] * 2 + (form >= EXAM)
        weight = _evenly(position[examples], source[examples])
        for at, head in zip(present, inputs.fit(examples, position[examples], weight, _OF_KINDS), strict=True):
            made.vector[at], made.counts[at], made.words[at], made.bias[at] = head
    for at in (at for at, number in enumerate(tasks) if number in claimed):
        own = (task == tasks[at]) & (form <= QUESTION)
        some = np.flatnonzero(own | (task != tasks[at]) | (form == EXAM))
        if not own.any() or own[some].all():
            continue
        family = position * 4 + form
        right = own[some].astype(np.int64)
        weight = _evenly(right, np.where(right, -1, family[some]))
        level = _level(inputs, some, right, weight, table.owner[rows][some])
        *weights, bias = inputs.fit(some, right, weight, _OF_DOMAINS)[1]
        made.vector[parts + at], made.counts[parts + at], made.words[parts + at] = weights
        made.bias[parts + at] = bias - level
    return made


def _sampled(table: TrainingTable, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at most _MOST of these texts of each source and form."""
    generator = np.random.default_rng(0)
    family = table.source[rows] * 4 + table.form[rows]
    some = [generator.permutation(np.flatnonzero(family == number))[:_MOST] for number in np.unique(family)]
    return np.asarray(rows[np.sort(np.concatenate(some))])


def _evenly(part: NDArray[Any], source: NDArray[Any]) -> Floats:
    """Return weights by which every part weighs the same, and so does every source within a part; their mean is 1."""
    weight = np.zeros(len(part))
    for number in np.unique(part):
        sources = np.unique(source[part == number])
        for kind_source in sources:
            own = (part == number) & (source == kind_source)
            weight[own] = 1.0 / (len(sources) * own.sum())
    return np.asarray(weight * len(weight) / weight.sum())


def _level(inputs: _Inputs, some: NDArray[np.intp], right: NDArray[np.int64], weight: Floats, owner: Any) -> float:
    """Return the logit that all but _OUTSIDE of the right texts exceed, by fits without their prompts."""
    fold = np.random.default_rng(0).integers(0, _FOLDS, int(owner.max()) + 1)[owner]
    held = np.zeros(len(some))
    for number in range(_FOLDS):
        fitted, here = fold != number, fold == number
        if len(np.unique(right[fitted])) < 2:
            return 0.0
        head = inputs.fit(some[fitted], right[fitted], weight[fitted], _OF_DOMAINS)[1]
        held[here] = inputs.logits(some[here], head)
    return float(np.quantile(held[right == 1], _OUTSIDE))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Texts as inputs of a regression: `words` (texts, BUCKETS), and counts with the factor that standardises them.

    `dimension` is that of the table's vectors; `vectors` have no columns where kinds are told apart without them.
    """

    dimension: int
    vectors: Floats
    counts: Floats
    words: csr_matrix
    mean: Floats
    factor: Floats

    @classmethod
    def of(cls, table: TrainingTable, rows: NDArray[np.intp], rarity: Floats) -> _Inputs:
        """Return the inputs of these rows. Counts of the request around the text are left out.

        So a sum stays a maths problem in the middle of a conversation.
        """
        counts = table.counts[rows]
        spread = counts.std(axis=0)
        of_text = (np.arange(counts.shape[1]) < SHAPE) | (np.arange(counts.shape[1]) >= STYLE)
        factor = np.divide(1.0, spread, out=np.zeros_like(spread), where=(spread > 1e-6) & of_text)
        dimension = table.vectors.shape[1]
        vectors = table.vectors[rows, : dimension if table.kinds_by_vector else 0]
        return cls(dimension, vectors, counts, _present(table, rows, rarity), counts.mean(axis=0), factor)

    def fit(
        self, some: NDArray[np.intp], part: NDArray[np.int64], weight: Floats, priors: tuple[float, float, float]
    ) -> list[tuple[Floats, Floats, Floats, float]]:
        """Return for each part of these texts the weights of vector, counts and words, and the intercept."""
        from scipy.sparse import csr_matrix, hstack
        from sklearn.linear_model import LogisticRegression

        by_vector, by_count, by_word = priors
        words = self.words[some]
        used = np.unique(words.indices)
        counts = (self.counts[some] - self.mean) * self.factor
        dense = csr_matrix(np.hstack([self.vectors[some] * by_vector, counts * by_count]))
        model = LogisticRegression(C=1.0, max_iter=200, tol=1e-3)
        fitted = model.fit(hstack([dense, words[:, used] * by_word]).tocsr(), part, sample_weight=weight)
        weights, bias = fitted.coef_, fitted.intercept_
        if len(weights) == 1:
            weights, bias = np.vstack([-weights, weights]) / 2, np.concatenate([-bias, bias]) / 2
        made = []
        width = self.vectors.shape[1]
        for row, intercept in zip(weights, bias, strict=True):
            of_vector, of_counts, of_words = np.split(row, [width, width + self.counts.shape[1]])
            words_of = np.zeros(self.words.shape[1])
            words_of[used] = of_words * by_word
            of_counts = of_counts * by_count * self.factor
            of_vector = np.pad(of_vector * by_vector, (0, self.dimension - width))
            made.append((of_vector, of_counts, words_of, float(intercept - of_counts @ self.mean)))
        return made

    def logits(self, some: NDArray[np.intp], head: Sequence[Any]) -> Floats:
        """Return the logits of these texts by one of `fit`'s heads."""
        vector, counts, words, bias = head
        by_vector = self.vectors[some] @ vector[: self.vectors.shape[1]]
        return np.asarray(by_vector + self.counts[some] @ counts + self.words[some] @ words + bias)


def _present(table: TrainingTable, rows: NDArray[np.intp], rarity: Floats) -> csr_matrix:
    """Return the rarity of each term that occurs in these texts, as a share of ENOUGH."""
    words = table.terms[rows].copy()
    words.data = rarity[words.indices] / ENOUGH
    words.eliminate_zeros()
    return words
