"""Evaluate methods of routing on labelled prompts: what `tierline fit eval route` and `cascade` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gateway.parts.fit.datasets import DataError, Example, LabelledPrompts, read_labelled
from gateway.parts.fit.figures import ALWAYS_LARGE, ALWAYS_SMALL, Draw, Figures, Interval, Outcomes, figures
from gateway.parts.fit.folds import Folds, by_group, by_prompt
from gateway.parts.fit.libraries import require
from gateway.report import NONE, OnProgress, Report, part_progress, table
from routing.embedder import EmbedderKind

_ALWAYS_THERE = ("apgr", "cpt50", "cpt80", "calls95", "calls99", "ece")
_METHODS = ("random", ALWAYS_SMALL, ALWAYS_LARGE, "groups", "length", "raw_logprob", "ours", "oracle")
_HEADINGS = {"datasets": "data set", "prefix": "first tokens"}
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The options that evaluations on labelled prompts share.

    `fit` are files to fit on instead of parts of `data`; `plot` is the picture's file, None for none.
    """

    data: list[Path]
    small: list[str]
    large: list[str]
    folds: int
    group_out: bool
    fit: list[Path] | None
    embedding: EmbedderKind | None
    seed: int
    state: Path
    plot: Path | None

    def read(self) -> tuple[LabelledPrompts, LabelledPrompts]:
        """Return the prompts to test, and those of `fit` that are not among them.

        Raises DataError, also for a file that is in both.
        """
        data = read_labelled(self.data, self.small, self.large)
        others = read_labelled(self.fit or (), self.small, self.large)
        tested = {source["sha256"] for source in data.sources}
        for source in others.sources:
            if source["sha256"] in tested:
                raise DataError(
                    f"{source['file']} is in --fit and in --data: training data cannot be used for the test"
                )
        prompts = {example.prompt for example in data.examples}
        apart = [example for example in others.examples if example.prompt not in prompts]
        if others.examples and not apart:
            raise DataError("every prompt of --fit is in --data too, so nothing is left to fit on; name other files")
        return data, LabelledPrompts(apart, others.sources)

    def fold(self, examples: Sequence[Example]) -> Folds:
        """Return the fold of each example: of whole groups with `group_out`."""
        if self.group_out:
            return by_group(examples, self.seed)
        return by_prompt([example.prompt for example in examples], self.folds, self.seed)

    def require_libraries(self, hint: str = "", *, fits: bool = True) -> None:
        """Raise LibraryMissing if a needed library is not installed, before minutes of work."""
        if fits:
            require("sklearn", "fitting needs scikit-learn", hint)
        if self.plot is not None:
            require("matplotlib", "a picture needs matplotlib")


def data_names(data: LabelledPrompts) -> str:
    """Return the data sets, the models of each file and n, for a title."""
    names = ", ".join(dict.fromkeys(example.dataset for example in data.examples))
    pairs = ", ".join(dict.fromkeys(f"{source['small']} or {source['large']}" for source in data.sources))
    return f"{names}: {pairs}, n = {len(data.examples):,}"


def report_on(
    title: str,
    data: LabelledPrompts,
    draws: Sequence[Draw],
    facts: dict[str, Any],
    notes: list[str],
    on_progress: OnProgress,
    prefixes: Mapping[int, Sequence[Draw]] = MappingProxyType({}),
) -> Report:
    """Compute every figure of these draws, of each data set's part of them, and of the `prefixes`.

    `prefixes` are draws judged from first tokens, by the number of tokens. `facts` are the conditions, as JSON values,
    and must hold `seed`.
    """
    outcomes = Outcomes.of(data.examples)
    names = np.array([example.dataset for example in data.examples])
    datasets = list(dict.fromkeys(names.tolist()))
    each = {name: [_only(draw, names == name) for draw in draws] for name in datasets if len(datasets) > 1}
    jobs: dict[tuple[str, str], Sequence[Draw]] = {
        ("datasets", name): some for name, some in each.items() if all(len(draw.rows) for draw in some)
    }
    jobs |= {("prefix", str(tokens)): some for tokens, some in prefixes.items()}
    whole = figures(outcomes, draws, facts["seed"], part_progress(on_progress, 0, 1 + len(jobs)))
    tables: dict[str, dict[str, tuple[int, Figures]]] = {}
    for number, ((heading, row), some) in enumerate(jobs.items(), start=1):
        count = len(np.unique(np.concatenate([draw.rows for draw in some])))
        part = figures(outcomes, some, facts["seed"], part_progress(on_progress, number, 1 + len(jobs)))
        tables.setdefault(heading, {})[row] = count, part
    pair = data.pair()
    if not whole.get("apgr"):
        notes = [*notes, f"{pair[1]} is no better than {pair[0]} here: there is no gap to recover"]
    values = {
        **_values(whole),
        "n": len(names),
        "small": pair[0],
        "large": pair[1],
        "share_per_tier": _shares(whole, pair),
        **{
            heading: {name: {**_values(some), "n": count} for name, (count, some) in rows.items()}
            for heading, rows in tables.items()
        },
        "data": data.sources,
        **facts,
        "notes": notes,
    }
    values |= _worst(tables.get("datasets", {}))
    lines = _lines(whole)
    if "worst" in values:
        lines += [
            f"worst data set: {values['worst']['dataset']}, APGR of ours {values['worst']['apgr']['value']:.3f}",
            "",
        ]
    for heading, rows in tables.items():
        lines += [_in_parts(_HEADINGS[heading], rows), ""]
    return Report(values, lines, notes, title)


