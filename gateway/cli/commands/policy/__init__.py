"""Run `tierline policy`: check, test, compare, replay, apply and roll back the policies of surfaces.

Each action is a module of this folder, or one of `_verbs`, with a DESCRIPTION, EXAMPLES, `add_options(parser)` and
`run(args)`. Only the chosen one is imported, since some need DuckDB or numpy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from gateway.cli.commands._flags import Subparsers, add_command

ACTIONS: Final = {
    "lint": "find mistakes in policies, each with its line, its code and what to write instead",
    "test": "run the tests of policies, without a model: coverage of every clause, and mutants",
    "diff": "compare what two policies mean, and which recorded requests that moves",
    "explain": "explain each step of one request, and what would have to differ for another tier",
    "replay": "what recorded requests would have got by another policy, exact or estimated",
    "plan": "lint, test, compare and replay a policy on one page, and write it to a file for apply",
    "apply": "put a policy into the store: to evaluate, shadow or canary it, or in force at once",
    "status": "show what is in force and what is being tried, with the guards' figures",
    "history": "list every change: when, what, who and why",
    "show": "print a version as it was applied",
    "blame": "show who last set each line, when and why",
    "promote": "take a candidate one step further, or put it in force for all",
    "pause": "hold a candidate where it is, or freeze a surface",
    "resume": "end a pause",
    "rollback": "drop a candidate, or put an earlier version in force again",
    "remove": "take a surface out of the store; a rollback brings it back",
    "judge": "judge the candidates that are being tried, until stopped; `tierline up` does so by itself",
    "schema": "print the JSON Schema of policy files, with which editors complete and check them",
}
"""What each action does, by its name, in the order of `--help`."""
_VERBS: Final = ("promote", "pause", "resume", "rollback", "remove")

_EXAMPLES = """examples:
  tierline policy lint                              check the policies shipped with Tierline
  tierline policy lint rules/chat.yaml --json       check one file, as JSON for a script
  tierline policy diff policies/chat.yaml chat.yaml what an edited file changes
  tierline policy explain request.json --why-not local
                                                    why a request starts where it does
  tierline policy apply chat.yaml -m "escalate less"
                                                    put a version into the store, in force within a second
  tierline policy rollback chat -m "goodput fell"   and take it back

`tierline policy ACTION --help` describes an action, its options and its output."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `policy` and its actions to the command line."""
    summary = "check, test, compare, replay and roll out the policies of surfaces"
    parser = add_command(subparsers, "policy", summary, examples=_EXAMPLES)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, action=_Actions)
    for name, what in ACTIONS.items():
        add_command(actions, name, what)


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
    """Give the parser of an action its description, examples and options."""
    module = _module(action)
    parser.description, parser.epilog = module.DESCRIPTION, module.EXAMPLES
    module.add_options(parser)


def _module(action: str) -> Any:
    if action in _VERBS:
        return import_module(f"{__name__}._verbs").VERBS[action]
    return import_module(f"{__name__}.{action}")
