"""Run `tierline completion`: print what a shell completes the command line with, or the manual page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shtab

from gateway.cli.flags import Subparsers, add_command
from gateway.cli.main import whole_parser
from gateway.exit_codes import Exit
from gateway.parts.local.manual import manual_of

_SHELLS = ("bash", "zsh", "tcsh")


def add_parser(subparsers: Subparsers) -> None:
    """Add `completion` to the command line."""
    parser = add_command(subparsers, "completion")
    parser.add_argument("what", choices=(*_SHELLS, "man"), metavar="bash | zsh | tcsh | man")


def run(args: argparse.Namespace) -> int:
    """Print the shell's script or the page, for the commands of the parts that are installed."""
    parser = whole_parser()
    if args.what == "man":
        sys.stdout.write(manual_of(parser))
        return Exit.OK
    _complete_files(parser)
    sys.stdout.write(shtab.complete(parser, shell=args.what))
    return Exit.OK


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark the options that take paths, so that the shell completes files and folders after them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for chosen in action.choices.values():
                _complete_files(chosen)
        elif action.type is Path:
            names = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
            action.complete = names  # type: ignore[attr-defined]  # shtab's way
