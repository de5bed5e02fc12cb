"""Fit the difficulty classifier to labelled prompts, and measure it on held-out prompts.

Each kind of request has heads of its own (`difficulty_heads`); `parts.fit.kinds` says which data set is of which
kind. Their probabilities are well calibrated without correction (ECE 0.02 on routellm_mmlu, 5-fold): Platt scaling did
not improve them, and ranked worse (APGR 0.672 against 0.676).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gateway.parts.fit.curves import Blocks, Curve, Floats
from gateway.parts.fit.datasets import DataError, Example
from gateway.parts.fit.figures import interval, resamples
from gateway.parts.fit.folds import NEVER_HELD, by_text
from gateway.parts.fit.kinds import JUDGED, kind_of, plain_requests
from gateway.parts.fit.libraries import one_thread
from gateway.parts.fit.metrics import apgr, measure
from gateway.parts.fit.training.difficulty_heads import Heads, fit, fit_general, step_to, tools_requests
from gateway.parts.fit.training.domain import Domain
from gateway.parts.fit.training.ranking_left_out import RankingEvidence, left_out_rankings
from gateway.parts.fit.training.sheet import write_artefact
from gateway.parts.fit.training.table import TrainingTable, tabulate
from gateway.report import OnProgress, table
from routing.difficulty.model import FORMAT, QUANTILES, SHEET_FILE, TENSORS, WEIGHTS_FILE, gain_of, mix
from routing.difficulty.text_statistics import ENOUGH
from routing.embedder import Embedder

_RESAMPLES = 200
_FEWEST = 10  # right and wrong answers of each model at least, so that every fold has some


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training parameters: everything besides data and encoder that determines the outcome.

    The domain of a kind consists of `centroids` balls whose radius leaves out the share `outside` of its training
    texts, cut to the range of their counts; of chat next to nothing is left out. `small_accuracy` is how often the
    cheap tier in use is right on such prompts, by kind (under "" for kinds that it does not name), if it is not the
    labelled model: the cheap head keeps its ranking and is shifted to that mean. `bare_questions` also fits
    multiple-choice prompts without their choices, at 0.007 of APGR on routellm_mmlu. `kinds` maps names of data sets to
    kinds, where they are not those of `parts.fit.kinds`. Without `kinds_by_vector` words and counts alone tell kinds
    apart, so that a slow encoder need not embed the prompts in templates.
    """

    seed: int = 0
    folds: int = 5
    centroids: int = 32
    outside: float = 0.02
    small_accuracy: Mapping[str, float] = field(default_factory=dict)
    bare_questions: bool = False
    kinds: Mapping[str, str] = field(default_factory=dict)
    kinds_by_vector: bool = True


@dataclass(frozen=True, slots=True)
class Trained:
    """An artefact that is not written yet: its numbers by tensor name, and its measurements as JSON values."""

    embedder: str
    tiers: int
    kinds: tuple[str, ...]
    tensors: dict[str, NDArray[Any]]
    metrics: dict[str, Any]


def train(examples: Sequence[Example], embedder: Embedder, recipe: Recipe, on_progress: OnProgress) -> Trained:
    """Train the classifier. Equal inputs give equal numbers. Raises LibraryMissing or DataError."""
    with one_thread():
        _check(examples, recipe.kinds)
        table = _tabulated(examples, embedder, recipe, on_progress)
        return _trained(table, examples, embedder.name, recipe, on_progress)


def cross_validate(
    examples: Sequence[Example], embedder: Embedder, recipe: Recipe, fold: NDArray[np.int64], on_progress: OnProgress
) -> Floats:
    """Return P(right) of each tier, shape (examples, tiers), by fits to all examples but those of the same `fold`.

    A negative fold is used for fitting and never held out; its examples get 0. Raises LibraryMissing or DataError.
    """
    with one_thread():
        table = _tabulated(examples, embedder, recipe, on_progress)
        return _out_of_fold(table, fold, recipe, on_progress).served[: len(examples)]


def measure_left_out(
    examples: Sequence[Example], embedder: Embedder, recipe: Recipe, on_progress: OnProgress
) -> RankingEvidence:
    """Return how each data set, and each one's groups, are ranked when they are left out of the fits.

    Raises LibraryMissing or DataError.
    """
    with one_thread():
        table = _tabulated(examples, embedder, recipe, on_progress)
        return left_out_rankings(table, examples, recipe.centroids, recipe.outside, recipe.seed, on_progress)


def _tabulated(
    examples: Sequence[Example], embedder: Embedder, recipe: Recipe, on_progress: OnProgress
) -> TrainingTable:
    """Return the table of the examples and, after them, of the plain requests of their kinds."""
    kinds = {kind_of(example, recipe.kinds) for example in examples}
    plain = [example for example in plain_requests(len(examples[0].answers)) if example.kind in kinds]
    every = [*examples, *plain]
    return tabulate(every, embedder, recipe.bare_questions, on_progress, recipe.kinds, recipe.kinds_by_vector)