def _only(draw: Draw, chosen: NDArray[np.bool_]) -> Draw:
    here = np.flatnonzero(chosen[draw.rows])
    return Draw(draw.rows[here], tuple(method.take(here) for method in draw.methods), draw.cascade)


def _worst(rows: Mapping[str, tuple[int, Figures]]) -> dict[str, Any]:
    """Return the data set with the lowest APGR of ours; nothing for fewer than two."""
    each = {name: part["apgr"]["ours"] for name, (_, part) in rows.items() if "ours" in part.get("apgr", {})}
    if len(each) < 2:
        return {}
    name = min(each, key=lambda name: each[name].value)
    return {"worst": {"dataset": name, "apgr": interval_json(each[name])}}


def interval_json(interval: Interval) -> dict[str, float]:
    """Return an interval as `{"value", "lo", "hi"}`, rounded to five digits."""
    return {name: round(getattr(interval, name), _DIGITS) for name in ("value", "lo", "hi")}


def _values(measured: Figures) -> dict[str, Any]:
    every: Figures = {figure: {} for figure in _ALWAYS_THERE} | measured
    return {
        figure: {method: interval_json(methods[method]) for method in _METHODS if method in methods}
        for figure, methods in every.items()
    }


def _shares(measured: Figures, pair: tuple[str, str]) -> dict[str, dict[str, float]]:
    """Return by method the share of prompts that each model answers at 95% of the large model's accuracy."""
    large = {method: share.value for method, share in measured["calls95"].items()}
    return {
        method: {pair[0]: round(1 - large[method], _DIGITS), pair[1]: round(large[method], _DIGITS)}
        for method in _METHODS
        if method in large
    }


def percents(interval: Interval | None) -> str:
    """Format a share with its interval, in percent."""
    if interval is None:
        return NONE
    if interval.exact:
        return f"{interval.value:.1%}"
    return f"{interval.value:.1%} [{100 * interval.lo:.1f}, {100 * interval.hi:.1f}]"


def _lines(measured: Figures) -> list[str | Table]:
    def cell(figure: str, method: str) -> Interval | None:
        return measured.get(figure, {}).get(method)

    dollars = ("$ per 1,000", "saved") if "dollars" in measured else ()
    quality = table("method", "APGR", "CPT50", "CPT80", "ECE")
    cost = table("method", "calls for 95%", "calls for 99%", "small / large", *dollars)
    for method in (method for method in _METHODS if any(method in methods for methods in measured.values())):
        name, apgr, ece = method.replace("_", " "), cell("apgr", method), cell("ece", method)
        shares = [percents(cell(figure, method)) for figure in ("cpt50", "cpt80")]
        quality.add_row(name, str(apgr or NONE), *shares, str(ece or NONE))
        large, spent, saved = (cell(figure, method) for figure in ("calls95", "dollars", "saved"))
        split = NONE if large is None else f"{100 * (1 - large.value):.0f} / {100 * large.value:.0f}%"
        money = [NONE if spent is None else f"{spent.value:.4f}", NONE if saved is None else f"{saved.value:.1%}"]
        cost.add_row(name, percents(large), percents(cell("calls99", method)), split, *(money if dollars else ()))
    accuracy = measured["accuracy"]
    lines: list[str | Table] = [
        f"accuracy: always small {accuracy[ALWAYS_SMALL]}, always large {accuracy[ALWAYS_LARGE]}",
        "", quality, "", cost, "",
    ]  # fmt: skip
    ahead = measured.get("ours_minus", {})
    lines += [
        f"APGR of ours minus that of {name.replace('_', ' ')}: {ahead[name]}" for name in _METHODS if name in ahead
    ]
    return [*lines, ""] if ahead else lines


def _in_parts(heading: str, rows: Mapping[str, tuple[int, Figures]]) -> Table:
    present = {method for _, part in rows.values() for method in part.get("apgr", {})}
    methods = ("raw_logprob" if "raw_logprob" in present else "groups", "ours")
    columns = (f"APGR {name.replace('_', ' ')}" for name in methods)
    made = table(heading, "n", *columns, "ours: calls for 95%")
    for name, (count, found) in rows.items():
        apgr = [str(found.get("apgr", {}).get(method, NONE)) for method in methods]
        made.add_row(name, f"{count:,}", *apgr, percents(found["calls95"].get("ours")))
    return made
