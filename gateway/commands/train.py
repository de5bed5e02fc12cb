"""`tierline train`: the difficulty classifier, from prompts labelled with which models answered them right."""

from __future__ import annotations

import argparse
import hashlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gateway.commands import CommandError
from routing.dataset import DataError, Example, choose_pair, label, read_rows
from routing.embedder import EmbedderUnavailable, load_embedder
from routing.training.difficulty import OnProgress, Recipe, TrainingUnavailable, save, train

_EXAMPLES = """examples:
  tierline train --data mmlu.jsonl.gz gsm8k.jsonl.gz --out my-classifier
  tierline train --data mine.jsonl --out my-classifier --small llama-3b --large gpt-4o
  tierline train --data mmlu.jsonl.gz --out my-classifier --embedding minilm --small-accuracy 0.3

A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1}}}. Each data set is a
kind of task with heads of its own. Put the folder into the config as `classifier:` to use it. Printed are APGR figures
by cross-validation: 0.5 is random, and `groups` is a table of the data's own groups, which a request does not tell."""

_METHODS = ("random", "length", "groups", "small_is_wrong", "ours")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `train` to the command line."""
    parser = subparsers.add_parser(
        "train",
        help="train the difficulty classifier",
        description="Trains the difficulty classifier on labelled prompts, and measures it by cross-validation.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="JSON lines, or .gz of them"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder the artefact is written to")
    parser.add_argument("--embedding", choices=("static", "minilm"), default="static", help="default: static")
    for role, default in (("small", "worst"), ("large", "best")):
        parser.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"the labels' {role} model; of several names, the first that a file has (default: its {default})",
        )
    parser.add_argument(
        "--small-accuracy",
        type=_share,
        metavar="SHARE",
        help="how often your own cheap tier is right on such prompts, where it is not the small model of the labels",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="equal seeds give equal artefacts (default: 0)"
    )
    parser.add_argument("--state", type=Path, default=Path(".state"), metavar="DIR", help="where the encoder is kept")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="a line for the data sheet")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Trains, writes the artefact and prints how good it is."""
    recipe = Recipe(seed=args.seed, small_accuracy=args.small_accuracy)
    try:
        sources, examples = _read(args.data, args.small, args.large)
        with _progress() as on_progress:
            trained = train(examples, load_embedder(args.embedding, args.state), recipe, on_progress)
        digest = save(trained, args.out, _sheet(args, sources))
    except (DataError, EmbedderUnavailable, TrainingUnavailable, OSError) as error:
        raise CommandError(str(error)) from None
    _print(trained.metrics)
    sys.stdout.write(f"written to {args.out}, version {digest[:12]}\n")
    return 0


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def _read(
    paths: Sequence[Path], small: Sequence[str], large: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Example]]:
    """What the data sheet says of each file, and all their examples."""
    sources: list[dict[str, Any]] = []
    examples: list[Example] = []
    for path in paths:
        rows = read_rows(path)
        try:
            pair = choose_pair(rows, small, large)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        some = list(label(rows, *pair))
        examples += some
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        sources.append({"file": path.name, "sha256": digest, "rows": len(some), "small": pair[0], "large": pair[1]})
    return sources, examples


def _sheet(args: argparse.Namespace, sources: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "what": "difficulty: P(small model right) and P(large model right) of a prompt, by kind of task",
        "trained_on": sources,
        "trained_at": datetime.now(UTC).date().isoformat(),
        "tierline": version("tierline"),
        "scikit_learn": version("scikit-learn"),
        "command": shlex.join(_command(args)),
        "small_accuracy": args.small_accuracy,
        "notes": args.note,
    }


def _command(args: argparse.Namespace) -> Iterator[str]:
    """The command that makes this artefact again, next to the data. Notes change nothing and are listed apart."""
    yield from ("tierline", "train", "--data", *(path.name for path in args.data), "--out", args.out.name)
    yield from ("--embedding", args.embedding, "--seed", str(args.seed))
    for role in ("small", "large"):
        names = getattr(args, role)
        yield from (f"--{role}", *names) if names else ()
    if args.small_accuracy is not None:
        yield from ("--small-accuracy", str(args.small_accuracy))


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar for each stage, on stderr."""
    columns = (TextColumn("{task.description:<17}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield on_progress


def _print(metrics: Mapping[str, Any]) -> None:
    table = Table(title=f"APGR, {metrics['folds']}-fold", title_justify="left", box=None)
    table.add_column("data set")
    for heading in ("n", *_METHODS, "ECE small", "ECE large"):
        table.add_column(heading.replace("_", " "), justify="right")
    for name, figures in metrics["datasets"].items():
        values = [f"{figures['apgr'][method]:.3f}" for method in _METHODS]
        errors = [f"{figures[key]:.3f}" for key in ("ece_small", "ece_large")]
        table.add_row(name, str(figures["n"]), *values, *errors)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
