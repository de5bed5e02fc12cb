"""The files of deploy/prometheus and deploy/grafana, read as their programs read them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import Counter, Histogram

from gateway.parts.metrics.metric_set import name_of
from tests.support.metrics import every_metric

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = ROOT / "deploy/grafana/tierline.json"
_SUFFIXES = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"\b(?:[a-z_]+:)?tierline_\w+(?::\w+)?\b|\bup\b|\bALERTS\b")
_SELECTOR = re.compile(r"(?P<name>[A-Za-z_][\w:]*)\{(?P<labels>[^{}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^()]*)\)")
_OF_THE_SCRAPE = {"job", "instance"}


def rules() -> list[dict[str, Any]]:
    """All recording and alert rules."""
    files = (PROMETHEUS / name for name in ("rules.yaml", "alerts.yaml"))
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def dashboard_source() -> Any:
    """The module that makes the dashboard."""
    spec = importlib.util.spec_from_file_location("tierline_dashboard", ROOT / "deploy/grafana/dashboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def panels() -> Iterator[dict[str, Any]]:
    """The dashboard's panels, those of closed rows too."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def queries() -> list[tuple[str, str]]:
    """Every query of the dashboard, with what it is for: its panels', its marks' and its variables'."""
    board = json.loads(DASHBOARD.read_text())
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    found += [(mark["name"], mark["expr"]) for mark in board["annotations"]["list"]]
    variables = (one for one in board["templating"]["list"] if one["type"] == "query")
    return found + [(one["name"], one["definition"][len("label_values(") :].rpartition(",")[0]) for one in variables]


@dataclass
class Known:
    """The labels of every metric that there is, by name."""

    labels: dict[str, set[str]]

    def faults(self, query: str) -> list[str]:
        """What a query names that there is not."""
        named = _NAME.findall(query)
        faults = [f"no metric {name}" for name in named if name not in self.labels]
        for name, inside in _SELECTOR.findall(query):
            matched = set(_MATCHER.findall(re.sub(r'"[^"]*"', '""', inside)))
            faults += [f"{name} has no label {label}" for label in sorted(matched - self.labels.get(name, set()))]
        every = set().union(*(self.labels.get(name, set()) for name in named))
        grouped = {label.strip() for part in _GROUPED.findall(query) for label in part.split(",") if label.strip()}
        return faults + [f"nothing in it has the label {label}" for label in sorted(grouped - every)]


def known() -> Known:
    """The gateway's metrics, what the rules record, and what Prometheus itself adds."""
    labels: dict[str, set[str]] = {"up": set(_OF_THE_SCRAPE), "ALERTS": {"alertname", "alertstate", "severity", "job"}}
    for metric in every_metric().metrics.defined:
        own = {*metric._labelnames, *_OF_THE_SCRAPE}
        if isinstance(metric, Histogram):
            labels |= {metric._name + suffix: own | ({"le"} if suffix == "_bucket" else set()) for suffix in _SUFFIXES}
        else:
            labels[name_of(metric)] = own
    for rule in rules():
        if "record" in rule:
            labels[rule["record"]] = set(rule["record"].partition(":")[0].split("_"))
    return Known(labels)


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The metrics of the table in deploy/README.md: type and labels by name."""
    found = {}
    for line in (ROOT / "deploy/README.md").read_text().splitlines():
        if row := re.fullmatch(r"\| `(tierline_\w+)` \| (\w+) \| ([^|]*) \| [^|]+\. \|", line):
            found[row[1]] = row[2], tuple(re.findall(r"`(\w+)`", row[3]))
    return found


def defined() -> dict[str, tuple[str, tuple[str, ...]]]:
    """The metrics of the code: type and labels by name."""
    kinds = {Counter: "counter", Histogram: "histogram"}
    return {
        name_of(metric): (kinds.get(type(metric), "gauge"), tuple(metric._labelnames))
        for metric in every_metric().metrics.defined
    }
