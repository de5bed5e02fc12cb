"""Print what `tierline cache` shows: scopes as a table, one entry as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.report import printable
from policies.quantities import byte_size, percent, period


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
