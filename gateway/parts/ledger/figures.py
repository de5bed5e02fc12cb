"""Compute figures of many requests (cost, latency, quality) from their records and what was said of their answers.

The saving is that of `gateway.parts.ledger.saving`, as every page has it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import numpy as np

from gateway.parts.ledger.saving import estimated_cost, is_compared, net_saving, sums_of
from gateway.parts.measures.endings import HELD, Ending, ending_of
from gateway.parts.measures.label import of_served
from gateway.parts.measures.quality import Opinions, Quality, QualityDifference, tier_qualities

Ledger = Mapping[str, Any]
"""The ledger of a record, decoded, with `started` (Unix seconds) and `score` (0 to 1, None without feedback)."""
Label = Mapping[str, Any]
"""What a judge said of a request's answer and of another tier's, as `gateway.parts.measures.label` decodes it."""
Figures = dict[str, Any]

_OK: Final = 200


def usage_figures(rows: Sequence[Ledger], labels: Sequence[Label] = ()) -> Figures:
    """Return all figures of these requests, at least one, as JSON values; labels of other requests count nowhere."""
    by_request = {_key(row): row for row in rows}
    labels = [label for label in labels if _key(label) in by_request]
    qualities = surface_qualities(rows, labels)
    started = [row["started"] for row in rows]
    return {
        "requests": len(rows),
        "from": min(started),
        "to": max(started),
        "paths": _paths(rows),
        "cost_usd": math.fsum(row["cost_usd"] for row in rows),
        "estimated_usd": math.fsum(map(estimated_cost, rows)),
        "cost_unknown": sum(bool(row.get("cost_unknown")) for row in rows),
        "wasted": _wasted(rows),
        "prompt_caches": _prompt_caches(rows),
        "strongest_alone": _strongest_alone(rows),
        "ttft_ms": _quantiles(row["ttft_ms"] for row in rows if row["stream"]),
        "tpot_ms": _quantiles(row.get("tpot_ms") for row in rows),
        "gap_ms": _quantiles(row.get("gap_ms") for row in rows),
        "total_ms": _quantiles(row["total_ms"] for row in rows),
        "queue_ms": _quantiles(row.get("queue_ms") for row in rows if row.get("calls")),
        "overhead_ms": _quantiles(row["overhead_ms"] for row in rows),
        "slo": _slo(rows),
        "quality": [{"surface": surface, "tier": tier, **one.as_json()} for (surface, tier), one in qualities.items()],
        "holdout": against_holdout(rows, labels),
    }


def _paths(rows: Sequence[Ledger]) -> dict[str, Figures]:
    counts = Counter(row["path"] or "none" for row in rows)
    return {
        path: {
            "requests": count,
            "share": count / len(rows),
            "cost_usd": math.fsum(row["cost_usd"] for row in rows if (row["path"] or "none") == path),
        }
        for path, count in counts.most_common()
    }


def _wasted(rows: Sequence[Ledger]) -> Figures:
    usd = math.fsum(row["wasted_usd"] for row in rows)
    tokens = sum(row.get("wasted_tokens", 0) for row in rows)
    return {
        "usd": usd,
        "share_of_usd": _share(usd, math.fsum(row["cost_usd"] for row in rows)),
        "tokens": tokens,
        "share_of_tokens": _share(tokens, sum(map(_tokens_of, rows))),
    }


def _tokens_of(row: Ledger) -> int:
    """Return the tokens of all calls of a request, the judge's too."""
    if "calls" not in row:  # a record of an older version
        return int(row["tokens_in"] + row["tokens_out"])
    return sum(call["tokens_in"] + call["tokens_out"] for call in row["calls"])


def _prompt_caches(rows: Sequence[Ledger]) -> Figures:
    """Return what providers' prompt caches saved, less what writing cost more, and the share of prompts read there."""
    calls = [call for row in rows for call in row.get("calls") or ()]
    read = sum(call.get("tokens_cached") or 0 for call in calls)
    return {
        "saved_usd": math.fsum(row.get("prompt_cache_usd") or 0.0 for row in rows),
        "tokens_read": read,
        "share_read": _share(read, sum(call["tokens_in"] for call in calls)),
    }


