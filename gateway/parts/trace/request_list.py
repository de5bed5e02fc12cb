"""List recorded requests from the store, choose them by options, and follow those that come in.

`tierline trace list`, `trace tail` and `ledger tail` are made of this.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console
from rich.text import Text

from cache.store.base import StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.cli.flags import duration, whole
from gateway.cli.store_flags import files_of_store, with_store
from gateway.exit_codes import Exit
from gateway.parts.trace.records import newest_records, say_coverage
from gateway.report import console_of_stdout, printable
from gateway.telemetry.ledger import TRACES, is_record
from policies.quantities import dollars, milliseconds

Record = Mapping[str, Any]
"""A record as `telemetry.ledger` encodes it, decoded."""

_PIPED: Final = 160
"""Columns of a list that is not printed to a terminal."""
_PAGE: Final = 200
_LOOKED_AT: Final = 10_000
"""Most records that are looked at where no time is given."""
_BLOCK_MS: Final = 1000
_RETRY_S: Final = 1.0
_COLUMNS: Final = ("time", "surface", "path", "tier", "status", "ttft", "total", "cost")
_LEFT_COLUMNS: Final = 4
_LEAST_WIDTH: Final = 6
"""To which the columns on the left are cut in a narrow terminal; a cut text ends with `~`."""
_USUAL_WIDTHS: Final = (8, 12, 14, 8, 6, 8, 8, 10)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Conditions on a record, all of which hold; None and False let every record through."""

    surface: str | None = None
    path: str | None = None
    """A value of `x-tierline-path`, or its beginning up to a hyphen: `cache` is `cache-exact` and `cache-semantic`."""
    tier: str | None = None
    status: range | None = None
    slower_s: float | None = None
    """Least time to the first byte of a reply, or in total where that was not measured, in seconds."""
    oldest_s: float | None = None
    """Unix time after which the request ended."""
    errors: bool = False

    def lets_through(self, blob: bytes) -> bool:
        """Return whether the record `blob`, as stored, meets the conditions."""
        record = orjson.loads(blob)
        ledger = record["ledger"]
        ttft_ms, total_ms = ledger["ttft_ms"], ledger["total_ms"]
        took_s = (total_ms if ttft_ms is None else ttft_ms) / 1000
        return (
            self.surface in (None, ledger["surface"])
            and (self.path is None or f"{ledger['path']}-".startswith(f"{self.path}-"))
            and self.tier in (None, ledger["tier"])
            and (self.status is None or ledger["status"] in self.status)
            and (self.slower_s is None or took_s >= self.slower_s)
            and (self.oldest_s is None or record["started"] + total_ms / 1000 >= self.oldest_s)
            and (not self.errors or ledger["status"] >= 400 or bool(ledger["error"]))
        )


@dataclass(frozen=True, slots=True)
class NewestRequests:
    """Records that a filter let through, newest first, as stored; `seen` counts all that were looked at.

    `last_id` is the place of the newest record in the store's stream; None if it has none.
    """

    blobs: Sequence[bytes]
    seen: int
    last_id: str | None


def add_filter_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options that `filter_of` reads."""
    which = parser.add_argument_group("which requests (all that is given must hold)")
    which.add_argument("--surface", metavar="NAME", help="of this surface")
    which.add_argument("--path", metavar="PATH", help="with this x-tierline-path, such as escalated, or cache for both")
    which.add_argument("--tier", metavar="NAME", help="answered by this tier")
    which.add_argument("--status", type=_status, metavar="CODE", help="with this status, such as 429, or 5xx")
    which.add_argument(
        "--slower-than",
        type=duration,
        metavar="TIME",
        help="whose first byte (in total, where that was not measured) took at least TIME, such as 400ms or 2s",
    )
    which.add_argument("--since", type=duration, metavar="TIME", help="of the last TIME, such as 15m, 1h or 2d")
    which.add_argument("--errors", action="store_true", help="with a status from 400 on, or whose stream broke")


def filter_of(args: argparse.Namespace) -> RequestFilter:
    """Return the filter that the options of `add_filter_flags` describe."""
    oldest = None if args.since is None else time.time() - args.since
    return RequestFilter(
        args.surface, args.path, args.tier, args.status, args.slower_than, oldest_s=oldest, errors=args.errors
    )


def add_tail_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tail`, without those that find the store."""
    parser.add_argument("-n", type=whole(0), default=20, metavar="N", help="so many to begin with (default: 20)")
    parser.add_argument("--json", action="store_true", help="print whole records, one JSON object a line")
    add_filter_flags(parser)


async def newest_requests(store: RedisStore, folder: Path, wanted: RequestFilter, count: int) -> NewestRequests:
    """Return the newest `count` records that `wanted` lets through, of the store and of the ledger's files in `folder`.

    Raises StoreUnavailable and CommandError. Where they begin later than what is wanted, it is said on stderr.
    """
    found: list[bytes] = []
    seen, last_id, began_s, now = 0, None, None, time.time()
    async for entry_id, blob in newest_records(store, folder):
        began_s = _written_s(entry_id)
        last_id = last_id or entry_id
        # Entries are ordered by when they were written, which is after the end of their request.
        if len(found) >= count or (wanted.oldest_s is not None and _written_s(entry_id) < wanted.oldest_s):
            break
        if wanted.oldest_s is None and seen >= max(count, _LOOKED_AT):
            break
        seen += 1
        if wanted.lets_through(blob):
            found.append(blob)
    if wanted.oldest_s is not None and len(found) < count and began_s is not None:
        say_coverage(folder, now - began_s, now - wanted.oldest_s)
    return NewestRequests(found, seen, last_id)


