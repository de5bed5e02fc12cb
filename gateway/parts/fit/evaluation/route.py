"""Evaluate choosing the model before any answer, by the difficulty classifier: `tierline fit eval route`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gateway.encoders import load_embedder
from gateway.parts.fit.curves import Floats
from gateway.parts.fit.datasets import DataError, Example, LabelledPrompts
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.evaluation.artefact import ServedArtefact
from gateway.parts.fit.evaluation.picture import draw_picture
from gateway.parts.fit.evaluation.prompts import PromptOptions, data_names, interval_json, percents, report_on
from gateway.parts.fit.figures import Draw, Method, Outcomes, mean_share
from gateway.parts.fit.folds import NEVER_HELD, Folds, Round, by_prompt, whole_round, with_few_labels
from gateway.parts.fit.kinds import features_of_example
from gateway.parts.fit.metrics import bounds, by_length, by_table
from gateway.report import WIDE, OnProgress, Report, part_progress
from routing.difficulty.model import SHEET_FILE, Difficulty, gain_of


@dataclass(frozen=True, slots=True)
class RouteOptions(PromptOptions):
    """`artefact` is a trained classifier to test; else one is fitted, to `labels` random labels or to all.

    With `set_out`, each data set and each one's groups are left out of the fits as a whole.
    """

    artefact: str | None
    labels: int | None
    set_out: bool


@dataclass(frozen=True, slots=True)
class _Tested:
    """Scores of the trained methods for every prompt of the data, with the title, facts and notes for the report."""

    learned: tuple[Method, ...]
    title: str
    facts: dict[str, Any]
    notes: list[str]


def evaluate_route(options: RouteOptions, on_progress: OnProgress) -> Report:
    """Score every prompt by every method, and return the figures of each method, with a picture if one is wanted.

    Raises DataError, LibraryMissing, ArtefactError, EmbedderUnavailable, OSError.
    """
    options.require_libraries(", or test a trained classifier with --artefact", fits=not options.artefact)
    if options.artefact and options.labels:
        raise DataError("--labels is the number of labels to fit on, and --artefact fits nothing; remove one of them")
    if options.set_out and (options.labels or options.plot):
        raise DataError("--set-out prints a table of all that is left out; remove --labels and --plot")
    data, others = options.read()
    if options.set_out:
        return _sets_left_out(options, data, on_progress)
    if options.artefact:
        tested = _of_artefact(options, options.artefact, data, on_progress)
    else:
        tested = _fitted(options, data, others, on_progress)
    outcomes = Outcomes.of(data.examples)
    methods = (*bounds(outcomes), by_length(data.examples), *tested.learned)
    draw = Draw(np.arange(len(data.examples)), methods, cascade=False)
    title = f"{data_names(data)}; {tested.title}"
    facts = {**tested.facts, "seed": options.seed}
    report = report_on(title, data, [draw], facts, tested.notes, on_progress)
    if options.plot is None:
        return report
    return replace(report, draw_picture=partial(draw_picture, options.plot, title, outcomes, [draw], options.seed))


def _sets_left_out(options: RouteOptions, data: LabelledPrompts, on_progress: OnProgress) -> Report:
    """Return how the prompts of each data set are ranked without it, and without their groups."""
    from gateway.parts.fit.training.difficulty import Recipe, measure_left_out
    from gateway.parts.fit.training.ranking_left_out import AHEAD, FLOOR, table_of_left_out

    embedder = load_embedder(options.embedding or "static", options.state)
    recipe = Recipe(seed=options.seed, bare_questions=True)
    left_out = measure_left_out(data.examples, embedder, recipe, on_progress)
    if not left_out.rows:
        raise DataError("nothing can be left out: give several data sets, or several groups, of 40 prompts or more")
    rows = [row.as_json() for row in left_out.rows]
    notes = [
        "length alone: the longest prompts are sent to the large model; ahead: how far the heads' APGR exceeds that",
        "claimed: the share of the prompts that a classifier fitted without them calls its domain, of whichever kind",
        f"a kind has a domain if its left-out prompts rank at {FLOOR:g} at the lower bound, {AHEAD:g} ahead of length",
        f"kinds with a domain: {', '.join(left_out.kinds) or 'none'}",
    ]
    values = {"left_out": rows, "domain": left_out.kinds, "embedding": embedder.name, "seed": options.seed}
    title = f"{data_names(data)}; each data set left out, {embedder.name}"
    return Report({**values, "data": data.sources, "notes": notes}, [table_of_left_out(rows)], notes, title, width=WIDE)


def _of_artefact(options: RouteOptions, artefact: str, data: LabelledPrompts, on_progress: OnProgress) -> _Tested:
    """Score each prompt by a trained classifier, as a request of its own; the table of groups is cross-validated."""
    served = ServedArtefact.open(artefact, options.embedding, options.state)
    scores = list(served.assess([features_of_example(example) for example in data.examples], on_progress))
    probabilities = np.array([(difficulty.p_right[0], difficulty.p_right[-1]) for difficulty in scores])
    domain = mean_share(np.array([float(difficulty.in_domain) for difficulty in scores]), options.seed)
    fold = by_prompt([example.prompt for example in data.examples], options.folds, options.seed)
    table = by_table(data.examples, Outcomes.of(data.examples), fold)
    methods = (Method("groups", table[:, 0], table[:, 1]), _ours(probabilities))
    facts: dict[str, Any] = {"artefact": {"path": artefact, "version": served.model.version}}
    facts |= {"embedding": served.embedder.name, "in_domain": interval_json(domain)}
    kinds = Counter(difficulty.kind for difficulty in scores if difficulty.kind)
    facts["kinds"] = {name: round(count / len(scores), 4) for name, count in kinds.most_common()}
    taken_for = ", ".join(f"{name} {part:.0%}" for name, part in facts["kinds"].items())
    notes = [
        f"taken for: {taken_for or 'no kind'}",
        f"in its domain: {percents(domain)} of the prompts{_ranked_inside(data, scores, probabilities, facts)}",
        *_cautions(served.folder, data),
    ]
    notes.append(f"the table of groups is fitted by {options.folds}-fold cross-validation on this data")
    return _Tested(methods, f"artefact {served.model.version}", facts, notes)


def _ranked_inside(
    data: LabelledPrompts, scores: Sequence[Difficulty], probabilities: Floats, facts: dict[str, Any]
) -> str:
    """Return how those in the domain are ranked, beside their length alone, and add it to the facts; '' for none."""
    from gateway.parts.fit.training.ranking_left_out import compared

    some = np.flatnonzero([difficulty.in_domain for difficulty in scores])
    labels = np.array([(data.examples[row].small, data.examples[row].large) for row in some.tolist()])
    if not len(some) or labels[:, 1].mean() <= labels[:, 0].mean():
        return ""
    chars = np.array([len(data.examples[row].prompt) for row in some.tolist()])
    apgr, length, ahead = compared(gain_of(probabilities[some]), labels, chars)
    found = {"apgr": apgr, "length": length, "ahead": ahead}
    facts["ranked_in_domain"] = {name: interval_json(figure) for name, figure in found.items()}
    return f"; there, APGR {apgr}, by length alone {length}"


def _cautions(folder: Path, data: LabelledPrompts) -> list[str]:
    """Return reasons from the artefact's data sheet why its figures on this data may be misleading."""
    sheet = json.loads((folder / SHEET_FILE).read_bytes())
    trained_on = {source.get("sha256") for source in sheet.get("trained_on", ())}
    cautions = [
        f"the artefact was trained on {source['file']}: its figures there do not hold for other prompts"
        for source in data.sources
        if source["sha256"] in trained_on
    ]
    if accuracy := sheet.get("small_accuracy"):
        each = ", ".join(f"{share:.0%} {kind}".strip() for kind, share in accuracy.items())
        moved = f"its P(small right) was adjusted to a model that is right on so many prompts: {each}"
        cautions.append(f"{moved}: its ECE for another model means little")
    return cautions


