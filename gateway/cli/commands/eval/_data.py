"""The flags that name labelled prompts, and what --fit adds to them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gateway.cli.commands._flags import seed_number
from gateway.cli.commands._labelled import Labelled, read_labelled
from routing.offline.dataset import DataError

ROWS = """A row is a line of JSON: {"id", "dataset", "group", "prompt", "models": {name: {"correct": 0..1,
"confidence"?, "cost_usd"?}}}.

Prompts go to the large model in order of a score; what is right at every share of large calls is the method's curve.
  APGR             share of the gap between the models that is recovered, averaged over every share of large calls
  CPT50, CPT80     least share of large calls that recovers half, four fifths of the gap
  calls for 95%    least share of large calls that reaches 95% of the large model's accuracy; for 99%
  small / large    who answers at that 95%; with costs in the data, dollars there, and saved against always large
  ECE              how far a stated P(small is right) is from what came true, in ten bins of equal count
Intervals are the central 95% of 1,000 bootstrap resamples of the prompts. The fits are not made again for each, so an
interval does not say how far they would differ on other training data."""


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """--data, --small, --large and what every evaluation of labelled prompts has."""
    parser.add_argument(
        "--data", type=Path, nargs="+", required=True, metavar="FILE", help="labelled prompts: JSON lines, or .gz"
    )
    for role, default in (("small", "worst"), ("large", "best")):
        parser.add_argument(
            f"--{role}",
            nargs="+",
            default=[],
            metavar="NAME",
            help=f"the {role} model; of several names, the first that a file has (default: its {default})",
        )
    parser.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="of folds, draws and resamples (default: 0)"
    )
    parser.add_argument("--state", type=Path, default=Path(".state"), metavar="DIR", help="where the encoder is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves (needs matplotlib)")


def whole(least: int) -> Any:
    """The type of a flag that takes a whole number from `least` on."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return read


def read_others(args: argparse.Namespace, data: Labelled) -> Labelled:
    """The prompts of `--fit`, none without it. Raises DataError, also for a file that would be tested too."""
    if not args.fit:
        return Labelled([], [])
    others = read_labelled(args.fit, args.small, args.large)
    tested = {source["sha256"] for source in data.sources}
    for source in others.sources:
        if source["sha256"] in tested:
            raise DataError(f"{source['file']} is in --fit and in --data: what was learned from cannot be tested on")
    return others
