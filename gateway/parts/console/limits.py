"""Say whether a surface keeps its limits: how many of its requests missed each, and whether that is more than may.

A limit is one objective of the policy's `slo` (`ttft_p95`), or goodput: the share of requests that meet every limit of
one request. Some requests may miss a limit (5% of them a p95). It is missed where more did than chance explains, kept
where no more did; with fewer requests than it takes for one of them to be allowed a miss, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.parts.console.compared import DIMENSIONS
from gateway.parts.console.surface_counts import CHAT, slot_of_entry, slotted
from gateway.parts.ledger.summaries import Summary

GOODPUT_OBJECTIVE: Final = 0.99
"""Share of requests that shall meet every limit of one request (ttft.p99, total.p99, deadline): what p99 means."""
GOODPUT: Final = "goodput"
NONE: Final = "none"
TTFT: Final = "ttft"
"""How the names of limits of the time to the first token begin."""
_OF_MANY: Final[Mapping[str, float]] = {"_p50": 0.5, "_p95": 0.05}
"""By the end of a limit's name, the share of requests that may miss it; of the others, as many as goodput lets."""
_CHANCE: Final = 0.05
"""A limit counts as missed where requests that just keep it would show so many misses more seldom than this."""
_NEGLIGIBLE: Final = 1e-12

Verdict = Literal["missed", "kept", "few"]


@dataclass(frozen=True, slots=True)
class SurfaceLimit:
    """One limit of a surface, and how many of the requests that were held against it missed it."""

    name: str
    limit_ms: float | None
    held: int
    missed: int
    may_miss: float

    @property
    def to_first_token(self) -> bool:
        """Whether it is of the time to the first token; else of the whole answer."""
        return self.name.startswith(TTFT)

    @property
    def share(self) -> float:
        """The share of requests that missed it."""
        return self.missed / self.held if self.held else 0.0

    @property
    def kept(self) -> bool:
        """Whether no more requests missed it than may."""
        return self.share <= self.may_miss

    @property
    def verdict(self) -> Verdict:
        """`missed`, `kept`, or `few` if the limit applied to too few requests to say."""
        if not self.kept and _chance_of_so_many(self.missed, self.held, self.may_miss) < _CHANCE:
            return "missed"
        return "kept" if self.kept and self.held * self.may_miss >= 1 else "few"


def may_miss(objective: str) -> float:
    """Return the share of requests that may miss an objective, by its name."""
    return next((share for end, share in _OF_MANY.items() if objective.endswith(end)), 1 - GOODPUT_OBJECTIVE)


def limits_of(misses: Iterable[Mapping[str, Any]], limits_s: Mapping[str, float]) -> list[SurfaceLimit]:
    """Return the limits that requests were held against, by name, from rows of one surface's `misses`."""
    return [
        SurfaceLimit(
            row["objective"],
            limits_s[row["objective"]] * 1000 if row["objective"] in limits_s else None,
            row["held"],
            row["missed"],
            may_miss(row["objective"]),
        )
        for row in sorted(misses, key=lambda row: str(row["objective"]))
        if row["dimension"] == "all"
    ]


def trouble_in(held: Sequence[float], missed: Sequence[float], may: float) -> tuple[int, int] | None:
    """Return the first and the last bucket of the time in which most requests too many missed a limit.

    It is the run of buckets with the greatest sum of misses less those that may be (E. Page, "Continuous inspection
    schemes", Biometrika 1954). None where no bucket has too many.
    """
    best, found = 0.0, None
    excess, began = 0.0, 0
    for bucket, (all_of, some) in enumerate(zip(held, missed, strict=True)):
        if excess <= 0:
            excess, began = 0.0, bucket
        excess += some - all_of * may
        if excess > best:
            best, found = excess, (began, bucket)
    return found


def is_over(held: Sequence[float], missed: Sequence[float], first: int, last: int) -> bool:
    """Return whether a trouble of the buckets `first` to `last` has ended, by the requests after it.

    They must be so many that with the trouble's share of misses so few of them would seldom miss the limit.
    """
    share = min(sum(missed[first : last + 1]) / max(sum(held[first : last + 1]), 1), 1 - _CHANCE)
    since, still = int(sum(held[last + 1 :])), int(sum(missed[last + 1 :]))
    return still <= since * share and _chance_of_so_many(since - still, since, 1 - share) < _CHANCE


def limit_misses(slot: int) -> Summary:
    """How many requests of each value of a dimension were held against an objective, and how many missed it."""
    values = ", ".join(f"coalesce(nullif({sql}, ''), '{NONE}') AS {name}_" for name, (_, sql) in DIMENSIONS.items())
    return slotted(
        "misses",
        slot,
        f"""SELECT surface, slot_ms, objective, dimension, value, sum(n)::INTEGER AS held,
    coalesce(sum(n) FILTER (NOT met), 0)::INTEGER AS missed
FROM (UNPIVOT (
    SELECT surface, slot_ms, unnest(names) AS objective, unnest(kept) AS met, 'all' AS "all", n,
        {", ".join(f"{name}_" for name in DIMENSIONS)} FROM (
        SELECT surface, {slot_of_entry(slot)}, map_keys(slo) AS names, map_values(slo) AS kept, count(*) AS n, {values}
        FROM rows WHERE {CHAT} AND slo IS NOT NULL GROUP BY ALL
    )
) ON "all", {", ".join(f"{name}_" for name in DIMENSIONS)} INTO NAME dimension VALUE value) GROUP BY ALL""",
    )


def _chance_of_so_many(missed: int, held: int, may: float) -> float:
    """Return the probability that at least `missed` of `held` requests miss a limit that each misses with `may`."""
    log_term = math.lgamma(held + 1) - math.lgamma(missed + 1) - math.lgamma(held - missed + 1)
    term = total = math.exp(log_term + missed * math.log(may) + (held - missed) * math.log1p(-may))
    for number in range(missed, held):  # above the mean each term is smaller than the one before
        term *= (held - number) / (number + 1) * may / (1 - may)
        total += term
        if term <= total * _NEGLIGIBLE:
            break
    return min(total, 1.0)
