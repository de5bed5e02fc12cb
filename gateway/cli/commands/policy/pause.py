"""Run `tierline policy pause`: hold a candidate where it is, or freeze a surface."""

from __future__ import annotations

import argparse

from gateway.cli.commands.policy._registry import add_change_flags, author_of, change

DESCRIPTION = """Hold the candidate of a surface at its present share. A surface without one is frozen: until `resume`,
nothing but a rollback is taken. A paused candidate is still judged, and taken back if a guard is crossed."""
EXAMPLES = """examples:
  tierline policy pause chat -m "wait for the new prices"
  tierline policy resume chat -m "they are in" """


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy pause`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Pause the candidate, or freeze the surface."""
    author = author_of(args)
    return change(
        args,
        lambda registry, state: registry.pause(args.surface, state.revision, by=author, message=args.message),
        "paused",
    )
