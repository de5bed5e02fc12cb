"""Run `tierline eval route`: measure choosing the model before any answer, by the difficulty classifier."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gateway.cli.commands._labelled import Labelled, read_labelled
from gateway.cli.commands.eval import _report
from gateway.cli.commands.eval._artefact import ServedArtefact
from gateway.cli.commands.eval._data import ROWS, add_data_flags, read_others, whole
from gateway.cli.commands.eval._embedding import Remembered
from gateway.exit_codes import Exit
from offline.datasets import DataError, Example
from offline.evaluation import parts
from offline.evaluation.baselines import bounds, by_length, by_table
from offline.evaluation.curves import Floats
from offline.evaluation.figures import Draw, Method, Outcomes, share
from offline.evaluation.parts import Round
from offline.evaluation.picture import draw_picture
from offline.progress import OnProgress, progress
from routing.difficulty.model import SHEET_FILE, gain_of
from routing.embedding.embedder import EmbedderKind, load_embedder

_EXAMPLES = f"""examples:
  tierline eval route --data mmlu.jsonl.gz                        5-fold, for the file's worst and best model
  tierline eval route --data mmlu.jsonl.gz --group-out            hold out whole groups
  tierline eval route --data mmlu.jsonl.gz --labels 1500          fit each fold to 1,500 labels only
  tierline eval route --data gsm8k.jsonl.gz --fit mmlu.jsonl.gz   train on one file, test on another
  tierline eval route --data mine.jsonl --artefact static         test the classifier shipped with Tierline
  tierline eval route --data mine.jsonl --plot curve.png --json   draw the curves, print JSON

