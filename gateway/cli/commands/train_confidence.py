"""Run `tierline train confidence`: fit the confidence head of a backend's model to its own labelled answers."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import seed_number
from gateway.cli.commands._output import console_of_stdout
from gateway.exit_codes import Exit
from offline.datasets import DataError, LabelledAnswer, read_rows
from offline.progress import progress
from offline.training.difficulty import TrainingUnavailable

_EXAMPLES = """examples:
  tierline train confidence --data mine.jsonl.gz --model smollm2-135m-instruct --out heads/smollm2.json
                              fit to all labelled answers of the model
  tierline train confidence --data mine.jsonl.gz --model llama3.2:3b --out llama.json --calibration 200
                              fit to 200 of them

Rows are lines of JSON as `tierline collect` writes them: {"id", "dataset", "group", "prompt", "models": {name:
{"correct": 0..1, "logprobs": [...], "top_logprobs"?, "finish_reason"?}}}. With only `confidence`, the mean
log-probability, the head judges whole answers only; with only `agreement` (0..1), second samples. With 100 to 200
labels the head turns log-probabilities into probabilities and keeps their order; with more it may also improve the
order. The command prints figures by 5-fold cross-validation, for whole answers and for the first tokens of a stream.
AUROC is the probability that a right answer gets a higher confidence than a wrong one.

The head judges the answer alone. The weight of the difficulty classifier's estimate for the prompt (`prior` in the
artefact) is not fitted here: it is 0."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `confidence` to the subcommands of `tierline train`."""
    parser = subparsers.add_parser(
        "confidence",
        help="train the confidence head of a backend's model",
        description="Train the head that estimates how likely an answer of a backend's model is right, and measure it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled rows: JSON lines, plain or .gz"
    )
    parser.add_argument(
        "--model", required=True, metavar="NAME", help="the model whose answers to use: a name under `models` of a row"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the JSON file to write the head to")
    parser.add_argument(
        "--calibration", type=_labels, metavar="N", help="fit to N random labels, at least 20 (default: all)"
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="random seed; the result depends on it (default: 0)"
    )
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark for the data sheet; repeatable"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit the head, write the artefact and print its quality."""
    from offline.training.answer_heads import fit_head, save_head

    try:
        sources, answers = _read(args.data, args.model)
        if args.calibration:
            answers = _drawn(answers, args.calibration, args.seed)
        with progress() as on_progress:
            head = fit_head(answers, args.model, args.seed, on_progress)
        digest = save_head(head, args.out, _sheet(args, sources, len(answers)))
    except (DataError, TrainingUnavailable, OSError) as error:
        raise CommandError(str(error)) from None
    if args.json:
        report = {"model": args.model, "version": digest[:12], "labels": len(answers), **head.metrics}
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        _print(head.metrics)
        sys.stdout.write(f"written to {args.out}, version {digest[:12]}\n")
    return Exit.OK


def _labels(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of labels, 20 or more")
    return int(text)


def _read(paths: list[Path], model: str) -> tuple[list[dict[str, Any]], list[LabelledAnswer]]:
    """Return the facts on each file for the data sheet, and all answers of the model. Raises DataError."""
    sources: list[dict[str, Any]] = []
    answers: list[LabelledAnswer] = []
    for path in paths:
        rows = read_rows(path)
        some = [row.answers[model] for row in rows if model in row.answers]
        if not some:
            models = sorted({name for row in rows for name in row.answers})
            raise DataError(f"{path}: no answer of {model}; it has those of {', '.join(models) or 'no model'}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        right = round(sum(answer.correct for answer in some) / len(some), 4)
        sources.append({"file": path.name, "sha256": digest, "answers": len(some), "right": right})
        answers += some
    return sources, answers


def _drawn(answers: list[LabelledAnswer], count: int, seed: int) -> list[LabelledAnswer]:
    if count > len(answers):
        raise DataError(f"--calibration asks for {count} labels, but there are {len(answers)}")
    chosen = np.random.default_rng(seed).permutation(len(answers))[:count]
    return [answers[row] for row in np.sort(chosen).tolist()]


def _sheet(args: argparse.Namespace, sources: list[dict[str, Any]], labels: int) -> dict[str, Any]:
    return {
        "what": f"confidence: P(an answer of {args.model} is right), from the evidence it leaves",
        "trained_on": sources,
        "labels": labels,
        "trained_at": datetime.now(UTC).date().isoformat(),
        "tierline": version("tierline"),
        "scikit_learn": version("scikit-learn"),
        "command": shlex.join(_command(args)),
        "notes": args.note,
    }


def _command(args: argparse.Namespace) -> Iterator[str]:
    """Yield the words of the command that makes this artefact again; without --note, which has no effect on it."""
    yield from ("tierline", "train", "confidence", "--data", *(path.name for path in args.data))
    yield from ("--model", args.model, "--out", args.out.name, "--seed", str(args.seed))
    if args.calibration:
        yield from ("--calibration", str(args.calibration))


def _print(metrics: Mapping[str, Any]) -> None:
    table = Table(title=f"{metrics['folds']}-fold", title_justify="left", box=None)
    for heading in ("judged by", "n", "right", "AUROC raw", "head", "ECE raw", "head", "Brier raw", "head"):
        table.add_column(heading, justify="left" if heading == "judged by" else "right")
    for name, part in metrics["parts"].items():
        shown = {"whole": "whole answer", "agreement": "second sample"}.get(name, f"first {name} tokens")
        figures = [f"{part[who][what]:.3f}" for what in ("auroc", "ece", "brier") for who in ("raw", "head")]
        table.add_row(shown, str(part["n"]), f"{part['right']:.3f}", *figures)
    console_of_stdout().print(table)
