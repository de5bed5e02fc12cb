"""Metrics of one process with those of every part, as a worker has them that was made with all parts."""

from __future__ import annotations

from typing import NamedTuple

from gateway.parts.access.metrics import LimitMetrics
from gateway.parts.agents.metrics import SessionMetrics
from gateway.parts.hit_audits.metrics import AuditMetrics
from gateway.parts.rollout.metrics import TrialMetrics
from gateway.telemetry.metrics import Metrics


class EveryMetric(NamedTuple):
    """The metrics, and what each part counts with."""

    metrics: Metrics
    limits: LimitMetrics
    sessions: SessionMetrics
    audits: AuditMetrics
    trials: TrialMetrics


def every_metric(metrics: Metrics | None = None) -> EveryMetric:
    """Define the metrics of every part beside the core's."""
    metrics = metrics or Metrics()
    return EveryMetric(
        metrics, LimitMetrics(metrics), SessionMetrics(metrics), AuditMetrics(metrics), TrialMetrics(metrics)
    )
