"""Run `tierline policy blame`: show who last set each line of a policy."""

from __future__ import annotations

import argparse
import sys

from gateway.cli.store_flags import add_registry_flags
from gateway.exit_codes import Exit
from gateway.parts.rollout.commands._registry import when, with_registry
from gateway.parts.rollout.registry.view import blamed
from gateway.report import print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy blame`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    add_registry_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Print the lines."""
    blame = with_registry(args, lambda registry: blamed(registry, args.surface))
    if args.json:
        print_json(blame)
        return Exit.OK
    lines = blame["lines"]
    author = max(len(line["author"]) for line in lines)
    message = min(36, max(len(line["message"]) for line in lines))
    for line in lines:
        why = line["message"] if len(line["message"]) <= message else line["message"][: message - 3] + "..."
        sys.stdout.write(
            f"{line['version'][:7]} {line['author']:<{author}} {when(line['at'])} {why:<{message}} "
            f"{line['line']:>4}  {line['text']}".rstrip()
            + "\n"
        )
    return Exit.OK
