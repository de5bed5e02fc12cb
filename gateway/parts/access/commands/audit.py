"""Run `tierline audit`: list, follow, export and verify the trail of who changed what."""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, duration, whole
from gateway.cli.store_flags import add_store_flags, with_store
from gateway.exit_codes import Exit
from gateway.parts.access.audit.entries import KINDS, StoredEntry, TrailEntry
from gateway.parts.access.audit.trail import AuditTrail, StreamCheck, TrailFilter
from gateway.report import print_json, printable

T = TypeVar("T")
_LAST: Final = 50
_COLUMNS: Final = ("at", "by", "how", "kind", "subject", "action", "message", "before", "after", "id")


def add_parser(subparsers: Subparsers) -> None:
    """Add `audit` to the command line."""
    parser = add_command(subparsers, "audit")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--by", default="", metavar="NAME")
    parser.add_argument("--subject", default="", metavar="NAME")
    parser.add_argument("--since", type=duration, metavar="TIME")
    parser.add_argument("--last", type=whole(1), metavar="N")
    parser.add_argument("-f", "--follow", action="store_true")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--csv", action="store_true")
    add_store_flags(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=False)
    parser.set_defaults(action=None)
    export = add_command(actions, "audit export")
    export.add_argument("file", type=Path, metavar="FILE")
    add_store_flags(export)
    verify = add_command(actions, "audit verify")
    verify.add_argument("--export", type=Path, metavar="FILE")
    verify.add_argument("--head", action="append", default=[], metavar="HASH")
    verify.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_store_flags(verify)


def run(args: argparse.Namespace) -> int:
    """Run the action. Raises CommandError."""
    return {None: _list, "export": _export, "verify": _verify}[args.action](args)


def _with_trail(args: argparse.Namespace, work: Callable[[AuditTrail], Awaitable[T]]) -> T:
    return with_store(args, lambda store: work(AuditTrail(store)))


def _list(args: argparse.Namespace) -> int:
    since = 0.0 if args.since is None else time.time() - args.since
    wanted = TrailFilter(args.kind or "", args.by, args.subject, since)
    most = args.last or (None if args.since or args.json or args.csv else _LAST)

    async def work(trail: AuditTrail) -> None:
        if args.csv:
            sys.stdout.write(_row(_COLUMNS))
        ends = await trail.ends()
        newest = [entry async for entry in _first(trail.newest(wanted), most)]
        if args.json and not args.follow:
            print_json({"entries": [entry.shown() for entry in newest]})
            return
        for entry in reversed(newest) if args.follow else newest:
            _say(args, entry)
        if not newest and not args.follow and not args.csv:
            sys.stdout.write("no entries\n")
        sys.stdout.flush()
        if args.follow:
            listed = {entry.cursor for entry in newest}
            async for entry in trail.follow(wanted, ends):
                if entry.cursor not in listed:  # it came while the others were read
                    _say(args, entry)
                    sys.stdout.flush()

    _with_trail(args, work)
    return Exit.OK


async def _first(entries: AsyncIterator[TrailEntry], most: int | None) -> AsyncIterator[TrailEntry]:
    number = 0
    async for entry in entries:
        yield entry
        number += 1
        if number == most:
            return


def _say(args: argparse.Namespace, entry: TrailEntry) -> None:
    shown = entry.shown()
    if args.json:
        sys.stdout.write(orjson.dumps(shown).decode() + "\n")
    elif args.csv:
        sys.stdout.write(_row([_plain(shown[name]) for name in _COLUMNS]))
    else:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
        by = f"{entry.by} by {entry.how}" if entry.how not in ("", entry.by) else entry.by
        what = "; ".join(filter(None, (entry.message, entry.words)))
        line = f"{at}  {entry.kind:<6}  {entry.action:<8}  {entry.subject}  {by}  {what}"
        sys.stdout.write(printable(line.rstrip()) + "\n")


def _plain(value: Any) -> str:
    return orjson.dumps(value).decode() if isinstance(value, dict) else str(value)


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def _row(values: Any) -> str:
    text = io.StringIO()
    # A cell that a spreadsheet would compute is text.
    csv.writer(text, lineterminator="\n").writerow([f"'{one}" if one.startswith(_FORMULA) else one for one in values])
    return text.getvalue()


def _export(args: argparse.Namespace) -> int:
    async def work(trail: AuditTrail) -> int:
        number = 0
        try:
            with args.file.open("wb") as stream:
                async for entry in trail.stored():
                    stream.write(orjson.dumps(entry.exported()) + b"\n")
                    number += 1
        except OSError as error:
            raise CommandError(f"{args.file} cannot be written: {error.strerror}") from None
        return number

    number = _with_trail(args, work)
    sys.stdout.write(f"{number} entries written to {args.file}; `tierline audit verify --export` compares it\n")
    return Exit.OK


def _verify(args: argparse.Namespace) -> int:
    exported = [] if args.export is None else _exported(args.export)
    checks, missing = _with_trail(args, lambda trail: _checked(trail, exported, args.head))
    is_whole = not missing and not any(check.problems for check in checks)
    if args.json:
        streams = [{name: getattr(check, name) for name in check.__slots__} for check in checks]
        print_json({"whole": is_whole, "streams": streams, "missing": missing})
        return Exit.OK if is_whole else Exit.FINDINGS
    for check in checks:
        older = f", {check.older} of an older version without a chain" if check.older else ""
        state = "BROKEN" if check.problems else "whole"
        count = f"{check.entries} {'entry' if check.entries == 1 else 'entries'}"
        sys.stdout.write(f"{check.stream}: {state}, {count}{older}, newest {check.head}\n")
        sys.stdout.write("".join(f"  {problem}\n" for problem in check.problems))
    if exported or args.head:
        noted = f"{len(exported)} exported entries and {len(args.head)} hashes"
        sys.stdout.write(f"{noted}: {f'{len(missing)} are not in the store' if missing else 'all in the store'}\n")
        sys.stdout.write("".join(f"  {line}\n" for line in missing[:10]))
    if not checks:
        sys.stdout.write("no entries\n")
    return Exit.OK if is_whole else Exit.FINDINGS


async def _checked(
    trail: AuditTrail, exported: list[StoredEntry], heads: list[str]
) -> tuple[list[StreamCheck], list[str]]:
    """Return what there is to say of each stream, and what was noted earlier and does not stand in the store."""
    noted = {entry.chain: f"{entry.stream} {entry.id.decode()}" for entry in exported} | {head: head for head in heads}
    if noted:
        async for entry in trail.stored():
            noted.pop(entry.chain, None)
    return await trail.checked(), list(noted.values())


def _exported(file: Path) -> list[StoredEntry]:
    try:
        return [StoredEntry.from_export(orjson.loads(line)) for line in file.read_bytes().splitlines()]
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{file} is no export of the audit trail, or was altered ({error})") from None
