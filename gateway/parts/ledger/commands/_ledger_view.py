"""Print the figures of `tierline ledger` as tables and sentences."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from gateway.parts.measures.quality_view import quality_table
from gateway.report import console_of_stdout
from policies.quantities import OF_STAGES, dollars, milliseconds, percent

Figures = Mapping[str, Any]

_TIMES = (
    ("TTFT of streams", "ttft_ms"),
    ("time per token", "tpot_ms"),
    ("longest gap", "gap_ms"),
    ("whole request", "total_ms"),
    ("queue", "queue_ms"),
    ("our overhead", "overhead_ms"),
)
_ENDED = {
    "late": "answered after a limit",
    "poor": "degraded, or with a fault in their structure",
    "failed": "without a whole answer",
    "refused": "not counted: invalid, or over a limit or budget of their owners",
    "left": "not counted: their clients left",
}
_NAME = 17
_PIPED = 100
_QUALITY_WIDTH = 125


def show(figures: Figures, surface: str | None) -> None:
    """Print the figures on stdout."""
    console = console_of_stdout(_PIPED)
    span = " to ".join(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(figures[end])) for end in ("from", "to"))
    console.print(f"{figures['requests']} requests of {surface or 'all surfaces'}, {span}\n", markup=False)
    console.print(_paths(figures["paths"]))
    console.print()
    console.print(_times(figures))
    console.print()
    if figures["quality"]:
        width = None if console.is_terminal else _QUALITY_WIDTH
        console.print(quality_table(figures["quality"], "surface", "tier"), width=width)
        console.print()
    for name, text in (*_money(figures), *_objectives(figures["slo"]), *_holdout(figures["holdout"])):
        first, *rest = textwrap.wrap(text, max(console.width - _NAME, 20))
        console.print(Text.assemble((f"{name:<{_NAME}}", "bold"), first), soft_wrap=True)
        for line in rest:
            console.print(Text(" " * _NAME + line), soft_wrap=True)


def _paths(paths: Mapping[str, Figures]) -> Table:
    table = _columns("path", "requests", "share", "cost")
    for path, of in paths.items():
        table.add_row(path, str(of["requests"]), percent(of["share"]), dollars(of["cost_usd"]))
    return table


def _times(figures: Figures) -> Table:
    table = _columns("time", "n", "p50", "p95", "p99")
    for name, key in _TIMES:
        quantiles = figures[key]
        cells = [milliseconds(quantiles[q]) if quantiles[q] is not None else "-" for q in ("p50", "p95", "p99")]
        table.add_row(name, str(quantiles["n"]), *cells)
    return table


def _columns(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, min_width=16)
    for name in others:
        table.add_column(name, justify="right", min_width=9)
    return table


def _money(figures: Figures) -> Iterator[tuple[str, str]]:
    estimated = f", of that {dollars(figures['estimated_usd'])} estimated" if figures["estimated_usd"] else ""
    unknown = figures["cost_unknown"]
    unpriced = f", and what {unknown} requests called at an unknown price (tierline prices check)" if unknown else ""
    yield "cost", dollars(figures["cost_usd"]) + estimated + unpriced
    wasted = figures["wasted"]
    yield (
        "wasted",
        f"{dollars(wasted['usd'])} ({_part(wasted['share_of_usd'])}), "
        f"{wasted['tokens']} tokens ({_part(wasted['share_of_tokens'])})",
    )
    caches = figures["prompt_caches"]
    if caches["tokens_read"] or caches["saved_usd"]:
        word = "saved" if caches["saved_usd"] >= 0 else "lost"
        share = _part(caches["share_read"])
        yield "prompt caches", f"{word} {dollars(abs(caches['saved_usd']))}; {share} of prompt tokens read from them"
    alone = figures["strongest_alone"]
    yield "strongest alone", _saving(alone)
    if alone["requests"] and (estimated := alone["estimated"])["requests"]:
        yield (
            "  estimated",
            f"of {estimated['requests']} of them some tokens are our own count, {dollars(estimated['cost_usd'])} of "
            "their cost",
        )
    if alone["unknown"]["requests"]:
        yield (
            "  unknown",
            f"{alone['unknown']['requests']} requests without an answer, a price or a usage to compare; "
            f"cost {dollars(alone['unknown']['cost_usd'])}",
        )


def _part(share: float | None) -> str:
    return "-" if share is None else percent(share)


def _saving(of: Figures) -> str:
    if not of["requests"]:
        return "no request can be compared, so no saving is claimed"
    saved, share = of["saved_usd"], of["saved_share"]
    word = "saved" if saved >= 0 else "lost"
    part = f" ({percent(abs(share))})" if share is not None else ""
    low, high = (dollars(usd) for usd in of["interval_95"])
    return (
        f"{dollars(of['counterfactual_usd'])} for {of['requests']} requests, which cost {dollars(of['cost_usd'])}: "
        f"{word} {dollars(abs(saved))}{part}, 95% interval {low} to {high}"
    )


def _objectives(slo: Figures) -> Iterator[tuple[str, str]]:
    if not slo["n"]:
        yield "goodput", "no request was held against objectives"
        return
    yield "goodput", f"{percent(slo['goodput'])} of {slo['n']} requests were good: whole, and within every limit"
    for name, words in _ENDED.items():
        if slo[name]:
            yield f"  {name}", f"{slo[name]} {words}"
    for name, of in slo["objectives"].items():
        part = ", a stage" if name.startswith(OF_STAGES) else ""
        yield f"  {name.removeprefix(OF_STAGES)}", f"{percent(of['met'])} of {of['n']} within it{part}"


def _holdout(figures: Figures) -> Iterator[tuple[str, str]]:
    routed, held_out = figures["routed"], figures["held_out"]
    drawn = f"{held_out['requests']} held out, {routed['requests']} routed"
    if figures["interval_95"] is None:
        yield (
            "holdout",
            f"{drawn}; labels or feedback on {held_out['labels']} and {routed['labels']} of them. To compare their "
            "quality, let a judge label a share of the answers (the policy's `learn`), or have a random sample of both "
            "judged and sent to POST /v1/feedback",
        )
        return
    low, high = figures["interval_95"]
    yield (
        "holdout",
        f"{drawn}; score {held_out['score']:.3f} on {held_out['labels']} labels and {routed['score']:.3f} on "
        f"{routed['labels']}: routed minus held out {figures['difference']:+.3f} "
        f"(95% interval {low:+.3f} to {high:+.3f}){', by the judge alone' if figures['word'] == 'judge' else ''}",
    )