@dataclass(frozen=True, slots=True)
class _OutOfFold:
    """Each prompt as a fit without it sees it.

    `served` (prompts, tiers) is P(right) by the kind that it would be taken for, `kind` (prompts,) that kind's index,
    and `inside` (prompts,) whether it would lie in its domain. `own` are the logits by the heads of each kind of its
    own prompts, by the kind's index: (prompts of it, groups, tiers + 1). Of plain requests there is nothing.
    """

    served: Floats
    kind: NDArray[np.int64]
    inside: NDArray[np.bool_]
    own: dict[int, Floats]


def _trained(
    table: TrainingTable, examples: Sequence[Example], embedder: str, recipe: Recipe, on_progress: OnProgress
) -> Trained:
    fold = by_text([example.prompt for example in examples], recipe.folds, recipe.seed)
    evidence = left_out_rankings(table, examples, recipe.centroids, recipe.outside, recipe.seed, on_progress)
    held = _out_of_fold(table, fold, recipe, on_progress, evidence.claimed)
    metrics: dict[str, Any] = {
        "left_out": [row.as_json() for row in evidence.rows],
        "folds": recipe.folds,
        "datasets": measure(examples, held.served[: len(fold)], fold),
    }
    every = np.ones(table.prompts, bool)
    heads, general = fit(table, every, evidence.claimed), fit_general(table, every)
    domain = Domain.of(table, every, heads.tasks, recipe.centroids, recipe.outside, recipe.seed)
    kinds: dict[str, dict[str, Any]] = {}
    quantiles = np.empty((len(heads.tasks), len(QUANTILES)))
    shift = np.zeros((len(heads.tasks), table.tiers))
    accuracy = recipe.small_accuracy
    for at, number in enumerate(heads.tasks):
        name, own = table.kinds[number], np.flatnonzero(table.task[: len(fold)] == number)
        facts = kinds[name] = _about_kind(table, examples, own, number, held)
        facts["domain"] = number in evidence.claimed
        logits = held.own[number] if len(own) else _tools_logits(heads, at)
        quantiles[at] = np.quantile(gain_of(mix(logits)), QUANTILES)
        wanted = accuracy.get(name, accuracy.get(""))
        if wanted is not None:
            shift[at, 0] = step_to(wanted, 0, logits)
            facts["small_head_shift"] = round(float(shift[at, 0]), 4)
            facts["level"] = f"{facts['level']}; small tier moved to {wanted:g}"
    metrics["kinds"] = kinds
    if "" in accuracy:
        general = general.moved_to(accuracy[""], table)
    ranges = domain.count_range
    numbers = (
        *_flat(heads),
        heads.owner.astype(np.int32),
        *(part.astype(np.float32) for part in (heads.landmarks, heads.kernel, heads.apart.vector, heads.apart.counts)),
        (heads.apart.words[:, np.flatnonzero(heads.rarity)].T / ENOUGH).astype(np.float16),
        heads.apart.bias.astype(np.float32),
        shift.astype(np.float32),
        general.counts.astype(np.float32),
        general.bias.astype(np.float32),
        domain.centroids.astype(np.float32),
        domain.owner.astype(np.int32),
        domain.min_similarity.astype(np.float32),
        domain.min_chars.astype(np.int32),
        domain.strict.astype(np.int32),
        *(part.astype(np.float32) for part in (ranges.low, ranges.high, ranges.mean)),
        quantiles.astype(np.float32),
    )
    names = tuple(table.kinds[number] for number in heads.tasks)
    return Trained(embedder, table.tiers, names, dict(zip(TENSORS, numbers, strict=True)), metrics)


def _tools_logits(heads: Heads, at: int) -> Floats:
    """Return the logits of made-up requests with tools, (requests, 1, tiers + 1)."""
    group = int(np.searchsorted(heads.owner, at))
    return np.asarray(tools_requests() @ heads.counts[group].T + heads.bias[group])[:, None]


def _about_kind(
    table: TrainingTable, examples: Sequence[Example], own: NDArray[np.intp], number: int, held: _OutOfFold
) -> dict[str, Any]:
    """Return what the data sheet says of a kind: its data sets, how well its prompts are told apart, and its level.

    APGR is of its prompts with each other, by the heads of their kind, out of fold, with its 95% interval.
    """
    if not len(own):
        level = "assumed: no labels; heads over the number of tools, parallel calls and length were set by hand"
        return {"n": 0, "datasets": [], "level": level}
    judged = table.kinds[number] in JUDGED
    level = "verdicts on answers, brought to one level by rank in each data set; their mean" if judged else "labels"
    score, labels = gain_of(mix(held.own[number])), table.labels[own]
    return {
        "n": len(own),
        "datasets": list(dict.fromkeys(examples[row].dataset for row in own)),
        "plain_requests": int((table.plain[: table.prompts] & (table.task == number)).sum()),
        "apgr": _interval(score, labels[:, 0], labels[:, -1]),
        "taken_for_it": round(float((held.kind[own] == number).mean()), 4),
        "abstains": round(float((~held.inside[own]).mean()), 4),
        "level": level,
    }


