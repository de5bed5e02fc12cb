"""Define the options of evaluations on labelled prompts, and read the prompts of --fit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.cli.commands._flags import seed_number
from gateway.cli.commands._labelled import Labelled, read_labelled
from offline.datasets import DataError

ROWS = """A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1,
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


def add_data_flags(parser: argparse.ArgumentParser) -> None:
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
            help=f"the {role} model; of several names, the first that a file has (default: the file's {default})",
        )
    parser.add_argument(
        "--seed",
        type=seed_number,
        default=0,
        metavar="N",
        help="random seed of folds, draws and resamples (default: 0)",
    )
    parser.add_argument(
        "--state", type=Path, default=Path(".state"), metavar="DIR", help="the folder of the text encoder's files"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves to this file (needs matplotlib)")


def whole(least: int) -> Any:
    """Return a parser for option values that are whole numbers of at least `least`."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return read


def read_others(args: argparse.Namespace, data: Labelled) -> Labelled:
    """Return the prompts of `--fit`, none without it. Raises DataError, also for a file that is in --data too."""
    if not args.fit:
        return Labelled([], [])
    others = read_labelled(args.fit, args.small, args.large)
    tested = {source["sha256"] for source in data.sources}
    for source in others.sources:
        if source["sha256"] in tested:
            raise DataError(f"{source['file']} is in --fit and in --data: training data cannot be used for the test")
    return others
