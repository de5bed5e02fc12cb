"""Run `tierline policy history`: list every change of the policies in the store."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.flags import whole
from gateway.cli.store_flags import add_registry_flags
from gateway.exit_codes import Exit
from gateway.parts.rollout.commands._registry import when, with_registry, wrapped
from gateway.parts.rollout.registry.view import history_of
from gateway.report import print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy history`."""
    parser.add_argument("surface", nargs="?", metavar="SURFACE", help="one surface (default: all)")
    parser.add_argument("--last", type=whole(1), metavar="N")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the changes."""
    changes = with_registry(args, lambda registry: history_of(registry, args.surface))[: args.last]
    if args.json:
        print_json({"changes": changes})
        return Exit.OK
    labels = max((len(change["surface"]) + 8 for change in changes), default=0)
    names = max((len(change["by"]) for change in changes), default=0)
    for change in changes:
        label = f"{change['surface']}@{change['version'][:7]}"
        head = f"{when(change['at'])}  {label:<{labels}}  {change['action']:<8}  {change['by']:<{names}}  "
        details = change["details"].split("\n")
        if len(details) == 1:  # figures have a line for each guard, and everything else is short
            lines = wrapped(head, f"{change['message']} ({details[0]})" if details[0] else change["message"])
        else:
            lines = wrapped(head, change["message"], *details)
        sys.stdout.write("\n".join(lines) + "\n")
    if not changes:
        sys.stdout.write("no changes\n")
    return Exit.OK
