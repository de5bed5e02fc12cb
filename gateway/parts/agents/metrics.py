"""Define the metrics of the part."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics


class SessionMetrics:
    """What caps of sessions did, and what summaries of conversations cost."""

    def __init__(self, metrics: Metrics) -> None:
        self._spent_beside = metrics.spent_beside
        self.capped = metrics.counting(
            "session_caps", "Requests that were a session's last, or over its caps.", "surface", "cap", "outcome"
        )
        """Called with the surface, the cap of its policy, and what became of the request."""

    def summary_made(self, surface: str, dollars: float) -> None:
        """Count the cost in US dollars of a summary of what is old in a conversation."""
        self._spent_beside(surface, "summary", dollars)
