"""Compute the figures of `tierline ledger` (cost, latency, quality) from records and feedback.

Savings are claimed only for requests whose cost and tokens were all reported by backends. Requests with a cost or an
answer counted in part by the gateway are reported separately as estimated; calls that cost nothing do not make a
request estimated. What the strongest tier would have cost is its price for the tokens of the served answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from offline.measures.intervals import wilson

Ledger = Mapping[str, Any]
"""The ledger of a record, decoded, with `started` (Unix seconds) and `score` (0 to 1, None without feedback)."""
Figures = dict[str, Any]

# Objectives over many requests, which a single slower request does not miss.
_OF_MANY: Final = ("_p50", "_p95")
_SERVER_ERROR: Final = 500


def figures(rows: Sequence[Ledger]) -> Figures:
    """Return all figures of these requests, at least one, as JSON values."""
    started = [row["started"] for row in rows]
    return {
        "requests": len(rows),
        "from": min(started),
        "to": max(started),
        "paths": _paths(rows),
        "cost_usd": math.fsum(row["cost_usd"] for row in rows),
        "estimated_usd": math.fsum(map(_estimated_usd, rows)),
        "wasted": _wasted(rows),
        "strongest_alone": _strongest_alone(rows),
        "ttft_ms": _quantiles(row["ttft_ms"] for row in rows if row["stream"]),
        "tpot_ms": _quantiles(row.get("tpot_ms") for row in rows),
        "total_ms": _quantiles(row["total_ms"] for row in rows),
        "queue_ms": _quantiles(row.get("queue_ms") for row in rows if row.get("calls")),
        "overhead_ms": _quantiles(row["overhead_ms"] for row in rows),
        "slo": _slo(rows),
        "holdout": _holdout(rows),
    }


def newcombe(p: float, n: int, q: float, m: int) -> tuple[float, float]:
    """Return the 95% interval of p - q, the means of n and of m values from 0 to 1.

    This is Newcombe's hybrid score interval (method 10 of Statistics in Medicine 17, 873-890, 1998). It is nearly exact
    for values of 0 and 1, and too wide for values in between.
    """
    (p_low, p_high), (q_low, q_high) = wilson(p, n), wilson(q, m)
    return p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)


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
        "share_of_tokens": _share(tokens, sum(row["tokens_in"] + row["tokens_out"] for row in rows)),
    }


def _estimated_usd(row: Ledger) -> float:
    """Return the US dollars of a request that are computed from tokens counted by the gateway."""
    if "calls" not in row:  # a record of an older version
        return float(row["cost_usd"]) if row["usage_estimated"] else 0.0
    return math.fsum(call["cost_usd"] for call in row["calls"] if call["estimated"])


def _strongest_alone(rows: Sequence[Ledger]) -> Figures:
    reported, estimated, unknown = [], [], []
    for row in rows:
        if row.get("counterfactual_usd") is None:
            unknown.append(row)
        elif row["answer_estimated"] or _estimated_usd(row):
            estimated.append(row)
        else:
            reported.append(row)
    return {
        "reported": _compared(reported),
        "estimated": _compared(estimated),
        "unknown": {"requests": len(unknown), "cost_usd": math.fsum(row["cost_usd"] for row in unknown)},
    }


def _compared(rows: Sequence[Ledger]) -> Figures:
    cost = math.fsum(row["cost_usd"] for row in rows)
    alone = math.fsum(row["counterfactual_usd"] for row in rows)
    return {
        "requests": len(rows),
        "cost_usd": cost,
        "counterfactual_usd": alone,
        "saved_usd": alone - cost,
        "saved_share": _share(alone - cost, alone),
    }


def _quantiles(values: Iterable[float | None]) -> Figures:
    present = [value for value in values if value is not None]
    if not present:
        return {"n": 0, "p50": None, "p95": None, "p99": None}
    p50, p95, p99 = (float(value) for value in np.quantile(present, (0.5, 0.95, 0.99)))
    return {"n": len(present), "p50": p50, "p95": p95, "p99": p99}


def _slo(rows: Sequence[Ledger]) -> Figures:
    """Return how many requests met each objective, and goodput: the share that met every objective of one request.

    Requests rejected before their surface was known have no objectives; they count as not meeting them.
    """
    held = [row["slo"] for row in rows if row.get("slo")]
    refused = sum("slo" in row and not row["slo"] and row["status"] >= _SERVER_ERROR for row in rows)
    objectives: dict[str, list[bool]] = {}
    for slo in held:
        for name, met in slo.items():
            objectives.setdefault(name, []).append(met)
    good = sum(all(met for name, met in slo.items() if not name.endswith(_OF_MANY)) for slo in held)
    return {
        "n": len(held) + refused,
        "goodput": _share(good, len(held) + refused),
        "refused": refused,
        "objectives": {name: {"n": len(met), "met": sum(met) / len(met)} for name, met in objectives.items()},
    }


def _holdout(rows: Sequence[Ledger]) -> Figures:
    """Compare the feedback scores of routed and held-out requests, among those that took part in the draw."""
    rows_by_arm = {name: [row for row in rows if row.get("holdout") is drawn] for name, drawn in _ARMS.items()}
    arms = {name: _arm(arm) for name, arm in rows_by_arm.items()}
    routed, held_out = arms["routed"], arms["held_out"]
    difference = interval = None
    if routed["labels"] and held_out["labels"]:
        difference = routed["score"] - held_out["score"]
        interval = newcombe(routed["score"], routed["labels"], held_out["score"], held_out["labels"])
    return {**arms, "difference": difference, "interval_95": interval}


_ARMS: Final = {"routed": False, "held_out": True}


def _arm(rows: Sequence[Ledger]) -> Figures:
    scores = [row["score"] for row in rows if row["score"] is not None]
    return {"requests": len(rows), "labels": len(scores), "score": sum(scores) / len(scores) if scores else None}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
