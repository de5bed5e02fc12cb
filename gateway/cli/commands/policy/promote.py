"""Run `tierline policy promote`: take a candidate one step further, or put it in force for all."""

from __future__ import annotations

import argparse

from gateway.cli.commands.policy._registry import add_change_flags, author_of, change

DESCRIPTION = """Take the candidate of a surface to the next share of its `rollout`; after the last, or with --full, put
it in force for all. From evaluate or shadow the next step is the first share."""
EXAMPLES = """examples:
  tierline policy promote chat -m "the figures are good"           the next step
  tierline policy promote chat -m "the fair begins" --full         for all, now"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy promote`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    parser.add_argument("--full", action="store_true", help="for all at once, whatever steps are left")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Promote the candidate."""
    author = author_of(args)
    return change(
        args,
        lambda registry, state: (registry.promote if args.full else registry.step)(
            args.surface, state.revision, by=author, message=args.message
        ),
        "promoted",
    )
