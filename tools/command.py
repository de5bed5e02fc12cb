"""Run one of the tools from its module: `python -m tools.NAME`, with the options and reports of the other commands."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from cache.semantic.cross_encoder import CrossEncoderError
from cache.semantic.verifier import VerifierError
from gateway.cli.flags import HelpFormatter
from gateway.exit_codes import Exit
from gateway.parts.fit.datasets import DataError
from gateway.parts.fit.flags import add_note_flag
from gateway.parts.fit.libraries import LibraryMissing
from gateway.parts.fit.training.sheet import Remade
from gateway.report import OnProgress, Report, progress, show
from gateway.seams import read_other_languages
from policies.errors import ConfigError
from routing.difficulty.model import ArtefactError
from routing.embedder import EmbedderUnavailable

Work: TypeAlias = Callable[[argparse.Namespace, OnProgress], Report]

_FAILURES = (
    ArtefactError,
    ConfigError,
    CrossEncoderError,
    DataError,
    EmbedderUnavailable,
    LibraryMissing,
    OSError,
    VerifierError,
)


def parser(tool: str, package: str = "tools") -> argparse.ArgumentParser:
    """Return the parser of `python -m PACKAGE.TOOL`, without options; help.toml of the package has its texts."""
    folder = Path(__file__).parents[1].joinpath(*package.split("."))
    texts = tomllib.loads((folder / "help.toml").read_text("utf-8"))[tool]
    return argparse.ArgumentParser(
        prog=f"python -m {package}.{tool}",
        description=texts["description"],
        epilog=texts.get("examples"),
        formatter_class=partial(HelpFormatter, texts.get("options", {})),
    )


def run(made: argparse.ArgumentParser, work: Work, argv: Sequence[str] | None) -> int:
    """Parse the options, do the work and print its report; return the exit code, 2 where the work cannot be done."""
    args = made.parse_args(argv)
    read_other_languages()
    try:
        with progress() as on_progress:
            report = work(args, on_progress)
    except _FAILURES as error:
        sys.stderr.write(f"{made.prog}: {error}\n")
        return Exit.NOT_DONE
    show(report, as_json=args.json)
    return Exit.OK


def add_training_flags(made: argparse.ArgumentParser, checked: str, writes: str, required: bool = True) -> None:
    """Add --data, --check, --out and --note to a tool that trains on labelled pairs of questions."""
    files = "labelled pairs: JSON lines, plain or .gz"
    made.add_argument("--data", type=Path, nargs="+", required=required, default=[], metavar="FILE", help=files)
    made.add_argument(
        "--check", type=Path, nargs="+", default=[], metavar="FILE", help=f"labelled pairs used only to {checked}"
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"the folder to write {writes} to")
    add_note_flag(made)


def remade(made: argparse.ArgumentParser, args: argparse.Namespace, *options: str) -> Remade:
    """Return the command that makes the artefact again."""
    check = ("--check", *(path.name for path in args.check)) if args.check else ()
    return Remade.of(made.prog, args.data, args.out, [*options, *check], args.note)
