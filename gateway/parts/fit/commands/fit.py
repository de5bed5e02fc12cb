"""Run `tierline fit`: collect labels, train, learn, calibrate and evaluate. Each action is a module of this folder."""

from __future__ import annotations

import argparse
from typing import Final

from gateway.cli.actions import add_actions
from gateway.cli.commands import command_module
from gateway.cli.flags import Subparsers, add_command

_CHOSEN: Final = "fitting"
"""`fit learn` has actions itself."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `fit` and its actions to the command line."""
    add_actions(add_command(subparsers, "fit"), "fit", chosen=_CHOSEN)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    return int(command_module(f"fit {getattr(args, _CHOSEN)}").run(args))
