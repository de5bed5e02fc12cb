"""Show a replay as text."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from rich.table import Table

from gateway.report import table
from policies.quantities import figure, percent, points

if TYPE_CHECKING:
    from gateway.parts.lab.replay.figures import FigureChange
    from gateway.parts.lab.replay.run import Replayed

_TITLES: Final[Mapping[str, str]] = {
    "escalated": "escalated",
    "degraded": "degraded",
    "fallback": "fallback",
    "failed": "failed",
    "hits": "cache hits",
    "goodput": "goodput",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "cost": "cost per 1,000",
    "wasted": "wasted per 1,000",
}
WIDTH: Final = 125
"""Columns of the report where it is not printed to a terminal."""
_UNITS: Final[Mapping[str, str]] = {"ttft_p50": "ms", "ttft_p95": "ms", "cost": "usd", "wasted": "usd"}


def replay_lines(replayed: Replayed, seconds: float) -> list[str | Table]:
    """Return the report as lines."""
    return [
        *summary_lines(replayed, seconds),
        "",
        figure_table(replayed),
        "",
        f"quality {quality_text(replayed)}",
        *_changed(replayed),
    ]


def summary_lines(replayed: Replayed, seconds: float) -> list[str]:
    """Return what was replayed, how much of it is exact, and whether the recorded policy decides as it did."""
    n = max(replayed.requests, 1)
    exact = n - replayed.estimated - replayed.no_evidence
    served_by = ", ".join(replayed.recorded)
    period = f"{_day(replayed.first_s)} to {_day(replayed.last_s)}"
    parts = {"exact": exact, "estimated": replayed.estimated, "no evidence": replayed.no_evidence}
    shares = ", ".join(f"{percent(part / n)} {name}" for name, part in parts.items())
    fidelity = replayed.fidelity
    same = fidelity.same / max(fidelity.decided, 1)
    lines = [
        f"{served_by} -> {replayed.candidate}",
        f"replayed {replayed.requests:,} requests of {period} in {seconds:.1f} s: {shares}",
        f"fidelity {percent(same, 2)} of {fidelity.decided:,} recorded decisions are made again"
        f" ({fidelity.identical:,} of {fidelity.checked:,} checked byte for byte)",
    ]
    if not fidelity.whole:
        lines.append(
            "  the others were decided by another version of Tierline, or their record is damaged: "
            f"{', '.join(fidelity.differing)}"
        )
    return lines


def figure_table(replayed: Replayed) -> Table:
    """Return a table of all figures before and after."""
    made = table("", "before", "after", "difference", "95% interval")
    for name, change in replayed.figures.items():
        unit = _UNITS.get(name, "share")
        made.add_row(
            _TITLES[name],
            in_unit(change.before, unit),
            in_unit(change.after, unit),
            in_unit(change.difference, unit, signed=True),
            interval_text(change, unit),
        )
    return made


def in_unit(value: float, unit: str, *, signed: bool = False) -> str:
    """Return a figure with its unit; `-` for one that is not a number."""
    return "-" if math.isnan(value) else figure(value, unit, signed=signed)


def interval_text(change: FigureChange, unit: str) -> str:
    """Return the 95% interval of a difference; `exact` where nothing of it is estimated."""
    if math.isnan(change.difference):
        return "-"
    if not change.estimated:
        return "exact"
    return f"{in_unit(change.low, unit, signed=True)} to {in_unit(change.high, unit, signed=True)}"


def change_text(change: FigureChange, unit: str) -> str:
    """Return a change as `98.9% -> 98.4%`."""
    return f"{in_unit(change.before, unit)} -> {in_unit(change.after, unit)}"


def quality_text(replayed: Replayed) -> str:
    """Return the line on quality: the change in points with its interval, and whether people or the judge rated it.

    Where the change is not known, the line says why.
    """
    quality = replayed.quality
    labels = f"{quality['labels']} rated and {quality['judged']} judged replies, {quality['held_out']} of them held out"
    if quality["difference"] is None:
        if quality["unrated"]:
            why = "would get or lose answers of a kind of which fewer than ten were rated"
            return f"not known: {quality['unrated']:,} requests {why} ({labels})"
        return f"not known ({labels})"
    low, high = quality["interval_95"]
    interval = f"95% interval {points(low)} to {points(high)}"
    word = ", by the judge alone" if quality["word"] == "judge" else ""
    return f"{points(quality['difference'])} points ({interval}{word}; {labels})"


def _changed(replayed: Replayed) -> list[str]:
    n = max(replayed.requests, 1)
    lines = [
        f"{replayed.changed:,} requests ({percent(replayed.changed / n)}) take another course; "
        f"{replayed.redecided:,} start or go on elsewhere"
    ]
    if replayed.slices:
        most = "; ".join(f"{part.trait} ({percent(part.changed)} of {part.requests:,})" for part in replayed.slices[:3])
        lines.append(f"most changed: {most}")
    if replayed.examples:
        lines.append(f"for example: {' '.join(replayed.examples)}")
    return [*lines, *(f"note: {note}" for note in replayed.notes)]


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
