"""Measure how a classifier ranks what was left out of its fits, and which kinds may have a domain by that.

Prompts of the data that a classifier was fitted to say little of other traffic: heads that rank GSM8K's own held-out
prompts at an APGR of 0.65 rank them no better than their length does when all of GSM8K is left out. So every data set
is left out as a whole, and every group of its (a subject, a category, a language) as a whole. A kind has a domain

- where it has several public data sets: if each of them, left out, is ranked well enough,
- where it has one, of several groups: if its groups, left out, are,
- where it has one of a single group: never, as nothing can be left out,

and if its data sets are the user's own, the same traffic as what will be judged: if held-out prompts are. Well enough
is an APGR of at least FLOOR at its lower 95% bound, and, but for one's own, AHEAD of what sending the longest prompts
to the strong model gives. Of a data set whose groups are languages (BY_LANGUAGE) the prompts must be ranked so within
each language, too: the small models of its labels are worse in some languages, and a table of languages ranks as well
as heads that tell no more than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gateway.parts.fit.curves import Blocks, Curve, Floats
from gateway.parts.fit.datasets import DataError, Example
from gateway.parts.fit.figures import Interval, interval, resamples
from gateway.parts.fit.folds import Folds, by_group, by_text, numbers_of_names
from gateway.parts.fit.kinds import BY_LANGUAGE, PUBLIC
from gateway.parts.fit.training.difficulty_heads import fit, fit_rarity
from gateway.parts.fit.training.domain import Domain
from gateway.parts.fit.training.kind_heads import fit_kinds
from gateway.parts.fit.training.table import TrainingTable
from gateway.report import OnProgress
from gateway.report import table as made_table
from routing.difficulty.model import gain_of, mix

FLOOR: Final = 0.53
AHEAD: Final = 0.03
_RESAMPLES: Final = 1000
_FEWEST: Final = 40
"""Prompts of a kind in a data set, at least, to be measured by themselves."""

What = Literal["set", "groups", "prompts"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How the prompts of one kind in a data set are ranked by heads of their kind, fitted without `what` they are of.

    `claimed` is the share of them that such a classifier would call its domain, as whichever kind.
    """

    dataset: str
    kind: str
    what: What
    prompts: int
    apgr: Interval
    length: Interval
    ahead: Interval
    claimed: float
    within: Interval | None = None
    """APGR by the rank among the prompts of the same language; None where the groups are no languages."""

    @property
    def holds(self) -> bool:
        """Whether the ranking is good enough for a kind to have a domain."""
        if self.within is not None and not self.within.lo >= FLOOR:
            return False
        return self.apgr.lo >= FLOOR and (self.what == "prompts" or self.ahead.value >= AHEAD)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, intervals as [value, low, high]."""
        figures = {name: getattr(self, name) for name in ("apgr", "length", "ahead")}
        if self.within is not None:
            figures["within"] = self.within
        numbers = {name: [round(end, 4) for end in (it.value, it.lo, it.hi)] for name, it in figures.items()}
        named = {"dataset": self.dataset, "kind": self.kind, "left_out": self.what, "n": self.prompts}
        return {**named, **numbers, "claimed": round(self.claimed, 4)}


def table_of_left_out(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the figures, as `LeftOut.as_json` gives them, as a table."""
    made = made_table(
        "data set", "kind", "left out", "n", "APGR", "length alone", "ahead of length", "within languages", "claimed"
    )
    for row in rows:
        shown = [str(Interval(*row[name])) if name in row else "" for name in ("apgr", "length", "ahead", "within")]
        made.add_row(row["dataset"], row["kind"], row["left_out"], f"{row['n']:,}", *shown, f"{row['claimed']:.0%}")
    return made


@dataclass(frozen=True, slots=True)
class RankingEvidence:
    """What was measured, and the kinds (indices of the table's) that may have a domain by it."""

    rows: tuple[LeftOut, ...]
    claimed: frozenset[int]
    kinds: tuple[str, ...]
    """Names of those kinds."""


def left_out_rankings(
    table: TrainingTable,
    examples: Sequence[Example],
    centroids: int,
    outside: float,
    seed: int,
    on_progress: OnProgress,
) -> RankingEvidence:
    """Leave out each data set, and each one's groups, and measure. `examples` are the table's first prompts."""
    splits = list(_splits(examples, seed))
    language = numbers_of_names([example.group.rstrip("+") for example in examples])
    found: list[tuple[int, LeftOut]] = []
    for done, (dataset, what, rows, fold) in enumerate(splits):
        on_progress("leaving out", done, 2 * len(splits))
        score = _ranked(table, rows, fold, centroids, outside, seed)
        for kind in np.unique(table.task[rows]).tolist():
            some = (table.task[rows] == kind) & np.isfinite(score)
            labels = table.labels[rows[some]]
            if some.sum() >= _FEWEST and labels[:, -1].mean() > labels[:, 0].mean():  # else there is no gap to recover
                figures = compared(score[some], labels, table.chars[rows[some]])
                row = LeftOut(dataset, table.kinds[kind], what, int(some.sum()), *figures, 0.0)
                if dataset in BY_LANGUAGE:
                    ranked = ranks_within(language[rows[some]], score[some])
                    row = replace(row, within=compared(ranked, labels, table.chars[rows[some]])[0])
                found.append((kind, row))
    named = {kind: [row for number, row in found if number == kind] for kind, _ in found}
    claimed = frozenset(kind for kind, rows in named.items() if may_claim(rows))
    shares: dict[tuple[str, str, str], float] = {}
    for done, (dataset, what, rows, fold) in enumerate(splits, start=len(splits)):
        on_progress("leaving out", done, 2 * len(splits))
        inside = _inside(table, rows, fold, claimed)
        for kind in np.unique(table.task[rows]).tolist():
            shares[dataset, table.kinds[kind], what] = float(inside[table.task[rows] == kind].mean())
    on_progress("leaving out", 2 * len(splits), 2 * len(splits))
    measured = (replace(row, claimed=shares[row.dataset, row.kind, row.what]) for _, row in found)
    return RankingEvidence(tuple(measured), claimed, tuple(table.kinds[kind] for kind in sorted(claimed)))


