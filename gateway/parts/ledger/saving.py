"""Say what requests cost less than from the strongest tier alone: the one saving that pages, commands and reports tell.

It is of every request that was answered and whose prices are known, hits of the cache too: what its answer's tokens
would have cost at the policy's strongest tier, less what all its calls cost, drafts that were given up and the judge's
included. A stream that was given up has no usage, so its tokens are the gateway's own count: `estimated` says how many
requests have such tokens, and `estimated_usd` how much of the cost rests on them. To leave those requests out would
leave out most escalated streams, which save nothing, and so make the saving seem larger.

The 95% interval is that of the sum of as many requests of the same traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_Z: Final = 1.959964
COMPARED: Final = "counterfactual_usd IS NOT NULL AND NOT coalesce(cost_unknown, false)"
"""SQL of whether a request has what it is compared with."""
ESTIMATED_COST: Final = (
    "coalesce(list_sum(list_transform(calls, lambda c: if(c.estimated, c.cost_usd, 0))), "
    "if(usage_estimated, cost_usd, 0))"
)
"""SQL of the US dollars of a request that are computed from tokens counted by the gateway."""
_SUMMED: Final[Mapping[str, str]] = {
    "known": f"count(*) FILTER ({COMPARED})",
    "saved": f"coalesce(sum(counterfactual_usd - cost_usd) FILTER ({COMPARED}), 0)",
    "squares": f"coalesce(sum((counterfactual_usd - cost_usd) ** 2) FILTER ({COMPARED}), 0)",
    "alone": f"coalesce(sum(counterfactual_usd) FILTER ({COMPARED}), 0)",
    "estimated": f"count(*) FILTER ({COMPARED} AND (coalesce(answer_estimated, false) OR estimated_cost > 0))",
    "estimated_usd": f"coalesce(sum(estimated_cost) FILTER ({COMPARED}), 0)",
}
SAVING_SUMS: Final = tuple(_SUMMED)
"""Columns from which a saving is computed; all of them add up."""
SAVING_SQL: Final = ", ".join(f"{sql} AS {name}" for name, sql in _SUMMED.items())
"""SQL of those columns of a group of requests, which have ESTIMATED_COST as `estimated_cost`."""


@dataclass(frozen=True, slots=True)
class NetSaving:
    """US dollars less than from the strongest tier alone, with the 95% interval; see the module's docstring."""

    usd: float
    low: float
    high: float
    requests: int
    """Requests that it is of."""
    alone_usd: float
    """What the strongest tier alone would have cost for them."""
    share: float | None
    """The saving as a share of that; None if that is nothing."""
    estimated: int
    estimated_usd: float


def net_saving(sums: Mapping[str, float]) -> NetSaving | None:
    """Return the saving of the requests whose SAVING_SUMS these are; None if none can be compared."""
    count, total, alone = sums["known"], sums["saved"], sums["alone"]
    if not count:
        return None
    variance = max(sums["squares"] - total * total / count, 0.0) * count / max(count - 1, 1)
    half = _Z * math.sqrt(variance)
    return NetSaving(
        total,
        total - half,
        total + half,
        int(count),
        alone,
        total / alone if alone else None,
        int(sums["estimated"]),
        sums["estimated_usd"],
    )


def sums_of(ledgers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the SAVING_SUMS of recorded requests."""
    compared = [ledger for ledger in ledgers if is_compared(ledger)]
    saved = [ledger["counterfactual_usd"] - ledger["cost_usd"] for ledger in compared]
    estimated = [estimated_cost(ledger) for ledger in compared]
    return {
        "known": len(compared),
        "saved": math.fsum(saved),
        "squares": math.fsum(value * value for value in saved),
        "alone": math.fsum(ledger["counterfactual_usd"] for ledger in compared),
        "estimated": sum(
            bool(ledger.get("answer_estimated")) or usd > 0 for ledger, usd in zip(compared, estimated, strict=True)
        ),
        "estimated_usd": math.fsum(estimated),
    }


def is_compared(ledger: Mapping[str, Any]) -> bool:
    """Return whether a recorded request has what it is compared with."""
    return ledger.get("counterfactual_usd") is not None and not ledger.get("cost_unknown")


def estimated_cost(ledger: Mapping[str, Any]) -> float:
    """Return the US dollars of a recorded request that are computed from tokens counted by the gateway."""
    if "calls" not in ledger:  # a record of an older version
        return float(ledger["cost_usd"]) if ledger["usage_estimated"] else 0.0
    return math.fsum(call["cost_usd"] for call in ledger["calls"] if call["estimated"])
