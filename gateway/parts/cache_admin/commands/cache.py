"""Run `tierline cache stats | show ID | purge`: show and purge cached answers."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cache.scopes.tags import BadTags, parse
from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command
from gateway.cli.store_flags import add_store_flags, gateway_url, with_store
from gateway.exit_codes import Exit
from gateway.parts.cache_admin.administration import Administration, Purged
from gateway.parts.cache_admin.cache_view import entry_shown, lookups_of, scope_shown
from gateway.report import WIDE, console_of_stdout, print_json, printable
from gateway.seams import carried, draw_published, shown_published
from policies.quantities import byte_size, percent, period

_TIMEOUT_S = 2.0


def add_parser(subparsers: Subparsers) -> None:
    """Add `cache` and its subcommands to the command line."""
    parser = add_command(subparsers, "cache")
    where = argparse.ArgumentParser(add_help=False)
    add_store_flags(where)
    where.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    what = parser.add_subparsers(dest="what", required=True, metavar="stats | show | purge")
    stats = add_command(what, "cache stats", parents=[where])
    stats.add_argument("--gateway", metavar="URL")
    stats.add_argument("--key-env", metavar="VAR", default="TIERLINE_ADMIN_KEY")
    show = add_command(what, "cache show", parents=[where])
    show.add_argument("entry", type=_entry_id, metavar="ID")
    purge = add_command(what, "cache purge", parents=[where])
    purge.add_argument("--surface", type=_name, metavar="NAME")
    purge.add_argument("--tag", type=_tag, metavar="TAG")
    purge.add_argument("--entry", type=_entry_id, metavar="ID")
    who = purge.add_mutually_exclusive_group()
    who.add_argument("--tenant", type=_name, metavar="NAME")
    who.add_argument("--team", type=_name, metavar="NAME")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code. Raises CommandError and ConfigError."""
    return with_store(args, lambda store: _run(store, args))


async def _run(store: RedisStore, args: argparse.Namespace) -> int:
    administration = Administration(store)
    if args.what == "stats":
        return await _stats(store, administration, args)
    return await (_show if args.what == "show" else _purge)(administration, args)


async def _stats(store: RedisStore, administration: Administration, args: argparse.Namespace) -> int:
    scopes = [scope_shown(stat) for stat in await administration.stats()]
    running = await asyncio.to_thread(_running, args)
    # Without a running gateway, show the index that the store would support.
    stats = running or {"lookups": None, "index": {"kind": await carried(store), "entries": None, "reason": ""}}
    risks = await shown_published(store)
    if args.json:
        return _print({"scopes": scopes, **stats, "risks": risks})
    console = console_of_stdout(WIDE)
    draw_stats(scopes, {**stats, "lookups": stats["lookups"] or {}}, console)
    draw_published(risks, console)
    return Exit.OK


async def _show(administration: Administration, args: argparse.Namespace) -> int:
    entry = await administration.find(args.entry)
    if entry is None:
        raise _no_entry(args.entry)
    shown = entry_shown(entry)
    if args.json:
        return _print(shown)
    draw_entry(shown, console_of_stdout(WIDE))
    return Exit.OK


async def _purge(administration: Administration, args: argparse.Namespace) -> int:
    kind = next((kind for kind in ("tenant", "team") if getattr(args, kind)), None)
    owner = f"{kind}:{getattr(args, kind)}" if kind is not None else None
    if args.entry is not None:
        return await _purge_entry(administration, args)
    if args.tag is not None:
        purged = await administration.purge_tag(args.tag, args.surface, owner)
        done = f"Answers tagged {args.tag} are purged, in {_scopes(purged)}{_of(args)}."
    elif args.surface is not None:
        purged = await administration.purge_surface(args.surface, owner)
        freed = f"{purged.entries} entries ({byte_size(purged.bytes)}) of {_scopes(purged)}"
        done = f"{args.surface} is purged{_of(args)}: {freed} are removed."
    else:
        raise CommandError("name what to purge: --surface NAME, --tag TAG or --entry ID")
    if args.json:
        what = {name: getattr(args, name) for name in ("surface", "tag", "tenant", "team") if getattr(args, name)}
        return _print({**what, "scopes": purged.scopes, "entries": purged.entries, "bytes": purged.bytes})
    sys.stdout.write(done + "\n")
    return Exit.OK