def may_claim(rows: Sequence[LeftOut]) -> bool:
    """Return whether a kind of which these are the figures may have a domain."""
    for needed in ("prompts", "set", "groups"):
        of_it = [row for row in rows if row.what == needed]
        if of_it and (needed != "set" or len({row.dataset for row in rows}) > 1):
            return all(row.holds for row in of_it)
    return False


_Split = tuple[str, What, NDArray[np.intp], Folds]


def _splits(examples: Sequence[Example], seed: int) -> Iterator[_Split]:
    """Yield each data set with its prompts and what is left out of it together: a fold number for each prompt."""
    datasets = np.array([example.dataset for example in examples])
    for dataset in dict.fromkeys(datasets.tolist()):
        rows = np.flatnonzero(datasets == dataset)
        own = [examples[row] for row in rows.tolist()]
        if dataset not in PUBLIC:
            yield dataset, "prompts", rows, by_text([example.prompt for example in own], 5, seed)
            continue
        if len(rows) < len(examples):
            yield dataset, "set", rows, np.zeros(len(rows), np.int64)
        try:
            yield dataset, "groups", rows, by_group(own, seed)
        except DataError:
            continue  # all are of one group


def _ranked(
    table: TrainingTable, rows: NDArray[np.intp], fold: Folds, centroids: int, outside: float, seed: int
) -> Floats:
    """Return the expected gain of each prompt by the heads of its own kind; NaN where no other label is of its kind."""
    score = np.full(len(rows), np.nan)
    for number in np.unique(fold):
        here = fold == number
        chosen = np.ones(table.prompts, bool)
        chosen[rows[here]] = False
        heads = fit(table, chosen)
        ranges = Domain.of(table, chosen, heads.tasks, centroids, outside, seed).count_range
        for at, task in enumerate(heads.tasks):
            own = np.flatnonzero(here & (table.task[rows] == task))
            if len(own):
                heard = ranges.heard(table.counts[rows[own]], at)
                score[own] = gain_of(mix(heads.logits(at, table, rows[own], heard)))
    return score


def _inside(table: TrainingTable, rows: NDArray[np.intp], fold: Folds, claimed: Collection[int]) -> NDArray[np.bool_]:
    """Return whether a classifier with these kinds' domains, fitted without it, would call each prompt its domain."""
    inside = np.zeros(len(rows), bool)
    for number in np.unique(fold) if claimed else ():
        here = fold == number
        chosen = np.ones(table.prompts, bool)
        chosen[rows[here]] = False
        tasks = np.unique(table.task[chosen])
        rarity = fit_rarity(table, chosen)
        logits = fit_kinds(table, chosen, rarity, tasks, claimed).logits(
            table, rows[here], table.counts[rows[here]], rarity
        )
        kind = logits[:, : len(tasks)].argmax(axis=1)
        inside[here] = logits[np.arange(len(kind)), len(tasks) + kind] > 0
    return inside


def ranks_within(group: NDArray[np.intp], score: Floats) -> Floats:
    """Return the rank of each score among those of its group, 0..1, equal ones with their mean rank."""
    ranks = np.empty(len(score))
    for number in np.unique(group):
        own = np.flatnonzero(group == number)
        _, place, count = np.unique(score[own], return_inverse=True, return_counts=True)
        ranks[own] = (np.cumsum(count) - count / 2)[place] / len(own)
    return ranks


def compared(score: Floats, labels: Floats, chars: NDArray[Any]) -> tuple[Interval, Interval, Interval]:
    """Return the APGR of the score, of the length alone, and the difference, each with its 95% interval."""
    gain = labels[:, -1] - labels[:, 0]
    once = np.ones((1, len(score)))
    blocks = [Blocks.of(score), Blocks.of(chars.astype(np.float64))]
    values = [float(Curve.of(block, gain, once).recovered()[0]) for block in blocks]
    drawn = [
        np.concatenate([Curve.of(block, gain, weights).recovered() for weights in resamples(len(score), 0, _RESAMPLES)])
        for block in blocks
    ]
    ours, length = (interval(value, some) for value, some in zip(values, drawn, strict=True))
    return ours, length, interval(values[0] - values[1], drawn[0] - drawn[1])
