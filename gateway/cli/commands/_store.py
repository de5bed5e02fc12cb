"""Where a command that reads the store finds it: a URL, a config, the environment, or a running `tierline up`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import orjson

from gateway.cli.commands import CommandError


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """--store, --config and --state."""
    parser.add_argument("--store", metavar="URL", help="the store (default: $TIERLINE_STORE_URL, else the running one)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="take the store from this config")
    parser.add_argument("--state", metavar="FOLDER", default=".state", help="where `tierline up` keeps its state")


def store_url(args: argparse.Namespace) -> str:
    """The store that the flags name; raises ConfigError, or CommandError where there is none."""
    url = args.store or (args.config and _configured(args.config)) or os.environ.get("TIERLINE_STORE_URL")
    return str(url) if url else _running(Path(args.state) / "up.json")


def gateway_url(state: Path) -> str | None:
    """The URL of the gateway that `tierline up` runs here; None where none does."""
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
