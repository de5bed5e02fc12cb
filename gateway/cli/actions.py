"""Add the actions of a command such as `policy` to the command line. Only the module of the chosen one is imported.

Each action is a command of its own in help.toml, such as `policy lint`, and a module with `add_options(parser)` and
`run(args)`. Some need DuckDB or numpy, which take long to import.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.cli.commands import command_module, help_texts
from gateway.cli.flags import add_command

CHOSEN: Final = "action"
"""The attribute of the parsed arguments with the name of the chosen action, unless a command gives another."""


def actions_of(command: str) -> tuple[str, ...]:
    """Return the actions of a command, in the order of `--help`; those that an action has itself are not among them."""
    names = (name.split() for name in help_texts())
    return tuple(words[1] for words in names if words[0] == command and len(words) == 2)


def add_actions(
    parser: argparse.ArgumentParser,
    command: str,
    module_of: Callable[[str], Any] = command_module,
    chosen: str = CHOSEN,
) -> None:
    """Add the actions of a command to its parser; `module_of` returns the module of one, such as `policy lint`.

    The parsed arguments have the chosen one's name as their attribute `chosen`.
    """
    actions = parser.add_subparsers(dest=chosen, metavar="ACTION", required=True, action=_LazyActions)
    assert isinstance(actions, _LazyActions)  # noqa: S101
    actions.module_of = lambda name: module_of(f"{command} {name}")
    for name in actions_of(command):
        add_command(actions, f"{command} {name}")


def add_options_of_actions(parser: argparse.ArgumentParser) -> None:
    """Give every action that `add_actions` added to a parser its options; those that lack a package stay without."""
    for actions in parser._actions:
        if isinstance(actions, _LazyActions):
            for name, chosen in actions.choices.items():
                with contextlib.suppress(ImportError):
                    actions.module_of(name).add_options(chosen)


class _LazyActions(argparse._SubParsersAction):  # type: ignore[type-arg]  # not subscriptable at run time
    """Give the chosen action its options, and no other."""

    module_of: Callable[[str], Any]
    """Returns the module of an action by its name; set right after it is made."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Parse the action's own arguments; see argparse."""
        name = str(values[0]) if values else ""
        if name in self.choices:
            self.module_of(name).add_options(self.choices[name])
        super().__call__(parser, namespace, values, option_string)
