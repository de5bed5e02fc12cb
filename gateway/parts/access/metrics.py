"""Define the metrics of the part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics


class LimitMetrics:
    """Refusals for limits, and how budgets stand. Names of owners are no labels."""

    def __init__(self, metrics: Metrics) -> None:
        self._watch = metrics.watch
        self.refused = metrics.counting(
            "limits_refused", "Requests refused for a limit or budget of their owners.", "owner", "unit", "reason"
        )
        """Called with the kind of the owner whose limit it was, its unit and the reason."""
        self.alert = metrics.counting(
            "alerts", "Alerts of budgets: raised, then delivered, failed (and sent again) or given up.", "outcome"
        )
        self._budget_share = metrics.gauging(
            "budget_share",
            "Share of a budget that is spent, 0 to 1 or above: the highest of the budgets in use.",
            "livemax",
            "owner",
        )

    def watch(self, shares: Callable[[], Mapping[str, float]]) -> None:
        """Read the gauge of the highest shares of budgets, by kind of owner, from `shares()`."""

        def read() -> None:
            for kind, share in shares().items():
                self._budget_share(share, kind)

        self._watch(read)
