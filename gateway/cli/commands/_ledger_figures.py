"""What many requests cost, took and were worth: the figures of `tierline ledger`, from records and feedback.

A saving is claimed only where every dollar and every token that it is made of was reported by a backend. A request
whose dollars or whose answer are partly our own count is estimated, and told apart; tokens that cost nothing are not
worth an estimate. What the strongest tier would have cost is its price for the answer's tokens as they were served.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

Ledger = Mapping[str, Any]
"""The ledger of a record, decoded, with `started` (Unix seconds) and `score` (0..1, or None where nobody said)."""
Figures = dict[str, Any]

_Z95: Final = 1.959964
# A p50 or a p95 is an objective of many requests: that one of them is slower misses nothing.
_OF_MANY: Final = ("_p50", "_p95")
_SERVER_ERROR: Final = 500


def figures(rows: Sequence[Ledger]) -> Figures:
    """All figures of these requests, as JSON values; at least one row."""
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
    """The 95% interval of p - q, means of n and of m values from 0 to 1: Newcombe's hybrid score interval (method 10 of
    Statistics in Medicine 17, 873-890, 1998). For shares it is about exact; for scores in between it is too wide.
    """
    (p_low, p_high), (q_low, q_high) = _wilson(p, n), _wilson(q, m)
    return p - q - math.hypot(p - p_low, q_high - q), p - q + math.hypot(p_high - p, q - q_low)


def _wilson(share: float, n: int) -> tuple[float, float]:
    z2 = _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return middle - half, middle + half


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
    """The dollars of a request that rest on tokens of our own counting."""
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
    found = [value for value in values if value is not None]
    if not found:
        return {"n": 0, "p50": None, "p95": None, "p99": None}
    p50, p95, p99 = (float(value) for value in np.quantile(found, (0.5, 0.95, 0.99)))
    return {"n": len(found), "p50": p50, "p95": p95, "p99": p99}


def _slo(rows: Sequence[Ledger]) -> Figures:
    """How many met each objective, and goodput: the share that met every objective of a single request.

    What was refused before its surface was known has no objectives, and is no good all the same.
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
    """Routed against held out, among the requests that took part in the draw: quality by feedback, and cost."""
    arms = {name: [row for row in rows if row.get("holdout") is drawn] for name, drawn in _ARMS.items()}
    said = {name: _arm(arm) for name, arm in arms.items()}
    routed, held_out = said["routed"], said["held_out"]
    difference = interval = None
    if routed["labels"] and held_out["labels"]:
        difference = routed["score"] - held_out["score"]
        interval = newcombe(routed["score"], routed["labels"], held_out["score"], held_out["labels"])
    return {**said, "difference": difference, "interval_95": interval}


_ARMS: Final = {"routed": False, "held_out": True}


def _arm(rows: Sequence[Ledger]) -> Figures:
    scores = [row["score"] for row in rows if row["score"] is not None]
    return {"requests": len(rows), "labels": len(scores), "score": sum(scores) / len(scores) if scores else None}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