def _strongest_alone(rows: Sequence[Ledger]) -> Figures:
    unknown = [row for row in rows if not is_compared(row)]
    figures: Figures = {
        "requests": 0,
        "unknown": {"requests": len(unknown), "cost_usd": math.fsum(row["cost_usd"] for row in unknown)},
    }
    if (saving := net_saving(sums_of(rows))) is None:
        return figures
    return figures | {
        "requests": saving.requests,
        "cost_usd": saving.alone_usd - saving.usd,
        "counterfactual_usd": saving.alone_usd,
        "saved_usd": saving.usd,
        "interval_95": (saving.low, saving.high),
        "saved_share": saving.share,
        "estimated": {"requests": saving.estimated, "cost_usd": saving.estimated_usd},
    }


def _quantiles(values: Iterable[float | None]) -> Figures:
    present = [value for value in values if value is not None]
    if not present:
        return {"n": 0, "p50": None, "p95": None, "p99": None}
    p50, p95, p99 = (float(value) for value in np.quantile(present, (0.5, 0.95, 0.99)))
    return {"n": len(present), "p50": p50, "p95": p95, "p99": p99}


def _slo(rows: Sequence[Ledger]) -> Figures:
    """Return how requests ended (`gateway.telemetry.ledger`), their goodput, and how many met each objective."""
    ended = Counter(map(ending_of, rows))
    objectives: dict[str, list[bool]] = {}
    for row in rows:
        for name, met in (row.get("slo") or {}).items():
            objectives.setdefault(name, []).append(met)
    held = sum(ended[name] for name in HELD)
    return {
        "n": held,
        "goodput": _share(ended["good"], held),
        **{name: ended[name] for name in get_args(Ending) if name},
        "objectives": {name: {"n": len(met), "met": sum(met) / len(met)} for name, met in objectives.items()},
    }


def surface_qualities(rows: Sequence[Ledger], labels: Sequence[Label]) -> dict[tuple[str, str], Quality]:
    """Return the quality of each surface's tiers, as far as labels and feedback on these requests speak of it."""
    labelled = {_key(label) for label in labels}
    feedback = {_key(row): float(row["score"]) for row in rows if row["score"] is not None}
    alone: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        fresh = row["status"] == _OK and row["tier"] and not str(row["path"]).startswith("cache-")
        if row["score"] is not None and fresh and _key(row) not in labelled:
            alone.setdefault(row["surface"], {}).setdefault(row["tier"], []).append(float(row["score"]))
    of_surface: dict[str, list[Label]] = {}
    for label in labels:
        of_surface.setdefault(label["surface"], []).append(label)
    return {
        (surface, tier): quality
        for surface in sorted({*alone, *of_surface})
        for tier, quality in tier_qualities(of_surface.get(surface, []), feedback, alone.get(surface, {})).items()
    }


def against_holdout(rows: Sequence[Ledger], labels: Sequence[Label]) -> Figures:
    """Compare the quality of routed and held-out requests, among those that took part in the draw."""
    judged = {_key(label): of_served(label) for label in labels}
    arms: Figures = {}
    opinions: list[Opinions] = []
    for name, drawn in _ARMS.items():
        own = [row for row in rows if row.get("holdout") is drawn]
        scores = [(row["score"], judged.get(_key(row))) for row in own]
        opinions.append(Opinions.of([pair for pair in scores if pair != (None, None)]))
        arms[name] = {"requests": len(own), "labels": len(opinions[-1].people), "score": None}
    spoken = Opinions.in_one_word(opinions)
    if spoken is None:
        for arm, opinion in zip(arms.values(), opinions, strict=True):
            arm["score"] = opinion.estimate().value if arm["labels"] else None
        return {**arms, "word": None, "difference": None, "interval_95": None}
    word, qualities = spoken
    for arm, quality in zip(arms.values(), qualities, strict=True):
        arm["score"] = quality.value
    routed, held_out = qualities
    found = QualityDifference.of_sum([(1.0, routed), (-1.0, held_out)], word)
    return {**arms, "word": word, "difference": found.value, "interval_95": (found.low, found.high)}


_ARMS: Final = {"routed": False, "held_out": True}


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["tenant"], row["request_id"]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
