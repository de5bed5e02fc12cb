"""Fits the difficulty classifier on labelled prompts, and measures it on prompts it was not fitted on.

Each data set is a kind of task with heads of its own: one fit over all of them ranks MMLU at an APGR of 0.62 where its
own reaches 0.66. A head is a logistic regression over the text's vector and the standardised counts; its scale and
offset are then corrected on out-of-fold predictions (Platt), so that the difference of two probabilities is an expected
gain and not only a rank. Multiple-choice prompts are fitted twice: with their choices and, as people ask, without.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.dataset import DataError, Example, without_choices
from routing.difficulty import FORMAT, SHEET_FILE, TENSORS, WEIGHTS_FILE, counts_of, mix
from routing.embedder import Embedder
from routing.evaluation.metrics import Floats, folds_of, measure
from routing.features import Features

_BATCH = 64
_FEWEST = 10  # of each label, so that every fold has some
_SHORTEST = 0.01  # the share of training texts that are shorter than what the domain admits
# Inverse regularisation against the mean loss, so that few prompts are not held more tightly than many, and how loosely
# unit vectors and standardised counts are held by it: the counts are few, and each says more than one coordinate does.
# Chosen by 5-fold APGR on routellm_mmlu and routellm_gsm8k.
_VECTOR_SCALE = 16.0
_COUNT_SCALE = 2.0
_HEADS = 2.0
_TASKS = 2000.0  # kinds of task are easily told apart, and doubt between them costs each its ranking
# The label of a question without its choices is borrowed, so it counts for half.
_QUESTION_WEIGHT = 0.5

OnProgress = Callable[[str, int, int], None]
"""Called with a stage's name, how much of it is done and how much there is."""


