"""Run `tierline fit train [confidence | scorer]`: fit the difficulty classifier, a confidence head or a scorer."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, add_json_flag, whole
from gateway.encoders import load_embedder
from gateway.exit_codes import Exit
from gateway.parts.fit.datasets import DataError, LabelledAnswer, file_digest, read_answers, read_labelled, read_rows
from gateway.parts.fit.embedding import Remembered
from gateway.parts.fit.flags import add_embedding_flag, add_note_flag, add_seed_flag, add_state_flag, share_number
from gateway.parts.fit.libraries import LibraryMissing
from gateway.parts.fit.training.answer_heads import fit_head, orders_of, save_head, table_of_parts, table_of_sets
from gateway.parts.fit.training.answer_scorer import Answered, fit_scorer, save_scorer
from gateway.parts.fit.training.difficulty import Recipe, save, table_of_apgr, train
from gateway.parts.fit.training.sheet import Remade, data_sheet, trained_on
from gateway.report import WIDE, OnProgress, Report, progress, show, table
from routing.difficulty.model import SHEET_FILE, ArtefactError, DifficultyModel, version_in
from routing.embedder import EmbedderUnavailable
from routing.features import features_of_text

_USAGE = """tierline fit train --data FILE... --out DIR [options]
       tierline fit train confidence --data FILE... --model NAME --out FILE [options]
       tierline fit train scorer --data FILE... --out FILE [options]"""

_FAILURES = (ArtefactError, DataError, LibraryMissing, EmbedderUnavailable, OSError)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `fit train` its options and subcommands."""
    parser.usage = _USAGE
    parser.add_argument("--data", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="DIR")
    add_embedding_flag(parser)
    first = "of several names, the first that a file has"
    parser.add_argument(
        "--small",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"the model of the small tier; {first} (default: the file's worst model)",
    )
    parser.add_argument(
        "--middle",
        nargs="+",
        action="append",
        default=[],
        metavar="NAME",
        help=f"the model of a tier in between; {first}; repeat for each such tier, cheapest first (default: none)",
    )
    parser.add_argument(
        "--large",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"the model of the large tier; {first} (default: the file's best model)",
    )
    parser.add_argument("--small-accuracy", type=_accuracy, nargs="+", default=[], metavar="[KIND=]SHARE")
    parser.add_argument("--kind", type=_kind, nargs="+", default=[], metavar="KIND=DATASET[,DATASET]")
    parser.add_argument("--bare-questions", action="store_true")
    parser.add_argument("--at-most", type=whole(20), metavar="N")
    parser.add_argument("--kinds-by-words", action="store_true")
    add_seed_flag(parser)
    add_state_flag(parser)
    add_note_flag(parser)
    # Not `required`: argparse would then require --data and --out before a subcommand too.
    parser.set_defaults(train=_difficulty, refuse=parser.error, json=False)
    others = parser.add_subparsers(title="other models to train", prog="tierline fit train")
    _add_confidence(others)
    _add_scorer(others)


def _add_confidence(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "fit train confidence")
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled rows: JSON lines, plain or .gz"
    )
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--check", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--calibration", type=whole(20), metavar="N")
    parser.add_argument("--classifier", type=Path, metavar="DIR")
    add_embedding_flag(parser)
    add_state_flag(parser)
    add_seed_flag(parser)
    add_note_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_confidence)


def _add_scorer(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "fit train scorer")
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled rows: JSON lines, plain or .gz"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--not-for", nargs="+", default=[], metavar="KIND")
    parser.add_argument("--at-most", type=whole(20), default=1000, metavar="N")
    add_seed_flag(parser)
    add_note_flag(parser)
    add_json_flag(parser, "a table")
    parser.set_defaults(train=_scorer)


def _accuracy(text: str) -> tuple[str, float]:
    """Parse `0.2` or `chat=0.2` into a kind, empty for none, and a share."""
    kind, _, share = text.rpartition("=")
    return kind, share_number(share)


