"""Run `tierline top`: every surface as it is now, on a live screen. The figures are those of the console's page Now."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, duration
from gateway.cli.store_flags import add_store_flags, ledger_folder, with_store
from gateway.exit_codes import Exit
from gateway.report import NONE, console_of_stdout, print_json, printable, table
from policies.quantities import dollars, milliseconds, percent

_SPANS: Final = {900.0: "15m", 3600.0: "1h", 21600.0: "6h", 86400.0: "24h"}
"""What is shown, by seconds."""
_EVERY_S: Final = 1.0
"""The store's time limits are for requests; this reader may wait longer."""
_WIDE: Final = 140
"""Columns from which on there is room for all of a row."""
_BAR: Final = 16
_PATHS: Final = (
    ("hits", "#", "cyan"),
    ("direct", "=", "blue"),
    ("escalated", "+", "magenta"),
    ("fallback", "~", "yellow"),
    ("failed", "!", "red"),
)


def add_parser(subparsers: Subparsers) -> None:
    """Add `top` to the command line."""
    parser = add_command(subparsers, "top")
    add_store_flags(parser)
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the folder of the ledger (default: STATE/ledger)")
    parser.add_argument("--since", type=_span, default="15m", metavar="TIME")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Watch until stopped; return the exit code. Raises CommandError and ConfigError."""
    if not (args.once or args.json or sys.stdout.isatty()):
        raise CommandError("a live screen needs a terminal; print it once by --once, or as JSON by --json")
    try:
        with_store(args, lambda store: _watch(store, ledger_folder(args), args))
    except KeyboardInterrupt:
        if args.once:
            raise
    return Exit.OK


async def _watch(store: RedisStore, folder: Path, args: argparse.Namespace) -> None:
    from gateway.parts.console.standing import StandingReader
    from gateway.parts.console.views.now import NowView
    from gateway.parts.ledger.live import LiveArchive  # slow to import, as the console's pages are

    archive = LiveArchive(folder, store)
    view = NowView(archive, StandingReader(store, None))
    console = console_of_stdout()
    try:
        with Console(stderr=True).status("reading the store"):  # nothing if stderr is no terminal
            await archive.catch_up()
        if args.once:
            data = await view.data(args.since)
            if args.json:
                print_json(data)
            else:
                console.print(screen(data, console.width))
            return
        archive.start()
        if args.json:
            while True:
                sys.stdout.write(orjson.dumps(await view.data(args.since)).decode() + "\n")
                sys.stdout.flush()
                await asyncio.sleep(_EVERY_S)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(await view.data(args.since), console.width), refresh=True)
                await asyncio.sleep(_EVERY_S)
    finally:
        await archive.aclose()


def _span(text: str) -> str:
    """Parse a time as other commands do, if it is one that there are figures of."""
    if (span := _SPANS.get(duration(text))) is None:
        raise argparse.ArgumentTypeError(f"there are no figures of {text!r}; write {', '.join(_SPANS.values())}")
    return span


def screen(data: Mapping[str, Any], width: int) -> RenderableType:
    """Return the screen of the page's data (`gateway.parts.console.views.now`) for a terminal of `width` columns."""
    surfaces: Sequence[Mapping[str, Any]] = data["surfaces"]
    per_second = sum(surface["per_second"] for surface in surfaces)
    clock = time.strftime("%H:%M:%S", time.localtime(data["now_s"]))
    parts: list[RenderableType] = [
        Text(f"tierline top  {clock}  last {data['span']}  {per_second:.1f} requests/s", style="bold"),
        *([_need(need) for need in data["needs"]] or [Text(data["verdict"]["text"])]),
        Text(""),
    ]
    if surfaces:
        parts.append(_surfaces(surfaces, wide=width >= _WIDE))
    else:
        parts.append(Text(f"No request in the last {data['span']}. Send one, and it is here within a second."))
    return Group(*parts)


def _need(need: Any) -> Text:
    since = "" if need.since_s is None else time.strftime(" since %H:%M:%S", time.localtime(need.since_s))
    return Text(
        f"! {printable(need.what).removesuffix('.')}{since}. {need.todo}",
        style="red" if need.level == "bad" else "yellow",
    )


def _surfaces(surfaces: Sequence[Mapping[str, Any]], *, wide: bool) -> Table:
    headings = ["surface", "req/s", "goodput", "burn", "TTFT p95", "hits", "escal.", "$/1,000"]
    if wide:
        headings[2:2] = ["busy", "requests", "late", "failed", "refused"]
        headings.append("paths")
    rows = table(*headings)
    if wide:
        rows.columns[-1].justify = "left"
    for row in surfaces:
        burns = row["burn"] is not None and row["burn"] > 1
        cells: list[str | Text] = [
            _name(row, wide=wide),
            f"{row['per_second']:.1f}",
            Text(NONE if row["goodput"] is None else percent(row["goodput"]), style="red" if burns else ""),
            Text(NONE if row["burn"] is None else f"{row['burn']:.1f}", style="red" if burns else ""),
            _ttft(row["ttft_p95"], row["ttft_limit"], wide=wide),
            percent(row["paths"]["hits"]),
            percent(row["paths"]["escalated"]),
            f"{dollars(round(row['per_1000'], 4))}{'+?' if row['cost_unknown'] else ''}",
        ]
        if wide:
            counts = (row["ended"][name] for name in ("late", "failed", "refused"))
            cells[2:2] = [f"{row['in_flight']:.1f}", f"{row['requests']:,}", *(f"{count:,}" for count in counts)]
            cells.append(_bar(row["paths"]))
        rows.add_row(*cells)
    return rows


def _name(surface: Mapping[str, Any], *, wide: bool) -> Text:
    name = Text(printable(surface["surface"]))
    for chip in surface["chips"]:
        if chip.kind == "canary":
            name.append(f" {printable(chip.text)}" if wide else " canary", style="magenta")
    for tier in surface["unavailable"]:
        name.append(f" {printable(tier)} down", style="red")
    return name


def _ttft(value: float | None, limit: float | None, *, wide: bool) -> Text:
    if value is None:
        return Text(NONE)
    beside = f" of {milliseconds(limit)}" if limit is not None and wide else ""
    return Text(f"{milliseconds(value)}{beside}", style="red" if limit is not None and value > limit else "")


def _bar(paths: Mapping[str, float]) -> Text:
    """Draw shares of 1 beside each other, a character each `1 / _BAR`; what is left belongs to other paths."""
    bar, end, total = Text(), 0, 0.0
    for name, character, style in _PATHS:
        total += paths[name]
        upto = min(round(total * _BAR), _BAR)
        bar.append(character * (upto - end), style=style)
        end = upto
    bar.append("." * (_BAR - end), style="dim")
    return bar
