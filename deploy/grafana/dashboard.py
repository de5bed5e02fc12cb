"""Make the Grafana dashboard: `python deploy/grafana/dashboard.py` writes tierline.json beside this file.

What it shows stands in dashboard.toml: rows of panels, and the queries of each.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tierline.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SHOWN = tomllib.loads(Path(__file__).with_name("dashboard.toml").read_text())
_SELECTOR = re.compile("<(" + "|".join(SHOWN["selectors"]) + ")>")


def _query(text: str) -> str:
    """Return a query with its selectors filled in."""
    return _SELECTOR.sub(lambda match: SHOWN["selectors"][match[1]], text)


def _colour(name: str) -> str:
    return SHOWN["colours"].get(name, name)


def _thresholds(steps: str | list[Any]) -> dict[str, Any]:
    """Return the thresholds of steps, given by name or one by one: from which value which colour holds."""
    given = SHOWN["steps"][steps] if isinstance(steps, str) else steps
    made = [{"value": step[0] if len(step) > 1 else None, "color": _colour(step[-1])} for step in given]
    return {"mode": "absolute", "steps": made}


def _override(matcher: str, series: str, *properties: tuple[str, Any]) -> dict[str, Any]:
    looks = [{"id": name, "value": value} for name, value in properties]
    return {"matcher": {"id": matcher, "options": series}, "properties": looks}


def _overrides(panel: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how single series of a panel differ from the others."""
    made = []
    if "band" in panel:
        high, low = panel["band"]
        faint = (("custom.lineWidth", 0), ("color", {"mode": "fixed", "fixedColor": _colour("green")}))
        made.append(_override("byName", high, *faint, ("custom.fillBelowTo", low), ("custom.fillOpacity", 18)))
        made.append(_override("byName", low, *faint, ("custom.fillOpacity", 0)))
    if "dashed" in panel:
        style = {"fill": "dash", "dash": [6, 6]}
        look = (("custom.lineStyle", style), ("custom.lineWidth", 1), ("custom.fillOpacity", 0))
        made.append(_override("byRegexp", panel["dashed"], *look))
    for series, unit in panel.get("on_the_right", {}).items():
        made.append(_override("byName", series, ("unit", unit), ("custom.axisPlacement", "right")))
    colours = panel.get("colours", {})
    for series, colour in (SHOWN["paths"] if colours == "paths" else colours).items():
        made.append(_override("byName", series, ("color", {"mode": "fixed", "fixedColor": _colour(colour)})))
    return made


def _column(name: str, column: dict[str, Any]) -> dict[str, Any]:
    """Return how a column of a table looks."""
    look: list[tuple[str, Any]] = [("unit", column["unit"]), ("decimals", 2)]
    if "steps" in column:
        look.append(("thresholds", _thresholds(column["steps"])))
        look += [("color", {"mode": "thresholds"}), ("custom.cellOptions", {"type": "color-text"})]
    return _override("byName", name, *look)


def _one_line_each(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transformations that make one table of the columns' queries, a line for each surface."""
    renamed = {f"Value #{chr(65 + at)}": name for at, name in enumerate(columns)}
    hidden = {f"Time {at + 1}": True for at in range(len(columns))} | {"Time": True}
    names = {"excludeByName": hidden, "renameByName": {**renamed, "surface": "Surface"}}
    joined = {"byField": "surface", "mode": "outer"}
    return [{"id": "joinByField", "options": joined}, {"id": "organize", "options": names}]


def _target(at: int, legend: str, query: str, kind: str) -> dict[str, Any]:
    target = {"refId": chr(65 + at), "datasource": SOURCE, "expr": _query(query), "legendFormat": legend}
    if kind == "table":
        target |= {"format": "table", "instant": True, "range": False}
    elif kind == "heatmap":
        target |= {"format": "heatmap"}
    return target


def _panel(panel: dict[str, Any], number: int, x: int, y: int) -> dict[str, Any]:
    """Return a panel's JSON at a place of the grid."""
    kind, stacked = panel.get("kind", "timeseries"), panel.get("stacked", False)
    defaults: dict[str, Any] = {"unit": panel.get("unit", "short"), "min": 0 if panel.get("from_zero", True) else None}
    defaults |= {"max": panel.get("most"), "custom": {}, "color": {"mode": "palette-classic"}}
    if "steps" in panel:
        defaults["thresholds"] = _thresholds(panel["steps"])
        if kind != "timeseries":
            defaults["color"] = {"mode": "thresholds"}
    options: dict[str, Any] = {}
    if kind == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1 if stacked else 2,
            "fillOpacity": 70 if stacked else 6,
            "stacking": {"mode": "normal" if stacked else "none"},
            "showPoints": "never",
            "spanNulls": 60000,
            "thresholdsStyle": {"mode": "line" if panel.get("lines") else "off"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif kind in ("stat", "bargauge"):
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "colorMode": "value",
            "graphMode": "area",
            "orientation": "auto" if kind == "stat" else "horizontal",
            "textMode": "auto",
            "displayMode": "basic",
        }
    columns = panel.get("columns", {})
    queries = panel.get("queries") or {name: column["query"] for name, column in columns.items()}
    overrides = [*(_column(*one) for one in columns.items()), *_overrides(panel)]
    made = {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["about"],
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.get("width", 8), "h": panel.get("height", 8)},
        "targets": [_target(at, *query, kind) for at, query in enumerate(queries.items())],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": panel.get("options", options),
    }
    return made | ({"transformations": _one_line_each(columns)} if columns else {})


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name},
        "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _mark(name: str, query: str, colour: str) -> dict[str, Any]:
    """Return vertical marks through all charts, where a query has a value."""
    return {
        "name": name, "datasource": SOURCE, "enable": True, "expr": _query(query), "iconColor": _colour(colour),
        "titleFormat": name, "textFormat": "{{surface}}{{backend}}{{instance}}", "step": "30s",
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    number, y = 1, 0
    for row in SHOWN["row"]:
        closed = row.get("closed", False)
        head: dict[str, Any] = {"id": number, "type": "row", "title": row["title"], "collapsed": closed, "panels": []}
        head["gridPos"] = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append(head)
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in row["panel"]:
            made = _panel(panel, number, x, y)
            if x + made["gridPos"]["w"] > 24:
                x, y, tallest = 0, y + tallest, 0
                made["gridPos"] |= {"x": x, "y": y}
            (head["panels"] if closed else panels).append(made)
            number, x, tallest = number + 1, x + made["gridPos"]["w"], max(tallest, made["gridPos"]["h"])
        y += tallest
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "tierline",
        "title": "Tierline",
        "description": "Requests, objectives, cost and saving. Made of deploy/grafana/dashboard.toml; edit that.",
        "tags": ["tierline", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *(_variable(**variable) for variable in SHOWN["variable"])]},
        "annotations": {"list": [_mark(**mark) for mark in SHOWN["mark"]]},
        "panels": panels,
    }


def text() -> str:
    """Return the content of tierline.json."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