def _kind(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse `chat=mine,yours` into a kind and its data sets. Raises argparse.ArgumentTypeError."""
    kind, _, datasets = text.partition("=")
    names = tuple(filter(None, datasets.split(",")))
    if not kind or not names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a kind and its data sets, such as chat=mine")
    return kind, names


def run(args: argparse.Namespace) -> int:
    """Train the chosen model, write the artefact and print its quality. Raises CommandError."""
    # The subcommands' parsers ask for these themselves; that of `train` cannot, as the subcommands would inherit it.
    missing = [flag for flag, value in (("--data", args.data), ("--out", args.out)) if value is None]
    if missing and args.train is _difficulty:
        args.refuse(f"the following arguments are required: {', '.join(missing)}")
    try:
        with progress() as on_progress:
            report: Report = args.train(args, on_progress)
    except _FAILURES as error:
        raise CommandError(str(error)) from None
    show(report, as_json=args.json)
    return Exit.OK


def _difficulty(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    accuracy: dict[str, float] = dict(args.small_accuracy)
    kinds = {dataset: kind for kind, datasets in args.kind for dataset in datasets}
    recipe = Recipe(
        seed=args.seed,
        small_accuracy=accuracy,
        bare_questions=args.bare_questions,
        kinds=kinds,
        kinds_by_vector=not args.kinds_by_words,
    )
    data = read_labelled(args.data, args.small, args.large, args.middle, args.at_most, args.seed)
    trained = train(data.examples, load_embedder(args.embedding, args.state), recipe, on_progress)
    tiers = ("small", *(["middle"] * len(args.middle)), "large")
    what = f"difficulty: {' and '.join(f'P({tier} model right)' for tier in tiers)} of a prompt, by kind of task"
    command = ["--embedding", args.embedding, "--seed", str(args.seed)]
    for role, ladders in (("small", [args.small]), ("middle", args.middle), ("large", [args.large])):
        for names in filter(None, ladders):
            command += [f"--{role}", *names]
    if accuracy:
        command += [
            "--small-accuracy",
            *(f"{kind}={share}" if kind else str(share) for kind, share in accuracy.items()),
        ]
    if args.kind:
        command += ["--kind", *(f"{kind}={','.join(datasets)}" for kind, datasets in args.kind)]
    if args.bare_questions:
        command.append("--bare-questions")
    if args.at_most is not None:
        command += ["--at-most", str(args.at_most)]
    if args.kinds_by_words:
        command.append("--kinds-by-words")
    facts = {"trained_on": data.sources, "small_accuracy": accuracy}
    remade = Remade.of("tierline fit train", args.data, args.out, command, args.note)
    digest = save(trained, args.out, data_sheet(what, facts, remade))
    done = [f"written to {args.out}, version {digest[:12]}"]
    title = f"APGR, {trained.metrics['folds']}-fold"
    return Report({}, [table_of_apgr(trained.metrics)], title=title, done=done, width=WIDE)


def _confidence(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    answered, sources = read_answers(args.data, args.model)
    if args.calibration:
        if args.calibration > len(answered):
            raise DataError(f"--calibration asks for {args.calibration} labels, but there are {len(answered)}")
        chosen = np.random.default_rng(args.seed).permutation(len(answered))[: args.calibration]
        answered = [answered[row] for row in np.sort(chosen).tolist()]
    prompts, sets, answers = zip(*answered, strict=True)
    others: dict[str, list[LabelledAnswer]] = {}
    checked = read_answers(args.check, args.model) if args.check else ([], [])
    for _, name, answer in checked[0]:
        others.setdefault(name, []).append(answer)
    head = fit_head(answers, args.model, args.seed, on_progress, _priors(args, prompts, on_progress), sets, others)
    what = f"confidence: P(an answer of {args.model} is right), from the evidence it leaves"
    calibration = ("--calibration", str(args.calibration)) if args.calibration else ()
    facts: dict[str, Any] = {"trained_on": sources, "checked_on": checked[1], "labels": len(answered)}
    notes: list[str] = []
    prior: tuple[str, ...] = ()
    lines: list[str | Text | Table] = [table_of_parts(head.metrics), table_of_sets(head.metrics)]
    lines += orders_of(head.metrics)
    if args.classifier is not None:
        prior = ("--classifier", args.classifier.name, "--embedding", args.embedding)
        facts["classifier"] = version_in(args.classifier)
        weight = head.numbers["prior"]["weight"]
        lines.append(f"weight of the classifier's estimate for the prompt: {weight:g}" + _why_none(weight))
        for file in trained_on(args.classifier / SHEET_FILE) & {source["sha256"] for source in sources}:
            name = next(source["file"] for source in sources if source["sha256"] == file)
            notes.append(f"the classifier was fitted on {name}: its estimates are better there than on new prompts")
    check = ("--check", *(path.name for path in args.check)) if args.check else ()
    options = ("--model", args.model, "--seed", str(args.seed), *calibration, *prior, *check)
    remade = Remade.of("tierline fit train confidence", args.data, args.out, options, args.note)
    digest = save_head(head, args.out, data_sheet(what, facts, remade))
    values = {"model": args.model, "version": digest[:12], "prior": head.numbers["prior"], **facts, **head.metrics}
    done = [f"written to {args.out}, version {digest[:12]}"]
    title = f"{head.metrics['folds']}-fold"
    return Report(values, lines, notes=notes, title=title, done=done, width=WIDE)


def _scorer(args: argparse.Namespace, on_progress: OnProgress) -> Report:
    rows = [row for path in args.data for row in read_rows(path)]
    answered = Answered.of(rows, args.at_most, args.seed)
    fitted = fit_scorer(answered, args.not_for, args.seed, on_progress)
    options = ["--seed", str(args.seed), "--at-most", str(args.at_most)]
    options += ["--not-for", *args.not_for] if args.not_for else []
    remade = Remade.of("tierline fit train scorer", args.data, args.out, options, args.note)
    facts: dict[str, Any] = {
        "trained_on": [{"file": path.name, "sha256": file_digest(path)} for path in args.data],
        "answers": len(answered.right),
    }
    what = "scorer: P(an answer is right), from question and answer alone"
    digest = save_scorer(fitted, args.out, data_sheet(what, facts, remade))
    made = table("set left out", "answers", "AUROC whole", "beginning", "length", "APGR whole", "beginning", "length")
    for name, metric in fitted.metrics["left_out"].items():
        kinds = [metric[by] for by in ("whole", "beginning", "length")] if "whole" in metric else []
        apgrs = ["{:.3f} [{:.3f}, {:.3f}]".format(*kind["apgr"]) if "apgr" in kind else "-" for kind in kinds]
        made.add_row(name, str(metric.get("n", "")), *(f"{kind['auroc']:.3f}" for kind in kinds), *apgrs)
    values = {"version": digest[:12], **facts, **fitted.metrics}
    done = [f"written to {args.out}, version {digest[:12]}"]
    return Report(values, [made], title="each set left out", done=done, width=WIDE)


def _priors(args: argparse.Namespace, prompts: Sequence[str], on_progress: OnProgress) -> list[float | None] | None:
    """Return --classifier's P(the first tier is right) of each prompt, None where it abstains; None without one."""
    if args.classifier is None:
        return None
    embedder = load_embedder(args.embedding, args.state)
    classifier = DifficultyModel.load(args.classifier, embedder)
    vectors = Remembered(embedder, on_progress).embed(prompts)
    judged = [
        classifier.assess(vector, features_of_text(prompt)) for prompt, vector in zip(prompts, vectors, strict=True)
    ]
    return [difficulty.p_right[0] if difficulty.in_domain else None for difficulty in judged]


def _why_none(weight: float) -> str:
    return "" if weight else ", because on held-out answers it adds no more than chance would"
