"""Run `tierline policy`: check, test, compare, replay, apply and roll back the policies of surfaces.

Each action is a module of this folder or of a part's commands, or one of `_verbs`.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, Final

from gateway.cli.actions import add_actions
from gateway.cli.commands import command_module
from gateway.cli.flags import Subparsers, add_command

_VERBS: Final = ("promote", "pause", "resume", "rollback", "remove")


def add_parser(subparsers: Subparsers) -> None:
    """Add `policy` and its actions to the command line."""
    add_actions(add_command(subparsers, "policy"), "policy", _module)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    return int(_module(f"policy {args.action}").run(args))


def _module(command: str) -> Any:
    verb = command.rsplit(maxsplit=1)[-1]
    return import_module(f"{__name__}._verbs").VERBS[verb] if verb in _VERBS else command_module(command)
