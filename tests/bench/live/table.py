"""One row per thing measured, beside what was asked of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Limit:
    """What one figure of a row must keep to."""

    figure: str
    bound: float
    least: bool = False

    def met(self, figures: Figures) -> bool:
        """A figure that was not measured does not meet anything."""
        value = figures.get(self.figure, math.nan)
        return value >= self.bound if self.least else value <= self.bound

    def said(self, unit: str) -> str:
        """As the table has it."""
        name = "" if self.figure == "value" else f"{self.figure} "
        return f"{name}{'>=' if self.least else '<='} {_number(self.bound, unit)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured: figures in `unit` (ms, s, %, $, x or none), `n` without one. Without figures, a remark."""

    scenario: str
    what: str
    figures: Figures
    unit: str = ""
    limits: tuple[Limit, ...] = field(default=())

    @property
    def met(self) -> bool | None:
        """Whether every limit is kept; None where there is none."""
        return all(limit.met(self.figures) for limit in self.limits) if self.limits else None


def most(figure: str, bound: float) -> Limit:
    """No more than."""
    return Limit(figure, bound)


def least(figure: str, bound: float) -> Limit:
    """No less than."""
    return Limit(figure, bound, least=True)


def quantile(values: Sequence[float], q: float) -> float:
    """The nearest-rank quantile; nan of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def spread(values: Iterable[float]) -> Figures:
    """p50, p99 and n."""
    found = list(values)
    return {"p50": quantile(found, 0.5), "p99": quantile(found, 0.99), "n": len(found)}


def as_text(rows: Sequence[Row]) -> str:
    """The table, and below it how many targets are met."""
    cells = [("", "what", "target", "measured", "met")]
    before = ""
    for row in filter(lambda row: row.figures, rows):
        name, before = ("" if row.scenario == before else row.scenario), row.scenario
        target = ", ".join(limit.said(row.unit) for limit in row.limits)
        cells.append((name, row.what, target, _measured(row), {None: "", True: "yes", False: "NO"}[row.met]))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    lines += [f"{row.scenario}: {row.what}" for row in rows if not row.figures]
    judged = [row for row in rows if row.met is not None]
    lines.append(f"{sum(bool(row.met) for row in judged)} of {len(judged)} targets met")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The table, for programs; what could not be measured is null."""
    return [
        {
            "scenario": row.scenario,
            "what": row.what,
            "unit": row.unit,
            "figures": {name: None if math.isnan(value) else value for name, value in row.figures.items()},
            "target": [limit.said(row.unit) for limit in row.limits],
            "met": row.met,
        }
        for row in rows
    ]


def _measured(row: Row) -> str:
    parts = [
        f"{'' if name == 'value' else name + ' '}{_number(value, row.unit)}"
        for name, value in row.figures.items()
        if name != "n"
    ]
    if "n" in row.figures:
        parts.append(f"n {row.figures['n']:,.0f}")
    return ", ".join(parts)


def _number(value: float, unit: str) -> str:
    if math.isnan(value):
        return "none"
    if unit == "%":
        return f"{value * 100:.4g}%"
    if unit == "$":
        return f"${value:.3g}"
    return f"{value:.4g}{' ' + unit if unit not in ('', 'x') else unit}"
