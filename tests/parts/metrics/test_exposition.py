"""The text of our writers, against that of prometheus-client's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from gateway.parts.metrics.metric_set import SharedText
from gateway.parts.metrics.metrics import PrometheusMetrics
from tests.gateway.telemetry.requests_made import escalated, failed

_STRANGE = 'a\\b"c\nd é\u2028'


def _read(text: str) -> tuple[dict[tuple[str, frozenset[tuple[str, str]]], float], dict[str, tuple[str, str]]]:
    """The samples by name and labels, and the type and help of each family."""
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples), "a sample stands there twice"
    return found, {family.name: (family.type, family.documentation) for family in families}


def test_one_process_writes_what_the_library_writes() -> None:
    """Every sample, type and help text, whatever the labels hold."""
    metrics = PrometheusMetrics()
    for surface in ("chat", _STRANGE):
        metrics.observe(*escalated(surface=surface, tpot_ms=20.0))
    metrics.observe(*failed())
    metrics.refresh()
    ours, theirs = _read("".join(metrics._text.slices())), _read(generate_latest(metrics._registry).decode())
    assert len(ours[0]) > 100
    assert ours == theirs


_WORKER = """
import sys
from gateway.parts.metrics.metrics import PrometheusMetrics
from tests.gateway.telemetry.requests_made import escalated, failed
metrics = PrometheusMetrics()
for number in range(int(sys.argv[1])):
    metrics.observe(*escalated(surface=sys.argv[2], tpot_ms=number))
    metrics.observe(*failed())
metrics.in_flight.set(int(sys.argv[1]))
metrics.flush()
metrics.refresh()
"""


def test_several_processes_are_added_as_the_library_adds_them(tmp_path: Path) -> None:
    """Their counters and histograms, and gauges by their kind; a second look has what came meanwhile."""

    def work(requests: int, surface: str) -> None:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", _WORKER, str(requests), surface], env=environment, check=True)

    shared = SharedText(tmp_path)
    for requests, surface in ((3, "chat"), (2, _STRANGE)):
        work(requests, surface)
        (tmp_path / "notes.db").write_text("of somebody else")
        registry = CollectorRegistry()
        ours = _read("".join(shared.slices()))
        (tmp_path / "notes.db").unlink()
        MultiProcessCollector(registry, tmp_path)  # type: ignore[no-untyped-call]
        theirs = _read(generate_latest(registry).decode())
        assert ours == theirs
    assert ours[0]["tierline_in_flight", frozenset()] == 5


@pytest.mark.parametrize("series", [1, 40])
def test_other_work_runs_between_the_slices(series: int) -> None:
    """No part of the text holds more than some hundred samples, however many there are."""
    metrics = PrometheusMetrics()
    for number in range(series):
        metrics.observe(*escalated(surface=f"chat{number}", tpot_ms=1.0))
    parts = [part.count(b"\n") for part in metrics.render_slices()]
    assert max(parts) < 300
    assert sum(parts) > 80 * series
