"""Fit the scorer of answers to labelled answers of any models, and measure it on whole data sets left out.

Each data set counts alike, whatever its number of answers: what is learned is to hold for answers of other sets. A
set that is left out says how well it does: by the APGR of escalating the answers that it trusts least, over every pair
of models of which one is clearly better, beside that of the length of the answer alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.parts.agents.scorer import BEGINNING, BEGINNING_WORDS, FEATURES, FORMAT, WHOLE, answer_features
from gateway.parts.fit.curves import Floats, auroc
from gateway.parts.fit.datasets import DataError, LabelledRow
from gateway.parts.fit.metrics import apgr
from gateway.parts.fit.training.logistic import fit_logistic
from gateway.parts.fit.training.sheet import write_artefact
from gateway.parts.heads.head import LogisticScorer, numbers_hash
from gateway.report import OnProgress

_STRENGTH: Final = 0.003
"""Inverse of the regularisation, relative to the mean loss."""
_FEWEST: Final = 200
"""Answers that fitting needs at least."""
_CLEARLY: Final = 0.05
"""Share of right answers by which a large model is better than a small one."""
_CHANCE: Final = 0.5
"""APGR of escalating at random."""
_RESAMPLES: Final = 200
_WIDEST: Final = 4.0
"""Deviations from the mean beyond which a feature changes nothing."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Answers with features, in columns: their data sets, models, prompts and how right they are (0..1)."""

    sets: Sequence[str]
    models: Sequence[str]
    prompts: Sequence[str]
    right: Floats
    values: Mapping[str, Floats]
    """By part, the features (answers, FEATURES)."""

    @classmethod
    def of(cls, rows: Sequence[LabelledRow], most: int, seed: int) -> Answered:
        """Read the answers' features; of a set with more, those to `most` random prompts. Raises DataError."""
        by_set: dict[str, list[LabelledRow]] = defaultdict(list)
        for row in rows:
            by_set[row.dataset].append(row)
        rng = np.random.default_rng(seed)
        chosen = [some[i] for some in by_set.values() for i in sorted(rng.permutation(len(some))[:most].tolist())]
        found = []
        for row in chosen:
            for model, answer in row.answers.items():
                whole = answer_features(row.prompt, answer.text or "")
                begun = answer_features(row.prompt, " ".join((answer.text or "").split(" ")[:BEGINNING_WORDS]))
                if whole is not None and begun is not None:
                    found.append((row.dataset, model, row.id, answer.correct, whole, begun))
        if len(found) < _FEWEST:
            raise DataError(f"{len(found)} answers have a text that can be read; a scorer needs {_FEWEST} at least")
        sets, models, prompts, right, whole_, begun_ = zip(*found, strict=True)
        values = {
            part: np.array([[row[name] for name in FEATURES] for row in some])
            for part, some in ((WHOLE, whole_), (BEGINNING, begun_))
        }
        return cls(sets, models, prompts, np.array(right), values)


@dataclass(frozen=True, slots=True)
class FittedScorer:
    """A scorer that is not written yet: its numbers and its measurements as JSON values."""

    numbers: dict[str, Any]
    metrics: dict[str, Any]


def fit_scorer(answered: Answered, not_for: Sequence[str], seed: int, on_progress: OnProgress) -> FittedScorer:
    """Fit both parts, and measure them by each data set left out. Equal inputs give equal numbers.

    A part that is not better than chance on sets left out is left out itself. Raises DataError if neither is.
    """
    sets = np.array(answered.sets)
    names = sorted(set(answered.sets))
    measured: dict[str, Any] = {}
    for done, name in enumerate(names):
        on_progress("leaving sets out", done, len(names))
        out = sets == name
        fitted = {part: _fit(answered, part, ~out) for part in answered.values} if len(names) > 1 else {}
        measured[name] = {"n": int(out.sum()), **_figures(answered, out, fitted, seed)} if fitted else {}
    on_progress("leaving sets out", len(names), len(names))
    everywhere = np.ones(len(sets), bool)
    parts = {part: _fit(answered, part, everywhere).numbers() for part in answered.values if _proven(measured, part)}
    if not parts:
        raise DataError("on sets left out it ranks answers no better than chance, so there is nothing to write")
    return FittedScorer({"parts": parts, "not_for": sorted(not_for)}, {"left_out": measured})


def save_scorer(scorer: FittedScorer, path: Path, sheet: Mapping[str, Any]) -> str:
    """Write the artefact, with `sheet` and the metrics as its data sheet; return the SHA-256. Raises OSError."""
    digest = numbers_hash(scorer.numbers)
    artefact = {"format": FORMAT, "sha256": digest, **sheet, "measured": scorer.metrics}
    write_artefact(path.parent, {}, path.name, {**artefact, "numbers": scorer.numbers})
    return digest


