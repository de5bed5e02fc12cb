"""What requests cost and saved, by surface, tier and model, as the console shows it.

The figures are those of `tierline ledger` (`gateway.parts.ledger.figures`), computed in SQL; the saving is that of
`parts.ledger.saving`. By tier and by model money is that of whoever was called, which is what its provider is owed;
requests and savings are those of whoever answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gateway.parts.ledger.saving import ESTIMATED_COST, SAVING_SQL, SAVING_SUMS, NetSaving, net_saving
from gateway.parts.ledger.summaries import SummarisedRecords, Summary

_BY: Final = ("surface", "tier", "model")
_MOST: Final = 20
"""Rows of a column that are shown, those that cost most."""
_SLOT_MS: Final = 1800 * 1000
_KEPT_S: Final = 33 * 86400.0
_ADDED: Final = ("requests", "spent", "wasted", "wasteful", "unpriced", "prompt_caches", *SAVING_SUMS)
"""Columns of the summary that add up."""
_UNUSED: Final = "len(list_filter(calls, lambda c: c.wasted AND c.attempt > 0 AND c.tokens_in + c.tokens_out > 0)) > 0"
"""SQL of whether a request has an answer that nobody got: a draft, or one that lost a race; no sample and no judge."""
_SLOT: Final = f"entry_ms - entry_ms % {_SLOT_MS} AS slot_ms"
_COSTS: Final = Summary(
    f"costs_{_SLOT_MS}",
    f"""SELECT surface, tier, model, {_SLOT}, count(*) AS requests, sum(cost_usd - of_calls) AS spent, 0.0 AS wasted,
    count(*) FILTER (unused) AS wasteful, count(*) FILTER (coalesce(cost_unknown, false)) AS unpriced,
    coalesce(sum(prompt_cache_usd), 0) AS prompt_caches, {SAVING_SQL}
FROM (SELECT *, coalesce(list_sum(list_transform(calls, lambda c: c.cost_usd)), 0) AS of_calls, {_UNUSED} AS unused,
    {ESTIMATED_COST} AS estimated_cost FROM rows) GROUP BY ALL
UNION ALL BY NAME SELECT surface, one.tier AS tier, one.model AS model, slot_ms, 0 AS requests,
    sum(one.cost_usd) AS spent, sum(one.cost_usd) FILTER (one.wasted) AS wasted, 0 AS wasteful, 0 AS unpriced,
    0.0 AS prompt_caches, {", ".join(f"0 AS {column}" for column in SAVING_SUMS)}
FROM (SELECT surface, {_SLOT}, unnest(calls) AS one FROM rows) GROUP BY ALL""",
    _SLOT_MS,
    _KEPT_S,
)
_SUMS: Final = f"""
SELECT {", ".join(_BY)}, {", ".join(f"sum({column}) AS {column}" for column in _ADDED)} FROM {_COSTS.name}
WHERE slot_ms < $until_ms GROUP BY {", ".join(_BY)}
"""


@dataclass(frozen=True, slots=True)
class CostRow:
    """What the requests of one surface, tier or model cost and saved, in US dollars; or all of them."""

    name: str
    requests: int
    spent: float
    wasted: float
    wasteful: int
    """Requests with an answer that nobody got."""
    unpriced: int
    """Requests that called a backend whose price nobody states: `spent` is too low by theirs."""
    saving: NetSaving | None
    prompt_caches: float
    """US dollars that providers' prompt caches saved, less what writing to them cost more."""
    unknown: int
    """Requests that cannot be compared: of unknown price, or not answered."""


class Costs:
    """Sum up what the recorded requests of an archive cost."""

    BY: ClassVar = _BY

    def __init__(self, archive: SummarisedRecords) -> None:
        self._archive = archive
        archive.keep(_COSTS)

    async def between(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return what the requests from one Unix time to another cost: the `total`, and the rows of each of BY.

        Both times are multiples of half an hour.
        """
        within = {"until_ms": int(end_s * 1000)}
        rows = await self._archive.ask(_SUMS, within, from_ms=int(start_s * 1000), summaries=(_COSTS,))
        found: dict[str, Any] = {"total": _cost("all", rows)}
        for by in self.BY:
            named: dict[str, list[Mapping[str, Any]]] = {}
            for row in rows:
                named.setdefault(row[by] or "none", []).append(row)
            made = (_cost(name, own) for name, own in named.items())
            found[by] = sorted(made, key=lambda row: (-row.spent, -row.requests, row.name))[:_MOST]
        return found


def _cost(name: str, rows: Iterable[Mapping[str, Any]]) -> CostRow:
    """Add up rows of sums."""
    given = list(rows)
    total = {column: math.fsum(row[column] or 0 for row in given) for column in _ADDED}
    return CostRow(
        name=name,
        requests=int(total["requests"]),
        spent=total["spent"],
        wasted=total["wasted"],
        wasteful=int(total["wasteful"]),
        unpriced=int(total["unpriced"]),
        saving=net_saving(total),
        prompt_caches=total["prompt_caches"],
        unknown=int(total["requests"] - total["known"]),
    )
