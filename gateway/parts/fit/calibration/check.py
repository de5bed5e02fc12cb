"""Check that calibration keeps its promise: calibrate on random halves of the labels and measure on all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.parts.fit.calibration.cases import THRESHOLDS, Cases
from gateway.parts.fit.calibration.choose import Setting, Target, choose_setting, cost_of, keeps, quality_of
from gateway.report import OnProgress


@dataclass(frozen=True, slots=True)
class Check:
    """The result of `rounds` random halves of `n` labels each; a round without a setting sends all to the large tier.

    `violated` is the share of rounds whose setting breaks the target on all labels, which represent the traffic: the
    share that delta bounds. `violated_held_out` is the same on the other half alone, which adds its own sampling error:
    a setting that barely keeps its target breaks it there nearly half the time. `cost` and `quality` are means over the
    rounds, on all labels; `best_cost` and `best_quality` are of the best setting in hindsight. All are shares of
    always-large's.
    """

    rounds: int
    n: int
    refused: float
    violated: float
    violated_held_out: float
    cost: float
    quality: float
    best_cost: float
    best_quality: float


def check(cases: Cases, target: Target, delta: float, rounds: int, on_progress: OnProgress) -> Check:
    """Calibrate on `rounds` random halves. Equal cases give equal figures."""
    draw = np.random.default_rng(0)
    half = len(cases) // 2
    outcomes: list[tuple[bool, bool, bool, float, float]] = []
    for done in range(rounds):
        on_progress("checking on halves", done, rounds)
        order = draw.permutation(len(cases))
        setting = choose_setting(cases.take(order[:half]), target, delta)
        if setting is None:
            outcomes.append((True, False, False, 1.0, 1.0))
            continue
        kept, quality, cost = _measured(cases, setting, target)
        outcomes.append((False, not kept, not _measured(cases.take(order[half:]), setting, target)[0], cost, quality))
    on_progress("checking on halves", rounds, rounds)
    refused, violated, held_out, cost, quality = np.array(outcomes, float).mean(axis=0).tolist()
    best_cost, best_quality = _in_hindsight(cases, target)
    return Check(rounds, half, refused, violated, held_out, cost, quality, best_cost, best_quality)


def _measured(cases: Cases, setting: Setting, target: Target) -> tuple[bool, float, float]:
    """Return whether the setting keeps the target on these cases, its quality and its cost."""
    table = cases.table(setting.start, [setting.confidence_below])
    return bool(keeps(table, target)[0]), float(quality_of(table)[0]), float(cost_of(table)[0])


def _in_hindsight(cases: Cases, target: Target) -> tuple[float, float]:
    """Return cost and quality of the best setting given every label; always-large's where none is better."""
    options = [(1.0, 1.0)]
    for start in cases.starts:
        table = cases.table(start, THRESHOLDS)
        cost, quality = cost_of(table), quality_of(table)
        good = keeps(table, target) & (cost < 1)
        options += [(float(cost[i]), float(quality[i])) for i in np.flatnonzero(good)]
    if target.kind == "cost":
        return max(options[1:] or options, key=lambda pair: (pair[1], -pair[0]))
    return min(options, key=lambda pair: (pair[0], -pair[1]))
