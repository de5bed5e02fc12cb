"""Run `tierline console`: web pages on what requests met, in a process and on a port of its own."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, whole
from gateway.cli.store_flags import gateway_url
from gateway.exit_codes import Exit
from gateway.parts.console.commands._places import add_place_flags, places_of

_NICENESS = 10
"""What the process adds to its niceness: a page may wait, a request to a gateway on the same machine may not."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `console` to the command line."""
    parser = add_command(subparsers, "console")
    add_place_flags(parser)
    parser.add_argument("--host", dest="at", metavar="NAME")
    parser.add_argument("--port", dest="on", type=whole(0), metavar="N")
    parser.add_argument("--gateway", metavar="URL")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises CommandError and ConfigError."""
    from gateway.parts.console.config import ConsoleSections
    from gateway.parts.console.server import CannotServeConsole, serve_console

    places = places_of(args)
    config = places.deployment.of(ConsoleSections).console
    gateway = args.gateway or config.gateway
    if gateway is None and not args.config and not args.store:
        gateway = gateway_url(Path(args.state))
    if gateway is not None and not gateway.startswith(("http://", "https://")):
        raise CommandError(f"--gateway {gateway}: an address begins with http:// or https://")
    wanted = (("host", args.at), ("port", args.on), ("gateway", gateway))
    given = {name: value for name, value in wanted if value is not None}
    os.nice(_NICENESS)
    try:
        asyncio.run(serve_console(places, config.model_copy(update=given), dict(os.environ)))
    except (CannotServeConsole, ValueError) as error:
        raise CommandError(str(error)) from None
    return Exit.OK
