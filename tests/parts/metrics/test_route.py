"""What `/metrics` shows of a worker's state, beside what it has counted."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from gateway.parts.metrics.metrics import PrometheusMetrics
from tests.gateway.telemetry.metric_text import value_of
from tests.gateway.telemetry.waiting import eventually
from tests.support.app import in_process
from tests.support.upstream import Upstream


async def test_it_shows_what_a_workers_steps_say_of_themselves(upstream: Upstream, tmp_path: Path) -> None:
    """Without tenants, to anybody: there is one user, and nobody to hide it from."""
    async with in_process(tmp_path, upstream.url) as app:
        assert (await app.ask()).status_code == 200
        metrics = app.steps.metrics
        assert isinstance(metrics, PrometheusMetrics)
        await eventually(lambda: value_of(metrics.render(), "tierline_requests_total", surface="chat", status="200"))
        text = (await app.get("/metrics")).content
    assert value_of(text, "tierline_store_state", state="unconfigured") == 1
    assert value_of(text, "tierline_policy_fingerprint_lowest", surface="chat") > 0
    assert value_of(text, "tierline_backend_capacity") > 0
    assert value_of(text, "tierline_workers") == 1
    assert b"tierline_in_flight 0.0" in text


async def test_it_shows_when_a_model_is_switched_off(upstream: Upstream, tmp_path: Path) -> None:
    """In Unix seconds, at midnight UTC."""
    async with in_process(tmp_path, upstream.url) as app:
        endpoint, metrics = app.steps.tiers["local"].endpoints[0], PrometheusMetrics()
        endpoint.config = endpoint.config.model_copy(update={"retires": date(2031, 1, 2)})
        metrics.start(app.steps)
        assert value_of(metrics.render(), "tierline_backend_retires_timestamp_seconds") == 1_925_078_400