{ROWS}"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `route` to the subcommands of `tierline eval`."""
    parser = subparsers.add_parser(
        "route",
        help="measure the difficulty classifier: choosing a model before any answer",
        description="Measure the difficulty classifier against the baselines, on prompts that it was not fitted on.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_data_flags(parser)
    tested = parser.add_mutually_exclusive_group()
    tested.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    tested.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    tested.add_argument("--fit", type=Path, nargs="+", metavar="FILE", help="fit on these files, test on --data")
    tested.add_argument(
        "--artefact",
        metavar="PATH",
        help="test a trained classifier: its folder, or 'static' or 'minilm' for a shipped one",
    )
    parser.add_argument("--labels", type=whole(20), metavar="N", help="fit on only N random labels, at least 20")
    parser.add_argument(
        "--embedding", choices=get_args(EmbedderKind), help="the text encoder (default: static, or the artefact's)"
    )
    parser.set_defaults(evaluate=evaluate)


@dataclass(frozen=True, slots=True)
class _Tested:
    """Scores of the trained methods for every prompt of the data, with the title, facts and notes for the report."""

    learned: tuple[Method, ...]
    title: str
    facts: dict[str, Any]
    notes: list[str]


def evaluate(args: argparse.Namespace) -> int:
    """Score every prompt by every method, and print the figures of each method."""
    _report.require_libraries(args, fits=not args.artefact)
    if args.artefact and args.labels:
        raise DataError("--labels is the number of labels to fit on, and --artefact fits nothing; remove one of them")
    data = read_labelled(args.data, args.small, args.large)
    with progress() as on_progress:
        tested = _of_artefact(args, data, on_progress) if args.artefact else _fitted(args, data, on_progress)
        outcomes = Outcomes.of(data.examples)
        methods = (*bounds(outcomes), by_length(data.examples), *tested.learned)
        draw = Draw(np.arange(len(data.examples)), methods, cascade=False)
        title = f"{_report.named(data)}; {tested.title}"
        facts = {**tested.facts, "seed": args.seed}
        report = _report.measured(title, data, [draw], facts, tested.notes, on_progress)
    _report.show(report, args)
    if args.plot:
        draw_picture(args.plot, title, outcomes, [draw], args.seed)
    return Exit.OK


def _of_artefact(args: argparse.Namespace, data: Labelled, on_progress: OnProgress) -> _Tested:
    """Score each prompt by a trained classifier, as a request of its own; the table of groups is cross-validated."""
    served = ServedArtefact.open(args.artefact, args.embedding, args.state)
    scores = list(served.assess([example.prompt for example in data.examples], on_progress))
    probabilities = np.array([(difficulty.p_right[0], difficulty.p_right[-1]) for difficulty in scores])
    domain = share(np.array([float(difficulty.in_domain) for difficulty in scores]), args.seed)
    fold = parts.by_prompt(len(scores), args.folds, args.seed)
    table = by_table(data.examples, Outcomes.of(data.examples), fold)
    methods = (Method("groups", table[:, 0], table[:, 1]), _ours(probabilities))
    facts: dict[str, Any] = {"artefact": {"path": str(args.artefact), "version": served.model.version}}
    facts |= {"embedding": served.embedder.name, "in_domain": _report.interval_json(domain)}
    notes = [f"in its domain: {_report.percent(domain)} of the prompts", *_cautions(served.folder, data)]
    notes.append(f"the table of groups is fitted by {args.folds}-fold cross-validation on this data")
    return _Tested(methods, f"artefact {served.model.version}", facts, notes)


def _cautions(folder: Path, data: Labelled) -> list[str]:
    """Return reasons from the artefact's data sheet why its figures on this data may be misleading."""
    sheet = json.loads((folder / SHEET_FILE).read_bytes())
    trained_on = {source.get("sha256") for source in sheet.get("trained_on", ())}
    cautions = [
        f"the artefact was trained on {source['file']}: its figures there do not hold for other prompts"
        for source in data.sources
        if source["sha256"] in trained_on
    ]
    if sheet.get("small_accuracy") is not None:
        moved = f"its P(small right) was adjusted to a model that is right {sheet['small_accuracy']:.0%} of the time"
        cautions.append(f"{moved}: its ECE for another model means little")
    return cautions


def _fitted(args: argparse.Namespace, data: Labelled, on_progress: OnProgress) -> _Tested:
    """Score the prompts by classifiers that were fitted without them."""
    others = read_others(args, data)
    examples = [*data.examples, *others.examples]
    kind: EmbedderKind = args.embedding or "static"
    embedder = Remembered(load_embedder(kind, args.state), on_progress)
    fold, title = _fold(args, data, len(others.examples))
    facts: dict[str, Any] = {"embedding": embedder.name}
    if args.fit:
        facts["fit"] = others.sources
    else:
        facts |= {"folds": int(fold.max()) + 1, "group_out": args.group_out}
    rounds = parts.whole(fold)
    if args.labels:
        rounds = parts.with_few_labels(fold, args.labels, args.seed)
        title += f", {args.labels:,} labels"
        facts["labels"] = args.labels
    table, probabilities = _cross_validated(examples, rounds, embedder, args.seed, on_progress)
    tested = len(data.examples)
    methods = (Method("groups", table[:tested, 0], table[:tested, 1]), _ours(probabilities[:tested]))
    return _Tested(methods, f"{title}, {embedder.name}", facts, [])


def _fold(args: argparse.Namespace, data: Labelled, others: int) -> tuple[parts.Folds, str]:
    """Return the fold of each prompt, and a description of the split for the title."""
    n = len(data.examples)
    if args.fit:
        fold = np.concatenate([np.zeros(n, np.int64), np.full(others, parts.NEVER_HELD, np.int64)])
        return fold, f"fitted on {', '.join(path.name for path in args.fit)}"
    if args.group_out:
        fold = parts.by_group(data.examples, args.seed)
        return fold, f"whole groups held out in {fold.max() + 1} parts"
    return parts.by_prompt(n, args.folds, args.seed), f"{args.folds}-fold by prompt"


def _cross_validated(
    examples: Sequence[Example], rounds: Sequence[Round], embedder: Remembered, seed: int, on_progress: OnProgress
) -> tuple[Floats, Floats]:
    """The table of groups, and P(right) of the small and the large model: both (examples, 2), for what is held out."""
    from offline.training.difficulty import Recipe, cross_validate

    table, probabilities = np.zeros((len(examples), 2)), np.zeros((len(examples), 2))
    for number, one in enumerate(rounds):
        some = [examples[row] for row in one.rows]
        held = one.rows[one.held]
        table[held] = by_table(some, Outcomes.of(some), one.fold)[one.held]
        watch = _part_of(on_progress, number, len(rounds))
        scores = cross_validate(some, embedder, Recipe(seed=seed), one.fold, watch)
        probabilities[held] = scores[one.held][:, [0, -1]]
    return table, probabilities


def _part_of(on_progress: OnProgress, number: int, rounds: int) -> OnProgress:
    """Return a progress callback for one of several rounds, so that all rounds share one bar."""

    def watch(stage: str, done: int, total: int, /) -> None:
        on_progress(stage, number * total + done, rounds * total)

    return watch


def _ours(probabilities: Floats) -> Method:
    return Method("ours", gain_of(probabilities), probabilities[:, 0])
