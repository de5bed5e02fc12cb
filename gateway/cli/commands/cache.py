"""`tierline cache stats | show ID | purge`: what answers are kept, and taking them out."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from cache.administration import Administration, Purged
from cache.scopes.tags import BadTags, parse
from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.commands._store import add_store_flags, gateway_url, store_url
from gateway.exit_codes import Exit
from gateway.telemetry.cache_view import draw_entry, draw_stats, entry_shown, lookups_of, scope_shown, size

_EXAMPLES = """examples:
  tierline cache stats                              what each surface and tenant keeps
  tierline cache show 9f2c41d07a55                  one entry; the id is in x-tierline-cache-entry and in traces
  tierline cache purge --surface chat               no answer of chat is served again; all tenants; takes a second
  tierline cache purge --surface chat --tenant acme
  tierline cache purge --tag doc:42                 what was drawn from doc:42 has changed
  tierline cache purge --entry 9f2c41d07a55         this answer is wrong
  tierline cache stats --json | jq '.scopes[] | select(.entries > 1000)'

It works on the store itself, whether a gateway runs or not, and asks nothing before it purges. When a purge has ended,
no worker of any gateway on this store gives what it names to a request that comes from then on, and what such requests
are answered is kept again. An answer that was being made reaches only those who had asked for it by then. An answer is
stored, and so can be purged as an entry, a moment after its reply. Exit code 2: there is no such entry, or the store
does not answer."""

_TIMEOUT_S = 2.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `cache` to the command line."""
    parser = subparsers.add_parser(
        "cache",
        help="show what answers are kept, and take them out",
        description="Shows what the cache keeps, and purges a surface, what was drawn from a source, or one entry.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = argparse.ArgumentParser(add_help=False)
    add_store_flags(where)
    where.add_argument("--json", action="store_true", help="print one JSON object")
    what = parser.add_subparsers(dest="what", required=True, metavar="stats | show | purge")
    stats = what.add_parser("stats", parents=[where], help="what each surface and tenant keeps")
    stats.add_argument("--gateway", metavar="URL", help="whose lookups to count (default: the running one)")
    stats.add_argument(
        "--key-env",
        metavar="VAR",
        default="TIERLINE_ADMIN_KEY",
        help="the variable that holds the gateway's admin key, where it has tenants (default: TIERLINE_ADMIN_KEY)",
    )
    show = what.add_parser("show", parents=[where], help="one entry")
    show.add_argument("entry", type=_entry_id, metavar="ID", help="its id, as in replies and traces")
    purge = what.add_parser("purge", parents=[where], help="take answers out")
    purge.add_argument("--surface", type=_name, metavar="S", help="of this surface; alone or with --tag")
    purge.add_argument("--tag", type=_tag, metavar="T", help="drawn from this source")
    purge.add_argument("--entry", type=_entry_id, metavar="ID", help="this one, and the copies that hits made of it")
    who = purge.add_mutually_exclusive_group()
    who.add_argument("--tenant", type=_name, metavar="T", help="of this tenant only")
    who.add_argument("--team", type=_name, metavar="T", help="of this team only, where a policy shares within teams")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carries the command out; raises CommandError and ConfigError."""
    try:
        return asyncio.run(_run(store_url(args), args))
    except StoreUnavailable as down:
        raise CommandError(f"the store does not answer ({down}); is it running?") from None
    except ValueError as bad:
        raise CommandError(str(bad)) from None


async def _run(url: str, args: argparse.Namespace) -> int:
    store = RedisStore.from_url(url)
    try:
        administration = Administration(store)
        if args.what == "stats":
            return await _stats(store, administration, args)
        return await (_show if args.what == "show" else _purge)(administration, args)
    finally:
        await store.aclose()


async def _stats(store: RedisStore, administration: Administration, args: argparse.Namespace) -> int:
    from cache.index import carried  # not needed otherwise, and slow to import

    scopes = [scope_shown(one) for one in await administration.stats()]
    running = await asyncio.to_thread(_running, args)
    # Where no gateway says which index it has, the store says which it would get.
    found = running or {"lookups": None, "index": {"kind": await carried(store), "entries": None, "reason": ""}}
    if args.json:
        return _print({"scopes": scopes, **found})
    draw_stats(scopes, {**found, "lookups": found["lookups"] or {}}, Console(highlight=False))
    return Exit.OK


async def _show(administration: Administration, args: argparse.Namespace) -> int:
    found = await administration.find(args.entry)
    if found is None:
        raise _no_entry(args.entry)
    shown = entry_shown(found)
    if args.json:
        return _print(shown)
    draw_entry(shown, Console(highlight=False))
    return Exit.OK


async def _purge(administration: Administration, args: argparse.Namespace) -> int:
    kind = next((kind for kind in ("tenant", "team") if getattr(args, kind)), None)
    owner = f"{kind}:{getattr(args, kind)}" if kind is not None else None
    if args.entry is not None:
        return await _purge_entry(administration, args)
    if args.tag is not None:
        purged = await administration.purge_tag(args.tag, args.surface, owner)
        done = f"Answers drawn from {args.tag} are not served any more, in {_scopes(purged)}{_of(args)}."
    elif args.surface is not None:
        purged = await administration.purge_surface(args.surface, owner)
        freed = f"{purged.entries} entries ({size(purged.bytes)}) of {_scopes(purged)}"
        done = f"{args.surface} begins anew{_of(args)}: {freed} are gone."
    else:
        raise CommandError("say what to purge: --surface S, --tag T or --entry ID")
    if args.json:
        what = {name: getattr(args, name) for name in ("surface", "tag", "tenant", "team") if getattr(args, name)}
        return _print({**what, "scopes": purged.scopes, "entries": purged.entries, "bytes": purged.bytes})
    sys.stdout.write(done + "\n")
    return Exit.OK


async def _purge_entry(administration: Administration, args: argparse.Namespace) -> int:
    if args.surface or args.tag or args.tenant or args.team:
        raise CommandError("--entry names one answer already; leave the other flags out")
    found = await administration.remove(args.entry)
    if found is None:
        raise _no_entry(args.entry)
    if args.json:
        return _print({"entry": found.id, "scopes": 1, "entries": 1 + len(found.copies)})
    copies = f", with {len(found.copies)} copies" if found.copies else ""
    sys.stdout.write(f"Entry {found.id} of {found.scope.surface} ({found.scope.owner}) is gone{copies}.\n")
    return Exit.OK


def _running(args: argparse.Namespace) -> dict[str, Any] | None:
    """What the gateway says of its lookups and its index; None where none is reached, unless one was named."""
    import httpx2  # not needed otherwise, and slow to import

    origin = args.gateway or gateway_url(Path(args.state))
    if origin is None:
        return None
    if not origin.startswith(("http://", "https://")):
        raise CommandError(f"--gateway {origin}: a gateway's URL begins with http:// or https://")
    origin = origin.rstrip("/").removesuffix("/v1")
    try:
        key = os.environ.get(args.key_env)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx2.Client(base_url=origin, headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
            metrics = client.get("/metrics")
            if metrics.status_code == 401:
                wanted = f"put it in {args.key_env}, or name its variable with --key-env"
                raise CommandError(f"the gateway at {origin} shows its lookups to the admin's key alone; {wanted}")
            lookups = lookups_of(metrics.raise_for_status().text)
            index: Mapping[str, Any] = orjson.loads(client.get("/readyz").content)["semantic_index"]
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        if args.gateway is None:
            return None
        raise CommandError(f"the gateway at {origin} does not answer ({error})") from None
    return {"lookups": lookups, "index": index}


def _print(value: Mapping[str, Any]) -> int:
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
    return Exit.OK


def _scopes(purged: Purged) -> str:
    return f"{purged.scopes} scope{'' if purged.scopes == 1 else 's'}"


def _of(args: argparse.Namespace) -> str:
    if args.tenant:
        return f" for tenant {args.tenant}"
    return f" for team {args.team}" if args.team else ""


def _no_entry(entry_id: str) -> CommandError:
    return CommandError(f"there is no entry {entry_id}; it may have expired or been purged")


def _entry_id(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{12,32}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an entry's id; one is 12 hex digits, as in replies")
    return text


def _name(text: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9_.-]{0,63}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name from a config or a policy")
    return text


def _tag(text: str) -> str:
    try:
        named = parse(text.encode("latin-1", "replace"))
    except BadTags:
        named = ()
    if named != (text,):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tag; one is 1 to 64 letters, digits or ._:/@+#=-")
    return text
