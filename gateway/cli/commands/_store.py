"""Find the store that a command reads: from a URL, a config, the environment, or a running `tierline up`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import orjson

from gateway.cli.commands import CommandError


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """Add --store, --config and --state to a command."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="the store to read (default: that of --config, else $TIERLINE_STORE_URL, else that of `tierline up`)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config file whose store to read")
    parser.add_argument(
        "--state", metavar="DIR", default=".state", help="the state folder of `tierline up` (default: .state)"
    )


def store_url(args: argparse.Namespace) -> str:
    """Return the URL of the store. Raises ConfigError for an invalid config, CommandError if there is no store."""
    url = args.store or (args.config and _configured(args.config)) or os.environ.get("TIERLINE_STORE_URL")
    return str(url) if url else _running(Path(args.state) / "up.json")


def gateway_url(state: Path) -> str | None:
    """Return the URL of the gateway that `tierline up` runs with this state folder; None if none runs."""
    try:
        return str(orjson.loads((state / "up.json").read_bytes())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _configured(config: Path) -> str | None:
    from gateway.config.loader import load_deployment  # not needed otherwise, and slow to import

    return load_deployment(config).store.url


def _running(up: Path) -> str:
    try:
        return str(orjson.loads(up.read_bytes())["store_url"])
    except FileNotFoundError:
        raise CommandError(
            f"no store to read: {up} is not there, so `tierline up` is not running here. "
            "Start it, or name the store by --store URL or TIERLINE_STORE_URL, or its folder by --state"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{up} cannot be read ({type(error).__name__}); name the store by --store URL") from None
