"""Run `tierline ledger keep | query | export | tail`: the ledger in files, and as it comes in."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
from rich.table import Table

from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import add_command, duration
from gateway.cli.store_flags import add_store_flags, ledger_folder, with_store
from gateway.exit_codes import Exit
from gateway.parts.trace.request_list import add_tail_flags, tail
from gateway.report import console_of_stdout, printable

if TYPE_CHECKING:
    from gateway.parts.ledger.config import LedgerConfig

_LAST_PAGE_S: Final = 3.0
_PAGE: Final = 200
_PIPED: Final = 160


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions to the command line of `ledger`; without one it prints its summary."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=False)
    parser.set_defaults(action=None)
    keep = add_command(actions, "ledger keep")
    _add_folder(keep, with_state=False)
    add_store_flags(keep)
    keep.add_argument("--once", action="store_true")
    query = add_command(actions, "ledger query")
    query.add_argument("sql", metavar="SQL")
    _add_folder(query)
    query.add_argument("--json", action="store_true")
    export = add_command(actions, "ledger export")
    which = export.add_mutually_exclusive_group(required=True)
    which.add_argument("--parquet", type=Path, metavar="FILE")
    which.add_argument("--jsonl", type=Path, metavar="FILE")
    export.add_argument("--since", type=duration, metavar="TIME")
    export.add_argument("--surface", metavar="NAME", help="only requests of this surface")
    _add_folder(export)
    latest = add_command(actions, "ledger tail")
    latest.add_argument("-f", "--follow", action="store_true")
    add_tail_flags(latest)
    add_store_flags(latest)


def run(args: argparse.Namespace) -> int:
    """Run one action. Raises CommandError."""
    return {"keep": _keep, "query": _query, "export": _export, "tail": _tail}[args.action](args)


def _add_folder(parser: argparse.ArgumentParser, *, with_state: bool = True) -> None:
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder of the files (default: STATE/ledger)")
    if with_state:
        parser.add_argument(
            "--state", metavar="DIR", default=".state", help="the state folder of `tierline up` (default: .state)"
        )


def _tail(args: argparse.Namespace) -> int:
    return tail(args, follow=args.follow)


def _keep(args: argparse.Namespace) -> int:
    from gateway.config.loader import load_deployment  # slow to import, and not needed by the other actions
    from gateway.parts.ledger.config import LedgerConfig, LedgerSections

    config = LedgerConfig()
    if args.config:
        config = load_deployment(args.config, reads=True).of(LedgerSections).ledger
    if not config.keep:
        raise CommandError("the config says ledger: {keep: 0s}, so no files are kept")
    folder = ledger_folder(args, config.folder)
    try:
        with_store(args, lambda store: _follow(store, folder, config, once=args.once))
    except KeyboardInterrupt:
        _say("stopped")
    return Exit.OK


async def _follow(store: RedisStore, folder: Path, config: LedgerConfig, *, once: bool) -> None:
    from gateway.parts.ledger.folder import locked
    from gateway.parts.ledger.keeper import Keeper, Rotation

    keeper = Keeper(store, folder, Rotation.of(config), _say)
    with locked(folder):
        _say(f"keeping the ledger in {folder}, for {config.keep / 86400:g} days")
        if once:
            await keeper.catch_up()
            return
        try:
            await keeper.run()
        except asyncio.CancelledError:
            # What the gateway has recorded before it stopped is still in the store.
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                await asyncio.wait_for(keeper.catch_up(), _LAST_PAGE_S)
            raise


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stdout.flush()


def _query(args: argparse.Namespace) -> int:
    from gateway.parts.ledger.query import ask_typed, connect

    with connect(ledger_folder(args)) as database:
        result = ask_typed(database, args.sql)
        names = [column[0] for column in result.description or ()]
        if args.json:
            while rows := result.fetchmany(_PAGE):
                for row in rows:
                    line = orjson.dumps(dict(zip(names, row, strict=True)), default=str)
                    sys.stdout.write(line.decode() + "\n")
            return Exit.OK
        rows = result.fetchall()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, value in zip(names, rows[0] if rows else names, strict=True):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console_of_stdout(_PIPED).print(table)
    return Exit.OK


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(value)


def _export(args: argparse.Namespace) -> int:
    from gateway.parts.ledger.query import connect, export_to

    file: Path = args.parquet or args.jsonl
    oldest = time.time() - args.since if args.since else None
    draft = file.with_name(f".{file.name}.draft")
    try:
        with connect(ledger_folder(args), write_to=draft) as database:
            rows = export_to(database, draft, "parquet" if args.parquet else "json", oldest, args.surface)
        draft.replace(file)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    sys.stdout.write(f"{rows} requests written to {file}\n")
    return Exit.OK
