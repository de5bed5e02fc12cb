"""Run `tierline keys`: create, list, show, change, rotate, disable and revoke keys, and move them in and out."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, duration, whole
from gateway.cli.store_flags import add_registry_flags
from gateway.config.environment import write_private
from gateway.config.schema import DEFAULT_TENANT
from gateway.exit_codes import Exit
from gateway.parts.access.author import add_change_flags
from gateway.parts.access.commands._owned import (
    add_terms_flags,
    changed_fields,
    day,
    expiry,
    lines_of,
    owner_name,
    terms_in_words,
    why_of,
    with_keys,
)
from gateway.parts.access.keys.made_keys import change_key, make_key, rotate_key
from gateway.parts.access.keys.moving import MovedKeys, export_lines, read_export
from gateway.parts.access.keys.records import STATE_AFTER, KeyRecord, public, state_at
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.keys.roles import ADMIN
from gateway.report import NONE, WIDE, Report, printable, show, table

_DONE: Final = {"disable": "disabled", "enable": "enabled", "revoke": "revoked, for good"}


def add_parser(subparsers: Subparsers) -> None:
    """Add `keys` and its actions to the command line."""
    actions = add_command(subparsers, "keys").add_subparsers(dest="action", metavar="ACTION", required=True)
    for action in ("create", "update"):
        parser = add_command(actions, f"keys {action}")
        if action == "update":
            parser.add_argument("key", metavar="KEY")
        parser.add_argument("--name", metavar="NAME")
        parser.add_argument("--team", type=owner_name, metavar="NAME")
        parser.add_argument("--tenant", type=owner_name, metavar="NAME")
        parser.add_argument("--owner", metavar="PERSON")
        parser.add_argument("--default-surface", metavar="NAME")
        parser.add_argument("--expires", type=expiry, default=argparse.SUPPRESS, metavar="WHEN")
        parser.add_argument("--may-try", action=argparse.BooleanOptionalAction)
        add_terms_flags(parser, "surface", "tier", "model")
        add_change_flags(parser)
    listed = add_command(actions, "keys list")
    listed.add_argument("--team", type=owner_name, metavar="NAME")
    listed.add_argument("--only", choices=("active", "disabled", "revoked", "expired"))
    listed.add_argument("--last", type=whole(1), default=100, metavar="N")
    listed.add_argument("--after", default="", metavar="KEY")
    add_registry_flags(listed)
    for action in ("show", "rotate", *STATE_AFTER):
        parser = add_command(actions, f"keys {action}")
        parser.add_argument("key", metavar="KEY")
        if action == "rotate":
            parser.add_argument("--grace", type=duration, default=86400.0, metavar="TIME")
        (add_registry_flags if action == "show" else add_change_flags)(parser)
    moved = add_command(actions, "keys import")
    moved.add_argument("file", type=Path, nargs="?", metavar="FILE")
    moved.add_argument("--litellm", type=Path, metavar="FILE")
    moved.add_argument("--tenant", type=owner_name, default=DEFAULT_TENANT, metavar="NAME")
    add_change_flags(moved)
    exported = add_command(actions, "keys export")
    exported.add_argument("file", type=Path, metavar="FILE")
    add_registry_flags(exported)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action. Raises CommandError and ConfigError."""
    if args.action in STATE_AFTER:
        _report(args, _change(args, {"state": STATE_AFTER[args.action]}, args.action), _DONE[args.action])
    else:
        {
            "create": _create, "update": _update, "list": _list, "show": _show,
            "rotate": _rotate, "import": _import, "export": _export,
        }[args.action](args)  # fmt: skip
    return Exit.OK


def _create(args: argparse.Namespace) -> None:
    wanted = replace(KeyRecord("", "", DEFAULT_TENANT), **_fields(args, None))

    async def work(registry: KeyRegistry) -> tuple[KeyRecord, str, bool | None]:
        return *await make_key(registry, ADMIN, wanted, why_of(args)), registry.on_disk

    record, key, on_disk = with_keys(args, work)
    _secret(args, record, key, on_disk, f"{record.id} is made. Copy the key now: it is not shown again.")


def _rotate(args: argparse.Namespace) -> None:
    async def work(registry: KeyRegistry) -> tuple[KeyRecord, str, bool | None]:
        before = await registry.find(args.key)
        return *await rotate_key(registry, ADMIN, before, args.grace, why_of(args)), registry.on_disk

    record, key, on_disk = with_keys(args, work)
    until = f"The old key is valid until {day(time.time() + args.grace)}." if args.grace else "The old key has ended."
    _secret(args, record, key, on_disk, f"{record.id} has a new key. Copy it now: it is not shown again. {until}")


