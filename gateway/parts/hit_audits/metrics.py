"""Define the metrics of the part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cache.semantic.hit_bound import SurfaceState
    from gateway.telemetry.metrics import Metrics

_ALL: Final = "all"
"""The label of all requests, beside those of each language."""


class AuditMetrics:
    """What the audits of the semantic cache found, and what their judge did."""

    def __init__(self, metrics: Metrics) -> None:
        self._watch = metrics.watch
        self._threshold = metrics.gauging(
            "cache_threshold", "Lowest score that the semantic cache serves.", "livemax", "surface"
        )
        self._labels = metrics.gauging(
            "cache_labels", "Compared answers from which it is estimated.", "livemax", "surface"
        )
        self._breached = metrics.gauging(
            "cache_breached",
            f"1 for ten minutes from wrong hits above max_error, of a language or of {_ALL} requests.",
            "livemax",
            "surface",
            "language",
        )
        self._breached_tenants = metrics.gauging(
            "cache_breached_tenants", "Tenants of which the same is true by their own requests.", "livemax", "surface"
        )
        self._judgements = metrics.counting(
            "cache_judgements", "Pairs of answers compared by a judge for the cache's audits.", "surface", "outcome"
        )
        self._judge_cost = metrics.counting(
            "cache_judge_usd", "Cost in US dollars of these comparisons; in no client's ledger.", "surface"
        )

    def judged(self, surface: str, outcome: str, dollars: float) -> None:
        """Count a judge's comparison of two answers of this surface, and its cost in US dollars."""
        self._judgements(surface, outcome)
        self._judge_cost(surface, amount=dollars)

    def watch(self, learned: Callable[[], Mapping[str, SurfaceState]]) -> None:
        """Read the gauges of the semantic cache's thresholds, by surface, from `learned()`."""

        def read() -> None:
            for surface, state in learned().items():
                self._threshold(state.threshold, surface)
                self._labels(state.labels, surface)
                for language, breached in {_ALL: state.breached, **state.languages}.items():
                    self._breached(breached, surface, language)
                self._breached_tenants(sum(state.tenants.values()), surface)

        self._watch(read)
