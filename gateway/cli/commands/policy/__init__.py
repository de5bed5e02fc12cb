"""Run `tierline policy`: check, test, compare, replay, apply and roll back the policies of surfaces.

Each action is a module of this folder or of a part's commands, or one of `_verbs`, with `add_options(parser)` and
`run(args)`. Only the chosen one is imported, since some need DuckDB or numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from gateway.cli.commands import command_module, help_texts
from gateway.cli.flags import Subparsers, add_command

ACTIONS: Final = tuple(name.removeprefix("policy ") for name in help_texts() if name.startswith("policy "))
"""The actions, in the order of `--help`."""
_VERBS: Final = ("promote", "pause", "resume", "rollback", "remove")


def add_parser(subparsers: Subparsers) -> None:
    """Add `policy` and its actions to the command line."""
    parser = add_command(subparsers, "policy")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, action=_Actions)
    for name in ACTIONS:
        add_command(actions, f"policy {name}")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action and return its exit code."""
    return int(_module(args.action).run(args))


class _Actions(argparse._SubParsersAction):  # type: ignore[type-arg]  # not subscriptable at run time
    """Give the chosen action its options, and no other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Parse the action's own arguments; see argparse."""
        name = str(values[0]) if values else ""
        if name in ACTIONS:
            add_options(name, self.choices[name])
        super().__call__(parser, namespace, values, option_string)


def add_options(action: str, parser: argparse.ArgumentParser) -> None:
    """Give the parser of an action its options."""
    _module(action).add_options(parser)


def _module(action: str) -> Any:
    if action in _VERBS:
        return import_module(f"{__name__}._verbs").VERBS[action]
    return command_module(f"policy {action}")
