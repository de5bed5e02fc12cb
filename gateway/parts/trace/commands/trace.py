"""Run `tierline trace last | list | tail | show REQUEST_ID`: show recorded requests, with times and reasons.

A request is drawn as one row per hop with a bar on the time axis, and below it the reason. What clients and models
wrote is made printable, so that a trace cannot steer the terminal.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Final

import orjson
from rich.console import Console
from rich.text import Text

from cache.store.redis_store import RedisStore
from gateway.cli.commands import CommandError
from gateway.cli.flags import Subparsers, add_command, whole
from gateway.cli.store_flags import add_store_flags, files_of_store, with_store
from gateway.exit_codes import Exit
from gateway.parts.measures import reader
from gateway.parts.trace.records import find_record
from gateway.parts.trace.request_list import (
    Record,
    add_filter_flags,
    add_tail_flags,
    filter_of,
    newest_requests,
    print_requests,
    status_style,
    tail,
)
from gateway.report import printable
from gateway.seams import feedback_lines, reasons_of
from gateway.telemetry import names
from gateway.telemetry.sampling import HEAD
from policies.quantities import dollars, milliseconds

_NOTHING: Final = "no request has been recorded yet; send one and try again"
_NAME_WIDTH: Final = 15
_TIME_WIDTH: Final = 9
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_COLOURS: Final = {names.REQUEST: "blue", names.ATTEMPT: "magenta", names.ROUTE: "yellow", names.EMBED: "yellow"}


def add_parser(subparsers: Subparsers) -> None:
    """Add `trace` and its subcommands to the command line."""
    parser = add_command(subparsers, "trace")
    store = argparse.ArgumentParser(add_help=False)
    add_store_flags(store)
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print the records as stored, one JSON object a line")
    where = [store, as_json]
    what = parser.add_subparsers(dest="what", required=True, metavar="last | list | tail | show")
    last = add_command(what, "trace last", parents=where)
    last.add_argument("-n", type=whole(1), default=1, metavar="N")
    several = add_command(what, "trace list", parents=where)
    several.add_argument("-n", type=whole(1), default=20, metavar="N")
    add_filter_flags(several)
    following = add_command(what, "trace tail", parents=[store])
    add_tail_flags(following)
    show = add_command(what, "trace show", parents=where)
    show.add_argument("request_id", metavar="REQUEST_ID")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code. Raises CommandError and ConfigError."""
    if args.what == "tail":
        return tail(args, follow=True)
    with_store(args, lambda store: _run(store, args))
    return Exit.OK


async def _run(store: RedisStore, args: argparse.Namespace) -> None:
    if args.what == "list":
        await _list(store, args)
        return
    blobs = await _records(store, args)
    if args.json:
        print_requests(blobs, as_json=True)
        return
    _draw(blobs, await feedback_lines(store))


async def _list(store: RedisStore, args: argparse.Namespace) -> None:
    requests = await newest_requests(store, files_of_store(args), filter_of(args), args.n)
    if not requests.seen and requests.last_id is None:
        raise CommandError(_NOTHING)
    if not requests.blobs:
        sys.stderr.write(f"tierline: none of the {requests.seen} requests that were looked at is one of these\n")
    print_requests(requests.blobs, as_json=args.json)


def _draw(blobs: Sequence[bytes], feedback: Mapping[tuple[str, str], str]) -> None:
    console = Console(highlight=False)
    for number, record in enumerate(map(orjson.loads, blobs)):
        if number:
            console.print()
        draw(record, console, feedback.get((record["ledger"]["tenant"], record["ledger"]["request_id"]), ""))


async def _records(store: RedisStore, args: argparse.Namespace) -> Sequence[bytes]:
    if args.what == "show":
        blob = await find_record(store, files_of_store(args), args.request_id)
        if blob is None:
            raise CommandError(f"no request {args.request_id!r} among those kept; `tierline trace list` shows them")
        return [blob]
    blobs = await reader.latest(store, args.n)
    if not blobs:
        raise CommandError(_NOTHING)
    return blobs


def draw(record: Record, console: Console, feedback: str = "") -> None:
    """Print the header and the waterfall of one request, and the feedback on it if there is any."""
    width = min(console.width, 140)
    for line, style in header_lines(record, feedback):
        _wrapped(console, line, width, indent="", style=style)
    console.print()
    if note := sampling_note(record):
        _wrapped(console, note, width, indent="", style="dim")
    total = max((hop["start_us"] + hop["duration_us"] for hop in record["hops"]), default=0) or 1
    for hop in record["hops"]:
        console.print(_row(hop, total, width, fancy=_fancy(console)), soft_wrap=True)
        if reasons := reasons_of(hop):
            _wrapped(console, "; ".join(reasons), width, indent="    ", style="red" if hop["error"] else "dim")


def sampling_note(record: Record) -> str:
    """Return why a record has no hops but the first, if sampling left them out; '' if it did not."""
    kept = record["ledger"].get("kept", HEAD)
    return "" if kept else "hops left out by sampling (the config's telemetry.sample)"


