"""Find what commands that look at everything read: the store, the ledger's folder and the policies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.flags import launch_of
from gateway.cli.store_flags import add_store_flags, ledger_folder, store_url

if TYPE_CHECKING:
    from gateway.parts.console.page import PolicyPlaces


def add_place_flags(parser: argparse.ArgumentParser) -> None:
    """Add --store, --config, --state, --dir and --policies to a command."""
    add_store_flags(parser)
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder of the ledger (default: STATE/ledger)")
    parser.add_argument("--policies", type=Path, metavar="DIR", help="the folder of policies (default: those shipped)")


def places_of(args: argparse.Namespace) -> PolicyPlaces:
    """Return the deployment and its places, by these flags. Raises ConfigError, and CommandError without a store."""
    from gateway.parts.console.page import PolicyPlaces
    from gateway.parts.ledger.config import LedgerSections

    launch = launch_of(args)
    deployment = launch.deployment(reads=True)
    folder = ledger_folder(args, deployment.of(LedgerSections).ledger.folder)
    logs = Path(args.state) / "logs"
    return PolicyPlaces(deployment, launch.policy_source(deployment), folder, args.config, store_url(args), logs)
