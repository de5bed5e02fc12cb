"""Fit a backend's confidence head to its own labelled answers, and measure it on held-out answers.

The whole answer and its first 8, 16, 24 and 48 tokens each have scorers of their own (`scorers`). A prefix's scorers
are fitted to the answers with at least that many tokens: shorter ones end before a stream's judge sees as many.
Where a backend gives no log-probabilities, the agreement with a second sample is calibrated instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.table import Table

from gateway.parts.fit.curves import Floats, auroc, calibration_error
from gateway.parts.fit.datasets import DataError, LabelledAnswer
from gateway.parts.fit.figures import Interval
from gateway.parts.fit.folds import folds_of
from gateway.parts.fit.libraries import one_thread
from gateway.parts.fit.training.left_out import is_proven, judged_by, left_out, length_kind, scorer_ranks
from gateway.parts.fit.training.scorers import FEW_LABELS, ScorerPart, log_losses, scorers_of
from gateway.parts.fit.training.sheet import write_artefact
from gateway.parts.heads.head import (
    ALTERNATIVE_FEATURES,
    FORMAT,
    OF_VERIFIERS,
    PREFIXES,
    RANKED_BY,
    WHOLE,
    LogisticScorer,
    features_of_word,
    logit_of,
    numbers_hash,
    token_facts,
)
from gateway.report import OnProgress, table
from routing.confidence.judge import Evidence

_FOLDS = 5
_PRIOR_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5)
_FEWEST = 5  # right, and wrong, answers that fitting needs at least


@dataclass(frozen=True, slots=True)
class FittedHead:
    """A head that is not written yet: its numbers and its measurements as JSON values."""

    model: str
    numbers: dict[str, Any]
    metrics: dict[str, Any]


def fit_head(
    answers: Sequence[LabelledAnswer],
    model: str,
    seed: int,
    on_progress: OnProgress,
    priors: Sequence[float | None] | None = None,
    sets: Sequence[str] = (),
    others: Mapping[str, Sequence[LabelledAnswer]] = MappingProxyType({}),
) -> FittedHead:
    """Fit the head of `model` to these answers. Equal inputs give equal numbers.

    `sets` name for each answer its data set or kind of request. What is learned beyond the raw value is used only if it
    is better on sets and lengths of answers left out (`parts.fit.training.left_out`); else its order is the raw one.
    `priors` are, for each answer, the classifier's probability that this model would be right, None where it abstains;
    without any the head ignores the classifier. `others` are answers by data set that only the head that comes of it
    is measured on. Raises DataError or LibraryMissing.
    """
    parts = list(_parts(answers, sets or [""] * len(answers)))
    scorers: dict[str, list[dict[str, Any]]] = {}
    measured: dict[str, Any] = {}
    never_fitted: dict[str, Any] = {}
    prior = {"weight": 0.0, "centre": 0.0}
    with one_thread():
        for done, part in enumerate(parts):
            on_progress("fitting", done, len(parts))
            fitted = scorers_of(part, seed)
            without = left_out(part, seed) if len(fitted) > 1 else {}
            may_learn = is_proven(without)
            if len(fitted) > 1 and not may_learn:
                fitted = fitted[-1:]
            predicted = _held_out(part, seed, may_learn)
            order = "head" if len(fitted) > 1 else "raw"
            measured[part.name] = {**_figures(part, predicted, seed), "order": order, "left_out": without}
            if part is parts[0] and priors is not None:
                known = "confidence" if part.name == WHOLE else part.name
                of_part = [p for p, answer in zip(priors, answers, strict=True) if getattr(answer, known) is not None]
                prior = _prior(predicted, part.right, of_part)
            if part.name == WHOLE:
                never_fitted = dict(_on_others(fitted, others, _alternatives(answers)))
            scorers[part.name] = [scorer.numbers() for scorer in fitted]
    on_progress("fitting", len(parts), len(parts))
    numbers = {
        "alternatives": _alternatives(answers) if _uses_alternatives(scorers) else 0,
        "prior": prior,
        "scorers": scorers,
    }
    return FittedHead(model, numbers, {"folds": _FOLDS, "parts": measured, "never_fitted": never_fitted})


def save_head(head: FittedHead, path: Path, sheet: Mapping[str, Any]) -> str:
    """Write the artefact, with `sheet` and the metrics as its data sheet; return the SHA-256. Raises OSError."""
    digest = numbers_hash(head.numbers)
    artefact = {"format": FORMAT, "model": head.model, "sha256": digest, **sheet, "measured": head.metrics}
    write_artefact(path.parent, {}, path.name, {**artefact, "numbers": head.numbers})
    return digest


def _parts(answers: Sequence[LabelledAnswer], sets: Sequence[str]) -> Iterator[ScorerPart]:
    """Yield the parts that can be fitted. Raises DataError when there are none."""
    usable = [answer for answer in answers if _usable(answer)]
    verified = {by: [answer for answer in answers if getattr(answer, by) is not None] for by in OF_VERIFIERS}
    if not _tells(usable) and not any(map(_tells, verified.values())):
        evident = max((usable, *verified.values()), key=len)
        right = sum(answer.correct for answer in evident)
        raise DataError(
            f"{right:g} of {len(evident)} answers with evidence (log-probabilities, or a verifier's word) are right; "
            f"a head needs at least {_FEWEST} right and {_FEWEST} wrong ones, and 100 to 200 in all to be of use"
        )
    if _tells(usable):
        lengths = length_kind(np.array([len(answer.logprobs or ()) for answer in usable]))
        names = [name for name, answer in zip(sets, answers, strict=True) if _usable(answer)]
        yield from _parts_by_logprobs(usable, list(zip(names, lengths, strict=True)), _alternatives(answers))
    for by, some in verified.items():
        if _tells(some):
            values = tuple(features_of_word(by, getattr(answer, by)) for answer in some)
            yield ScorerPart(by, values, _right(some), raw=RANKED_BY[by])


def _parts_by_logprobs(
    usable: Sequence[LabelledAnswer], kinds: Sequence[tuple[str, ...]], alternatives: int
) -> Iterator[ScorerPart]:
    tokens = all(answer.logprobs for answer in usable)
    whole = [
        token_facts(_evidence(answer), None, alternatives) if tokens else {"mean": min(0.0, answer.confidence or 0.0)}
        for answer in usable
    ]
    yield ScorerPart(WHOLE, tuple(whole), _right(usable), kinds=tuple(kinds))
    for count in PREFIXES if tokens else ():
        rows = [row for row, answer in enumerate(usable) if len(answer.logprobs or ()) >= count]
        long = [usable[row] for row in rows]
        if _tells(long):
            values = (token_facts(_evidence(answer), count, alternatives) for answer in long)
            yield ScorerPart(str(count), tuple(values), _right(long), kinds=tuple(kinds[row] for row in rows))


def _on_others(
    scorers: list[LogisticScorer], others: Mapping[str, Sequence[LabelledAnswer]], alternatives: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how these scorers rank whole answers of each other data set that has right and wrong ones."""
    for name, answers in others.items():
        usable = [answer for answer in answers if _usable(answer)]
        if _tells(usable):
            part = next(_parts_by_logprobs(usable, [()] * len(usable), alternatives))
            ece = calibration_error(judged_by(scorers, part), part.right)
            yield name, {**scorer_ranks(scorers, part), "ece": round(ece, 4)}


