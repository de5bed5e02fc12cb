"""Run `tierline policy`: check, test, compare, replay, apply and roll back the policies of surfaces.

Each action is a module among a part's commands; this package adds those of the parts that are installed.
"""

from __future__ import annotations

import argparse

from gateway.cli.actions import add_actions
from gateway.cli.commands import command_module
from gateway.cli.flags import Subparsers, add_command


def add_parser(subparsers: Subparsers) -> None:
    """Add `policy` and its actions to the command line."""
    add_actions(add_command(subparsers, "policy"), "policy")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    return int(command_module(f"policy {args.action}").run(args))