def header_lines(record: Record, feedback: str) -> list[tuple[str, str]]:
    """Return what stands above a request's waterfall: what became of it, its times and cost; each with rich's style."""
    ledger = record["ledger"]
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["started"]))
    first = [f"request {ledger['request_id']}", ledger["policy"] or ledger["surface"], str(ledger["status"])]
    if ledger.get("arm"):
        first.append(ledger["arm"])
    if ledger["path"]:
        first.append(f"path {ledger['path']}")
    if ledger["error"]:
        first.append(f"error {ledger['error']}")
    times = [started, f"total {milliseconds(ledger['total_ms'])}"]
    if ledger["ttft_ms"] is not None:
        times.append(f"TTFT {milliseconds(ledger['ttft_ms'])}")
    times.append(f"overhead {milliseconds(ledger['overhead_ms'])}")
    if ledger.get("tpot_ms"):
        times.append(f"{milliseconds(ledger['tpot_ms'])}/token")
    if ledger.get("gap_ms"):
        times.append(f"longest gap {milliseconds(ledger['gap_ms'])}")
    if ledger.get("queue_ms"):
        times.append(f"queue {milliseconds(ledger['queue_ms'])}")
    lines = [("  ".join(first), status_style(ledger["status"])), ("  ".join(times), ""), (_money(ledger), "")]
    lines.append((_answered(ledger), "dim"))
    if feedback:
        lines.append((feedback, ""))
    return lines


def _money(ledger: Record) -> str:
    """Return the request's cost, the wasted part of it, and what the strongest tier alone would have cost."""
    unknown = " and an unknown price" if ledger.get("cost_unknown") else ""
    parts = [f"cost {dollars(ledger['cost_usd'])}{unknown}"]
    tokens = ledger.get("wasted_tokens")  # a record of an older version has none
    if ledger["wasted_usd"] or tokens:
        counted = f" and {tokens} tokens" if tokens else ""
        parts.append(f"wasted {dollars(ledger['wasted_usd'])}{counted}")
    counterfactual = ledger.get("counterfactual_usd")
    if counterfactual is not None:
        parts.append(f"the strongest tier alone {dollars(counterfactual)}")
    if cache_usd := ledger.get("prompt_cache_usd"):
        parts.append(f"prompt caches {'saved' if cache_usd > 0 else 'cost'} {dollars(abs(cache_usd))}")
    raced = [word for word in ("hedged", "speculated") if ledger.get(word)]
    return "  ".join([*parts, *raced, *(["held out"] if ledger.get("holdout") else [])])


def _answered(ledger: Record) -> str:
    asked = f"asked for {ledger['requested_model']}" if ledger["requested_model"] else "asked"
    parts = [f"{asked}{' as a stream' if ledger['stream'] else ''}"]
    if ledger["tier"]:
        parts.append("answered by " + "/".join(filter(None, (ledger["tier"], ledger["backend"], ledger["model"]))))
    parts.append(f"{ledger['attempts']} attempt{'' if ledger['attempts'] == 1 else 's'}")
    if ledger["tokens_in"] or ledger["tokens_out"]:
        counted = " (estimated)" if ledger["usage_estimated"] else ""
        parts.append(f"tokens {ledger['tokens_in']} in, {ledger['tokens_out']} out{counted}")
    if ledger["tenant"]:
        parts.append(f"tenant {ledger['tenant']}")
    return ", ".join(parts)


def _row(hop: Record, total_us: int, width: int, *, fancy: bool) -> Text:
    name = hop["name"]
    if name == names.ATTEMPT:
        name = f"{name} {hop['attributes'].get(names.ATTEMPT_NUMBER, '')}".rstrip()
    room = max(width - _NAME_WIDTH - _TIME_WIDTH - 2, 10)
    draw_bar = _blocks if fancy else _hashes
    bar = draw_bar(hop["start_us"] / total_us * room, hop["duration_us"] / total_us * room, room)
    row = Text(f"{printable(name)[:_NAME_WIDTH]:<{_NAME_WIDTH}} ", style="bold")
    row.append(bar, style="red" if hop["error"] else _COLOURS.get(hop["name"], "cyan"))
    row.append(f" {milliseconds(hop['duration_us'] / 1000):>{_TIME_WIDTH}}", style="not bold")
    return row


def _blocks(start: float, length: float, room: int) -> str:
    """Draw a bar in eighths of a cell; its left edge is at a cell's edge, because no character starts within one."""
    left = min(int(start), room - 1)
    eighths = max(min(round((start + length - left) * 8), (room - left) * 8), 1)
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return f"{' ' * left + bar:<{room}}"


def _hashes(start: float, length: float, room: int) -> str:
    left = min(int(start), room - 1)
    cells = max(min(round(start + length), room) - left, 1)
    return f"{'.' * left + '#' * cells:.<{room}}"


def _wrapped(console: Console, text: str, width: int, *, indent: str, style: str) -> None:
    for line in textwrap.wrap(printable(text), width, initial_indent=indent, subsequent_indent=indent):
        console.print(Text(line, style=style), soft_wrap=True)


def _fancy(console: Console) -> bool:
    """Return whether to draw with block characters: only on a UTF-8 terminal, never into a pipe."""
    return console.is_terminal and console.encoding.lower().startswith("utf")