def _fit(answered: Answered, part: str, rows: Any) -> LogisticScorer:
    """Fit a part to these answers, each set with the same weight: those of small sets are repeated."""
    sets = np.array(answered.sets)[rows]
    counts = {name: int((sets == name).sum()) for name in set(sets.tolist())}
    most = max(counts.values())
    order = np.concatenate([np.resize(np.flatnonzero(sets == name), most) for name in sorted(counts)])
    columns, right = answered.values[part][rows][order], answered.right[rows][order]
    centre, deviation = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(deviation > 1e-9, deviation, 1.0)
    inputs = np.clip((columns - centre) / scale, -_WIDEST, _WIDEST)
    *weights, bias = fit_logistic(inputs, right, _STRENGTH * len(right)).tolist()
    low, high = centre - _WIDEST * scale, centre + _WIDEST * scale
    numbers = [tuple(float(f"{value:.8g}") for value in column) for column in (centre, scale, weights, low, high)]
    return LogisticScorer(FEATURES, numbers[0], numbers[1], numbers[2], float(f"{bias:.8g}"), numbers[3], numbers[4])


def _proven(measured: Mapping[str, Any], part: str) -> bool:
    """Return whether a part is surely better than chance on sets left out, in the mean, and on none surely worse.

    With one set alone nothing can be left out: it is for requests like those of the set.
    """
    found = [figures[part]["apgr"] for figures in measured.values() if "apgr" in figures.get(part, {})]
    if not found:
        return part == WHOLE or len(measured) < 2
    return float(np.mean([low for _, low, _ in found])) > _CHANCE and min(high for _, _, high in found) > _CHANCE


def _figures(answered: Answered, out: Any, fitted: Mapping[str, LogisticScorer], seed: int) -> dict[str, Any]:
    """Return AUROC and APGR by part on a set left out, and of the length alone; APGR with its 95% interval."""
    models, prompts, right = np.array(answered.models)[out], np.array(answered.prompts)[out], answered.right[out]
    words = -answered.values[WHOLE][out][:, FEATURES.index("words")]
    scores = {
        part: _logits(scorer, answered.values[part][out]) for part, scorer in fitted.items()
    } | {"length": words}  # fmt: skip
    pairs = model_pairs(models, prompts, right)
    shown: dict[str, Any] = {"pairs": len(pairs)}
    rng = np.random.default_rng(seed)
    for name, score in scores.items():
        by_model = [auroc(score[models == model], right[models == model]) for model in sorted(set(models.tolist()))]
        shown[name] = {"auroc": round(float(np.nanmean(by_model)), 4)}
        if pairs:
            gained = [_recovered(score, right, pairs, rng if again else None) for again in range(_RESAMPLES + 1)]
            low, high = np.nanquantile(gained[1:], [0.025, 0.975])
            shown[name]["apgr"] = [round(float(value), 4) for value in (gained[0], low, high)]
    return shown


def model_pairs(models: Any, prompts: Any, right: Floats, fewest: int = _FEWEST) -> list[tuple[Any, Any]]:
    """Return for each small model and each clearly better one the rows of their answers to the same prompts."""
    rows = {name: dict(zip(prompts[models == name].tolist(), np.flatnonzero(models == name), strict=True))
            for name in sorted(set(models.tolist()))}  # fmt: skip
    found = []
    for of_small in rows.values():
        for of_large in rows.values():
            both = sorted(of_small.keys() & of_large.keys())
            pair = np.array([of_small[key] for key in both], int), np.array([of_large[key] for key in both], int)
            if len(both) >= fewest and right[pair[1]].mean() - right[pair[0]].mean() >= _CLEARLY:
                found.append(pair)
    return found


def _recovered(score: Floats, right: Floats, pairs: Sequence[tuple[Any, Any]], rng: Any) -> float:
    """Return the mean APGR of the pairs, of a random resample of their prompts where there is an `rng`."""
    each = []
    for small, large in pairs:
        some = slice(None) if rng is None else rng.integers(0, len(small), len(small))
        each.append(apgr(-score[small][some], right[small][some], right[large][some]))
    return float(np.nanmean(each))


def _logits(scorer: LogisticScorer, columns: Floats) -> Floats:
    held = np.clip(columns, np.array(scorer.low), np.array(scorer.high))
    return np.asarray((held - np.array(scorer.centre)) / np.array(scorer.scale) @ np.array(scorer.weights))
