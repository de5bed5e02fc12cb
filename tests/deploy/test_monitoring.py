"""Rules and dashboard name what there is, and do what they say."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from gateway.parts.metrics.metrics import PrometheusMetrics
from tests.deploy.monitoring import (
    DASHBOARD,
    PROMETHEUS,
    dashboard_source,
    defined,
    documented,
    known,
    panels,
    queries,
    rules,
)
from tests.gateway.telemetry.requests_made import escalated, failed

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus; .ci/run does")


def promtool(*arguments: str, given: bytes | None = None) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=PROMETHEUS, input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_the_dashboard_is_the_one_that_its_source_makes() -> None:
    """tierline.json is never edited: python deploy/grafana/dashboard.py writes it."""
    assert DASHBOARD.read_text() == dashboard_source().text()


def test_every_query_of_the_dashboard_names_what_there_is() -> None:
    """Metrics and labels of the registry and of the recording rules."""
    there = known()
    faults = [f"{title}: {fault}" for title, query in queries() for fault in there.faults(query)]
    assert faults == []
    assert len(queries()) > 60


def test_a_metric_that_is_not_there_is_noticed() -> None:
    """Misspelt names and labels, in selectors and in groups."""
    there = known()
    assert there.faults('rate(tierline_request_total{surface="a"}[5m])')[0] == "no metric tierline_request_total"
    assert there.faults('tierline_requests_total{backend="a"}') == ["tierline_requests_total has no label backend"]
    assert there.faults("sum by (tenant) (tierline_requests_total)") == ["nothing in it has the label tenant"]
    assert there.faults("job_surface:tierline_requests:rate1h") == ["no metric job_surface:tierline_requests:rate1h"]


def test_every_rule_names_what_there_is() -> None:
    there = known()
    assert [f"{rule}: {fault}" for rule in rules() for fault in there.faults(rule["expr"])] == []


def test_every_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    """What nobody looks at need not be counted; a few are there for those who ask."""
    text = DASHBOARD.read_text() + (PROMETHEUS / "rules.yaml").read_text() + (PROMETHEUS / "alerts.yaml").read_text()
    unseen = {name for name in defined() if name not in text}
    assert unseen == {"tierline_counterfactual_usd_total"}


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["description"].endswith("."), panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in panels()]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    """With a severity, and a test that sees it fire."""
    tested = (PROMETHEUS / "alerts.test.yaml").read_text()
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) > 20
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description", "action"} == alert["annotations"].keys()
        assert f'alertname="{alert["alert"]}"' in tested
        for label in re.findall(r"\$labels\.(\w+)", str(alert["annotations"])):
            assert label in alert["expr"] or label in _labels_of(alert["expr"]), (alert["alert"], label)


def _labels_of(expression: str) -> set[str]:
    there = known()
    return {label for name, labels in there.labels.items() if name in expression for label in labels}


def test_the_deployments_page_has_every_metric() -> None:
    """With its type and its labels, and no other."""
    assert documented() == defined()


@needs_promtool
def test_promtool_finds_the_files_well_formed() -> None:
    promtool("check", "config", "prometheus.yaml")
    promtool("check", "rules", "rules.yaml", "alerts.yaml")


@needs_promtool
def test_the_rules_pass_their_own_tests() -> None:
    promtool("test", "rules", "rules.test.yaml", "alerts.test.yaml")


@needs_promtool
def test_names_and_text_are_as_prometheus_wants_them() -> None:
    """promtool's linter of what /metrics returns: names, units, suffixes, help texts."""
    metrics = PrometheusMetrics()
    metrics.observe(*escalated(tpot_ms=20.0, counterfactual_usd=0.01, holdout=False, slo={"deadline": True}))
    metrics.observe(*failed())
    metrics.telemetry_dropped("queue_full")
    promtool("check", "metrics", given=metrics.render())


def test_the_scrape_has_the_name_that_the_alert_expects() -> None:
    """TierlineDown looks for the job of prometheus.yaml."""
    (scrape,) = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())["scrape_configs"]
    (down,) = [rule for rule in rules() if rule.get("alert") == "TierlineDown"]
    assert f'job="{scrape["job_name"]}"' in down["expr"]
