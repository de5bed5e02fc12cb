"""Fit the difficulty classifier to labelled prompts, and measure it on held-out prompts.

Each data set is a kind of task with heads of its own (`difficulty_heads`). Their probabilities are well calibrated
without correction (ECE 0.02 on routellm_mmlu, 5-fold): Platt scaling did not improve them, and ranked worse (APGR 0.672
against 0.676).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from offline.datasets import DataError, Example
from offline.libraries import one_thread
from offline.measures.curves import Floats
from offline.measures.metrics import measure
from offline.measures.parts import by_text
from offline.progress import OnProgress
from offline.report import table
from offline.training.difficulty_heads import Heads, fit, fit_general
from offline.training.domain import Domain
from offline.training.table import TrainingTable, tabulate
from routing.difficulty.model import FORMAT, SHEET_FILE, TENSORS, WEIGHTS_FILE
from routing.embedding.embedder import Embedder

_FEWEST = 10  # right and wrong answers of each model at least, so that every fold has some
_SHORTEST = 0.01  # share of training texts that are shorter than the domain's minimum


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training parameters: everything besides data and encoder that determines the outcome.

    The domain consists of `centroids` balls whose radius leaves out the share `outside` of the training texts, cut to
    the range of their counts. `small_accuracy` is how often the cheap tier in use is right on such prompts, if it is
    not the labelled model: the cheap head keeps its ranking and is shifted to that mean. `bare_questions` also fits
    multiple-choice prompts without their choices, which resemble real traffic, at 0.007 of APGR on routellm_mmlu.
    """

    seed: int = 0
    folds: int = 5
    centroids: int = 32
    outside: float = 0.1
    small_accuracy: float | None = None
    bare_questions: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """An artefact that is not written yet: its numbers by tensor name, and its measurements as JSON values."""

    embedder: str
    tiers: int
    tensors: dict[str, NDArray[Any]]
    metrics: dict[str, Any]


def train(examples: Sequence[Example], embedder: Embedder, recipe: Recipe, on_progress: OnProgress) -> Trained:
    """Train the classifier. Equal inputs give equal numbers. Raises LibraryMissing or DataError."""
    with one_thread():
        _check(examples)
        table = tabulate(examples, embedder, recipe.bare_questions, on_progress)
        return _trained(table, examples, embedder.name, recipe, on_progress)


def cross_validate(
    examples: Sequence[Example], embedder: Embedder, recipe: Recipe, fold: NDArray[np.int64], on_progress: OnProgress
) -> Floats:
    """Return P(right) of each tier, shape (examples, tiers), by fits to all examples but those of the same `fold`.

    A negative fold is used for fitting and never held out; its examples get 0. Raises LibraryMissing or DataError.
    """
    with one_thread():
        table = tabulate(examples, embedder, recipe.bare_questions, on_progress)
        return _out_of_fold(table, fold, recipe, on_progress)


def _trained(
    table: TrainingTable, examples: Sequence[Example], embedder: str, recipe: Recipe, on_progress: OnProgress
) -> Trained:
    fold = by_text([example.prompt for example in examples], recipe.folds, recipe.seed)
    probabilities = _out_of_fold(table, fold, recipe, on_progress)
    metrics: dict[str, Any] = {"folds": recipe.folds, "datasets": measure(examples, probabilities, fold)}
    every = np.ones(table.prompts, bool)
    domain = Domain.of(table, every, recipe.centroids, recipe.outside, recipe.seed)
    heads, general = fit(table, every), fit_general(table, every)
    if recipe.small_accuracy is not None:
        heads, shift = heads.moved_to(recipe.small_accuracy, table)
        metrics["small_head_shift"] = round(shift, 4)
        general = general.moved_to(recipe.small_accuracy, table)
    numbers = (
        *_flat(heads),
        general.counts.astype(np.float32),
        general.bias.astype(np.float32),
        domain.centroids.astype(np.float32),
        np.array([domain.min_similarity], np.float32),
        np.array([np.quantile(table.chars, _SHORTEST)], np.int32),
        domain.count_range.low.astype(np.float32),
        domain.count_range.high.astype(np.float32),
        domain.count_range.mean.astype(np.float32),
    )
    return Trained(embedder, table.tiers, dict(zip(TENSORS, numbers, strict=True)), metrics)


def _flat(heads: Heads) -> Iterator[NDArray[Any]]:
    """Yield the heads in the artefact's layout: a row (for words, a column) for each logit of each kind of task."""
    known = np.flatnonzero(heads.rarity)
    yield known.astype(np.int32)
    yield heads.rarity[known].astype(np.float32)
    yield heads.words[known].reshape(len(known), -1).astype(np.float16)
    for part in (heads.vector, heads.counts):
        yield part.reshape(-1, part.shape[-1]).astype(np.float32)
    yield heads.bias.ravel().astype(np.float32)


def _out_of_fold(table: TrainingTable, fold: NDArray[np.int64], recipe: Recipe, on_progress: OnProgress) -> Floats:
    """Return P(right) of each held-out prompt as it would be served by a fit without it, shape (prompts, tiers)."""
    probabilities = np.zeros((table.prompts, table.tiers))
    numbers = np.unique(fold[fold >= 0])
    for done, number in enumerate(numbers):
        on_progress("cross-validating", done, len(numbers))
        held = np.flatnonzero(fold == number)
        chosen = fold != number
        domain = Domain.of(table, chosen, recipe.centroids, recipe.outside, recipe.seed)
        heard, known = domain.seen(table)
        inside, outside = held[known[held]], held[~known[held]]
        probabilities[inside] = fit(table, chosen).probabilities(heard, inside)
        probabilities[outside] = fit_general(table, chosen).probabilities(heard, outside)
    on_progress("cross-validating", len(numbers), len(numbers))
    return probabilities


def save(trained: Trained, folder: Path, sheet: dict[str, Any]) -> str:
    """Write the artefact and its data sheet (`sheet` plus the metrics and the SHA-256); return the SHA-256.

    Raises OSError.
    """
    from safetensors.numpy import save as serialise

    weights = serialise(
        trained.tensors, metadata={FORMAT: json.dumps({"embedder": trained.embedder, "tiers": trained.tiers})}
    )
    digest = hashlib.sha256(weights).hexdigest()
    complete = {"format": FORMAT, "sha256": digest, "embedder": trained.embedder, **sheet, "measured": trained.metrics}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((WEIGHTS_FILE, weights), (SHEET_FILE, json.dumps(complete, indent=2).encode() + b"\n")):
        scratch = folder / f".{name}.new"
        scratch.write_bytes(content)
        scratch.replace(folder / name)
    return digest


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


_METHODS = ("random", "length", "groups", "small_is_wrong", "ours")


def table_of_apgr(metrics: Mapping[str, Any]) -> Table:
    """Return the measurements of a classifier by data set."""
    tiers = ("small", *(["middle"] if "ece_middle" in metrics["datasets"]["all"] else []), "large")
    headings = ("n", *_METHODS, *(f"ECE {tier}" for tier in tiers))
    made = table("data set", *(heading.replace("_", " ") for heading in headings))
    for name, figures in metrics["datasets"].items():
        values = [_shown(figures["apgr"].get(method, [])) for method in _METHODS]
        made.add_row(name, str(figures["n"]), *values, *(_shown(figures[f"ece_{tier}"]) for tier in tiers))
    return made


def _shown(figure: float | Sequence[float]) -> str:
    """Format a figure or several, `-` for none."""
    each = figure if isinstance(figure, Sequence) else [figure]
    return " ".join(f"{value:.3f}" for value in each) or "-"
