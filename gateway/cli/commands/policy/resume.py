"""Run `tierline policy resume`: end a pause."""

from __future__ import annotations

import argparse

from gateway.cli.commands.policy._registry import add_change_flags, author_of, change

DESCRIPTION = "End a pause: the candidate's step begins anew, and a frozen surface takes changes again."
EXAMPLES = """examples:
  tierline policy resume chat -m "the new prices are in" """


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy resume`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """End the pause."""
    author = author_of(args)
    return change(
        args,
        lambda registry, state: registry.resume(args.surface, state.revision, by=author, message=args.message),
        "resumed",
    )
