"""Run `tierline policy remove`: take a surface out of the store."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.commands import CommandError
from gateway.cli.commands.policy._registry import add_change_flags, author_of, change, deployment_of

if TYPE_CHECKING:
    from gateway.registry.records import InForce
    from gateway.registry.registry import PolicyRegistry

DESCRIPTION = """Take a surface out of force, on all workers within a second: requests that name it, or one of its
aliases, get a 404. Its versions and its history stay in the store, and `tierline policy rollback` brings it back.
Answers of it that the cache holds are not served; `tierline cache purge --surface NAME` deletes them. Refused for the
default surface, for the last one, for a frozen one, and for one with a candidate unless --with-candidate."""
EXAMPLES = """examples:
  tierline policy remove voice -m "the pilot is over"
  tierline policy remove voice --with-candidate -m "the pilot is over"    with what is being tried there
  tierline policy rollback voice -m "it goes on"                          bring it back"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `policy remove`."""
    parser.add_argument("surface", metavar="SURFACE", help="the surface")
    parser.add_argument("--with-candidate", action="store_true", help="drop the candidate that is being tried, too")
    add_change_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Remove the surface."""
    author = author_of(args)

    async def remove(registry: PolicyRegistry, state: InForce) -> InForce:
        # Workers say themselves what their default surface is; where none runs, the config does.
        if (args.config is not None or not await registry.replicas()) and (
            deployment_of(args).default_surface == args.surface
        ):
            raise CommandError(
                f"{args.surface} is the config's default surface: what asks for `auto` goes there. Name another as "
                "`default_surface` first"
            )
        return await registry.remove(
            args.surface, state.revision, by=author, message=args.message, with_candidate=args.with_candidate
        )

    return change(args, remove, "removed")
