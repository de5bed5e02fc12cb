"""Print the report of an evaluation: one JSON object, or tables a hundred columns wide."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from gateway.cli.commands import CommandError
from gateway.cli.commands._labelled import Labelled
from gateway.cli.commands._output import console_of_stdout, print_json
from offline.evaluation.figures import (
    ALWAYS_LARGE,
    ALWAYS_SMALL,
    Draw,
    Figures,
    Interval,
    OnResample,
    Outcomes,
    figures,
)
from offline.progress import OnProgress

_ALWAYS_THERE = ("apgr", "cpt50", "cpt80", "calls95", "calls99", "ece")
_METHODS = ("random", ALWAYS_SMALL, ALWAYS_LARGE, "groups", "length", "raw_logprob", "ours", "oracle")
_HEADINGS = {"datasets": "data set", "prefix": "first tokens"}
WIDTH = 100
"""Columns of a report that is not printed to a terminal."""
_DIGITS = 5
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Report:
    """The figures over all prompts and over parts of them, and the conditions (`facts`, as JSON values).

    `parts` holds tables by name, each with rows by name: the number of prompts, and their figures.
    """

    title: str
    pair: tuple[str, str]
    n: int
    figures: Figures
    parts: dict[str, dict[str, tuple[int, Figures]]]
    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def measured(
    title: str,
    data: Labelled,
    draws: Sequence[Draw],
    facts: dict[str, Any],
    notes: list[str],
    on_progress: OnProgress,
    prefixes: Mapping[int, Sequence[Draw]] = MappingProxyType({}),
) -> Report:
    """Compute every figure of these draws, of each data set's part of them, and of the `prefixes`.

    `prefixes` are draws judged from first tokens, by the number of tokens. `facts` must hold `seed`.
    """
    outcomes = Outcomes.of(data.examples)
    names = np.array([example.dataset for example in data.examples])
    datasets = list(dict.fromkeys(names.tolist()))
    each = {name: [_only(draw, names == name) for draw in draws] for name in datasets if len(datasets) > 1}
    jobs: dict[tuple[str, str], Sequence[Draw]] = {
        ("datasets", name): some for name, some in each.items() if all(len(draw.rows) for draw in some)
    }
    jobs |= {("prefix", str(tokens)): some for tokens, some in prefixes.items()}
    whole = figures(outcomes, draws, facts["seed"], _watch(on_progress, 0, 1 + len(jobs)))
    parts: dict[str, dict[str, tuple[int, Figures]]] = {}
    for number, ((heading, row), some) in enumerate(jobs.items(), start=1):
        count = len(np.unique(np.concatenate([draw.rows for draw in some])))
        part = figures(outcomes, some, facts["seed"], _watch(on_progress, number, 1 + len(jobs)))
        parts.setdefault(heading, {})[row] = count, part
    if not whole.get("apgr"):
        notes = [*notes, f"{data.pair()[1]} is no better than {data.pair()[0]} here: there is no gap to recover"]
    return Report(title, data.pair(), len(names), whole, parts, {"data": data.sources, **facts}, notes)


def _watch(on_progress: OnProgress, number: int, jobs: int) -> OnResample:
    return lambda done, total: on_progress("resampling", number * total + done, jobs * total)


def _only(draw: Draw, chosen: NDArray[np.bool_]) -> Draw:
    here = np.flatnonzero(chosen[draw.rows])
    return Draw(draw.rows[here], tuple(method.take(here) for method in draw.methods), draw.cascade)


def show(report: Report, args: argparse.Namespace) -> None:
    """Print the report as tables, or with --json as one object."""
    if args.json:
        print_json(as_json(report))
        return
    console = console_of_stdout(WIDTH)
    console.print(report.title, style="bold")
    _print(console, report.figures)
    for heading, rows in report.parts.items():
        console.print(_in_parts(_HEADINGS[heading], rows))
        console.print()
    print_notes(console, report.notes)


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """Print each note as an item of a list."""
    for note in notes:
        console.print(f"- {note}", style="dim")


def as_json(report: Report) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    shares = _shares(report.figures, report.pair)
    parts = {
        heading: {name: {**_as_json(some), "n": count} for name, (count, some) in rows.items()}
        for heading, rows in report.parts.items()
    }
    return {
        **_as_json(report.figures),
        "n": report.n,
        "small": report.pair[0],
        "large": report.pair[1],
        "share_per_tier": shares,
        **parts,
        **report.facts,
        "notes": report.notes,
    }


def interval_json(interval: Interval) -> dict[str, float]:
    """Return an interval as `{"value", "lo", "hi"}`, rounded to five digits."""
    return {name: round(getattr(interval, name), _DIGITS) for name in ("value", "lo", "hi")}


def _as_json(found: Figures) -> dict[str, Any]:
    every: Figures = {figure: {} for figure in _ALWAYS_THERE} | found
    return {
        figure: {method: interval_json(methods[method]) for method in _METHODS if method in methods}
        for figure, methods in every.items()
    }


def _shares(found: Figures, pair: tuple[str, str]) -> dict[str, dict[str, float]]:
    """Return by method the share of prompts that each model answers at 95% of the large model's accuracy."""
    large = {method: share.value for method, share in found["calls95"].items()}
    return {
        method: {pair[0]: round(1 - large[method], _DIGITS), pair[1]: round(large[method], _DIGITS)}
        for method in _METHODS
        if method in large
    }


