"""Run `tierline eval route | cascade`: measure each on labelled data, with intervals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import (
    Subparsers,
    add_command,
    add_json_flag,
    add_seed_flag,
    add_state_flag,
    options_of,
    whole,
)
from gateway.exit_codes import Exit
from gateway.fit.datasets import DataError
from gateway.fit.evaluation.cascade import DRAWS, CascadeOptions, evaluate_cascade
from gateway.fit.evaluation.route import RouteOptions, evaluate_route
from gateway.fit.libraries import LibraryMissing
from gateway.progress import progress
from gateway.report import Report, show
from routing.difficulty.model import ArtefactError
from routing.embedding.embedder import EmbedderKind, EmbedderUnavailable

_ENCODERS = get_args(EmbedderKind)
_FAILURES = (DataError, LibraryMissing, ArtefactError, EmbedderUnavailable, OSError)

_EXAMPLES = """examples:
  tierline eval route --data mmlu.jsonl.gz --small mixtral-8x7b --large gpt-4-1106
                              choosing a model before any answer (the difficulty classifier)
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o --calibration 200
                              judging the small model's answer first (the confidence head)

`tierline eval route --help` and `tierline eval cascade --help` describe the options and the figures of each. In a
checkout, `python -m tools.measure_cache` measures the semantic cache on labelled pairs of questions."""

_ROWS = """A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1,
"confidence"?, "cost_usd"?}}}.

Each method scores the prompts; those with the highest scores go to the large model. Its curve is the accuracy at every
share of large calls.
  APGR             average performance gap recovered: the share of the accuracy gap between the two models that is
                   recovered, averaged over all shares of large calls
  CPT50, CPT80     call-performance threshold: least share of large calls that recovers 50% or 80% of the gap
  calls for 95%    least share of large calls that reaches 95% of the large model's accuracy; likewise for 99%
  small / large    share of prompts that each answers at that 95%; with costs in the data also dollars, and the share
                   saved compared with always asking the large model
  ECE              expected calibration error of P(small is right), in ten bins of equal count
Intervals are the central 95% of 1,000 bootstrap resamples of the prompts. The fits are not repeated for each resample,
so an interval does not show how much they would vary with other training data."""

_ROUTE = f"""examples:
  tierline eval route --data mmlu.jsonl.gz                        5-fold, for the file's worst and best model
  tierline eval route --data mmlu.jsonl.gz --group-out            hold out whole groups
  tierline eval route --data mmlu.jsonl.gz gsm8k.jsonl.gz --set-out    hold out each data set, and each one's groups
  tierline eval route --data mmlu.jsonl.gz --labels 1500          fit each fold to 1,500 labels only
  tierline eval route --data gsm8k.jsonl.gz --fit mmlu.jsonl.gz   train on one file, test on another
  tierline eval route --data mine.jsonl --artefact static         test the classifier shipped with Tierline
  tierline eval route --data mine.jsonl --plot curve.png --json   draw the curves, print JSON

{_ROWS}"""

_CASCADE = f"""examples:
  tierline eval cascade --data trivia.jsonl.gz --small llama-8b --large gpt-4o    5-fold cross-validation
  tierline eval cascade --data trivia.jsonl.gz --calibration 200                  fit to 200 labels of the file
  tierline eval cascade --data trivia.jsonl.gz --fit mmlu.jsonl.gz medmcqa.jsonl.gz
                                                    fit on other files only
  tierline eval cascade --data a.jsonl.gz b.jsonl.gz --group-out --plot curve.png
                                                    hold out whole groups, draw the curves
  tierline eval cascade --data a.jsonl.gz b.jsonl.gz c.jsonl.gz --set-out
                                                    hold out one data set at a time: is the head worth it there?

The small model is always asked first, and its cost is counted for every prompt; answers of low confidence are replaced
by the large model's. `raw logprob` uses the answer's mean log-probability as the confidence. --calibration draws its
labels {DRAWS} times, tests on all other prompts, and prints means over the draws.

{_ROWS}"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `eval` and its subcommands to the command line."""
    parser = add_command(
        subparsers,
        "eval",
        "measure routing on labelled data",
        "Measure routing on labelled data, with 95% intervals.",
        _EXAMPLES,
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="route | cascade")
    for add in (_add_route, _add_cascade):
        add(what)


def run(args: argparse.Namespace) -> int:
    """Run the chosen evaluation and print its report. Raises CommandError and ConfigError."""
    try:
        with progress() as on_progress:
            report: Report = args.evaluate(args, on_progress)
    except _FAILURES as error:
        raise CommandError(str(error)) from None
    show(report, as_json=args.json)
    if report.draw_picture is not None:
        try:
            report.draw_picture()
        except OSError as error:
            raise CommandError(f"the picture cannot be written: {error}") from None
    return Exit.OK


def _add_route(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "route",
        "measure the difficulty classifier: choosing a model before any answer",
        "Measure the difficulty classifier against the baselines, on prompts that it was not fitted on.",
        _ROUTE,
    )
    _add_data_flags(parser)
    tested = parser.add_mutually_exclusive_group()
    tested.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    tested.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    tested.add_argument(
        "--set-out", action="store_true", help="hold out each data set of --data, and each one's groups, as a whole"
    )
    tested.add_argument("--fit", type=Path, nargs="+", metavar="FILE", help="fit on these files, test on --data")
    tested.add_argument(
        "--artefact",
        metavar="PATH",
        help="test a trained classifier: its folder, or 'static' or 'minilm' for a shipped one",
    )
    parser.add_argument("--labels", type=whole(20), metavar="N", help="fit on only N random labels, at least 20")
    parser.add_argument("--embedding", choices=_ENCODERS, help="the text encoder (default: static, or the artefact's)")
    parser.set_defaults(evaluate=lambda args, watch: evaluate_route(options_of(RouteOptions, args), watch))


def _add_cascade(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "cascade",
        "measure the confidence head: judging the small model's answer",
        "Measure the confidence head against the raw log-probability and other baselines.",
        _CASCADE,
    )
    _add_data_flags(parser)
    parser.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    parser.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    parser.add_argument(
        "--set-out",
        action="store_true",
        help="hold out one whole data set at a time, and print the head minus the raw log-probability on each",
    )
    parser.add_argument(
        "--calibration", type=whole(20), metavar="N", help="fit on N random labels, at least 20; test on the others"
    )
    parser.add_argument(
        "--fit", type=Path, nargs="+", metavar="FILE", help="fit on these files (and on the labels of --calibration)"
    )
    parser.add_argument(
        "--prefix",
        action="store_true",
        help="also judge by the first 8, 16, 24, 48 tokens (needs logprobs in the data)",
    )
    parser.add_argument("--embedding", choices=_ENCODERS, default="static", help="the text encoder (default: static)")
    parser.set_defaults(evaluate=lambda args, watch: evaluate_cascade(options_of(CascadeOptions, args), watch))


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add --data, --small, --large and the other options that evaluations on labelled prompts share."""
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled prompts: JSON lines, plain or .gz"
    )
    for role, default in (("small", "worst"), ("large", "best")):
        parser.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"the {role} model, or several as one, `A+B`, as right as they are on average; of several names, the "
            f"first that a file has (default: the file's {default})",
        )
    add_seed_flag(parser, " of folds, draws and resamples")
    add_state_flag(parser)
    add_json_flag(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves to this file (needs matplotlib)")
