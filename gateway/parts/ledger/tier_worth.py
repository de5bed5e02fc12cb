"""Say what a surface's tiers are worth: the quality of their answers, and how long these are, for what steers budgets.

The keeper of the ledger works it out beside its work and leaves it in the store, where gateways read it
(`gateway.parts.access.budget_steering`): a JSON object for each surface of which two tiers were rated often enough,

    {"word": "people", "tokens_in": 812.4, "tokens_out": 230.1, "tiers": {"local": [0.71, 0.62, 0.79], ...}}

with the quality of each tier's answers and its 95% interval, all in the word of people or of the judge.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway.parts.ledger.quality import LENGTHS, OPINIONS, QUERIES, SurfaceLabels, surface_labels
from gateway.parts.ledger.query import connect, rows_of
from gateway.parts.measures.quality import comparable, tier_opinions

SINCE_S: Final = 30 * 86400.0
"""How far back answers count, in seconds."""


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