def _secret(args: argparse.Namespace, record: KeyRecord, key: str, on_disk: bool | None, done: str) -> None:
    values = {**public(record), "key": key, "on_disk": on_disk}
    unsafe = (
        "it is not known to be on the store's disk: the store did not say so in time, or cannot (Redis before 7.2)"
        if on_disk is None
        else "the store keeps it in memory alone: it has no append-only file"
    )
    notes = [] if on_disk else [f"{unsafe}. `tierline keys export FILE` keeps a copy"]
    show(Report(values, [done, "", f"  {key}", ""], notes), as_json=args.json)


def _update(args: argparse.Namespace) -> None:
    _report(args, _change(args, None, "update"), "changed")


def _change(args: argparse.Namespace, fields: dict[str, Any] | None, action: str) -> KeyRecord:
    async def work(registry: KeyRegistry) -> KeyRecord:
        before = await registry.find(args.key)
        after = replace(before, **(_fields(args, before) if fields is None else fields))
        return await change_key(registry, ADMIN, before, after, why_of(args, action))

    return with_keys(args, work)


def _fields(args: argparse.Namespace, before: KeyRecord | None) -> dict[str, Any]:
    names = ("name", "team", "tenant", "owner", "default_surface", "may_try", "expires")
    given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    if "expires" in args:
        given["expires"] = args.expires
    return given | changed_fields(args, before)


def _report(args: argparse.Namespace, record: KeyRecord, done: str) -> None:
    line = f"{record.id} is {done}. Every worker obeys within a second."
    show(Report(public(record), [line]), as_json=args.json)


def _show(args: argparse.Namespace) -> None:
    record = with_keys(args, lambda registry: registry.find(args.key))
    state = state_at(record, time.time()).removeprefix("active")
    lines = [f"{record.id} {state}".rstrip(), *lines_of(record)]
    show(Report(public(record), lines), as_json=args.json)


def _list(args: argparse.Namespace) -> None:
    now = time.time()
    wanted = None if args.only is None else lambda key: state_at(key, now) == args.only
    page = with_keys(args, lambda registry: registry.page(args.after, args.last, team=args.team or "", wanted=wanted))
    rows = table("key", "name", "team", "tenant", "state", "surfaces", "limits", "expires", left=8)
    for key in page.keys:
        limits = printable(terms_in_words(key.terms) or NONE)
        ends = NONE if key.expires is None else day(key.expires)
        surfaces = ", ".join(key.surfaces) or "all"
        texts = (key.id, key.name or NONE, key.team or NONE, key.tenant, state_at(key, now), surfaces)
        rows.add_row(*map(printable, texts), limits, ends)
    notes = [f"more: --after {page.older}"] if page.older else []
    lines: Sequence[Any] = [rows] if page.keys else ["There is no such key; `tierline keys create` makes one."]
    values = {"keys": [public(key) for key in page.keys], "older": page.older}
    show(Report(values, lines, notes, width=WIDE), as_json=args.json)


def _import(args: argparse.Namespace) -> None:
    if (args.file is None) == (args.litellm is None):
        raise CommandError("name one file: an export of `tierline keys export`, or --litellm FILE")
    text = _text(args.file or args.litellm)
    if args.litellm is None:
        moved = MovedKeys(read_export(text))
    else:
        from gateway.parts.access.keys.litellm import litellm_keys  # not needed otherwise

        moved = litellm_keys(text, args.tenant)
    why = why_of(args, "import")
    new = with_keys(args, lambda registry: registry.restore(moved.records, why))
    notes = [printable(f"{name}: {note}") for name, notes_of_key in moved.notes.items() for note in notes_of_key]
    values = {"imported": new, "there_already": len(moved.records) - new, "notes": moved.notes}
    lines = [f"{new} imported, {len(moved.records) - new} there already."]
    show(Report(values, lines, notes, width=WIDE), as_json=args.json)


def _export(args: argparse.Namespace) -> None:
    lines = with_keys(args, export_lines)
    write_private(args.file, b"".join(lines))
    done = f"{len(lines) - 1} records are in {args.file}: digests, and no keys."
    show(Report({"records": len(lines) - 1, "file": str(args.file)}, [], done=[done]), as_json=args.json)


def _text(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8") from None
