"""`tierline serve`: the gateway alone, against a configured store and backends."""

from __future__ import annotations

import argparse
import os

from gateway.cli.commands import CommandError
from gateway.cli.commands._flags import add_server_flags, launch_of
from gateway.config.launch import CannotServe

_EXAMPLES = """examples:
  tierline serve                                             Tierline's own config and policies
  tierline serve --config my.yaml --policies rules --port 80 your own
  TIERLINE_STORE_URL=redis://cache:6379/0 tierline serve --workers 4

Ctrl-C or SIGTERM lets requests end and stops, with exit code 0; the same signal again cuts them off, with 130."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `serve` to the command line."""
    parser = subparsers.add_parser(
        "serve",
        help="start the gateway alone",
        description="Starts the gateway alone, against a configured store and backends.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_server_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until told to stop."""
    # A product of two small matrices is not worth a second thread: spinning up to meet, they cost more than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # The config first: what is wrong with it is said before anything heavy is imported.
    launch = launch_of(args)
    deployment = launch.deployment()
    launch.policy_source(deployment).load()
    from gateway.server.server import serve

    try:
        return serve(launch, deployment)
    except CannotServe as error:
        raise CommandError(str(error)) from None