def print_requests(blobs: Sequence[bytes], *, as_json: bool, goes_on: bool = False) -> None:
    """Print records in the order given; with `goes_on` below those that were printed before."""
    if as_json:
        sys.stdout.write("".join(blob.decode() + "\n" for blob in blobs))
    elif blobs or not goes_on:
        draw_list([orjson.loads(blob) for blob in blobs], console_of_stdout(_PIPED), goes_on=goes_on)
    sys.stdout.flush()


def tail(args: argparse.Namespace, *, follow: bool) -> int:
    """Print the latest requests, the oldest of them first, and those that come if `follow`. Raises CommandError."""
    try:
        with_store(args, lambda store: _tail(store, args, follow))
    except KeyboardInterrupt:
        if not follow:
            raise
    return Exit.OK


async def _tail(store: RedisStore, args: argparse.Namespace, follow: bool) -> None:
    wanted = filter_of(args)
    newest = await newest_requests(store, files_of_store(args), wanted, args.n)
    print_requests(newest.blobs[::-1], as_json=args.json)
    last_id, failing = newest.last_id or "0-0", False
    while follow:
        try:
            page = await store.after(TRACES, last_id, _PAGE, _BLOCK_MS)
        except StoreUnavailable as down:
            if not failing:
                sys.stderr.write(f"tierline: the store does not answer ({down}); trying on\n")
            failing = True
            await asyncio.sleep(_RETRY_S)
            continue
        failing = False
        last_id = page[-1][0] if page else last_id
        new = [blob for _, blob in page if is_record(blob) and wanted.lets_through(blob)]
        print_requests(new, as_json=args.json, goes_on=True)


def _written_s(entry_id: str) -> float:
    return int(entry_id.partition("-")[0]) / 1000


def _status(text: str) -> range:
    """Parse a status such as 429, or a class of them such as 5xx."""
    if len(text) == 3 and text[0] in "12345":
        if text[1:].lower() == "xx":
            return range(int(text[0]) * 100, int(text[0]) * 100 + 100)
        if text.isascii() and text.isdigit():
            return range(int(text), int(text) + 1)
    raise argparse.ArgumentTypeError(f"{text!r} is not a status; write 429, or 5xx for all from 500 to 599")


def draw_list(records: Sequence[Record], console: Console, *, goes_on: bool = False) -> None:
    """Print one row per request, in the order given; in a narrow terminal the id is on a line of its own.

    With `goes_on` the rows belong below those printed before: without a heading, and as wide.
    """
    rows = [_cells(record["ledger"], record["started"]) for record in records]
    widths = [max(len(row[i]) for row in [_COLUMNS, *rows]) for i in range(len(_COLUMNS))]
    if goes_on:
        widths = [max(width, least) for width, least in zip(widths, _USUAL_WIDTHS, strict=True)]
    ids = [printable(record["ledger"]["request_id"]) for record in records]
    room = sum(widths) + 2 * len(widths) + max(map(len, ids), default=0)
    narrow = console.is_terminal and room > console.width
    while (
        narrow and sum(widths) + 2 * (len(widths) - 1) > console.width and max(widths[1:_LEFT_COLUMNS]) > _LEAST_WIDTH
    ):
        widest = max(range(1, _LEFT_COLUMNS), key=widths.__getitem__)
        widths[widest] -= 1
    if not goes_on:
        heading = _line(_COLUMNS, widths)
        console.print(Text(heading.rstrip() if narrow else f"{heading}request", style="bold"), soft_wrap=True)
    for record, row, request_id in zip(records, rows, ids, strict=True):
        line = Text(_line(row, widths), style=status_style(record["ledger"]["status"], ok=""))
        if narrow:
            line.rstrip()
            line.append(f"\n{' ' * (widths[0] + 2)}{request_id}", style="dim")
        else:
            line.append(request_id)
        console.print(line, soft_wrap=True)


def _cells(ledger: Record, started: float) -> tuple[str, ...]:
    return (
        time.strftime("%H:%M:%S", time.localtime(started)),
        *(printable(ledger[name]) or "-" for name in ("surface", "path", "tier")),
        str(ledger["status"]),
        milliseconds(ledger["ttft_ms"]) if ledger["ttft_ms"] is not None else "-",
        milliseconds(ledger["total_ms"]),
        dollars(ledger["cost_usd"]) if not ledger.get("cost_unknown") else "unknown",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    cut = [cell if len(cell) <= width else f"{cell[: width - 1]}~" for cell, width in zip(cells, widths, strict=True)]
    aligned = (f"{cell:{'<' if i < _LEFT_COLUMNS else '>'}{widths[i]}}  " for i, cell in enumerate(cut))
    return "".join(aligned)


def status_style(status: int, ok: str = "bold green") -> str:
    """Return rich's style of a status; `ok` is that of success."""
    return ok if status < 400 else "bold yellow" if status < 500 else "bold red"