def _fitted(options: RouteOptions, data: LabelledPrompts, others: LabelledPrompts, on_progress: OnProgress) -> _Tested:
    """Score the prompts by classifiers that were fitted without them."""
    examples = [*data.examples, *others.examples]
    embedder = Remembered(load_embedder(options.embedding or "static", options.state), on_progress)
    fold, title = _fold(options, data, len(others.examples))
    facts: dict[str, Any] = {"embedding": embedder.name}
    if options.fit:
        facts["fit"] = others.sources
    else:
        facts |= {"folds": int(fold.max()) + 1, "group_out": options.group_out}
    rounds = whole_round(fold)
    if options.labels:
        rounds = with_few_labels(fold, options.labels, options.seed)
        title += f", {options.labels:,} labels"
        facts["labels"] = options.labels
    table, probabilities = _cross_validated(examples, rounds, embedder, options.seed, on_progress)
    tested = len(data.examples)
    methods = (Method("groups", table[:tested, 0], table[:tested, 1]), _ours(probabilities[:tested]))
    return _Tested(methods, f"{title}, {embedder.name}", facts, [])


def _fold(options: RouteOptions, data: LabelledPrompts, others: int) -> tuple[Folds, str]:
    """Return the fold of each prompt, and a description of the split for the title."""
    n = len(data.examples)
    if options.fit:
        fold = np.concatenate([np.zeros(n, np.int64), np.full(others, NEVER_HELD, np.int64)])
        return fold, f"fitted on {', '.join(path.name for path in options.fit)}"
    fold = options.fold(data.examples)
    if options.group_out:
        return fold, f"whole groups held out in {fold.max() + 1} parts"
    return fold, f"{options.folds}-fold by prompt"


def _cross_validated(
    examples: Sequence[Example], rounds: Sequence[Round], embedder: Remembered, seed: int, on_progress: OnProgress
) -> tuple[Floats, Floats]:
    """Return the table of groups, and P(right) of the small and the large model: both (examples, 2), where held out."""
    from gateway.parts.fit.training.difficulty import Recipe, cross_validate

    table, probabilities = np.zeros((len(examples), 2)), np.zeros((len(examples), 2))
    for number, round_ in enumerate(rounds):
        some = [examples[row] for row in round_.rows]
        held = round_.rows[round_.held]
        table[held] = by_table(some, Outcomes.of(some), round_.fold)[round_.held]
        watch = part_progress(on_progress, number, len(rounds))
        scores = cross_validate(some, embedder, Recipe(seed=seed), round_.fold, watch)
        probabilities[held] = scores[round_.held][:, [0, -1]]
    return table, probabilities


def _ours(probabilities: Floats) -> Method:
    return Method("ours", gain_of(probabilities), probabilities[:, 0])
