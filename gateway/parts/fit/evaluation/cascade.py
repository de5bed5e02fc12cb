"""Evaluate asking the small model first and judging its answer: `tierline fit eval cascade`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gateway.encoders import load_embedder
from gateway.parts.fit.datasets import DataError, Example, LabelledAnswer, LabelledPrompts
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.evaluation.picture import draw_picture
from gateway.parts.fit.evaluation.prompts import PromptOptions, data_names, report_on
from gateway.parts.fit.evaluation.set_out import evaluate_set_out
from gateway.parts.fit.figures import Draw, Method, Outcomes
from gateway.parts.fit.folds import NEVER_HELD, Round, calibrations, whole_round
from gateway.parts.fit.metrics import bounds, by_length, by_table
from gateway.parts.heads.head import PREFIXES
from gateway.report import OnProgress, Report
from routing.embedder import Vectors

if TYPE_CHECKING:
    from gateway.parts.fit.training.confidence import JudgedPair

DRAWS = 5
"""Number of times that the labels of `calibration` are drawn; the help of `eval cascade` names it."""


@dataclass(frozen=True, slots=True)
class CascadeOptions(PromptOptions):
    """`calibration`: fit on so many random labels, test on the others. `prefix`: also judge by the first tokens.

    `set_out`: hold out one whole data set at a time.
    """

    calibration: int | None
    prefix: bool
    set_out: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """Prompts and their embeddings, `vectors` of shape (prompts, dimension)."""

    examples: list[Example]
    vectors: Vectors

    def take(self, rows: Sequence[int]) -> _Table:
        return _Table([self.examples[row] for row in rows], self.vectors[list(rows)])

    def after(self, tokens: int) -> _Table:
        return _Table(after(self.examples, tokens), self.vectors)

    def joined(self, other: _Table) -> _Table:
        return _Table(self.examples + other.examples, np.concatenate([self.vectors, other.vectors]))


def evaluate_cascade(options: CascadeOptions, on_progress: OnProgress) -> Report:
    """Judge every answer of the small model by every method, and return the figures, with a picture if one is wanted.

    Raises DataError, LibraryMissing, EmbedderUnavailable, OSError.
    """
    options.require_libraries()
    if options.group_out and (options.fit or options.calibration):
        raise DataError("--group-out holds out parts of --data; remove it with --fit or --calibration")
    if options.set_out and (options.fit or options.calibration or options.group_out or options.plot or options.prefix):
        raise DataError("--set-out stands alone; remove --fit, --calibration, --group-out, --prefix and --plot")
    data, others = options.read()
    for some in (data, others):
        _check_confidence(some)
    embedder = Remembered(load_embedder(options.embedding or "static", options.state), on_progress)
    if options.set_out:
        table = _tabulated(data.examples, embedder)
        title = f"{data_names(data)}; each data set left out"
        return evaluate_set_out(title, table.examples, table.vectors, options.seed, on_progress)
    tables = _tabulated(data.examples, embedder), _tabulated(others.examples, embedder)
    draws = list(_draws(options, *tables, on_progress))
    prefixes = {
        tokens: list(_draws(options, tables[0].after(tokens), tables[1].after(tokens), on_progress))
        for tokens in (PREFIXES if options.prefix else ())
    }
    title = f"{data_names(data)}; {_how(options)}"
    facts = {**_facts(options, draws, others), "embedding": embedder.name, "seed": options.seed}
    report = report_on(title, data, draws, facts, _notes(options), on_progress, prefixes)
    if options.plot is None:
        return report
    outcomes = Outcomes.of(data.examples)
    return replace(report, draw_picture=partial(draw_picture, options.plot, title, outcomes, draws, options.seed))


def _tabulated(examples: list[Example], embedder: Remembered) -> _Table:
    return _Table(examples, embedder.embed([example.prompt for example in examples]))


def _check_confidence(data: LabelledPrompts) -> None:
    without = sum(example.answers[0].confidence is None for example in data.examples)
    if without:
        raise DataError(
            f"{without} of {len(data.examples)} rows have no confidence (and no logprobs) for {data.pair()[0]}: "
            "a cascade judges answers by their log-probabilities; use `tierline fit eval route`, or collect them"
        )


def _draws(options: CascadeOptions, data: _Table, others: _Table, on_progress: OnProgress) -> Iterator[Draw]:
    """Yield what was tested together: all prompts, or for each draw of calibration labels all the other prompts."""
    from gateway.parts.fit.training.confidence import fit_and_judge, judge_left_out

    n = len(data.examples)
    if not options.fit and not options.calibration:
        fold = options.fold(data.examples)
        judged = judge_left_out(data.examples, data.vectors, fold, on_progress)
        yield _draw(data, others, whole_round(fold)[0], judged)
        return
    rounds = whole_round(np.zeros(n, np.int64))
    if options.calibration:
        rounds = calibrations(n, options.calibration, DRAWS, options.seed)
    for number, one in enumerate(rounds):
        on_progress("fitting", number, len(rounds))
        fitted, held = data.take(one.rows[~one.held].tolist()).joined(others), data.take(one.rows[one.held].tolist())
        judged = fit_and_judge(fitted.examples, fitted.vectors, held.examples, held.vectors)
        yield _draw(data, others, one, judged)
    on_progress("fitting", len(rounds), len(rounds))


def _draw(data: _Table, others: _Table, round_: Round, judged: JudgedPair) -> Draw:
    """Return every method's scores of the round's held-out prompts; `judged` are ours.

    The table of groups is fitted on the same labels as ours.
    """
    rows = round_.rows[round_.held]
    held = data.take(rows.tolist()).examples
    seen = data.take(round_.rows.tolist()).joined(others).examples
    fold = np.concatenate([round_.fold, np.full(len(others.examples), NEVER_HELD, np.int64)])
    outcomes = Outcomes.of(held)
    table = by_table(seen, Outcomes.of(seen), fold)[fold != NEVER_HELD]
    groups = Method("groups", table[:, 0], table[:, 1])
    logprob = np.array([example.answers[0].confidence for example in held], np.float64)
    raw = Method("raw_logprob", -logprob, np.exp(np.minimum(0.0, logprob)))
    ours = Method("ours", np.asarray(judged.gain, np.float64), np.asarray(judged.p_right, np.float64))
    return Draw(rows, (*bounds(outcomes), by_length(held), groups, raw, ours), cascade=True)


def _how(options: CascadeOptions) -> str:
    if options.group_out:
        return "whole groups held out"
    if not options.fit and not options.calibration:
        return f"{options.folds}-fold by prompt"
    labels = f"{options.calibration:,} labels of its own, {DRAWS} draws" if options.calibration else ""
    files = ", ".join(path.name for path in options.fit) if options.fit else ""
    return f"fitted on {' and '.join(filter(None, (files, labels)))}"


def _facts(options: CascadeOptions, draws: Sequence[Draw], others: LabelledPrompts) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if options.calibration:
        facts |= {"calibration": options.calibration, "draws": len(draws), "tested": len(draws[0].rows)}
    if options.fit:
        facts["fit"] = others.sources
    if not facts:
        facts = {"folds": options.folds, "group_out": options.group_out}
    return facts


def _notes(options: CascadeOptions) -> list[str]:
    notes = ["the small model is asked first and paid for every prompt"]
    if options.calibration:
        notes.append(
            f"means over {DRAWS} draws of {options.calibration:,} labels, each tested on all the other prompts"
        )
    return notes


def after(examples: Sequence[Example], tokens: int) -> list[Example]:
    """Return the same prompts, each small answer cut to `tokens` tokens; a shorter one stays whole.

    Raises DataError when an answer has no log-probabilities of its tokens.
    """
    without = sum(example.answers[0].logprobs is None for example in examples)
    if without:
        raise DataError(
            f"{without} of {len(examples)} rows have no logprobs for the small model, which --prefix needs; "
            "omit it, or collect them with `tierline fit collect`"
        )
    return [replace(example, answers=(_cut(example.answers[0], tokens), *example.answers[1:])) for example in examples]


def _cut(answer: LabelledAnswer, tokens: int) -> LabelledAnswer:
    if answer.logprobs is None or len(answer.logprobs) <= tokens:
        return answer
    seen = answer.logprobs[:tokens]
    alternatives = None if answer.top_logprobs is None else answer.top_logprobs[:tokens]
    mean = math.fsum(seen) / tokens
    # A prefix does not show how the answer ends, its length or its full text.
    return replace(
        answer,
        confidence=mean,
        logprobs=seen,
        top_logprobs=alternatives,
        finish_reason=None,
        tok_out=None,
        text=None,
    )
