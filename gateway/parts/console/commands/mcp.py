"""Run `tierline mcp`: let an agent look at what requests met, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import asyncio

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command
from gateway.exit_codes import Exit
from gateway.parts.console.commands._places import add_place_flags, places_of


def add_parser(subparsers: Subparsers) -> None:
    """Add `mcp` to the command line."""
    parser = add_command(subparsers, "mcp")
    add_place_flags(parser)
    parser.add_argument("--console", metavar="URL", default="")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until the client ends it; return the exit code. Raises CommandError and ConfigError."""
    from gateway.parts.console.mcp.server import serve_tools

    if args.console and not args.console.startswith(("http://", "https://")):
        raise CommandError(f"--console {args.console}: an address begins with http:// or https://")
    places = places_of(args)
    try:
        asyncio.run(serve_tools(places, args.console.rstrip("/")))
    except ValueError as error:
        raise CommandError(str(error)) from None
    return Exit.OK
