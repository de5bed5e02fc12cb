"""Say what a surface's tiers are worth: the quality of their answers, and how long these are, for what steers budgets.

The keeper of the ledger works it out beside its work and leaves it in the store, where gateways read it
(`gateway.parts.access.budget_steering`): a JSON object for each surface of which two tiers were rated often enough,

    {"word": "people", "tokens_in": 812.4, "tokens_out": 230.1, "tiers": {"local": [0.71, 0.62, 0.79], ...}}

with the quality of each tier's answers and its 95% interval, all in the word of people or of the judge. It also
says what budgets did to a surface's requests: how many were steered, what that saved, and what quality it cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.parts.ledger.quality import LENGTHS, OPINIONS, QUERIES, SurfaceLabels, surface_labels
from gateway.parts.ledger.query import connect, rows_of
from gateway.parts.ledger.summaries import SummarisedRecords
from gateway.parts.measures.quality import QualityDifference, comparable, tier_opinions

SINCE_S: Final = 30 * 86400.0
"""How far back answers count, in seconds."""
_STEERED: Final = """
SELECT steered_from, tier, count(*)::INTEGER AS requests, count(steered_usd)::INTEGER AS capped,
    sum(steered_usd - cost_usd) FILTER (NOT coalesce(cost_unknown, false)) AS saved
FROM requests WHERE surface = $surface AND entry_ms < $to_ms AND steered_from <> '' GROUP BY ALL
"""


def tier_worth(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of the surfaces in an archive, by their names. Raises ArchiveError and QueryError."""
    values = {"surface": None, "from_ms": int((time.time() - SINCE_S) * 1000)}
    asked = {**QUERIES, "labels": OPINIONS, "lengths": LENGTHS}
    with connect(folder, threads=1) as database:
        rows = {name: rows_of(database, sql, values) for name, sql in asked.items()}
    labels = surface_labels(rows)
    return {
        length["surface"]: worth
        for length in rows["lengths"]
        if (worth := worth_of(labels.get(length["surface"], SurfaceLabels()), length)) is not None
    }


def worth_of(labels: SurfaceLabels, length: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is known of one surface; None where two of its tiers cannot be compared."""
    told = comparable(tier_opinions(labels.rows, labels.feedback, labels.unjudged))
    if told is None:
        return None
    word, qualities = told
    return {
        "word": word,
        "tokens_in": length["tokens_in"],
        "tokens_out": length["tokens_out"],
        "tiers": {tier: [quality.value, quality.low, quality.high] for tier, quality in qualities.items()},
    }


@dataclass(frozen=True, slots=True)
class SteeredFigures:
    """What became of the requests that were steered; `capped` of them started at a cheaper tier.

    `saved_usd` is what their answers cost less than the same tokens where they would have started; None where no price
    is known. `quality` is how the answers of the tiers that served them differ from those of the tiers where they would
    have started, in the mean of all that were capped, by what was said of either in the last 30 days; None where it is
    not known.
    """

    requests: int
    capped: int
    saved_usd: float | None
    quality: QualityDifference | None


async def steered_figures(archive: SummarisedRecords, surface: str, from_ms: int, to_ms: int) -> SteeredFigures | None:
    """Return the figures of a surface's requests between two times; None if none was steered. Raises QueryError."""
    rows = await archive.ask(_STEERED, {"surface": surface, "to_ms": to_ms}, from_ms=from_ms)
    if not rows:
        return None
    saved = [row["saved"] for row in rows if row["saved"] is not None]
    moved = [row for row in rows if row["capped"] and row["tier"]]
    quality = None
    if moved:
        values = {"surface": surface, "from_ms": int((time.time() - SINCE_S) * 1000)}
        asked = {**QUERIES, "labels": OPINIONS}
        found = {name: await archive.ask(sql, values) for name, sql in asked.items()}
        labels = surface_labels(found).get(surface, SurfaceLabels())
        quality = await asyncio.to_thread(quality_of_moves, labels, moved)
    requests, capped = (sum(row[name] for row in rows) for name in ("requests", "capped"))
    return SteeredFigures(requests, capped, sum(saved) if saved else None, quality)


def quality_of_moves(labels: SurfaceLabels, moved: Sequence[Mapping[str, Any]]) -> QualityDifference | None:
    """Return the mean difference of quality for requests that went from `steered_from` to `tier`, `capped` of each."""
    qualities = comparable(tier_opinions(labels.rows, labels.feedback, labels.unjudged))
    tiers = {row[end] for row in moved for end in ("steered_from", "tier")}
    if qualities is None or not tiers <= qualities[1].keys():
        return None
    total = sum(row["capped"] for row in moved)
    factors = dict.fromkeys(tiers, 0.0)
    for row in moved:
        factors[row["tier"]] += row["capped"] / total
        factors[row["steered_from"]] -= row["capped"] / total
    return QualityDifference.of_sum([(factor, qualities[1][tier]) for tier, factor in factors.items()], qualities[0])
