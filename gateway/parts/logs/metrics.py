"""Define the metrics of the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.telemetry.metrics import Metrics


def count_dropped(metrics: Metrics, dropped: Callable[[], int]) -> None:
    """Read the counter of dropped log lines from `dropped()`."""
    add, counted = metrics.counting("log_dropped", "Log lines that could not be written."), 0

    def read() -> None:
        nonlocal counted
        before, counted = counted, dropped()
        add(amount=counted - before)

    metrics.watch(read)