class TrainingUnavailable(RuntimeError):
    """scikit-learn is not installed."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides the outcome besides the data and the encoder.

    The domain is `centroids` balls whose radius leaves `outside` of the training texts out. `small_accuracy` is how
    often the cheap tier really in use is right on such prompts, where it is another model than the one of the labels:
    the cheap head keeps its order and is moved to that mean.
    """

    seed: int = 0
    folds: int = 5
    centroids: int = 32
    outside: float = 0.1
    small_accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """An artefact not yet written: its numbers by tensor name, and what was measured, as JSON values."""

    embedder: str
    tensors: dict[str, NDArray[Any]]
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Table:
    """Texts as numbers, one row each. Rows from `prompts` on are questions without their choices; `owner` is whose."""

    vectors: Floats
    counts: Floats
    chars: NDArray[np.int64]
    owner: NDArray[np.int64]
    labels: Floats
    """Shape (prompts, 2): how right the small and the large model were."""
    task: NDArray[np.int64]
    """Each prompt's kind of task: its data set's number."""

    @property
    def prompts(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Logistic heads over raw vectors and counts: shapes (tasks, 3, dimension), (tasks, 3, counts) and (tasks, 3)."""

    vector: Floats
    counts: Floats
    bias: Floats

    def logits(self, vectors: Floats, counts: Floats) -> Floats:
        """Shape (texts, tasks, 3)."""
        return np.asarray(
            np.einsum("nd,thd->nth", vectors, self.vector, optimize=True)
            + np.einsum("nd,thd->nth", counts, self.counts, optimize=True)
            + self.bias
        )

    def rescaled(self, scale: Floats, offset: Floats) -> _Heads:
        return _Heads(self.vector * scale[..., None], self.counts * scale[..., None], self.bias * scale + offset)


def train(examples: Sequence[Example], embedder: Embedder, recipe: Recipe, on_progress: OnProgress) -> Trained:
    """The classifier these examples make. Equal inputs give equal numbers. Raises TrainingUnavailable, DataError."""
    _require_sklearn()
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    _check(examples)
    table = _tabulate(examples, embedder, on_progress)
    # On one thread sums are always made in one order; and the matrices are small enough that it is faster, too.
    with threadpool_limits(limits=1):
        return _trained(table, examples, embedder.name, recipe, on_progress)


def _trained(
    table: _Table, examples: Sequence[Example], embedder: str, recipe: Recipe, on_progress: OnProgress
) -> Trained:
    fold = folds_of(table.prompts, recipe.folds, recipe.seed)
    logits = _out_of_fold(table, fold, on_progress)
    scale, offset = _platt(logits, table)
    logits = logits * scale + offset
    metrics: dict[str, Any] = {"folds": recipe.folds, "datasets": measure(examples, mix(logits), fold)}
    if recipe.small_accuracy is not None:
        shift = _shift_to(logits, recipe.small_accuracy)
        offset[:, 0] += shift
        metrics["small_head_shift"] = round(shift, 4)
    heads = _fit(table, np.ones(table.prompts, bool)).rescaled(scale, offset)
    centroids, similarity = _domain(table.vectors, recipe)
    numbers = (
        *(part.reshape(-1, *part.shape[2:]).astype(np.float32) for part in (heads.vector, heads.counts, heads.bias)),
        centroids.astype(np.float32),
        np.array([similarity], np.float32),
        np.array([np.quantile(table.chars, _SHORTEST)], np.int32),
    )
    return Trained(embedder, dict(zip(TENSORS, numbers, strict=True)), metrics)


def save(trained: Trained, folder: Path, sheet: dict[str, Any]) -> str:
    """Writes the artefact and its data sheet (`sheet`, with the metrics and the SHA-256 added); returns the SHA-256.

    Raises OSError.
    """
    from safetensors.numpy import save as serialise

    weights = serialise(trained.tensors, metadata={FORMAT: json.dumps({"embedder": trained.embedder})})
    digest = hashlib.sha256(weights).hexdigest()
    complete = {"format": FORMAT, "sha256": digest, "embedder": trained.embedder, **sheet, "measured": trained.metrics}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((WEIGHTS_FILE, weights), (SHEET_FILE, json.dumps(complete, indent=2).encode() + b"\n")):
        scratch = folder / f".{name}.new"
        scratch.write_bytes(content)
        scratch.replace(folder / name)
    return digest


def _require_sklearn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise TrainingUnavailable("training needs scikit-learn; run: pip install 'tierline[train]'") from None


def _check(examples: Sequence[Example]) -> None:
    if not examples:
        raise DataError("there are no labelled prompts to train on")
    by_dataset: dict[str, list[Example]] = {}
    for example in examples:
        by_dataset.setdefault(example.dataset, []).append(example)
    for name, some in by_dataset.items():
        for role in ("small", "large"):
            right = sum(getattr(example, role) >= 0.5 for example in some)
            if min(right, len(some) - right) < _FEWEST:
                raise DataError(
                    f"{name}: the {role} model was right on {right} of {len(some)} prompts; "
                    f"at least {_FEWEST} right and {_FEWEST} wrong answers are needed to tell them apart"
                )


def _tabulate(examples: Sequence[Example], embedder: Embedder, on_progress: OnProgress) -> _Table:
    texts = [example.prompt for example in examples]
    owner = list(range(len(examples)))
    for index, example in enumerate(examples):
        question = without_choices(example.prompt)
        if question is not None:
            texts.append(question)
            owner.append(index)
    vectors = np.concatenate(list(_embedded(texts, embedder, on_progress))).astype(np.float64)
    counts = np.array([counts_of(_features(text)) for text in texts], np.float64)
    labels = np.array([(example.small, example.large) for example in examples])
    tasks = {name: index for index, name in enumerate(dict.fromkeys(example.dataset for example in examples))}
    task = np.array([tasks[example.dataset] for example in examples])
    return _Table(vectors, counts, np.array([len(text) for text in texts]), np.array(owner), labels, task)


def _embedded(texts: Sequence[str], embedder: Embedder, on_progress: OnProgress) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(texts), _BATCH):
        on_progress("embedding", start, len(texts))
        yield embedder.embed(texts[start : start + _BATCH])
    on_progress("embedding", len(texts), len(texts))


def _features(text: str) -> Features:
    """A prompt of the data, as the gateway would see it in a request of its own."""
    return Features(text=text, turns=1, approx_tokens=len(text) // 4 + 4)


def _out_of_fold(table: _Table, fold: NDArray[np.int64], on_progress: OnProgress) -> Floats:
    """For each prompt, the logits of heads fitted without its fold, shape (prompts, tasks, 3)."""
    logits = np.zeros((table.prompts, int(table.task.max()) + 1, 3))
    numbers = np.unique(fold)
    for done, number in enumerate(numbers):
        on_progress("cross-validating", done, len(numbers))
        held = np.flatnonzero(fold == number)
        logits[held] = _fit(table, fold != number).logits(table.vectors[held], table.counts[held])
    on_progress("cross-validating", len(numbers), len(numbers))
    return logits


def _fit(table: _Table, chosen: NDArray[np.bool_]) -> _Heads:
    """The heads of every task, and what tells the tasks apart, on the chosen prompts with and without their choices."""
    rows = np.flatnonzero(chosen[table.owner])
    mean, deviation = table.counts[rows].mean(axis=0), table.counts[rows].std(axis=0)
    # What never varies in the data teaches nothing, and must not weigh when it varies in traffic.
    scale = np.divide(_COUNT_SCALE, deviation, out=np.zeros_like(deviation), where=deviation > 1e-6)
    inputs = np.hstack([table.vectors[rows] * _VECTOR_SCALE, (table.counts[rows] - mean) * scale])
    weight = np.where(rows < table.prompts, 1.0, _QUESTION_WEIGHT)
    task = table.task[table.owner[rows]]
    right = table.labels[table.owner[rows]] >= 0.5
    tasks = int(table.task.max()) + 1
    coefficients = np.zeros((tasks, 3, inputs.shape[1] + 1))
    for number in range(tasks):
        own = task == number
        for tier in (0, 1):
            coefficients[number, tier] = _logistic(inputs[own], right[own, tier], weight[own], _HEADS)[0]
    if tasks > 1:
        coefficients[-tasks if tasks > 2 else 1 :, 2] = _logistic(inputs, task, weight, _TASKS)
    width = table.vectors.shape[1]
    counts = coefficients[..., width:-1] * scale
    return _Heads(coefficients[..., :width] * _VECTOR_SCALE, counts, coefficients[..., -1] - counts @ mean)


def _logistic(inputs: Floats, labels: NDArray[Any], weight: Floats, inverse_regularisation: float) -> Floats:
    """Coefficients with the intercept last: one row for two classes (the second's), else one for each class."""
    from sklearn.linear_model import LogisticRegression

    # scikit-learn weighs the penalty against the sum of the losses.
    strength = inverse_regularisation / weight.sum()
    fitted = LogisticRegression(C=strength, max_iter=1000).fit(inputs, labels, sample_weight=weight)
    return np.hstack([fitted.coef_, fitted.intercept_[:, None]])


def _platt(logits: Floats, table: _Table) -> tuple[Floats, Floats]:
    """For each head, the scale and the offset, shape (tasks, 3), that make its out-of-fold logits true on its task."""
    from sklearn.linear_model import LogisticRegression

    scale, offset = np.ones(logits.shape[1:]), np.zeros(logits.shape[1:])
    for number in range(logits.shape[1]):
        own = table.task == number
        for tier in (0, 1):
            fitted = LogisticRegression(C=1e6).fit(logits[own, number, tier, None], table.labels[own, tier] >= 0.5)
            scale[number, tier], offset[number, tier] = fitted.coef_[0, 0], fitted.intercept_[0]
            if scale[number, tier] < 0:
                # It ranks worse than chance where it was not fitted: it has learned nothing but how often is right.
                share = (table.labels[own, tier] >= 0.5).mean()
                scale[number, tier], offset[number, tier] = 0.0, np.log(share / (1 - share))
    return scale, offset


def _shift_to(logits: Floats, mean: float) -> float:
    """What to add to the small model's logits so that it is right that often on average."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if mix(logits + np.array([middle, 0.0, 0.0]))[:, 0].mean() < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _domain(vectors: Floats, recipe: Recipe) -> tuple[Floats, float]:
    """Unit centroids of the training texts, and the least cosine with the nearest that counts as near."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct texts than centroids is no trouble here
        fitted = KMeans(recipe.centroids, n_init=1, max_iter=50, random_state=recipe.seed).fit(vectors)
    centres: Floats = fitted.cluster_centers_
    centres = centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    nearest = (vectors @ centres.T).max(axis=1)
    return centres, float(np.quantile(nearest, recipe.outside))