def _right(answers: Sequence[LabelledAnswer]) -> Floats:
    return np.array([answer.correct for answer in answers], np.float64)


def _tells(answers: Sequence[LabelledAnswer]) -> bool:
    """Return whether there are enough right and enough wrong answers to fit a scorer."""
    right = float(_right(answers).sum())
    return min(right, len(answers) - right) >= _FEWEST


def _uses_alternatives(scorers: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Return whether any scorer uses alternatives; if none does, serving does not request them from the backend."""
    return any(set(ALTERNATIVE_FEATURES) & set(scorer["features"]) for some in scorers.values() for scorer in some)


def _usable(answer: LabelledAnswer) -> bool:
    return answer.confidence is not None


def _evidence(answer: LabelledAnswer) -> Evidence:
    return Evidence(
        answer.text or "",
        logprobs=answer.logprobs,
        top_logprobs=answer.top_logprobs,
        finish_reason=answer.finish_reason,
    )


def _alternatives(answers: Sequence[LabelledAnswer]) -> int:
    """Return the number of alternatives that every token of every answer has."""
    return min((len(token) for answer in answers for token in answer.top_logprobs or ((),)), default=0)


def _held_out(part: ScorerPart, seed: int, may_learn: bool) -> Floats:
    """Return each answer's probability by scorers that were fitted, chosen and calibrated without its fold."""
    fold = folds_of(len(part.right), _FOLDS, seed + 2)
    predicted = np.zeros(len(fold))
    for number in np.unique(fold):
        scorers = scorers_of(part.take(np.flatnonzero(fold != number)), seed, learned_too=may_learn)
        predicted[fold == number] = judged_by(scorers, part.take(np.flatnonzero(fold == number)))
    return predicted


def _figures(part: ScorerPart, predicted: Floats, seed: int) -> dict[str, Any]:
    """Return AUROC, ECE and Brier score of the held-out probabilities and of the raw value.

    AUROC is the mean over the folds: probabilities of different fits are not on one scale.
    """
    fold = folds_of(len(part.right), _FOLDS, seed + 2)
    raw = part.columns([part.raw])[:, 0]
    figures = {}
    stated = part.columns([part.name])[:, 0] if part.name in OF_VERIFIERS else np.exp(raw)
    pairs = (("raw", raw, stated), ("head", predicted, predicted))
    for name, score, probability in pairs:
        each = [auroc(score[fold == number], part.right[fold == number]) for number in np.unique(fold)]
        figures[name] = {
            "auroc": round(float(np.nanmean(each)), 4),
            "ece": round(calibration_error(probability, part.right), 4),
            "brier": round(float(((probability - part.right) ** 2).mean()), 4),
        }
    return {"n": len(part.right), "right": round(float(part.right.mean()), 4), **figures}


def _prior(predicted: Floats, right: Floats, priors: Sequence[float | None]) -> dict[str, float]:
    """Return the weight of the classifier's logit with the lowest held-out loss; 0 if the gain may be due to chance."""
    pairs = [
        (p, logit_of(q), y) for p, q, y in zip(priors, predicted.tolist(), right.tolist(), strict=True) if p is not None
    ]
    if not pairs:
        return {"weight": 0.0, "centre": 0.0}
    logits = np.array([[logit_of(p), q, y] for p, q, y in pairs])
    centre = float(logits[:, 0].mean())
    losses = [
        log_losses(1.0 / (1.0 + np.exp(-(logits[:, 1] + weight * (logits[:, 0] - centre)))), logits[:, 2])
        for weight in _PRIOR_WEIGHTS
    ]
    best = int(np.argmin([loss.mean() for loss in losses]))
    better = losses[0] - losses[best]
    sure = better.mean() > better.std() / np.sqrt(len(better))
    return {"weight": _PRIOR_WEIGHTS[best] if sure else 0.0, "centre": round(centre, 6)}


_SHOWN = {"whole": "whole answer", "agreement": "second sample"}


def table_of_parts(metrics: Mapping[str, Any]) -> Table:
    """Return the measurements of a head by part of the answer: the raw value beside the head's probability."""
    made = table("judged by", "n", "right", "AUROC raw", "head", "ECE raw", "head", "Brier raw", "head", "order")
    for name, part in metrics["parts"].items():
        shown = _SHOWN.get(name) or (name if name in OF_VERIFIERS else f"first {name} tokens")
        figures = [f"{part[who][what]:.3f}" for what in ("auroc", "ece", "brier") for who in ("raw", "head")]
        made.add_row(shown, str(part["n"]), f"{part['right']:.3f}", *figures, part["order"])
    return made


def table_of_sets(metrics: Mapping[str, Any]) -> Table:
    """Return how whole answers are ranked in each data set left out of the fit, or never fitted, as AUROCs."""
    made = table("data set", "", "n", "right", "head", "mean log-probability", "length alone")
    left = metrics["parts"].get(WHOLE, {}).get("left_out", {})
    for what, sets in (("left out", left), ("never fitted", metrics["never_fitted"])):
        for name, one in sets.items():
            shown = [
                str(Interval(*one["auroc"][which])) for which in ("head", "raw", "length") if which in one["auroc"]
            ]
            made.add_row(name, what, str(one["n"]), f"{one['right']:.3f}", *shown)
    return made


def orders_of(metrics: Mapping[str, Any]) -> list[str]:
    """Return a line for each part with labels enough for an order of its own: what is used, and why."""
    lines = []
    for name, part in metrics["parts"].items():
        if sets := part["left_out"]:
            shown = ", ".join(f"{name} {found['minus_raw']:+.3f}" for name, found in sets.items())
            used = "used" if part["order"] == "head" else "not used: the raw order is kept"
            lines.append(f"{name}: AUROC minus the raw one on answers left out: {shown}; the head's order is {used}")
        elif part["n"] > FEW_LABELS:
            lines.append(f"{name}: the raw order is kept: nothing that was learned is better on held-out answers")
    return lines
