"""Sum up what the requests got, before and after, with the interval of each difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gateway.parts.lab.replay.cells import Bools, Floats, Ints

if TYPE_CHECKING:
    from policies.model import Slo

_MOST, _FEWEST = 24, 8
"""Most and fewest imputations: the fewer, the wider the intervals."""
_FOLLOWED: Final = 120_000
"""Requests that all imputations together follow at most, above the fewest."""
_T: Final = (
    2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074,
    2.069,
)  # fmt: skip
"""The 97.5% quantile of Student's distribution with one degree of freedom less than _FEWEST to _MOST imputations."""
_OK: Final = 200
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500

FIGURES: Final[Mapping[str, str]] = {
    "escalated": "share",
    "degraded": "share",
    "fallback": "share",
    "failed": "share",
    "hits": "share",
    "goodput": "share",
    "ttft_p50": "ms",
    "ttft_p95": "ms",
    "cost": "usd",
    "wasted": "usd",
}
"""Every figure and its unit: a share of the requests, milliseconds, or US dollars for 1,000 requests."""


def imputations_for(requests: int) -> int:
    """Return how many imputations are made where so many requests are followed."""
    return min(max(_FOLLOWED // max(requests, 1), _FEWEST), _MOST)


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure before and after; `low` and `high` are the 95% interval of the difference.

    The interval says what these very requests would have got: it has no width where nothing is estimated. Requests
    without evidence count as they were recorded, and the interval reaches to the least and the most they could be.
    """

    before: float
    after: float
    low: float
    high: float
    estimated: int = 0
    """Requests whose part in this figure is estimated, or without evidence; 0 for a figure that is exact."""

    @property
    def difference(self) -> float:
        """Return the figure after the change minus the one before."""
        return self.after - self.before


@dataclass(slots=True)
class Results:
    """What n requests got, a column each; `path` is the place of a word in `words`."""

    path: Ints
    tier: Ints
    cost_usd: Floats
    wasted_usd: Floats
    ttft_ms: Floats
    total_ms: Floats
    status: Ints
    failed: Bools
    stream: Bools
    tpot_ms: Floats
    gap_ms: Floats

    def only(self, which: Bools | Ints) -> Results:
        """Return the results under this mask, or at these places."""
        if which.dtype == np.bool_ and which.all():
            return self
        columns: dict[str, Any] = {field.name: getattr(self, field.name)[which] for field in fields(self)}
        return Results(**columns)


class Tally:
    """Compute the figures of many results that share all but a few requests; `fixed` are the shared ones."""

    def __init__(self, fixed: Results, words: Sequence[str], slo: Slo) -> None:
        """Sum up the fixed ones; `words` are the paths by their number."""
        self._words, self._slo = words, slo
        self._paths, self._sums = self._summed(fixed)
        self._ttft = np.sort(_first_tokens(fixed))

    def figures(self, rest: Results) -> dict[str, float]:
        """Return all figures of the fixed requests and these; shares of nothing are NaN."""
        paths, sums = self._summed(rest)
        paths, (n, failed, cost, wasted, counted, met) = self._paths + paths, self._sums + sums
        n = max(n, 1)
        share = {word: paths[number] / n for number, word in enumerate(self._words)}
        new = _first_tokens(rest)
        return {
            "escalated": float(share.get("escalated", 0.0)),
            "degraded": float(share.get("degraded", 0.0)),
            "fallback": float(share.get("fallback", 0.0)),
            "failed": float(failed / n),
            "hits": float(sum(part for word, part in share.items() if is_hit(word))),
            "goodput": float(met / counted) if counted else math.nan,
            "ttft_p50": quantile_of_both(self._ttft, new, 0.5),
            "ttft_p95": quantile_of_both(self._ttft, new, 0.95),
            "cost": float(cost / n * 1000),
            "wasted": float(wasted / n * 1000),
        }

    def _summed(self, results: Results) -> tuple[Floats, Floats]:
        counted, met = good(results, self._words, self._slo)
        paths = np.bincount(results.path, minlength=len(self._words)).astype(np.float64)
        parts = (results.failed, results.cost_usd, results.wasted_usd, counted, counted & met)
        return paths, np.array([len(results.path), *(part.sum() for part in parts)], np.float64)


def quantile_of_both(ordered: Floats, more: Floats, q: float) -> float:
    """Return a quantile of the numbers of both arrays, the first of which is in order; NaN of none."""
    n = len(ordered) + len(more)
    if not n:
        return math.nan
    place = (n - 1) * q
    at = int(place)
    # The numbers at `at` and after it are among `more` and the few of the ordered ones around that place.
    before = min(max(at - len(more), 0), len(ordered))
    near = np.concatenate([ordered[before : at + 2], more])
    near.partition([at - before, min(at + 1, n - 1) - before])
    low, high = near[at - before], near[min(at + 1, n - 1) - before]
    return float(low + (high - low) * (place - at))


def _first_tokens(results: Results) -> Floats:
    ttft = results.ttft_ms[results.stream & ~results.failed]
    return ttft[~np.isnan(ttft)]


def is_hit(path: str) -> bool:
    """Return whether a path is one of hits: the answer came from the cache, or from an equal request under way."""
    return path.startswith(("cache-", "coalesced"))


def good(results: Results, words: Sequence[str], slo: Slo) -> tuple[Bools, Bools]:
    """Return which requests count for goodput, and which met every objective of one request and were not degraded.

    What was refused and clients that left do not count; see `gateway.telemetry.ledger`. What an answer's structure
    would have been is not known of a call that was never made, so faults in it are left out, before as after.
    """
    counted = (results.status == _OK) | (results.status == _TOO_MANY) | (results.status >= _SERVER_ERROR)
    total = min(slo.deadline, slo.total.p99 or slo.deadline) * 1000
    met = ~results.failed & (results.status == _OK) & (results.total_ms <= total)
    if slo.ttft.p99 is not None:
        met &= ~results.stream | (results.ttft_ms <= slo.ttft.p99 * 1000)
    for took_ms, limit_s in ((results.tpot_ms, slo.tpot.p99), (results.gap_ms, slo.gap.p99)):
        if limit_s is not None:
            met &= ~(took_ms > limit_s * 1000)  # NaN where there is none, or it is not known
    if "degraded" in words:
        met &= results.path != words.index("degraded")
    return np.asarray(counted), np.asarray(met)


def combined(
    before: Mapping[str, float],
    imputations: Sequence[Mapping[str, float]],
    unknown: Mapping[str, tuple[float, float]],
    estimated: Mapping[str, int],
) -> dict[str, FigureChange]:
    """Return each figure's change, from the figures of every imputation (Rubin 1987).

    `unknown` is how much lower and higher a figure could be by the requests without evidence (see `reach`), `estimated`
    of how many requests it is estimated.
    """
    changes = {}
    for name, was in before.items():
        values = np.array([imputation[name] for imputation in imputations])
        differ = bool((values != values[0]).any())  # the mean of equal numbers may be off by a rounding error
        mean = float(values.mean() if differ else values[0])
        between = float(values.var(ddof=1)) if differ else 0.0
        half = 0.0 if not differ else _T[len(values) - _FEWEST] * math.sqrt((1 + 1 / len(values)) * between)
        lower, higher = unknown.get(name, (0.0, 0.0))
        low, high = mean - half - was - lower, mean + half - was + higher
        changes[name] = FigureChange(was, mean, low, high, estimated.get(name, 0))
    return changes


def reach(results: Results, unknown: Bools, words: Sequence[str], slo: Slo) -> dict[str, tuple[float, float]]:
    """Return how much lower and higher each figure would be if requests had got the least or the most there is.

    Results are those of all requests, as recorded; `unknown` are those of which nothing says what they would get. Each
    may have any path, and cost and first token between those of the cheapest, dearest, fastest and slowest recorded.
    """
    own = results.only(unknown)
    n, of = max(len(results.path), 1), len(own.path)
    if not of:
        return {}
    counts = np.bincount(own.path, minlength=len(words))
    count = {word: int(counts[number]) for number, word in enumerate(words)}
    count["failed"] = int(own.failed.sum())
    count["hits"] = sum(count[word] for word in words if is_hit(word))
    found = {
        name: (count.get(name, 0) / n, (of - count.get(name, 0)) / n)
        for name in ("escalated", "degraded", "fallback", "failed", "hits")
    }
    counted, met = good(results, words, slo)
    every = max(int(counted.sum()), 1)
    good_ones = int((counted & met)[unknown].sum())
    found["goodput"] = good_ones / every, (int(counted[unknown].sum()) - good_ones) / every
    for name, column in (("cost", results.cost_usd), ("wasted", results.wasted_usd)):
        spent = float(column[unknown].sum())
        found[name] = spent / n * 1000, (of * float(column.max(initial=0.0)) - spent) / n * 1000
    all_ttft, mine = np.sort(_first_tokens(results)), len(_first_tokens(own))
    if mine:
        rest = np.sort(_first_tokens(results.only(~unknown)))
        for name, q in (("ttft_p50", 0.5), ("ttft_p95", 0.95)):
            now = quantile_of_both(all_ttft, all_ttft[:0], q)
            least, most = (quantile_of_both(rest, np.full(mine, end), q) for end in (all_ttft[0], all_ttft[-1]))
            found[name] = now - least, most - now
    return found


def as_json(changes: Mapping[str, FigureChange]) -> dict[str, Any]:
    """Return changes as JSON values; what is not known is null."""
    return {
        name: {
            "unit": FIGURES.get(name, ""),
            "before": _known(change.before),
            "after": _known(change.after),
            "difference": _known(change.difference),
            "interval_95": [_known(change.low), _known(change.high)],
            "estimated": change.estimated,
        }
        for name, change in changes.items()
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
