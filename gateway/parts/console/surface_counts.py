"""Count the requests of each surface by slots of time: what the pages Now and Surface show over time is made of it.

A time is cut into at most `BUCKETS` parts, each a whole number of slots. Segments are summarised in advance by the
slots of the longer spans; the shorter ones are of so few requests that rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.parts.ledger.saving import ESTIMATED_COST, SAVING_SQL
from gateway.parts.ledger.summaries import ENDED, HELD_ENDS, LATENCY, Summary

if TYPE_CHECKING:
    from gateway.parts.console.records import Records

SPANS: Final[Mapping[str, int]] = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400}
"""The time spans of these pages, in seconds."""
BUCKETS: Final = 60
CHAT: Final = "NOT contains(surface, '/') AND surface <> ''"
_KEPT_S: Final[Mapping[int, float]] = {360_000: 25 * 3600.0, 60_000: 2 * 3600.0}
"""How far back segments are summarised, by slot in milliseconds."""
_SLOTS_MS: Final = (*_KEPT_S, 15_000, 1000)
_GIVEN_HEALTH: Final = "list_transform(given.health, lambda one: one.unavailable)"


def slot_for(length_ms: int) -> int:
    """Return the longest slot of which a time of this length has enough for its buckets, in milliseconds."""
    return next((slot for slot in _SLOTS_MS if slot * BUCKETS <= length_ms), 1)


def keep_counts(archive: Records, *summaries: Callable[[int], Summary]) -> None:
    """Have segments summarised in advance, by each slot for which that is worth it."""
    for slot in _KEPT_S:
        for summary in summaries:
            archive.keep(summary(slot))


def slotted(name: str, slot: int, select: str) -> Summary:
    """Return a summary by slots; its `select` has a column `slot_ms`, as `slot_of_entry` gives it."""
    return Summary(f"{name}_{slot}", select, slot, _KEPT_S.get(slot, 0.0))


def slot_of_entry(slot: int) -> str:
    """Return the SQL of the slot that an entry lies in, as `slot_ms`."""
    return f"entry_ms - entry_ms % {slot} AS slot_ms"


def counts(slot: int) -> Summary:
    """Counts and sums of requests by surface, the basis of the latest decision by the policy in force, and the tiers
    that the latest decision could not have."""
    return slotted(
        "counts",
        slot,
        f"""SELECT surface, {slot_of_entry(slot)}, count(*) AS requests, max(entry_ms) AS latest_ms,
    count(*) FILTER (ending IN {HELD_ENDS}) AS held, count(*) FILTER (ending = 'good') AS good,
    count(*) FILTER (ending = 'failed') AS failed, count(*) FILTER (ending = 'refused') AS refused,
    count(*) FILTER (ending = 'late') AS late,
    count(*) FILTER (path = 'escalated') AS escalated, count(*) FILTER (starts_with(path, 'cache')) AS hits,
    count(*) FILTER (path = 'direct') AS direct, count(*) FILTER (path = 'fallback' OR path = 'degraded') AS fallback,
    count(*) FILTER (path = 'degraded') AS degraded, count(*) FILTER (steered_from <> '') AS steered,
    sum(cost_usd) AS cost, sum(cost_usd * cost_usd) AS cost_squares, bool_or(cost_unknown) AS unknown,
    count(*) FILTER (list_bool_or(list_transform(calls, lambda one: one.basis <> ''))) AS drafts,
    count(*) FILTER (list_bool_or(list_transform(calls, lambda one: one.basis = 'none'))) AS unjudged,
    {SAVING_SQL}, count(*) FILTER (arm = 'candidate') AS canary,
    arg_max(basis, entry_ms) FILTER (basis IS NOT NULL AND arm IS DISTINCT FROM 'candidate') AS basis,
    arg_max({_GIVEN_HEALTH}, entry_ms) FILTER (given IS NOT NULL) AS unavailable
FROM (SELECT *, {ENDED} AS ending, {ESTIMATED_COST} AS estimated_cost FROM rows WHERE {CHAT})
GROUP BY surface, slot_ms""",
    )


def first_bytes(slot: int) -> Summary:
    """Return the summary that counts streams by the time to their first byte, for slots of `slot` milliseconds."""
    return slotted(
        "first_bytes",
        slot,
        f"SELECT surface, {slot_of_entry(slot)}, {LATENCY.bin('ttft_ms')} AS bin, count(*) AS n "
        f"FROM rows WHERE stream AND ttft_ms IS NOT NULL AND {CHAT} GROUP BY ALL",
    )


CHANGES: Final = """
SELECT surface, policy, live_s AS since_s FROM (
    SELECT *, place - lag(place) OVER (PARTITION BY surface, policy ORDER BY place) AS apart FROM (
        SELECT surface, policy, min(live_s) AS live_s,
            dense_rank() OVER (PARTITION BY surface ORDER BY slot_ms) AS place
        FROM {versions} WHERE live_s IS NOT NULL AND {where} GROUP BY surface, policy, slot_ms))
WHERE coalesce(apart, 2) > 1 ORDER BY since_s
"""
"""SQL of when each version came into force, each time that it did: its first request after slots without one."""


def versions(slot: int) -> Summary:
    """Return the summary that tells since when each policy version of a surface got requests, and how many.

    `live_s` leaves requests out that it got as a candidate.
    """
    return slotted(
        "versions",
        slot,
        f"SELECT surface, policy, {slot_of_entry(slot)}, min(started_s) AS since_s, count(*) AS requests, "
        "min(started_s) FILTER (arm IS DISTINCT FROM 'candidate') AS live_s FROM rows "
        f"WHERE {CHAT} AND policy <> '' GROUP BY ALL",
    )
