"""Run `tierline mcp`: let an agent look at what requests met, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import asyncio

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import Subparsers, add_command
from gateway.cli.commands._places import add_place_flags, places_of
from gateway.exit_codes import Exit

_EXAMPLES = """examples:
  tierline mcp                              for a running `tierline up`, in its folder
  tierline mcp --config my.yaml --dir /var/lib/tierline/ledger
                                            for a deployment: its store, its policies and its ledger
  claude mcp add tierline -- tierline mcp --state /srv/tierline/.state
                                            add it to Claude Code
  codex mcp add tierline -- tierline mcp --state /srv/tierline/.state
                                            add it to Codex

Other clients have it in their configuration:
  {"mcpServers": {"tierline": {"command": "tierline", "args": ["mcp", "--state", "/srv/tierline/.state"]}}}

The client starts it, and ends it by closing its input. It reads the ledger's files, the store and the policies, and
changes nothing. It shows no prompts or answers but what the deployment captures."""


def add_parser(subparsers: Subparsers) -> None:
    """Add `mcp` to the command line."""
    parser = add_command(
        subparsers,
        "mcp",
        "let an agent find requests, explain decisions and plan changes",
        "Serve tools over the Model Context Protocol on standard input and output: find requests, show one hop by hop, "
        "explain its decision, show policies, and plan a change of one. All of them only read.",
        _EXAMPLES,
    )
    add_place_flags(parser)
    parser.add_argument("--console", metavar="URL", default="", help="the console whose pages replies name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until the client ends it; return the exit code. Raises CommandError and ConfigError."""
    from gateway.mcp.server import serve_tools

    if args.console and not args.console.startswith(("http://", "https://")):
        raise CommandError(f"--console {args.console}: an address begins with http:// or https://")
    places = places_of(args)
    try:
        asyncio.run(serve_tools(places, args.console.rstrip("/")))
    except ValueError as error:
        raise CommandError(str(error)) from None
    return Exit.OK
