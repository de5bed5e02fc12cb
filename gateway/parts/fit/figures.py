"""Compute the figures of routing methods on labelled prompts, with bootstrap intervals over the prompts.

    apgr             share of the gap between the two models that is recovered, averaged over every share of large calls
    cpt50, cpt80     the minimum share of large calls that recovers half, four fifths of the gap
    calls95, calls99 the minimum share of large calls that reaches 95%, 99% of the large model's accuracy
    ece              expected calibration error of P(small model right), in ten bins of equal count
    dollars          US dollars per 1,000 requests, at calls95; for always_small and always_large, of all requests
    saved            the share of always_large's dollars that is saved at calls95
    accuracy         of always_small and always_large
    ours_minus       the apgr of `ours` minus each baseline's, on the same resamples

A figure that does not apply to a method (no probability stated, no costs given, no gap to recover, a target that it
never reaches) is left out. The fits are not repeated for each resample: an interval shows how far the figure depends
on the tested prompts, not how far on the training prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.parts.fit.curves import Blocks, Curve, Floats, calibration_errors, heights
from gateway.parts.fit.datasets import Example
from gateway.report import OnProgress, silent

ALWAYS_SMALL = "always_small"
ALWAYS_LARGE = "always_large"
OURS = "ours"
RESAMPLES = 1000
SHARES = np.linspace(0, 1, 101)
"""Shares of large calls at which a drawn curve has points."""

_BASELINES = frozenset({"groups", "length", "raw_logprob"})
_CHUNK = 50  # resamples at a time: a few megabytes for thousands of prompts


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and the central 95% of its bootstrap distribution."""

    value: float
    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        """Whether all resamples give the same value, so that the interval has no width."""
        return self.hi - self.lo < 1e-9

    def __str__(self) -> str:
        if self.exact:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.lo:.3f}, {self.hi:.3f}]"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The result of each prompt, shape (prompts,): how right both models were, and their costs in US dollars."""

    small: Floats
    large: Floats
    small_cost: Floats | None
    large_cost: Floats | None

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Outcomes:
        """Read the outcomes. Costs are set only if every answer of both models has one."""
        costs = [(example.answers[0].cost_usd, example.answers[-1].cost_usd) for example in examples]
        pairs = np.array([(a, b) for a, b in costs if a is not None and b is not None])
        complete = len(pairs) == len(examples) > 0
        return cls(
            np.array([example.small for example in examples]),
            np.array([example.large for example in examples]),
            pairs[:, 0] if complete else None,
            pairs[:, 1] if complete else None,
        )


@dataclass(frozen=True, slots=True)
class Method:
    """A routing method: the highest `score` (prompts,) goes to the large model first. `p_small` is P(small right)."""

    name: str
    score: Floats
    p_small: Floats | None = None

    def take(self, rows: NDArray[np.intp]) -> Method:
        """Return the method for these prompts, by index, only."""
        return Method(self.name, self.score[rows], None if self.p_small is None else self.p_small[rows])


@dataclass(frozen=True, slots=True)
class Draw:
    """One test: its prompts (indices into the outcomes) and each method's scores of them.

    `cascade`: the small model is always called first, and paid for.
    """

    rows: NDArray[np.intp]
    methods: tuple[Method, ...]
    cascade: bool


@dataclass(frozen=True, slots=True)
class Drawn:
    """A method's curve at SHARES: accuracy, the central 95% of it, and dollars per 1,000 requests if known."""

    accuracy: Floats
    lo: Floats
    hi: Floats
    dollars: Floats | None


Figures = dict[str, dict[str, Interval]]
"""Figure name, then method name, to interval."""

_Values = dict[tuple[str, str], Floats]


