"""Define the metrics of the part: what learning and shadows do, which no client pays for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics


class TrialMetrics:
    """Answers that are compared, and requests that are run again under a candidate."""

    def __init__(self, metrics: Metrics) -> None:
        self._spent_beside = metrics.spent_beside
        self._comparisons = metrics.counting(
            "learn_comparisons", "Answers drawn to be compared with another tier's.", "surface", "outcome"
        )
        self._shadows = metrics.counting(
            "shadows", "Requests run again under a candidate, whose answers no client gets.", "surface", "outcome"
        )
        self._shadow_cost = metrics.counting(
            "shadow_usd", "Cost in US dollars of shadows; in no client's ledger.", "surface"
        )

    def compared(self, surface: str, outcome: str, other_usd: float, judge_usd: float) -> None:
        """Count an answer that was to be compared, and the cost of the other answer and of the judge in US dollars."""
        self._comparisons(surface, outcome)
        self._spent_beside(surface, "other", other_usd)
        self._spent_beside(surface, "judge", judge_usd)

    def shadow_ended(self, surface: str, outcome: str, dollars: float) -> None:
        """Count a request that was to be run under a candidate policy in shadow mode, and its cost in US dollars."""
        self._shadows(surface, outcome)
        self._shadow_cost(surface, amount=dollars)