async def _purge_entry(administration: Administration, args: argparse.Namespace) -> int:
    if args.surface or args.tag or args.tenant or args.team:
        raise CommandError("--entry names one answer; remove --surface, --tag, --tenant and --team")
    entry = await administration.remove(args.entry)
    if entry is None:
        raise _no_entry(args.entry)
    if args.json:
        return _print({"entry": entry.id, "scopes": 1, "entries": 1 + len(entry.copies)})
    copies = f", with {len(entry.copies)} copies" if entry.copies else ""
    sys.stdout.write(f"Entry {entry.id} of {entry.scope.surface} ({entry.scope.owner}) is removed{copies}.\n")
    return Exit.OK


def _running(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return a running gateway's lookups and index; None if none is reached.

    Raises CommandError if --gateway was given and it does not answer.
    """
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
                raise CommandError(f"the gateway at {origin} needs the admin key to show its lookups; {wanted}")
            counted = metrics.status_code != 404  # as of a gateway without the part `metrics`
            lookups = lookups_of(metrics.raise_for_status().text) if counted else None
            index: Mapping[str, Any] = orjson.loads(client.get("/readyz").content).get("semantic_index", {})
    except (httpx2.HTTPError, ValueError) as error:
        if args.gateway is None:
            return None
        raise CommandError(f"the gateway at {origin} does not answer ({error})") from None
    return {"lookups": lookups, "index": index}


def _print(value: Mapping[str, Any]) -> int:
    print_json(value)
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


def draw_stats(scopes: Sequence[Mapping[str, Any]], running: Mapping[str, Any] | None, console: Console) -> None:
    """Print a table of the scopes and, if `running` holds a gateway's figures, its index and its lookups."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("surface", "owner", "policy", "models"):
        table.add_column(name, overflow="fold")
    for name in ("generation", "entries", "stored"):
        table.add_column(name, justify="right")
    for scope in scopes:
        owner = scope.get("tenant") or f"team {scope['team']}"
        words = (scope["surface"], owner, scope["policy"], scope["models"])
        cells = (*words, str(scope["generation"]), str(scope["entries"]), byte_size(scope["bytes"]))
        table.add_row(*map(Text, cells), style="" if scope["current"] else "dim")
    console.print(table if scopes else "The cache is empty.")
    if any(not scope["current"] for scope in scopes):
        console.print("dim: purged; removed when it expires", style="dim")
    if running is not None:
        index = running["index"]
        held = "" if index.get("entries") is None else f", {index['entries']} entries"
        console.print(f"index     {index.get('kind') or 'none'}{held}")
        for name, outcomes in sorted(running["lookups"].items()):
            console.print(f"{name:<9} {_outcomes(outcomes)}")


def draw_entry(shown: Mapping[str, Any], console: Console) -> None:
    """Print one entry, a line for each field, its question and answer last."""
    lines = {
        "entry": shown["id"] + (f", a copy of {shown['copy_of']}" if shown["copy_of"] else ""),
        "surface": f"{shown['surface']} ({shown['policy']}, generation {shown['generation']})",
        "owner": shown.get("tenant") or f"team {shown['team']}",
        "answered": f"by {shown['tier']} ({shown['backend']}, {shown['model']})",
        "age": f"{period(shown['age_s'])}, {period(shown['ttl_left_s'])} left",
        "stored": byte_size(shown["bytes"]),
        "tags": ", ".join(shown["tags"]) or "none",
        "question": shown["question"] or "not kept",
        "answer": shown["answer"],
    }
    for name, value in lines.items():
        console.print(Text.assemble((f"{name:<9} ", "dim"), printable(value)))


def _outcomes(outcomes: Mapping[str, int]) -> str:
    total = sum(outcomes.values())
    counts = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items(), key=lambda item: -item[1]))
    return f"{counts} ({percent(outcomes.get('hit', 0) / total)} hits)" if total else "no lookups yet"