def figures(outcomes: Outcomes, draws: Sequence[Draw], seed: int, on_progress: OnProgress) -> Figures:
    """Compute every figure of every method. Several draws (each with the same methods) are averaged."""
    point = _mean_over(outcomes, draws, np.ones((1, len(outcomes.small))))
    resampled: dict[tuple[str, str], list[Floats]] = {key: [] for key in point}
    for weights in resamples(len(outcomes.small), seed, on_progress=on_progress):
        with np.errstate(invalid="ignore", divide="ignore"):  # a resample may hold no prompt of a small data set
            values = _mean_over(outcomes, draws, weights)
        for key, value in values.items():
            resampled[key].append(value)
    intervals: Figures = {}
    for (figure, method), value in point.items():
        if np.isfinite(value[0]):
            intervals.setdefault(figure, {})[method] = interval(
                float(value[0]), np.concatenate(resampled[figure, method]), biased=figure == "ece"
            )
    return intervals


def interval(value: float, resampled: Floats, *, biased: bool = False) -> Interval:
    """Return the central 95% of `resampled` (resamples,), widened to include the figure itself.

    `biased`: resampling raises the figure, as it does any mean distance, so the distribution is first shifted back.
    """
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):
        return Interval(value, value, value)
    if biased:
        finite = np.maximum(0.0, finite - (np.median(finite) - value))
    lo, hi = np.quantile(finite, [0.025, 0.975])
    return Interval(value, min(float(lo), value), max(float(hi), value))


def mean_share(held: Floats, seed: int, draws: int = RESAMPLES) -> Interval:
    """Return the mean of `held` (items,) with its interval."""
    counts = np.concatenate([weights @ held for weights in resamples(len(held), seed, draws)])
    return interval(float(held.mean()), counts / len(held))


def draw_curves(outcomes: Outcomes, draws: Sequence[Draw], seed: int) -> dict[str, Drawn]:
    """Return the curve of each method; several draws are averaged."""
    once = np.ones((1, len(outcomes.small)))
    drawn = {}
    for number, method in enumerate(draws[0].methods):
        band = [_accuracies(outcomes, draws, number, weights) for weights in resamples(len(outcomes.small), seed)]
        lo, hi = np.quantile(np.concatenate(band), [0.025, 0.975], axis=0)
        accuracy = _accuracies(outcomes, draws, number, once)[0]
        drawn[method.name] = Drawn(accuracy, lo, hi, _dollars_along(outcomes, draws, number))
    return drawn


def resamples(
    count: int,
    seed: int,
    draws: int = RESAMPLES,
    group: NDArray[np.int64] | None = None,
    on_progress: OnProgress = silent,
) -> Iterator[Floats]:
    """Yield each item's number of occurrences in each resample, shape (resamples, count), in chunks of resamples.

    `group` (count,) numbers those that are drawn together, such as the turns of a conversation; None draws each alone.
    """
    owner = np.arange(count) if group is None else np.unique(group, return_inverse=True)[1]
    units, generator = int(owner.max()) + 1, np.random.default_rng(seed)
    for start in range(0, draws, _CHUNK):
        on_progress("resampling", start, draws)
        drawn = generator.integers(0, units, (_CHUNK, units)) + np.arange(_CHUNK)[:, None] * units
        times = np.bincount(drawn.ravel(), minlength=_CHUNK * units).reshape(_CHUNK, units)
        yield times[:, owner].astype(np.float64)
    on_progress("resampling", draws, draws)


def _taken(outcomes: Outcomes, draw: Draw) -> Outcomes:
    costs = (outcomes.small_cost, outcomes.large_cost)
    small, large = (None if cost is None else cost[draw.rows] for cost in costs)
    return Outcomes(outcomes.small[draw.rows], outcomes.large[draw.rows], small, large)


def _mean_over(outcomes: Outcomes, draws: Sequence[Draw], weights: Floats) -> _Values:
    if len(draws) == 1:
        return _values(_taken(outcomes, draws[0]), draws[0], weights[:, draws[0].rows])
    each = [_values(_taken(outcomes, draw), draw, weights[:, draw.rows]) for draw in draws]
    return {key: np.mean([values[key] for values in each], axis=0) for key in each[0]}


def _values(outcomes: Outcomes, draw: Draw, weights: Floats) -> _Values:
    """Return every figure of every method for each row of `weights` (resamples, prompts); NaN where undefined."""
    values = _fixed(outcomes, weights)
    for method in draw.methods:
        for figure, value in _of_method(outcomes, method, draw.cascade, weights).items():
            values[figure, method.name] = value
    if ("apgr", OURS) in values:
        for baseline in _BASELINES & {method.name for method in draw.methods}:
            values["ours_minus", baseline] = values["apgr", OURS] - values["apgr", baseline]
    return values


