"""Sum up what the requests got, before and after, with the interval of each difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from offline.replay.cells import Bools, Floats, Ints

if TYPE_CHECKING:
    from policies.model import Slo

IMPUTATIONS: Final = 24
_T: Final = 2.069
"""The 97.5% quantile of Student's distribution with IMPUTATIONS - 1 degrees of freedom."""
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


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after; `low` and `high` are the 95% interval of the difference.

    The interval says what these very requests would have got: it has no width where nothing is estimated.
    """

    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """After less before."""
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


def figures_of(results: Results, words: Sequence[str], slo: Slo) -> dict[str, float]:
    """Return all figures of these requests; shares of nothing are NaN."""
    n = max(len(results.path), 1)
    counts = np.bincount(results.path, minlength=len(words))
    share = {word: counts[number] / n for number, word in enumerate(words)}
    ttft = results.ttft_ms[results.stream & ~results.failed]
    ttft = ttft[~np.isnan(ttft)]
    p50, p95 = np.percentile(ttft, (50, 95)) if len(ttft) else (math.nan, math.nan)
    return {
        "escalated": float(share.get("escalated", 0.0)),
        "degraded": float(share.get("degraded", 0.0)),
        "fallback": float(share.get("fallback", 0.0)),
        "failed": float(results.failed.mean()) if len(results.path) else 0.0,
        "hits": float(sum(part for word, part in share.items() if is_hit(word))),
        "goodput": goodput_of(results, slo),
        "ttft_p50": float(p50),
        "ttft_p95": float(p95),
        "cost": float(results.cost_usd.sum() / n * 1000),
        "wasted": float(results.wasted_usd.sum() / n * 1000),
    }


def is_hit(path: str) -> bool:
    """Return whether a path's answers came from the cache or from a request under way."""
    return path.startswith(("cache-", "coalesced"))


def good(results: Results, slo: Slo) -> tuple[Bools, Bools]:
    """Return which requests count for goodput, and which met every objective of one request.

    Client errors and clients that left do not count; see `gateway.accounting`.
    """
    counted = (results.status == _OK) | (results.status == _TOO_MANY) | (results.status >= _SERVER_ERROR)
    total = min(slo.deadline, slo.total.p99 or slo.deadline) * 1000
    met = ~results.failed & (results.status == _OK) & (results.total_ms <= total)
    if slo.ttft.p99 is not None:
        met &= ~results.stream | (results.ttft_ms <= slo.ttft.p99 * 1000)
    return np.asarray(counted), np.asarray(met)


def goodput_of(results: Results, slo: Slo) -> float:
    """Return the share of requests that met every objective of one request."""
    counted, met = good(results, slo)
    return float(met[counted].mean()) if counted.any() else math.nan


def combined(before: Mapping[str, float], imputations: Sequence[Mapping[str, float]]) -> dict[str, Change]:
    """Return each figure's change, from the figures of every imputation (Rubin 1987)."""
    changes = {}
    for name, was in before.items():
        values = np.array([one[name] for one in imputations])
        mean = float(values.mean())
        between = float(values.var(ddof=1)) if len(values) > 1 else 0.0
        half = _T * math.sqrt((1 + 1 / len(values)) * between)
        changes[name] = Change(was, mean, mean - half - was, mean + half - was)
    return changes


def as_json(changes: Mapping[str, Change]) -> dict[str, Any]:
    """Return changes as JSON values; what is not known is null."""
    return {
        name: {
            "unit": FIGURES.get(name, ""),
            "before": _known(one.before),
            "after": _known(one.after),
            "difference": _known(one.difference),
            "interval_95": [_known(one.low), _known(one.high)],
        }
        for name, one in changes.items()
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
