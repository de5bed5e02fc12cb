"""Metrics of one process with those of every part, as a worker has them that was made with all parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client.samples import Sample

from gateway.parts.access.metrics import LimitMetrics
from gateway.parts.agents.metrics import SessionMetrics
from gateway.parts.hit_audits.metrics import AuditMetrics
from gateway.parts.logs.metrics import count_dropped
from gateway.parts.metrics.metrics import PrometheusMetrics
from gateway.parts.rollout.metrics import TrialMetrics


class EveryMetric(NamedTuple):
    """The metrics, and what each part counts with."""

    metrics: PrometheusMetrics
    limits: LimitMetrics
    sessions: SessionMetrics
    audits: AuditMetrics
    trials: TrialMetrics


def every_metric(metrics: PrometheusMetrics | None = None) -> EveryMetric:
    """Define the metrics of every part beside the core's."""
    metrics = metrics or PrometheusMetrics()
    count_dropped(metrics, lambda: 0)
    return EveryMetric(
        metrics, LimitMetrics(metrics), SessionMetrics(metrics), AuditMetrics(metrics), TrialMetrics(metrics)
    )


def samples_of(metrics: PrometheusMetrics, name: str) -> Sequence[Sample]:
    """What a metric has counted, by its name without the prefix; that of a part has no attribute of its own."""
    families = (family for made in metrics.defined for family in made.collect())
    return next(family.samples for family in families if family.name == f"tierline_{name}")
