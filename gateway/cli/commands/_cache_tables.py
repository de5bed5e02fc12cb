"""Print what `tierline cache` shows: scopes as a table, one entry as lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cache.risk.control import RiskFigures
from cache.risk.groups import GroupFigures
from cache.risk.published import PublishedRisk
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


def draw_risks(risks: Sequence[PublishedRisk], console: Console) -> None:
    """Print how many hits were wrong, by surface, and by the languages and tenants that have compared answers."""
    if not risks:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("wrong hits of")
    for name in ("bound", "estimated", "threshold", "compared", "requests"):
        table.add_column(name, justify="right")
    for risk in risks:
        figures = risk.figures
        rows: list[tuple[str, RiskFigures | GroupFigures]] = [(risk.surface, figures)]
        rows += [(f"  {group.words}", group) for group in figures.groups if group.labels]
        for name, row in rows:
            state = " breached" if row.breached else ""
            shown = percent(row.error, 2) if row.labels else "not known"
            lowest = f"{row.threshold:.3f}" if math.isfinite(row.threshold) else "none served"
            cells = (name, percent(figures.max_error, 2), shown + state, lowest, str(row.labels), str(row.requests))
            table.add_row(*map(Text, cells), style="red" if row.breached else "")
    console.print(table)
    for false_alarm, sensitivity in {(risk.figures.false_alarm, risk.figures.sensitivity) for risk in risks}:
        if false_alarm is not None and sensitivity is not None:
            console.print(
                f"corrected by the comparison's own errors: it calls {percent(false_alarm, 1)} of right hits wrong and "
                f"{percent(sensitivity)} of wrong ones",
                style="dim",
            )


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
