"""Run `tierline fit eval route | cascade`: measure each on labelled data, with intervals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, add_json_flag, whole
from gateway.exit_codes import Exit
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.evaluation.cascade import CascadeOptions, evaluate_cascade
from gateway.parts.fit.evaluation.route import RouteOptions, evaluate_route
from gateway.parts.fit.flags import add_seed_flag, add_state_flag, options_of
from gateway.parts.fit.libraries import LibraryMissing
from gateway.report import Report, progress, show
from routing.difficulty.model import ArtefactError
from routing.embedder import EmbedderKind, EmbedderUnavailable

_ENCODERS = get_args(EmbedderKind)
_FAILURES = (DataError, LibraryMissing, ArtefactError, EmbedderUnavailable, OSError)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `fit eval` its options and subcommands."""
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
    parser = add_command(subparsers, "fit eval route")
    _add_data_flags(parser)
    tested = parser.add_mutually_exclusive_group()
    tested.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    tested.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    tested.add_argument("--set-out", action="store_true")
    tested.add_argument("--fit", type=Path, nargs="+", metavar="FILE")
    tested.add_argument("--artefact", metavar="PATH")
    parser.add_argument("--labels", type=whole(20), metavar="N")
    parser.add_argument("--embedding", choices=_ENCODERS)
    parser.set_defaults(evaluate=lambda args, watch: evaluate_route(options_of(RouteOptions, args), watch))


def _add_cascade(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "fit eval cascade")
    _add_data_flags(parser)
    parser.add_argument(
        "--folds", type=whole(2), default=5, metavar="N", help="number of folds of the cross-validation (default: 5)"
    )
    parser.add_argument("--group-out", action="store_true", help="hold out whole groups, in at most ten parts")
    parser.add_argument("--set-out", action="store_true")
    parser.add_argument("--calibration", type=whole(20), metavar="N")
    parser.add_argument("--fit", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--prefix", action="store_true")
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
