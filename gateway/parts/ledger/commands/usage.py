"""Run `tierline usage`: requests, tokens and money by owner, surface, day, and by who was called."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, add_json_flag, duration
from gateway.cli.store_flags import add_store_flags, files_of_store, with_store
from gateway.exit_codes import Exit
from gateway.parts.ledger.older_records import has_files
from gateway.report import NONE, WIDE, Report, printable, show, table
from policies.quantities import NANO, dollars

if TYPE_CHECKING:
    from gateway.parts.access.keys.registry import KeyRegistry
    from gateway.parts.ledger.live import LiveArchive
    from gateway.parts.ledger.usage import UsageQuery

_BY: Final = ("day", "tenant", "team", "key", "user", "surface", "tier", "model", "backend")
_FILES: Final = ("csv", "parquet", "focus")


def add_parser(subparsers: Subparsers) -> None:
    """Add `usage` to the command line."""
    parser = add_command(subparsers, "usage")
    parser.add_argument("--by", type=_columns, default=("key",), metavar="COLUMNS")
    parser.add_argument("--since", metavar="TIME")
    parser.add_argument("--until", metavar="TIME")
    parser.add_argument("--month", metavar="YYYY-MM")
    parser.add_argument("--zone", type=_zone, default=ZoneInfo("UTC"), metavar="NAME")
    for name in _BY[1:]:
        parser.add_argument(f"--{name}", metavar="NAME", help=f"only of this {name}")
    for name in _FILES:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    add_json_flag(parser)
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder of the ledger (default: STATE/ledger)")
    add_store_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the usage, and write the files that are asked for. Raises CommandError and ConfigError."""
    from gateway.parts.ledger.query import QueryError

    return with_store(args, lambda store: _run(store, args), QueryError)


async def _run(store: RedisStore, args: argparse.Namespace) -> int:
    from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused
    from gateway.parts.ledger.live import LiveArchive  # slow to import
    from gateway.parts.ledger.usage import usage_lines

    if args.key is not None:
        with contextlib.suppress(KeysRefused, StoreUnavailable):
            args.key = (await KeyRegistry(store).find(args.key)).id
    query = _query(args)
    archive = LiveArchive(files_of_store(args), store)
    try:
        if args.check:
            return await _check(archive, store, as_json=args.json)
        try:
            await archive.catch_up()
        except StoreUnavailable as down:
            if not has_files(files_of_store(args)):
                raise
            archive.failing = str(down)
        done = []
        for name in _FILES:
            if (file := getattr(args, name)) is not None:
                sql = query.focus if name == "focus" else query.lines()
                parquet = name == "parquet" or (name == "focus" and file.suffix == ".parquet")
                done.append(f"{_to_file(archive, sql, query, file, parquet=parquet)} rows written to {file}")
        usage = await usage_lines(archive, query)
        if "key" in query.by:
            await _add_names(KeyRegistry(store), usage["lines"])
    finally:
        await archive.aclose()
    show(_report(usage, query, done), as_json=args.json)
    return Exit.OK


def _to_file(archive: LiveArchive, sql: str, query: UsageQuery, file: Path, *, parquet: bool) -> int:
    """Write the rows of a query and return how many. Raises CommandError."""
    from gateway.parts.ledger.usage import write_rows

    if not file.parent.is_dir():
        raise CommandError(f"{file} cannot be written: there is no folder {file.parent}")
    try:
        return write_rows(archive, sql, query.values, file, parquet=parquet)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror or error}") from None


async def _add_names(registry: KeyRegistry, lines: Sequence[dict[str, Any]]) -> None:
    """Add to each line what people call its key; '' where it has no name, or the store does not answer."""
    names: Mapping[str, str] = {}
    with contextlib.suppress(StoreUnavailable):
        names = await registry.names(sorted({line["key"] for line in lines if line["key"]}))
    for line in lines:
        line["name"] = names.get(line["key"], "")


async def _check(archive: LiveArchive, store: RedisStore, *, as_json: bool) -> int:
    """Compare the counter of each account of money with the sum of its records, and print those that differ.

    Records that come meanwhile are in one of the two readings of a counter, before and after those of the records.
    """
    from gateway.parts.access.keys.budgets import OwnerBudgets, account_named
    from gateway.parts.ledger.usage import charges_of

    budgets = OwnerBudgets(store)
    before = await budgets.counters()
    await archive.catch_up()
    charges, after = await charges_of(archive), await budgets.counters()
    rows = table("account", "counter", "ledger", "counter - ledger")
    differing = []
    for name in sorted({*after, *(name for name in charges if account_named(name, time.time()))}):
        counter, ledger = after.get(name), charges.get(name, 0)
        low, high = sorted((before.get(name, counter or 0), counter or 0))
        if counter is None or not low <= ledger <= high:
            usd = None if counter is None else counter / NANO, ledger / NANO, ((counter or 0) - ledger) / NANO
            differing.append(dict(zip(("account", "counter_usd", "ledger_usd", "off_usd"), (name, *usd), strict=True)))
            counted = "none in the store" if usd[0] is None else f"${usd[0]:.9f}"
            rows.add_row(printable(name), counted, f"${usd[1]:.9f}", f"${usd[2]:+.9f}")
    notes = [f"{file} is damaged: its records are not in the ledger's sums" for file in archive.damaged]
    values = {"accounts": len(after), "differing": differing, "notes": notes}
    lines: list[Any] = [f"{len(differing)} of {len(after)} counters differ:", rows]
    if not differing:
        lines = [f"{len(after)} counters are the sums of their records"]
    show(Report(values, lines, notes, width=WIDE), as_json=as_json)
    return Exit.FINDINGS if differing else Exit.OK


