"""Choose the cheapest thresholds that keep a target with a stated confidence, by Learn then Test.

A setting is a pair of thresholds. For each start threshold the escalation thresholds are tested from the safest to the
cheapest, and the first that fails ends the row (fixed-sequence testing), so that all that pass hold together with
probability 1 - delta, whichever is then chosen (Angelopoulos et al. 2021, "Learn then Test"). Nothing is assumed about
the losses' shape: unlike conformal risk control, whose guarantee is an average over calibrations, it needs no monotone
loss, and relative quality is not monotone. The rows share delta: most of it goes to the start threshold that
lets most requests start cheap, which relies most on the answers' confidence and nearly always wins, the rest to the
others.

    quality   served answers are right at least `level` times as often as always-large's
    error     the share of all requests whose served cheap answer is wrong where the large one is right
    cost      the cost as a share of always-large's; of those within it, the setting with the best quality
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from gateway.parts.fit.calibration.cases import THRESHOLDS, Cases, CaseTable
from gateway.parts.fit.calibration.risk import Claim, Losses, best_level, labels_needed, proven
from gateway.parts.fit.curves import Flags, Floats

TargetKind = Literal["quality", "error", "cost"]

# Upper bound of a request's cost, as a multiple of the highest cost seen: bounding a mean needs bounded terms.
_DEAREST = 2.0
_TOP_QUALITY = 2.0
_TOP_COST = 100.0
# A setting must save at least this share of always-large's cost.
_LEAST_SAVING = 0.01
# On the cascade_* sets halves of the labels cost 0.01 of always-large's less with this share than with an even one.
_LOWEST_START = 0.8


@dataclass(frozen=True, slots=True)
class Target:
    """The target a setting must keep. The module's docstring explains `level` for each kind."""

    kind: TargetKind
    level: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Start cheap by the start threshold `start` (None: the policy's rule); escalate below `confidence_below`."""

    start: float | None
    confidence_below: float


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a setting, as shares of all requests; quality and cost as shares of always-large's.

    `quality_at_least`, `error_at_most` and `cost_at_most` each hold for this setting alone, at the confidence of its
    row. `proven`: the target is kept with the stated confidence, whichever proven setting is chosen.
    """

    setting: Setting
    kept: float
    large_calls: float
    quality: float
    quality_at_least: float
    error: float
    error_at_most: float
    cost: float
    cost_at_most: float
    proven: bool


@dataclass(frozen=True, slots=True)
class Best:
    """The best setting of one start threshold, with its observed quality and cost; None where none is proven."""

    start: float | None
    delta: float
    setting: Setting | None
    quality: float
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen setting. `setting` is None when none that saves is proven.

    `missing` is then the approximate number of further labels that would prove one; None where no number would: at the
    rates observed, no setting that saves keeps the target. `curve` holds the settings of the chosen start threshold (of
    the first, if there is none), cheapest first, `starts` the best of each start threshold.
    """

    target: Target
    delta: float
    n: int
    setting: Setting | None
    missing: int | None
    curve: tuple[Point, ...]
    starts: tuple[Best, ...]

    @property
    def point(self) -> Point | None:
        """The chosen setting's point on the curve."""
        return next((point for point in self.curve if point.setting == self.setting), None)


def choose(cases: Cases, target: Target, delta: float) -> Choice:
    """Choose a setting and return it with its curve. `cases` must hold at least one."""
    cases = cases.shuffled()
    starts = tuple(_best(cases, target, start, share) for start, share in shares(cases, delta))
    proven_starts = [best for best in starts if best.setting is not None]
    chosen = min(proven_starts, key=partial(_preference, target)) if proven_starts else starts[0]
    missing = None if proven_starts else _missing(cases, target, starts)
    curve = _curve(cases, target, chosen.start, chosen.delta)
    return Choice(target, delta, len(cases), chosen.setting, missing, curve, starts)


def choose_setting(cases: Cases, target: Target, delta: float) -> Setting | None:
    """Return the setting of `choose` without its curve, for repeated use."""
    cases = cases.shuffled()
    starts = [_best(cases, target, start, share) for start, share in shares(cases, delta)]
    proven_starts = [best for best in starts if best.setting is not None]
    return min(proven_starts, key=partial(_preference, target)).setting if proven_starts else None


def shares(cases: Cases, delta: float) -> Iterator[tuple[float | None, float]]:
    """Yield each start threshold with the part of `delta` that is spent on it, that of most requests first."""
    first, *others = cases.starts
    yield first, delta * _LOWEST_START if others else delta
    for start in others:
        yield start, delta * (1 - _LOWEST_START) / len(others)


def claim_of(kind: TargetKind, table: CaseTable) -> Claim:
    """Return the claim that each setting of the table keeps a level of this kind."""
    if kind == "quality":
        return partial(_quality, table)
    return partial(_error if kind == "error" else _cost, table)


def keeps(table: CaseTable, target: Target) -> Flags:
    """Return whether each setting keeps the target on these cases, without allowance for sampling error."""
    losses = claim_of(target.kind, table)(_level(table, target.level))
    return np.asarray(losses.values.mean(axis=0) <= 1e-12)


def quality_of(table: CaseTable) -> Floats:
    """Return how right the served answers are, as a share of always-large's; NaN where the large tier never is."""
    large = float(table.cases.large.mean())
    return np.asarray(table.served.mean(axis=0) / large if large else np.full(table.kept.shape[1], np.nan))


def cost_of(table: CaseTable) -> Floats:
    """Return the cost as a share of always-large's."""
    return np.asarray(table.cost.mean(axis=0) / table.cases.large_cost.mean())


def _quality(table: CaseTable, level: Floats) -> Losses:
    values = table.cases.large[:, None] * level - table.served
    return Losses(values, np.full(len(level), -1.0), np.maximum(level, 1e-9))


def _error(table: CaseTable, level: Floats) -> Losses:
    return Losses(table.missed - level, -level, 1 - level, table.cases.binary)


def _cost(table: CaseTable, level: Floats) -> Losses:
    if table.cases.unit == "large calls":
        return Losses(table.cost - level, -level, 1 - level, binary=True)
    small, large = (_DEAREST * float(cost.max()) for cost in (table.cases.small_cost, table.cases.large_cost))
    values = table.cost - table.cases.large_cost[:, None] * level
    return Losses(values, -level * large, small + np.maximum(1 - level, 0) * large + 1e-12)


def _level(table: CaseTable, level: float) -> Floats:
    return np.full(table.kept.shape[1], level)


def _preference(target: Target, best: Best) -> tuple[float, float]:
    return (-best.quality, best.cost) if target.kind == "cost" else (best.cost, -best.quality)


def _best(cases: Cases, target: Target, start: float | None, delta: float) -> Best:
    table = cases.table(start, THRESHOLDS)
    passed = _passed(table, target, delta)
    quality, cost = quality_of(table), cost_of(table)
    useful = passed & (cost <= 1 - _LEAST_SAVING)
    rows = _at(useful)
    options = [Best(start, delta, Setting(start, THRESHOLDS[i]), float(quality[i]), float(cost[i])) for i in rows]
    nothing = Best(start, delta, None, 1.0, 1.0)
    return min(options, key=partial(_preference, target)) if options else nothing


def _at(flags: Flags) -> list[int]:
    return [int(i) for i in np.flatnonzero(flags)]


def _passed(table: CaseTable, target: Target, delta: float) -> Flags:
    """Return which settings are proven to keep the target: tested from the safe end, up to the first that fails."""
    holds = proven(claim_of(target.kind, table)(_level(table, target.level)), delta)
    if target.kind == "cost":  # here the cheap end is the safe one
        return np.logical_and.accumulate(holds)
    return np.logical_and.accumulate(holds[::-1])[::-1]


def _curve(cases: Cases, target: Target, start: float | None, delta: float) -> tuple[Point, ...]:
    table = cases.table(start, THRESHOLDS)
    nothing, all_wrong = _level(table, 0.0), _level(table, 1.0)
    dearest = _level(table, 1.0 if cases.unit == "large calls" else _TOP_COST)
    figures = (
        table.kept.mean(axis=0),
        1 - table.kept.mean(axis=0),
        quality_of(table),
        best_level(claim_of("quality", table), delta, nothing, _TOP_QUALITY),
        table.missed.mean(axis=0),
        best_level(claim_of("error", table), delta, all_wrong, 0.0),
        cost_of(table),
        best_level(claim_of("cost", table), delta, dearest, 0.0),
    )
    passed = _passed(table, target, delta).tolist()
    points = []
    for i, row in enumerate(np.stack(figures, axis=1).tolist()):
        kept, large, quality, at_least, error, error_at_most, cost, cost_at_most = row
        points.append(
            Point(
                setting=Setting(start, THRESHOLDS[i]),
                kept=kept,
                large_calls=large,
                quality=quality,
                quality_at_least=at_least,
                error=error,
                error_at_most=error_at_most,
                cost=cost,
                cost_at_most=cost_at_most,
                proven=passed[i],
            )
        )
    return tuple(points)


def _missing(cases: Cases, target: Target, starts: Sequence[Best]) -> int | None:
    """Estimate how many further labels would prove a setting that saves; None if none keeps the target as observed."""
    needed = [count for best in starts if (count := _needed(cases, target, best)) is not None]
    if needed:
        # The tests have just failed with this many labels; adding only a few would not reliably change that.
        return max(1, min(needed) - len(cases), len(cases) // 10)
    # With fewer labels than any proof needs, the observed rates are too uncertain to extrapolate.
    least = _least(cases, target, starts[0])
    return least - len(cases) if least is not None and least > len(cases) else None


def _least(cases: Cases, target: Target, best: Best) -> int | None:
    """Return the labels that prove the target for a setting without losses; None for a cost target."""
    if target.kind == "cost":
        return None
    table = CaseTable(cases, cases.starts[best.start], np.zeros((len(cases), 1), bool))
    return labels_needed(claim_of(target.kind, table)(_level(table, target.level)), best.delta)


def _needed(cases: Cases, target: Target, best: Best) -> int | None:
    """Return the labels with which this start threshold's tests would pass up to the first setting that saves."""
    table = cases.table(best.start, THRESHOLDS)
    losses = claim_of(target.kind, table)(_level(table, target.level))
    useful = cost_of(table) <= 1 - _LEAST_SAVING
    order = range(len(THRESHOLDS)) if target.kind == "cost" else range(len(THRESHOLDS) - 1, -1, -1)
    most = 0
    for i in order:
        column = Losses(losses.values[:, i : i + 1], losses.low[i : i + 1], losses.high[i : i + 1], losses.binary)
        needed = labels_needed(column, best.delta)
        if needed is None:
            return None
        most = max(most, needed)
        if useful[i]:
            return most
    return None