def _fixed(outcomes: Outcomes, weights: Floats) -> _Values:
    """Return the figures of always calling one model."""
    total = weights.sum(axis=1)
    small, large = weights @ outcomes.small / total, weights @ outcomes.large / total
    everything = np.ones(len(weights))
    values: _Values = {("accuracy", ALWAYS_SMALL): small, ("accuracy", ALWAYS_LARGE): large}
    for figure in ("cpt50", "cpt80"):
        values[figure, ALWAYS_LARGE] = np.where(large > small, everything, np.nan)
    for figure, part in _TARGETS:
        values[figure, ALWAYS_SMALL] = np.where(small >= part * large, 0.0, np.nan)
        values[figure, ALWAYS_LARGE] = everything
    if outcomes.small_cost is not None and outcomes.large_cost is not None:
        values["dollars", ALWAYS_SMALL] = 1000 * (weights @ outcomes.small_cost) / total
        values["dollars", ALWAYS_LARGE] = 1000 * (weights @ outcomes.large_cost) / total
    return values


_TARGETS = (("calls95", 0.95), ("calls99", 0.99))


def _of_method(outcomes: Outcomes, method: Method, cascade: bool, weights: Floats) -> dict[str, Floats]:
    blocks = Blocks.of(method.score)
    curve = Curve.of(blocks, outcomes.large - outcomes.small, weights)
    total, gap = curve.calls[:, -1], curve.gain[:, -1]
    small, large = weights @ outcomes.small, weights @ outcomes.large
    values = {"apgr": curve.recovered()}
    for figure, part in (("cpt50", 0.5), ("cpt80", 0.8)):
        needed = curve.calls_for(part * gap).sum_of(curve.d_calls)
        values[figure] = np.where(gap > 0, needed / total, np.nan)
    for figure, part in _TARGETS:
        reached = curve.calls_for(part * large - small)
        values[figure] = reached.sum_of(curve.d_calls) / total
        if figure == "calls95" and outcomes.small_cost is not None and outcomes.large_cost is not None:
            more = outcomes.large_cost if cascade else outcomes.large_cost - outcomes.small_cost
            spent = weights @ outcomes.small_cost + reached.sum_of(blocks.total(weights * more))
            values["dollars"] = 1000 * spent / total
            values["saved"] = 1 - spent / (weights @ outcomes.large_cost)
    if method.p_small is not None:
        values["ece"] = calibration_errors(Blocks.of(method.p_small), method.p_small - outcomes.small, weights)
    return values


def _accuracies(outcomes: Outcomes, draws: Sequence[Draw], number: int, weights: Floats) -> Floats:
    """Return the accuracy at SHARES of the draws' method of that number, shape (resamples, shares)."""
    accuracies = []
    for draw in draws:
        here, counted = _taken(outcomes, draw), weights[:, draw.rows]
        curve = Curve.of(Blocks.of(draw.methods[number].score), here.large - here.small, counted)
        accuracies.append((heights(curve, SHARES) + (counted @ here.small)[:, None]) / counted.sum(axis=1)[:, None])
    return np.asarray(np.mean(accuracies, axis=0))


def _dollars_along(outcomes: Outcomes, draws: Sequence[Draw], number: int) -> Floats | None:
    """Return US dollars per 1,000 requests at SHARES; None if costs are unknown."""
    dollars = []
    for draw in draws:
        here = _taken(outcomes, draw)
        if here.small_cost is None or here.large_cost is None:
            return None
        more = here.large_cost if draw.cascade else here.large_cost - here.small_cost
        curve = Curve.of(Blocks.of(draw.methods[number].score), more, np.ones((1, len(more))))
        dollars.append(1000 * (heights(curve, SHARES)[0] + here.small_cost.sum()) / len(more))
    return np.asarray(np.mean(dollars, axis=0))