def _query(args: argparse.Namespace) -> UsageQuery:
    """Return what is asked for: by default this month. Raises CommandError."""
    from gateway.parts.ledger.usage import UsageQuery

    if args.month and (args.since or args.until):
        raise CommandError("--month says both ends; leave out --since and --until")
    since = datetime.now(args.zone).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    until = datetime.now(args.zone) + timedelta(minutes=1)
    if args.month:
        since = _time(f"{args.month}-01", args.zone)
        until = since.replace(year=since.year + since.month // 12, month=since.month % 12 + 1)
    since = _time(args.since, args.zone) if args.since else since
    until = _time(args.until, args.zone) if args.until else until
    if until <= since:
        raise CommandError("--until is not after --since")
    only = {name: value for name in _BY[1:] if (value := getattr(args, name)) is not None}
    return UsageQuery(since.timestamp(), until.timestamp(), args.zone.key, args.by, only)


def _time(text: str, zone: ZoneInfo) -> datetime:
    """Read a day or a time as ISO 8601 has it, or how long ago one was, such as 7d. Raises CommandError."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).replace(tzinfo=zone)
    with contextlib.suppress(argparse.ArgumentTypeError):
        return datetime.fromtimestamp(time.time() - duration(text), zone)
    raise CommandError(f"{text!r} is no time; write a day or a time (2026-11-01T12:00), or how long ago (7d)")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise argparse.ArgumentTypeError(f"{name!r} is no time zone, such as UTC or Europe/Berlin") from None


def _columns(text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [name for name in columns if name not in _BY]:
        raise argparse.ArgumentTypeError(f"there is no usage by {unknown[0]!r}; write some of {', '.join(_BY)}")
    return columns


def _report(usage: Mapping[str, Any], query: UsageQuery, done: Sequence[str]) -> Report:
    called = not {"tier", "model", "backend"}.isdisjoint(query.by)
    figures = ["requests", "tokens in", "tokens out", "charged", "hits at list", "wasted"]
    if called:
        figures[1:1], figures[5:5] = ["calls"], ["owed"]
    named = [part for name in query.by for part in ((name, "name") if name == "key" else (name,))]
    texts = [*named, *(() if called or "surface" in query.by else ("surfaces",))]
    rows = table(*texts, *figures, left=len(texts))
    lines = [line for line in usage["lines"] if line["entry"] == "usage"]
    for line in lines:
        rows.add_row(
            *(printable(line[name]) if line[name] != "" else NONE for name in texts), *_cells(line, called=called)
        )
    total = usage["total"]
    if len(lines) > 1:
        rows.add_row("all", *[""] * (len(texts) - 1), *_cells(total, called=called))
    parts: list[Any] = [rows] if lines else ["No request is recorded for this."]
    if usage["adjustments"]:
        changes = table("adjusted at", "of", "entry", "author", "reason", "usd", left=5)
        for adjustment in usage["adjustments"]:
            at = datetime.fromtimestamp(adjustment["started"], ZoneInfo(query.zone)).strftime("%Y-%m-%d %H:%M:%S")
            words = (printable(adjustment[name] or NONE) for name in ("account", "entry", "author", "reason"))
            changes.add_row(at, *words, dollars(adjustment["usd"], signed=True))
        parts += ["", changes]
    notes = _notes(usage, query)
    values = {**usage, "since_s": query.since, "until_s": query.until, "zone": query.zone, "notes": notes}
    plain = orjson.dumps(values, default=lambda value: float(value) if isinstance(value, Decimal) else str(value))
    return Report(orjson.loads(plain), parts, notes, width=WIDE, done=done)


def _cells(line: Mapping[str, Any], *, called: bool) -> list[str]:
    charged, unknown = dollars(float(line["charged_usd"])), line["unpriced"]
    if unknown:
        some = unknown < line["requests"] or line["charged_usd"]
        charged = f"{charged} + not known ({unknown})" if some else f"not known ({unknown})"
    cells = [f"{line[name]:,}" for name in ("requests", "tokens_in", "tokens_out")]
    cells += [charged, dollars(float(line["list_usd"])), dollars(float(line["wasted_usd"]))]
    if called:
        cells[1:1] = [f"{line['calls']:,}"]
        cells[5:5] = [dollars(float(line["cost_usd"]))]
    return cells


def _notes(usage: Mapping[str, Any], query: UsageQuery) -> list[str]:
    """Return what the figures cover, and what they lack."""
    covers, total, notes = usage["covers"], usage["total"], []
    if covers["records"]:
        ends = [datetime.fromtimestamp(covers[end], ZoneInfo(query.zone)) for end in ("first_s", "last_s")]
        span = " to ".join(f"{end:%Y-%m-%d %H:%M:%S}" for end in ends)
        notes.append(f"records from {span} ({query.zone}), in files and in the store, each once")
        if covers["first_s"] > query.since:
            notes.append("no older record is kept: what was used before, if anything, is not in it")
    if covers["not_followed"]:
        notes.append(f"the store does not answer ({covers['not_followed']}): what no file has yet is not counted")
    if covers["missing"]:
        notes.append(f"{covers['missing']} records between are lost: the store dropped them before a file had them")
    notes += [f"{file} is damaged, and nothing of it is counted: {why}" for file, why in covers["damaged"].items()]
    if total["unpriced"]:
        notes.append(
            f"{total['unpriced']} requests called a backend whose price nobody states: that is not known, not 0"
        )
    if total["older"]:
        notes.append(f"{total['older']} records are of a version that charged nobody: they count by their cost")
    return notes
