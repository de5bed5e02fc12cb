"""Make the Grafana dashboard: `python deploy/grafana/dashboard.py` writes tierline.json beside this file.

A dashboard is a list of rows; a row is a title and panels, which are laid out from left to right. What a panel shows is
Prometheus' query language over the gateway's metrics and the recording rules in deploy/prometheus/rules.yaml.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tierline.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
IN = 'job=~"$job", surface=~"$surface"'
AT = 'job=~"$job", surface=~"$surface", tier=~"$tier"'
TIER = 'job=~"$job", tier=~"$tier"'
JOB = 'job=~"$job"'
GREEN, YELLOW, ORANGE, RED, BLUE, PURPLE, GREY = (
    "#56A64B", "#E0B400", "#FF780A", "#E02F44", "#3274D9", "#A352CC", "#808080",
)  # fmt: skip
PATHS = {
    "cache-exact": "#37872D", "cache-semantic": "#96D98D", "direct": BLUE, "escalated": PURPLE, "passthrough": GREY,
    "fallback": ORANGE, "degraded": RED, "none": "#5A2D2D",
}  # fmt: skip


@dataclass
class Panel:
    """One panel: its queries by legend, its unit, and how it looks. Widths are of 24 columns."""

    title: str
    about: str
    queries: dict[str, str]
    unit: str = "short"
    width: int = 8
    height: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    steps: tuple[tuple[float | None, str], ...] = ()
    """Colours by threshold, the first from None on."""
    lines: bool = False
    """Whether the thresholds are drawn as lines."""
    colours: dict[str, str] = field(default_factory=dict)
    most: float | None = None
    least: float | None = 0
    overrides: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    """What else the panel's JSON holds."""

    def made(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel's JSON at a place of the grid."""
        defaults: dict[str, Any] = {"unit": self.unit, "min": self.least, "max": self.most, "custom": {}}
        defaults["color"] = {"mode": "palette-classic"}
        if self.steps:
            steps = [{"value": value, "color": colour} for value, colour in self.steps]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
            if self.kind != "timeseries":
                defaults["color"] = {"mode": "thresholds"}
        options: dict[str, Any] = {}
        if self.kind == "timeseries":
            defaults["custom"] = {
                "lineWidth": 1 if self.stacked else 2,
                "fillOpacity": 70 if self.stacked else 6,
                "stacking": {"mode": "normal" if self.stacked else "none"},
                "showPoints": "never",
                "spanNulls": 60000,
                "thresholdsStyle": {"mode": "line" if self.lines else "off"},
            }
            options = {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        elif self.kind in ("stat", "bargauge"):
            options = {
                "reduceOptions": {"calcs": ["lastNotNull"]},
                "colorMode": "value",
                "graphMode": "area",
                "orientation": "auto" if self.kind == "stat" else "horizontal",
                "textMode": "auto",
                "displayMode": "basic",
            }
        shown = [*self.overrides, *(_coloured(name, colour) for name, colour in self.colours.items())]
        made = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.about,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(at, *query) for at, query in enumerate(self.queries.items())],
            "fieldConfig": {"defaults": defaults, "overrides": shown},
            "options": options,
        }
        return made | self.more

    def _target(self, at: int, legend: str, query: str) -> dict[str, Any]:
        target: dict[str, Any] = {"refId": chr(65 + at), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        if self.kind == "table":
            target |= {"format": "table", "instant": True, "range": False}
        elif self.kind == "heatmap":
            target |= {"format": "heatmap"}
        return target


def _coloured(name: str, colour: str) -> dict[str, Any]:
    fixed = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [fixed]}


def _dashed(pattern: str) -> dict[str, Any]:
    """Draw the series whose name matches as a thin dashed line: an objective."""
    look = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
        {"id": "custom.lineWidth", "value": 1},
        {"id": "custom.fillOpacity", "value": 0},
    ]
    return {"matcher": {"id": "byRegexp", "options": pattern}, "properties": look}