def _interval(score: Floats, small: Floats, large: Floats) -> list[float]:
    """Return the APGR, and its 95% interval by bootstrap over prompts."""
    blocks, gain = Blocks.of(score), large - small
    drawn = [Curve.of(blocks, gain, weights).recovered() for weights in resamples(len(score), 0, _RESAMPLES)]
    estimate = interval(apgr(score, small, large), np.concatenate(drawn))
    return [round(end, 4) for end in (estimate.value, estimate.lo, estimate.hi)]


def _flat(heads: Heads) -> Iterator[NDArray[Any]]:
    """Yield the heads in the artefact's layout: a row (for words, a column) for each logit of each kind of task."""
    known = np.flatnonzero(heads.rarity)
    yield known.astype(np.int32)
    yield heads.rarity[known].astype(np.float32)
    yield heads.words[known].reshape(len(known), -1).astype(np.float16)
    for part in (heads.vector, heads.counts):
        yield part.reshape(-1, part.shape[-1]).astype(np.float32)
    yield heads.bias.ravel().astype(np.float32)


def _out_of_fold(
    table: TrainingTable,
    fold: NDArray[np.int64],
    recipe: Recipe,
    on_progress: OnProgress,
    claimed: Collection[int] = (),
) -> _OutOfFold:
    """Judge each held-out prompt by a fit without it, in which the kinds of `claimed` have a domain."""
    fold = np.concatenate([fold, np.full(table.prompts - len(fold), NEVER_HELD)])
    served = np.zeros((table.prompts, table.tiers))
    own: dict[int, Floats] = {}
    taken_for = np.full(table.prompts, -1)
    inside = np.zeros(table.prompts, bool)
    numbers = np.unique(fold[fold >= 0])
    for done, number in enumerate(numbers):
        on_progress("cross-validating", done, len(numbers))
        held, chosen = np.flatnonzero(fold == number), fold != number
        heads = fit(table, chosen, claimed)
        domain = Domain.of(table, chosen, heads.tasks, recipe.centroids, recipe.outside, recipe.seed)
        ranges, counts = domain.count_range, table.counts[held]
        kinds, within = heads.kinds_of(table, held, ranges.clamped(counts, -1))
        near = domain.near(table, held)[np.arange(len(held)), kinds] | table.has_tools[held]
        taken_for[held], inside[held] = heads.tasks[kinds], within & near
        outside = ~near
        heard = ranges.heard(counts[outside], -1)
        served[held[outside]] = fit_general(table, chosen).probabilities(heard)
        for at, task in enumerate(heads.tasks):
            here, true = (kinds == at) & near, table.task[held] == task
            if not (here | true).any():
                continue
            logits = heads.logits(at, table, held, ranges.heard(counts, at))
            served[held[here]] = mix(logits[here])
            every = own.setdefault(task, np.zeros((table.prompts, *logits.shape[1:])))
            every[held[true]] = logits[true]
    on_progress("cross-validating", len(numbers), len(numbers))
    prompts = np.flatnonzero(fold >= 0)
    return _OutOfFold(
        served, taken_for, inside, {task: every[prompts[table.task[prompts] == task]] for task, every in own.items()}
    )


def save(trained: Trained, folder: Path, sheet: dict[str, Any]) -> str:
    """Write the artefact and its data sheet (`sheet` plus the metrics and the SHA-256); return the SHA-256.

    Raises OSError.
    """
    from safetensors.numpy import save as serialise

    made = {"embedder": trained.embedder, "tiers": trained.tiers, "kinds": trained.kinds}
    weights = serialise(trained.tensors, metadata={FORMAT: json.dumps(made)})
    digest = hashlib.sha256(weights).hexdigest()
    complete = {"format": FORMAT, "sha256": digest, "embedder": trained.embedder, **sheet, "measured": trained.metrics}
    write_artefact(folder, {WEIGHTS_FILE: weights}, SHEET_FILE, complete)
    return digest


def _check(examples: Sequence[Example], named: Mapping[str, str]) -> None:
    if not examples:
        raise DataError("there are no labelled prompts to train on")
    by_kind: dict[str, list[Example]] = {}
    for example in examples:
        by_kind.setdefault(kind_of(example, named), []).append(example)
    for name, some in by_kind.items():
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
