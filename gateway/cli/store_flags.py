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
from gateway.seams import archive_part

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

    from cache.store.redis_store import RedisStore  # not needed by who asks the admin API, and slow to import

    async def opened(url: str) -> T:
        store = RedisStore.from_url(url, slack=_SLACK)
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

        if (archive := archive_part()) is not None:
            configured = archive.archive_folder(load_deployment(args.config, reads=True))
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


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Add --gateway and --key-env to a command that asks a running gateway's admin API."""
    parser.add_argument(
        "--gateway",
        metavar="URL",
        help="the address of the gateway's admin API (default: that of --config, else that of `tierline up`)",
    )
    parser.add_argument(
        "--key-env",
        metavar="VAR",
        help="the variable with its admin key (default: the one that the config names, else TIERLINE_ADMIN_KEY)",
    )


def admin_address(args: argparse.Namespace) -> tuple[str, str]:
    """Return the URL of a running gateway's admin API, and the variable with its key. Raises CommandError, ConfigError.

    See `add_gateway_flags`.
    """
    url: str | None = args.gateway
    key_env: str | None = None
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise CommandError(f"--gateway {url}: an address begins with http:// or https://")
        url = url.rstrip("/").removesuffix("/admin")
    elif args.config is not None:
        from gateway.config.loader import load_deployment  # not needed otherwise, and slow to import

        admin = load_deployment(args.config, reads=True).admin_place
        if admin is None:
            raise CommandError(f"{args.config} has no admin API to ask; add `admin: {{key_env: TIERLINE_ADMIN_KEY}}`")
        url, key_env = admin.url, admin.key_env
    else:
        url, key_env = _admin_of_up(Path(args.state) / "up.json")
    return url, args.key_env or key_env or "TIERLINE_ADMIN_KEY"


def _admin_of_up(up: Path) -> tuple[str, str | None]:
    try:
        running = orjson.loads(up.read_bytes())
    except (OSError, ValueError):
        raise CommandError(
            f"no gateway to ask: {up} is not there, so `tierline up` is not running here. Start it, or name the "
            "address of a gateway's admin API by --gateway, or its config by --config"
        ) from None
    if not running.get("admin_url"):
        raise CommandError(
            "the gateway of `tierline up` has no admin API to ask; add `admin: {key_env: TIERLINE_ADMIN_KEY}` to its "
            "config, set that variable to a key, and start it again"
        )
    return running["admin_url"], running.get("admin_key_env")


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
