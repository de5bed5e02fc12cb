"""Draw recorded requests in a terminal: one row per hop with a bar on the time axis, and below it the reason.

What clients and models wrote is made printable, so that a trace cannot steer the terminal.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from gateway.report import printable
from gateway.telemetry import names
from gateway.telemetry.feedback import Feedback
from gateway.telemetry.reasons import explain
from gateway.telemetry.sampling import HEAD
from policies.quantities import dollars, milliseconds

Record = Mapping[str, Any]
"""A record as `telemetry.ledger` encodes it, decoded."""

_NAME_WIDTH: Final = 15
_TIME_WIDTH: Final = 9
_COLUMNS: Final = ("time", "surface", "path", "tier", "status", "ttft", "total", "cost")
_LEFT_COLUMNS: Final = 4
_LEAST_WIDTH: Final = 6
"""To which the columns on the left are cut in a narrow terminal; a cut text ends with `~`."""
_USUAL_WIDTHS: Final = (8, 12, 14, 8, 6, 8, 8, 10)
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_COLOURS: Final = {names.REQUEST: "blue", names.ATTEMPT: "magenta", names.ROUTE: "yellow", names.EMBED: "yellow"}


def draw(record: Record, console: Console, feedback: Feedback | None = None) -> None:
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
        if reasons := explain(hop):
            _wrapped(console, "; ".join(reasons), width, indent="    ", style="red" if hop["error"] else "dim")


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
        line = Text(_line(row, widths), style=_status_style(record["ledger"]["status"], ok=""))
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


def sampling_note(record: Record) -> str:
    """Return why a record has no hops but the first, if sampling left them out; '' if it did not."""
    kept = record["ledger"].get("kept", HEAD)
    return "" if kept else "hops left out by sampling (the config's telemetry.sample)"


def header_lines(record: Record, feedback: Feedback | None) -> list[tuple[str, str]]:
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
    lines = [("  ".join(first), _status_style(ledger["status"])), ("  ".join(times), ""), (_money(ledger), "")]
    lines.append((_answered(ledger), "dim"))
    if feedback is not None:
        comment = f": {feedback.comment}" if feedback.comment else ""
        lines.append((f"feedback {feedback.score:g}{comment}", ""))
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


def _status_style(status: int, ok: str = "bold green") -> str:
    return ok if status < 400 else "bold yellow" if status < 500 else "bold red"
