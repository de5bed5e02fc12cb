"""Run `tierline train`: train the difficulty classifier on prompts labelled with which models answered them right."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from gateway.cli.commands import CommandError, train_cache, train_confidence
from gateway.cli.commands._flags import seed_number, share_number
from gateway.cli.commands._labelled import read_labelled
from gateway.cli.commands._output import console_of_stdout
from gateway.exit_codes import Exit
from offline.datasets import DataError
from offline.progress import progress
from offline.training.difficulty import Recipe, TrainingUnavailable, save, train
from routing.embedding.embedder import EmbedderUnavailable, load_embedder

_USAGE = """tierline train --data FILE... --out DIR [options]
       tierline train confidence --data FILE... --model NAME --out FILE [options]
       tierline train cache --data FILE... --out DIR [options]"""

_EXAMPLES = """examples:
  tierline train --data mmlu.jsonl.gz gsm8k.jsonl.gz --out my-classifier
                              two files, for each file's worst and best model
  tierline train --data mine.jsonl --out my-classifier --small llama-3b --large gpt-4o
                              for two named models
  tierline train --data mine.jsonl --out my-classifier --small llama-3b --middle llama-70b --large gpt-4o
                              for three tiers
  tierline train --data mmlu.jsonl.gz --out my-classifier --embedding minilm --small-accuracy 0.3
                              for a small model that is right on 30% of such prompts

A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1}}}, as `tierline
collect` writes them. Each data set is treated as a kind of task and gets heads of its own. To use the result, set
`classifier:` in the config to the folder. The command prints APGR by cross-validation, which `tierline eval route`
explains and gives
with intervals: 0.5 is random routing; `groups` routes by the data's own groups, which a real request does not have."""

_METHODS = ("random", "length", "groups", "small_is_wrong", "ours")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `train` and its subcommands to the command line."""
    parser = subparsers.add_parser(
        "train",
        usage=_USAGE,
        help="train the difficulty classifier, a confidence head, or the cache's verifier",
        description="Train the difficulty classifier on labelled prompts, and measure it by cross-validation.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", metavar="FILE", help="labelled prompts: JSON lines, plain or .gz; required"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write the classifier to; required")
    parser.add_argument(
        "--embedding", choices=("static", "minilm"), default="static", help="the text encoder (default: static)"
    )
    _add_models(parser)
    parser.add_argument(
        "--small-accuracy",
        type=share_number,
        metavar="SHARE",
        help="share of such prompts that your own cheap tier answers right, if it is not the labels' small model",
    )
    parser.add_argument(
        "--bare-questions",
        action="store_true",
        help="also train on multiple-choice prompts without their choices, as people ask them",
    )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="random seed; the result depends on it (default: 0)"
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    parser.add_argument(
        "--note", action="append", default=[], metavar="TEXT", help="a remark for the data sheet; repeatable"
    )
    # Not `required`: argparse would then require --data and --out before a subcommand too.
    parser.set_defaults(run=_difficulty, refuse=parser.error)
    others = parser.add_subparsers(title="other models to train", prog="tierline train")
    train_confidence.add_parser(others)
    train_cache.add_parser(others)


def _add_models(parser: argparse.ArgumentParser) -> None:
    """Add --small, --middle and --large: the labels' models that represent the tiers."""
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


def run(args: argparse.Namespace) -> int:
    """Train the chosen model, write the artefact and print its quality."""
    return int(args.run(args))


def _difficulty(args: argparse.Namespace) -> int:
    missing = [flag for flag, value in (("--data", args.data), ("--out", args.out)) if value is None]
    if missing:
        args.refuse(f"the following arguments are required: {', '.join(missing)}")
    recipe = Recipe(seed=args.seed, small_accuracy=args.small_accuracy, bare_questions=args.bare_questions)
    try:
        data = read_labelled(args.data, args.small, args.large, args.middle)
        with progress() as on_progress:
            trained = train(data.examples, load_embedder(args.embedding, args.state), recipe, on_progress)
        digest = save(trained, args.out, _sheet(args, data.sources))
    except (DataError, EmbedderUnavailable, TrainingUnavailable, OSError) as error:
        raise CommandError(str(error)) from None
    _print(trained.metrics)
    sys.stdout.write(f"written to {args.out}, version {digest[:12]}\n")
    return Exit.OK


def _sheet(args: argparse.Namespace, sources: list[dict[str, Any]]) -> dict[str, Any]:
    tiers = ("small", *(["middle"] * len(args.middle)), "large")
    right = " and ".join(f"P({tier} model right)" for tier in tiers)
    return {
        "what": f"difficulty: {right} of a prompt, by kind of task",
        "trained_on": sources,
        "trained_at": datetime.now(UTC).date().isoformat(),
        "tierline": version("tierline"),
        "scikit_learn": version("scikit-learn"),
        "command": shlex.join(_command(args)),
        "small_accuracy": args.small_accuracy,
        "notes": args.note,
    }


def _command(args: argparse.Namespace) -> Iterator[str]:
    """Yield the words of the command that makes this artefact again; without --note, which has no effect on it."""
    yield from ("tierline", "train", "--data", *(path.name for path in args.data), "--out", args.out.name)
    yield from ("--embedding", args.embedding, "--seed", str(args.seed))
    for role, ladders in (("small", [args.small]), ("middle", args.middle), ("large", [args.large])):
        for names in filter(None, ladders):
            yield from (f"--{role}", *names)
    if args.small_accuracy is not None:
        yield from ("--small-accuracy", str(args.small_accuracy))
    if args.bare_questions:
        yield "--bare-questions"


def _print(metrics: Mapping[str, Any]) -> None:
    table = Table(title=f"APGR, {metrics['folds']}-fold", title_justify="left", box=None)
    table.add_column("data set")
    tiers = ("small", *(["middle"] if "ece_middle" in metrics["datasets"]["all"] else []), "large")
    for heading in ("n", *_METHODS, *(f"ECE {tier}" for tier in tiers)):
        table.add_column(heading.replace("_", " "), justify="right")
    for name, figures in metrics["datasets"].items():
        values = [_shown(figures["apgr"].get(method, [])) for method in _METHODS]
        table.add_row(name, str(figures["n"]), *values, *(_shown(figures[f"ece_{tier}"]) for tier in tiers))
    console_of_stdout().print(table)


def _shown(figure: float | Sequence[float]) -> str:
    """Format a figure or several, `-` for none."""
    each = figure if isinstance(figure, Sequence) else [figure]
    return " ".join(f"{value:.3f}" for value in each) or "-"