def percent(interval: Interval | None) -> str:
    """Format a share with its interval, in percent."""
    if interval is None:
        return _NONE
    if interval.exact:
        return f"{interval.value:.1%}"
    return f"{interval.value:.1%} [{100 * interval.lo:.1f}, {100 * interval.hi:.1f}]"


def _print(console: Console, found: Figures) -> None:
    def cell(figure: str, method: str) -> Interval | None:
        return found.get(figure, {}).get(method)

    dollars = ("$ per 1,000", "saved") if "dollars" in found else ()
    quality = table("method", "APGR", "CPT50", "CPT80", "ECE")
    cost = table("method", "calls for 95%", "calls for 99%", "small / large", *dollars)
    for method in _METHODS:
        if not any(method in methods for methods in found.values()):
            continue
        name = method.replace("_", " ")
        apgr, ece = cell("apgr", method), cell("ece", method)
        quality.add_row(
            name, str(apgr or _NONE), percent(cell("cpt50", method)), percent(cell("cpt80", method)), str(ece or _NONE)
        )
        row = [
            name,
            percent(cell("calls95", method)),
            percent(cell("calls99", method)),
            _split(cell("calls95", method)),
        ]
        if dollars:
            spent, saved = cell("dollars", method), cell("saved", method)
            row += [_money(spent), _NONE if saved is None else f"{saved.value:.1%}"]
        cost.add_row(*row)
    small, large = found["accuracy"][ALWAYS_SMALL], found["accuracy"][ALWAYS_LARGE]
    console.print(f"accuracy: always small {small}, always large {large}")
    console.print()
    console.print(quality)
    console.print()
    console.print(cost)
    console.print()
    ahead = found.get("ours_minus", {})
    for method in (method for method in _METHODS if method in ahead):
        console.print(f"APGR of ours minus that of {method.replace('_', ' ')}: {ahead[method]}")
    if ahead:
        console.print()


def _in_parts(heading: str, rows: Mapping[str, tuple[int, Figures]]) -> Table:
    present = {method for _, part in rows.values() for method in part.get("apgr", {})}
    methods = ("raw_logprob" if "raw_logprob" in present else "groups", "ours")
    columns = (f"APGR {name.replace('_', ' ')}" for name in methods)
    made = table(heading, "n", *columns, "ours: calls for 95%")
    for name, (count, found) in rows.items():
        apgr = [str(found.get("apgr", {}).get(method, _NONE)) for method in methods]
        made.add_row(name, f"{count:,}", *apgr, percent(found["calls95"].get("ours")))
    return made


def table(first: str, *others: str) -> Table:
    """Return an empty table with the first column aligned left and the others right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column(first)
    for heading in others:
        made.add_column(heading, justify="right")
    return made


def _split(large: Interval | None) -> str:
    return _NONE if large is None else f"{100 * (1 - large.value):.0f} / {100 * large.value:.0f}%"


def _money(spent: Interval | None) -> str:
    return _NONE if spent is None else f"{spent.value:.4f}"


def require_libraries(args: argparse.Namespace, *, fits: bool) -> None:
    """Raise CommandError if a needed library is not installed, before minutes of work."""
    if fits and not _installed("sklearn"):
        hint = ", or test a trained classifier with --artefact" if "artefact" in args else ""
        raise CommandError(f"fitting needs scikit-learn; run: make tools (or pip install 'tierline[train]'){hint}")
    if args.plot is not None and not _installed("matplotlib"):
        raise CommandError("a picture needs matplotlib; run: make tools (or pip install 'tierline[train]')")


def _installed(library: str) -> bool:
    try:
        import_module(library)
    except ImportError:
        return False
    return True


def named(data: Labelled) -> str:
    """Return the data sets, the models of each file and n, for a title."""
    names = ", ".join(dict.fromkeys(example.dataset for example in data.examples))
    pairs = ", ".join(dict.fromkeys(f"{source['small']} or {source['large']}" for source in data.sources))
    return f"{names}: {pairs}, n = {len(data.examples):,}"