def _band(high: str, low: str) -> list[dict[str, Any]]:
    """Fill the space between two series: an interval."""
    faint = [{"id": "custom.lineWidth", "value": 0}, {"id": "color", "value": {"mode": "fixed", "fixedColor": GREEN}}]
    filled = [*faint, {"id": "custom.fillBelowTo", "value": low}, {"id": "custom.fillOpacity", "value": 18}]
    return [
        {"matcher": {"id": "byName", "options": high}, "properties": filled},
        {"matcher": {"id": "byName", "options": low}, "properties": [*faint, {"id": "custom.fillOpacity", "value": 0}]},
    ]


def rate(metric: str, by: str, where: str = IN) -> str:
    """Return the query of a counter's rate, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def share(part: str, whole: str) -> str:
    """Return the query of one rate's share of another; nothing where there is no whole."""
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, by: str = "", where: str = IN) -> str:
    """Return the query of a histogram's quantile by these labels."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(metric + '_bucket', labels, where)})"


def good(by: str, where: str = AT) -> str:
    """Return the query of goodput by these labels."""
    whole = rate("tierline_goodput_requests_total", by, where)
    return share(rate("tierline_goodput_good_total", by, where), whole)


MISSES = "job_surface_objective:tierline_slo_misses:ratio_rate"
BURN = "job_surface_objective:tierline_slo_burn:rate1h"
SAVED = f"sum(job_surface:tierline_saving_usd:increase1h{{{IN}}})"
HALF = f"sqrt(sum(job_surface:tierline_saving_usd:halfwidth1h{{{IN}}} ^ 2))"
WHOLE = f"sum(increase(tierline_saving_counterfactual_usd_total{{{IN}}}[1h]))"
LIMIT = 'max by (surface) (tierline_slo_limit_seconds{%s, objective="%s"})'
HIGH_IS_GOOD = ((None, RED), (0.95, YELLOW), (0.99, GREEN))
BURNING = ((None, GREEN), (1, YELLOW), (6, ORANGE), (14.4, RED))
ALARM = ((None, GREEN), (1, RED))


def _surfaces() -> Panel:
    """Return the table with a line for each surface."""
    hour = "increase({metric}{{" + IN + "}}[1h])"
    requests = f"sum by (surface) ({hour.format(metric='tierline_requests_total')})"
    saved, half = (
        f"sum by (surface) (job_surface:tierline_saving_usd:{what}1h{{{IN}}})" for what in ("increase", "halfwidth")
    )
    whole = f"(sum by (surface) ({hour.format(metric='tierline_saving_counterfactual_usd_total')}) > 0)"
    columns = {
        "Requests/s": (f"sum by (surface) (job_surface:tierline_requests:rate5m{{{IN}}})", "reqps", ()),
        "Goodput": (
            f'1 - max by (surface) ({MISSES}5m{{{IN}, objective="goodput"}})',
            "percentunit",
            HIGH_IS_GOOD,
        ),
        "Worst burn, 1 h": (f"max by (surface) ({BURN}{{{IN}}})", "none", BURNING),
        "TTFT p95": (f"max by (surface) (job_surface:tierline_ttft_seconds:p95_rate5m{{{IN}}})", "s", ()),
        "its limit": (LIMIT % (IN, "ttft_p95"), "s", ()),
        "From a cache": (f"avg by (surface) (job_surface:tierline_cache_hits:ratio_rate5m{{{IN}}})", "percentunit", ()),
        "Escalated": (f"avg by (surface) (job_surface:tierline_escalated:ratio_rate5m{{{IN}}})", "percentunit", ()),
        "$ per 1,000": (
            f"1000 * sum by (surface) ({hour.format(metric='tierline_cost_usd_total')}) / ({requests} > 0)",
            "currencyUSD",
            (),
        ),
        "Saved at least": (f"({saved} - {half}) / {whole}", "percentunit", ()),
        "Saved at most": (f"({saved} + {half}) / {whole}", "percentunit", ()),
    }
    overrides = []
    for name, (_, unit, steps) in columns.items():
        properties: list[dict[str, Any]] = [{"id": "unit", "value": unit}, {"id": "decimals", "value": 2}]
        if steps:
            colours = [{"value": value, "color": colour} for value, colour in steps]
            properties.append({"id": "thresholds", "value": {"mode": "absolute", "steps": colours}})
            properties.append({"id": "color", "value": {"mode": "thresholds"}})
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        overrides.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    renamed = {f"Value #{chr(65 + at)}": name for at, name in enumerate(columns)}
    hidden = {f"Time {at + 1}": True for at in range(len(columns))} | {"Time": True}
    return Panel(
        "Surfaces",
        "A line for each surface. Burn: how many times faster than allowed its worst objective's budget of misses is "
        "spent. Saved: against the strongest tier alone in the last hour, the two ends of a 95% interval.",
        {name: query for name, (query, _, _) in columns.items()},
        width=24,
        kind="table",
        overrides=overrides,
        more={
            "transformations": [
                {"id": "joinByField", "options": {"byField": "surface", "mode": "outer"}},
                {
                    "id": "organize",
                    "options": {"excludeByName": hidden, "renameByName": {**renamed, "surface": "Surface"}},
                },
            ]
        },
    )


def _overview() -> list[Panel]:
    requests = rate("tierline_requests_total", "surface")
    dollars = rate("tierline_cost_usd_total", "surface")
    stats = [
        Panel("Requests", "Requests answered a second.", {"": f"sum({requests})"}, "reqps", steps=((None, BLUE),)),
        Panel(
            "Goodput",
            "Share of requests within all limits of their surface, neither degraded nor structurally invalid.",
            {"": share(rate("tierline_goodput_good_total", ""), rate("tierline_goodput_requests_total", ""))},
            "percentunit",
            steps=HIGH_IS_GOOD,
        ),
        Panel(
            "Worst burn, 1 h",
            "How many times faster than allowed the worst objective's budget of misses is spent: 1 is just kept, at "
            "14.4 two hours spend 4% of a month's.",
            {"": f"max({BURN}{{{IN}}})"},
            "none",
            steps=BURNING,
        ),
        Panel(
            "Cost an hour",
            "Of all calls, in US dollars.",
            {"": f"3600 * sum({dollars})"},
            "currencyUSD",
            steps=((None, BLUE),),
        ),
        Panel(
            "Saved, last hour",
            "Against the strongest tier alone, with a 95% interval.",
            {"at least": f"{SAVED} - {HALF}", "saved": SAVED, "at most": f"{SAVED} + {HALF}"},
            "currencyUSD",
            width=8,
            steps=((None, RED), (0, GREEN)),
            more={"options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}},
        ),
        Panel(
            "Needs you",
            "Alerts of deploy/prometheus/alerts.yaml that fire.",
            {"": 'count(ALERTS{alertstate="firing", alertname=~"Tierline.*"}) or vector(0)'},
            steps=ALARM,
        ),
    ]
    for panel in stats:
        panel.kind, panel.height, panel.least = "stat", 4, None
        panel.width = 8 if panel.title.startswith("Saved") else (4 if panel.title == "Requests" else 3)
    return [
        *stats,
        _surfaces(),
        Panel(
            "TTFT p95 against its limit",
            "Time to the first token, streams and whole answers alike. Dashed: the objective of the policy in force.",
            {
                "{{surface}}": f"max by (surface) (job_surface:tierline_ttft_seconds:p95_rate5m{{{IN}}})",
                "{{surface}} limit": LIMIT % (IN, "ttft_p95"),
            },
            "s",
            width=12,
            overrides=[_dashed("/ limit$/")],
        ),
        Panel(
            "TTFT p99 against its limit",
            "One request in a hundred waits longer for its first token. Dashed: the objective.",
            {
                "{{surface}}": f"max by (surface) (job_surface:tierline_ttft_seconds:p99_rate5m{{{IN}}})",
                "{{surface}} limit": LIMIT % (IN, "ttft_p99"),
            },
            "s",
            width=12,
            overrides=[_dashed("/ limit$/")],
        ),
        Panel(
            "Goodput by surface",
            "As above, by surface.",
            {"{{surface}}": good("surface", IN)},
            "percentunit",
            most=1,
            least=None,
        ),
        Panel(
            "Burn rate, 1 h",
            "Of every objective. Lines: 1 keeps it over a month, 6 wakes somebody within hours, 14.4 at once.",
            {"{{surface}} {{objective}}": f"max by (surface, objective) ({BURN}{{{IN}}})"},
            "none",
            steps=BURNING,
            lines=True,
        ),
        Panel(
            "How answers come about",
            "Requests a second by path: from a cache, by the first tier asked, by a stronger one, or worse.",
            {"{{path}}": rate("tierline_requests_total", "path")},
            "reqps",
            stacked=True,
            colours=PATHS,
        ),
        Panel(
            "From a cache, and escalated",
            "Hits: of all requests. Escalated: of those that no cache answered.",
            {
                "{{surface}} hits": f"avg by (surface) (job_surface:tierline_cache_hits:ratio_rate5m{{{IN}}})",
                "{{surface}} escalated": f"avg by (surface) (job_surface:tierline_escalated:ratio_rate5m{{{IN}}})",
            },
            "percentunit",
            overrides=[_dashed("/ escalated$/")],
        ),
        Panel(
            "Cost an hour by tier",
            "US dollars an hour, calls for nothing included.",
            {"{{tier}}": f"3600 * {rate('tierline_cost_usd_total', 'tier')}"},
            "currencyUSD",
            stacked=True,
        ),
        Panel(
            "Saved in an hour, with its interval",
            "Against the strongest tier alone at its stated price, in US dollars; the band is a 95% interval.",
            {"at most": f"{SAVED} + {HALF}", "at least": f"{SAVED} - {HALF}", "saved": SAVED, "strongest alone": WHOLE},
            "currencyUSD",
            least=None,
            colours={"saved": GREEN, "strongest alone": GREY},
            overrides=[*_band("at most", "at least"), _dashed("strongest alone")],
        ),
    ]


def _limits() -> list[Panel]:
    """Return the panels that say which limit is missed by what."""
    return [
        Panel(
            "Goodput by backend",
            "Which backend's answers miss their limits.",
            {"{{tier}} {{backend}}": good("tier, backend")},
            "percentunit",
            most=1,
            least=None,
        ),
        Panel(
            "Goodput by prompt length",
            "In tokens of the prompt.",
            {"{{prompt}}": good("prompt")},
            "percentunit",
            most=1,
            least=None,
        ),
        Panel(
            "Goodput by path",
            "How the answer came about.",
            {"{{path}}": good("path")},
            "percentunit",
            most=1,
            least=None,
            colours=PATHS,
        ),
        Panel(
            "TTFT p95 by backend",
            "As the client sees it, with the queue and the gateway.",
            {"{{tier}} {{backend}}": quantile(0.95, "tierline_ttft_seconds", "tier, backend", AT)},
            "s",
        ),
        Panel(
            "TTFT p95 by prompt length",
            "A rise with the length is the backend reading the prompt.",
            {"{{prompt}}": quantile(0.95, "tierline_ttft_seconds", "prompt", AT)},
            "s",
        ),
        Panel(
            "Time per output token, p95",
            "Of streams, after the first token.",
            {"{{tier}} {{backend}}": quantile(0.95, "tierline_tpot_seconds", "tier, backend", AT)},
            "s",
        ),
        Panel(
            "Longest gap between chunks, p95",
            "Of streams, as sent; signs of life do not count.",
            {"{{tier}} {{backend}}": quantile(0.95, "tierline_gap_seconds", "tier, backend", AT)},
            "s",
        ),
        Panel(
            "Whole request, p95 and its limit",
            "To the last byte. Dashed: the objective.",
            {
                "{{surface}}": quantile(0.95, "tierline_request_duration_seconds", "surface"),
                "{{surface}} limit": LIMIT % (IN, "total_p95"),
            },
            "s",
            overrides=[_dashed("/ limit$/")],
        ),
        Panel(
            "Misses by objective, last hour",
            "Share of the requests that missed it.",
            {"{{surface}} {{objective}}": f"max by (surface, objective) ({MISSES}1h{{{IN}}})"},
            "percentunit",
            kind="bargauge",
            steps=((None, GREEN), (0.01, YELLOW), (0.05, RED)),
        ),
        Panel(
            "First tokens",
            "How many came after what time.",
            {"{{le}}": rate("tierline_ttft_seconds_bucket", "le", AT)},
            "s",
            kind="heatmap",
            more={
                "options": {"calculate": False, "yAxis": {"unit": "s"}, "color": {"mode": "scheme", "scheme": "Blues"}}
            },
        ),
    ]


def _backends() -> list[Panel]:
    outcome = rate("tierline_attempts_total", "outcome", AT)
    return [
        Panel(
            "Calls by backend",
            "A second.",
            {"{{tier}} {{backend}}": rate("tierline_attempts_total", "tier, backend", AT)},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Calls by outcome",
            "accepted, low_confidence or unfit (a stronger tier was asked), lost (a race), or how they failed.",
            {"{{outcome}}": outcome},
            "reqps",
            stacked=True,
            colours={"accepted": GREEN, "low_confidence": PURPLE, "unfit": PURPLE, "lost": GREY, "retryable": RED},
        ),
        Panel(
            "Answers rejected by the judge",
            "By reason: the confidence, or a fault of structure.",
            {"{{tier}} {{reason}}": rate("tierline_rejected_answers_total", "tier, reason", AT)},
            "reqps",
        ),
        Panel(
            "Calls under way, of those that may be",
            "Dashed: the present limit, all workers together.",
            {
                "{{backend}}": f"sum by (backend) (tierline_backend_in_flight{{{TIER}}})",
                "{{backend}} limit": f"sum by (backend) (tierline_backend_capacity{{{TIER}}})",
            },
            overrides=[_dashed("/ limit$/")],
        ),
        Panel(
            "Wait in the queue, p95",
            "Of calls, the ones that waited for nothing included.",
            {"{{tier}} {{backend}}": quantile(0.95, "tierline_queue_seconds", "tier, backend", AT)},
            "s",
        ),
        Panel(
            "Not called",
            "1 while the breaker is open, or while the backend refuses our key or account.",
            {
                "{{backend}} open": f"max by (backend) (tierline_backend_open{{{TIER}}})",
                "{{backend}} refuses": f"max by (backend) (tierline_backend_refuses{{{JOB}}})",
            },
            most=1,
        ),
        Panel(
            "Headroom of rate limits",
            "What the replies of a backend say is left of each of its rate limits; nothing where they say nothing.",
            {"{{backend}} {{unit}}": f"min by (backend, unit) (tierline_backend_headroom_ratio{{{TIER}}})"},
            "percentunit",
            most=1,
        ),
        Panel(
            "Lost to rate limits",
            "Calls that were refused for a rate limit, tiers that were skipped for one, and seconds in refused calls.",
            {
                "{{tier}} {{outcome}}": rate("tierline_rate_limited_total", "tier, outcome"),
                "{{tier}} seconds": rate("tierline_rate_limited_seconds_total", "tier"),
            },
        ),
        Panel(
            "Sessions at their cap",
            "Requests of sessions that reached a cap of their policy, by what was done.",
            {"{{surface}} {{outcome}}": rate("tierline_session_caps_total", "surface, outcome")},
            "reqps",
        ),
        Panel(
            "Saved by prompt caches, an hour",
            "US dollars that reading from providers' prompt caches saved, and that writing to them cost more.",
            {"{{surface}} {{outcome}}": f"3600 * {rate('tierline_prompt_cache_usd_total', 'surface, outcome')}"},
            "currencyUSD",
        ),
        Panel(
            "Hedges",
            "Second attempts beside a slow first one, by how they ended.",
            {"{{outcome}}": rate("tierline_hedges_total", "outcome")},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Tokens",
            "A second, read and written.",
            {"{{tier}} {{direction}}": rate("tierline_tokens_total", "tier, direction", AT)},
            "short",
            stacked=True,
        ),
        Panel(
            "Tokens for nothing",
            "Share of the tokens whose text no client got.",
            {"{{surface}}": f"avg by (surface) (job_surface:tierline_wasted_tokens:ratio_rate5m{{{IN}}})"},
            "percentunit",
        ),
    ]


def _money() -> list[Panel]:
    mean = "job_surface_group:tierline_saving_cost_usd:mean1d"
    held, routed = (f'sum by (surface) ({mean}{{{IN}, group="{group}"}})' for group in ("held_out", "routed"))
    variance = "job_surface_group:tierline_saving_cost_usd:variance_of_mean1d"
    spread = f'1.96 * sqrt(sum by (surface) ({variance}{{{IN}, group=~"held_out|routed"}}))'
    wasted = share(rate("tierline_wasted_usd_total", "surface"), rate("tierline_cost_usd_total", "surface"))
    return [
        Panel(
            "Saved a request, by the holdout, last day",
            "What a request costs that chance sent to the strongest tier, less what a routed one costs, in US dollars "
            "with a 95% interval. No price list is in it: both were really paid.",
            {
                "{{surface}} at most": f"{held} - {routed} + {spread}",
                "{{surface}} at least": f"{held} - {routed} - {spread}",
                "{{surface}}": f"{held} - {routed}",
            },
            "currencyUSD",
            least=None,
            overrides=[_dashed("/ at (most|least)$/")],
        ),
        Panel(
            "Dollars for nothing",
            "Share of the cost that was paid for text no client got.",
            {"{{surface}}": wasted},
            "percentunit",
        ),
        Panel(
            "What no client pays for",
            "US dollars an hour: judges, comparisons and shadows.",
            {
                "cache audits": f"3600 * sum({rate('tierline_cache_judge_usd_total', 'surface')})",
                "learning, {{part}}": f"3600 * {rate('tierline_learn_usd_total', 'part')}",
                "shadows": f"3600 * sum({rate('tierline_shadow_usd_total', 'surface')})",
            },
            "currencyUSD",
            stacked=True,
        ),
    ]


def _cache() -> list[Panel]:
    lookups = rate("tierline_cache_lookups_total", "hop, outcome")
    return [
        Panel("Lookups", "By cache and outcome.", {"{{hop}} {{outcome}}": lookups}, "reqps", stacked=True),
        Panel(
            "Hit rate",
            "Of lookups that could hit.",
            {
                "{{hop}}": share(
                    rate("tierline_cache_lookups_total", "hop", IN + ', outcome="hit"'),
                    rate("tierline_cache_lookups_total", "hop", IN + ', outcome=~"hit|miss"'),
                )
            },
            "percentunit",
            most=1,
        ),
        Panel(
            "What decided on the neighbour",
            "Of the semantic cache: a rule, a guard, the verifier or the cross-encoder.",
            {"{{stage}} {{outcome}}": rate("tierline_cache_decisions_total", "stage, outcome")},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Lowest score served",
            "The threshold of the semantic cache; it rises by itself when hits are found wrong.",
            {"{{surface}}": f"max by (surface) (tierline_cache_threshold{{{IN}}})"},
            most=1,
        ),
        Panel(
            "Wrong hits above the bound",
            "1 for ten minutes from more hits being wrong than max_error permits, by language and of all requests.",
            {"{{surface}} {{language}}": f"max by (surface, language) (tierline_cache_breached{{{IN}}})"},
            most=1,
        ),
        Panel(
            "Wait for the cross-encoder",
            "Until it has scored.",
            {f"p{q:g}": quantile(q / 100, "tierline_cache_check_seconds", "", JOB) for q in (50, 99)},
            "s",
        ),
        Panel(
            "Writes",
            "By outcome and reason.",
            {"{{outcome}} {{reason}}": rate("tierline_cache_writes_total", "outcome, reason")},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Shared answers",
            "Requests that read the answer of an equal one under way.",
            {"{{outcome}}": rate("tierline_coalesced_total", "outcome")},
            "reqps",
        ),
        Panel(
            "Audits",
            "Pairs of answers that a judge compared, and what is known of them.",
            {
                "{{surface}} {{outcome}}": rate("tierline_cache_judgements_total", "surface, outcome"),
                "{{surface}} labels": f"max by (surface) (tierline_cache_labels{{{IN}}})",
            },
        ),
    ]


def _overload() -> list[Panel]:
    return [
        Panel(
            "Rejected",
            "Requests a second, by reason.",
            {"{{surface}} {{reason}}": rate("tierline_shed_total", "surface, reason")},
            "reqps",
            stacked=True,
        ),
        Panel(
            "In progress, and waiting",
            "Requests under way and in backends' queues, and connections that no worker has accepted yet.",
            {
                "in progress": f"sum(tierline_in_flight{{{JOB}}})",
                "to be accepted": f"max(tierline_accept_queue{{{JOB}}})",
                "{{backend}} queued": f"sum by (backend) (tierline_backend_queued{{{TIER}}})",
            },
        ),
        Panel(
            "First byte",
            "From a request's arrival, 95th percentile; on a new connection the wait to be accepted adds to it.",
            {"{{connection}}": quantile(0.95, "tierline_first_byte_seconds", "connection", JOB)},
            "s",
        ),
        Panel(
            "Event loop and memory",
            "Delay of the latest worker's loop, which rejects from 0.1 s on, and the share of its permitted memory.",
            {
                "loop delay": f"max(tierline_loop_lag_seconds{{{JOB}}})",
                "memory": f"max(tierline_memory_ratio{{{JOB}}})",
            },
            "s",
            overrides=[
                {
                    "matcher": {"id": "byName", "options": "memory"},
                    "properties": [
                        {"id": "unit", "value": "percentunit"},
                        {"id": "custom.axisPlacement", "value": "right"},
                    ],
                }
            ],
        ),
    ]


def _gateway() -> list[Panel]:
    return [
        Panel(
            "Our overhead",
            "Time in the gateway without waiting for backends.",
            {
                "p50": f"max(job:tierline_overhead_seconds:p50_rate5m{{{JOB}}})",
                "p99": f"max(job:tierline_overhead_seconds:p99_rate5m{{{JOB}}})",
            },
            "s",
            steps=((None, GREEN), (0.025, RED)),
            lines=True,
        ),
        Panel(
            "Overhead p99 by path",
            "A semantic lookup embeds the question; an exact hit does hardly anything.",
            {"{{path}}": quantile(0.99, "tierline_overhead_seconds", "path")},
            "s",
            colours=PATHS,
        ),
        Panel(
            "Overhead p99 by prompt length",
            "In tokens of the prompt.",
            {"{{prompt}}": quantile(0.99, "tierline_overhead_seconds", "prompt")},
            "s",
        ),
        Panel(
            "Workers",
            "Serving, configured, and how many ended by themselves within an hour.",
            {
                "serving": f"sum(tierline_workers{{{JOB}}})",
                "configured": f"sum(tierline_workers_configured{{{JOB}}})",
                "lost": f"sum(increase(tierline_workers_lost_total{{{JOB}}}[1h]))",
            },
            colours={"lost": RED},
            overrides=[_dashed("configured")],
        ),
        Panel(
            "Store",
            "1 for the state that it is in.",
            {"{{state}}": f"max by (state) (tierline_store_state{{{JOB}}})"},
            most=1,
            colours={"ok": GREEN, "degraded": RED, "unconfigured": GREY},
        ),
        Panel(
            "Evicted by the store",
            "Keys, since it started.",
            {"keys": f"max(tierline_store_evicted_keys{{{JOB}}})"},
        ),
        Panel(
            "Lost telemetry",
            "Traces by reason, and log lines, a second.",
            {
                "{{reason}}": rate("tierline_telemetry_dropped_total", "reason", JOB),
                "log lines": f"sum(rate(tierline_log_dropped_total{{{JOB}}}[$__rate_interval]))",
            },
        ),
        Panel(
            "Policies",
            "Changes applied and refused; files that differ from what is in force; 1 while a newer one is refused.",
            {
                "{{outcome}}": f"sum by (outcome) (increase(tierline_policy_reloads_total{{{JOB}}}[$__rate_interval]))",
                "files that differ": f"max(tierline_policy_drift{{{JOB}}})",
                "refused now": f"max(tierline_policy_refused{{{JOB}}})",
            },
        ),
        Panel(
            "Candidates and comparisons",
            "Shadows, and answers drawn to be compared, a second.",
            {
                "shadow {{outcome}}": rate("tierline_shadows_total", "outcome"),
                "comparison {{outcome}}": rate("tierline_learn_comparisons_total", "outcome"),
            },
        ),
        Panel(
            "Kept warm",
            "Requests that keep idle backends warm, and the version that runs.",
            {
                "{{backend}} {{outcome}}": rate("tierline_warmings_total", "backend, outcome", JOB),
                "version {{version}}": f"max by (version) (tierline_build_info{{{JOB}}})",
            },
        ),
    ]


ROWS: dict[str, tuple[bool, list[Panel]]] = {
    "Overview": (False, _overview()),
    "Which limit is missed, and by what": (False, _limits()),
    "Tiers and backends": (True, _backends()),
    "Money": (True, _money()),
    "Cache": (True, _cache()),
    "Overload": (True, _overload()),
    "The gateway itself": (True, _gateway()),
}
"""Panels by row, and whether the row is closed at first."""


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name},
        "definition": query, "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _marks(name: str, query: str, colour: str) -> dict[str, Any]:
    return {
        "name": name, "datasource": SOURCE, "enable": True, "expr": query, "iconColor": colour, "titleFormat": name,
        "textFormat": "{{surface}}{{backend}}{{instance}}", "step": "30s",
    }  # fmt: skip


MARKS = {
    "Policy changed": (f"changes(tierline_policy_fingerprint_highest{{{JOB}}}[1m]) > 0", BLUE),
    "Backend not called": (
        f"tierline_backend_open{{{JOB}}} == 1 unless tierline_backend_open{{{JOB}}} offset 1m == 1",
        RED,
    ),
    "Worker lost": (f"increase(tierline_workers_lost_total{{{JOB}}}[1m]) > 0", ORANGE),
}
"""Vertical marks through all charts."""

VARIABLES = {
    "job": ("Deployment", "label_values(tierline_requests_total, job)"),
    "surface": ("Surface", 'label_values(tierline_requests_total{job=~"$job"}, surface)'),
    "tier": ("Tier", 'label_values(tierline_requests_total{job=~"$job"}, tier)'),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    number, y = 1, 0
    for title, (closed, row) in ROWS.items():
        head: dict[str, Any] = {"id": number, "type": "row", "title": title, "collapsed": closed, "panels": []}
        head["gridPos"] = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append(head)
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in row:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            (head["panels"] if closed else panels).append(panel.made(number, x, y))
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        y += tallest
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "uid": "tierline",
        "title": "Tierline",
        "description": "Requests, objectives, cost and saving. Made by deploy/grafana/dashboard.py; edit that.",
        "tags": ["tierline", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, *(_variable(name, *one) for name, one in VARIABLES.items())]},
        "annotations": {"list": [_marks(name, *one) for name, one in MARKS.items()]},
        "panels": panels,
    }


def text() -> str:
    """Return the content of tierline.json."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
