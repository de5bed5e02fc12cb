"""Find and open the store that a command uses: from a URL, a config, the environment, or a running `tierline up`."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from cache.store.base import StoreUnavailable
from gateway.cli.commands import CommandError
from gateway.cli.flags import add_json_flag
from gateway.config.addresses import open_store
from gateway.seams import archive_folder

if TYPE_CHECKING:
    from cache.store.redis_store import RedisStore

T = TypeVar("T")

_SLACK: Final = 10.0
"""The time limits of the gateway's own operations are for its event loop; a command may wait longer."""


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


def add_registry_flags(parser: argparse.ArgumentParser) -> None:
    """Add --json, and the flags of the store whose registry a command reads or changes."""
    add_json_flag(parser, "text")
    add_store_flags(parser)


def take_running(args: argparse.Namespace) -> None:
    """Fill in --config and --policies with those of the `tierline up` that runs on --state, where neither is given.

    So a command beside a running gateway reads what that reads.
    """
    if getattr(args, "config", None) or getattr(args, "policies", None):
        return
    try:
        running = orjson.loads((Path(args.state) / "up.json").read_bytes())
        files = {name: running.get(name) for name in ("config", "policies")}
    except (OSError, ValueError, AttributeError):
        return
    for name, file in files.items():
        if file is not None and name in args:
            setattr(args, name, Path(file))


def store_url(args: argparse.Namespace) -> str:
    """Return the URL of the store. Raises ConfigError for an invalid config, CommandError if there is no store."""
    url = (
        getattr(args, "store", None)
        or (args.config and _configured(args.config))
        or os.environ.get("TIERLINE_STORE_URL")
    )
    return str(url) if url else _running(Path(args.state) / "up.json")


def with_store(args: argparse.Namespace, work: Callable[[RedisStore], Awaitable[T]], *refusals: type[Exception]) -> T:
    """Return what `work` returns of the store that the flags name.

    Raises CommandError if that does not answer, or if `work` raises ValueError or one of the `refusals`; ConfigError.
    """

    async def opened(url: str) -> T:
        store = open_store(url, slack=_SLACK)
        try:
            return await work(store)
        finally:
            await store.aclose()

    refused: tuple[type[Exception], ...] = (ValueError, *refusals)
    try:
        return asyncio.run(opened(store_url(args)))
    except StoreUnavailable as down:
        raise CommandError(f"the store does not answer ({down}); is it running?") from None
    except refused as bad:
        raise CommandError(str(bad)) from None


def ledger_folder(args: argparse.Namespace, configured: Path | None = None) -> Path:
    """Return the folder of the ledger's files: that of --dir or --ledger, else the `configured` one, else STATE/ledger.

    With --config it is that of the config. Raises ConfigError for an invalid one.
    """
    named = getattr(args, "dir", None) or getattr(args, "ledger", None)
    if named is None and configured is None and getattr(args, "config", None):
        from gateway.config.loader import load_deployment  # slow to import

        configured = archive_folder(load_deployment(args.config, reads=True))
    return Path(named or configured or Path(args.state) / "ledger")


def files_of_store(args: argparse.Namespace) -> Path:
    """Return the folder of the files that go on where the store ends.

    A store that is named by itself is not that of the default state folder, whose files are of other requests.
    """
    named = args.store or os.environ.get("TIERLINE_STORE_URL")
    if named and args.state == ".state" and not args.config and not getattr(args, "dir", None):
        return Path(args.state) / "none"
    return ledger_folder(args)


def gateway_url(state: Path) -> str | None:
    """Return the URL of the gateway that `tierline up` runs with this state folder; None if none runs."""
    try:
        return str(orjson.loads((state / "up.json").read_bytes())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _configured(config: Path) -> str | None:
    from gateway.config.loader import load_deployment  # not needed otherwise, and slow to import

    return load_deployment(config, reads=True).store.url


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
