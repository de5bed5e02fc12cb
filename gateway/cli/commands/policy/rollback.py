"""Run `tierline policy rollback`: drop a candidate, or put an earlier version in force again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.commands.policy._registry import add_change_flags, author_of, change

if TYPE_CHECKING:
    from gateway.registry.records import InForce
    from gateway.registry.registry import PolicyRegistry

DESCRIPTION = """Drop the candidate of a surface. Without one, put the version before in force again, on all workers
within a second; each further rollback goes one version further back. A frozen surface can be rolled back too, and one
that was removed comes back."""
EXAMPLES = """examples:
  tierline policy rollback chat -m "goodput fell"             the candidate, else the version in force
  tierline policy rollback chat --to f00d -m "goodput fell"   to a version, by the beginning of its hash"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy rollback`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    parser.add_argument("--to", metavar="VERSION", help="the version to put in force, by a prefix of its hash")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Roll back."""
    author = author_of(args)

    async def back(registry: PolicyRegistry, state: InForce) -> InForce:
        prefix = args.to and args.to.removeprefix(f"{args.surface}@")
        to = await registry.version(args.surface, prefix) if prefix else None
        return await registry.rollback(args.surface, state.revision, by=author, message=args.message, to=to)

    return change(args, back, "rolled back", removed=True)
