"""Run `tierline serve`: start the gateway alone, with a configured store and backends."""

from __future__ import annotations

import argparse
import os

from gateway.cli.commands import CommandError, uncollected
from gateway.cli.flags import Subparsers, add_command, add_server_flags, launch_of
from gateway.config.launch import CannotServe


def add_parser(subparsers: Subparsers) -> None:
    """Add `serve` to the command line."""
    parser = add_command(subparsers, "serve")
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises CommandError and ConfigError."""
    # The matrices are small: synchronising several threads would cost more than it saves.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with uncollected():
        # Load the config first, so that errors in it are reported before anything slow is imported.
        launch = launch_of(args)
        deployment = launch.deployment()
        launch.policy_source(deployment).load()
        from gateway.server.server import serve

    try:
        return serve(launch, deployment)
    except CannotServe as error:
        raise CommandError(str(error)) from None
