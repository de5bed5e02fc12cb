"""Run `tierline serve`: start the gateway alone, with a configured store and backends."""

from __future__ import annotations

import argparse
import os

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import add_server_flags, launch_of
from gateway.config.launch import CannotServe

_EXAMPLES = """examples:
  tierline serve                                             with the config and policies shipped with Tierline
  tierline serve --config my.yaml --policies rules --port 80 with your own
  TIERLINE_STORE_URL=redis://cache:6379/0 tierline serve --workers 4
                                                             with a store, and four processes

Ctrl-C or SIGTERM finishes the requests in progress and stops, with exit code 0; the same signal again stops at once,
with exit code 130."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="start the gateway alone",
        description="Start the gateway alone, with the store and the backends of its config.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return the exit code. Raises CommandError and ConfigError."""
    # The matrices are small: synchronising several threads would cost more than it saves.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Load the config first, so that errors in it are reported before anything slow is imported.
    launch = launch_of(args)
    deployment = launch.deployment()
    launch.policy_source(deployment).load()
    from gateway.server.server import serve

    try:
        return serve(launch, deployment)
    except CannotServe as error:
        raise CommandError(str(error)) from None
