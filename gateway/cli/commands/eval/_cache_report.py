"""Print the report of `tierline eval cache`: one JSON object of figures, or tables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from gateway.cli.commands._output import console_of_stdout, print_json
from gateway.cli.commands.eval import _report
from offline.evaluation.served import Figure, ServedPairs
from offline.evaluation.stream import Rates

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class PairsReport:
    """Figures over all pairs, by group, of plain cosine thresholds, and the best share served at 1% wrong."""

    every: ServedPairs
    groups: Mapping[str, ServedPairs]
    baselines: Mapping[str, ServedPairs]
    best: Figure
    facts: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            "all": _figures(self.every),
            "groups": {name: _figures(served) for name, served in self.groups.items()},
            "baselines": {name: _figures(served) for name, served in self.baselines.items()},
            "best_at_1pct": _figure(self.best),
        }

    def print(self, console: Console) -> None:
        """Print the figures as tables."""
        table = _report.table("", "same", "served", "different", "wrong", "precision")
        methods = {"ours": self.every, **{name.replace("_", " "): one for name, one in self.baselines.items()}}
        for name, one in methods.items():
            table.add_row(name, *_cells(one))
        console.print(table)
        console.print(f"best at 1% wrong: {_percent(self.best)} served")
        console.print()
        if len(self.groups) > 1:
            table = _report.table("group", "same", "served", "different", "wrong")
            for name, one in self.groups.items():
                table.add_row(name, *_cells(one)[:-1])
            console.print(table)
            console.print()
        _report.print_notes(console, self.facts)


@dataclass(frozen=True, slots=True)
class StreamReport:
    """Figures over all requests of a stream, over each half, and of plain cosine thresholds."""

    every: Rates
    halves: tuple[Rates, Rates]
    baselines: Mapping[str, Rates]
    facts: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return the object that --json prints."""
        return {
            **_figures(self.every),
            "halves": [_figures(half) for half in self.halves],
            "baselines": {name: _figures(one) for name, one in self.baselines.items()},
        }

    def print(self, console: Console) -> None:
        """Print the figures as a table."""
        table = _report.table("", "requests", "hit rate", "repeats", "error", "precision")
        baselines = {name.replace("_", " "): one for name, one in self.baselines.items()}
        methods = {"ours": self.every, "first half": self.halves[0], "second half": self.halves[1], **baselines}
        for name, one in methods.items():
            figures = (one.hit_rate, one.repeats, one.error, one.precision)
            table.add_row(name, f"{one.hit_rate.n:,}", *map(_percent, figures))
        console.print(table)
        console.print()
        _report.print_notes(console, self.facts)


def show(report: PairsReport | StreamReport, args: argparse.Namespace) -> None:
    """Print the report as tables, or with --json as one object of figures, with the conditions on stderr."""
    if args.json:
        _report.print_notes(Console(stderr=True, highlight=False, markup=False), report.facts)
        print_json(report.as_json())
    else:
        report.print(console_of_stdout(_report.WIDTH))


def _figures(of: ServedPairs | Rates) -> dict[str, Any]:
    return {name: _figure(Figure(**figure)) for name, figure in asdict(of).items()}


def _figure(figure: Figure) -> dict[str, Any]:
    value = None if figure.value is None else round(figure.value, _DIGITS)
    return {"value": value, "lo": round(figure.lo, _DIGITS), "hi": round(figure.hi, _DIGITS), "n": figure.n}


def _cells(one: ServedPairs) -> list[str]:
    wanted, other = f"{one.served.n:,}", f"{one.wrong.n:,}"
    return [wanted, _percent(one.served), other, _percent(one.wrong), _percent(one.precision)]


def _percent(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    return f"{figure.value:.1%} [{100 * figure.lo:.1f}, {100 * figure.hi:.1f}]"
