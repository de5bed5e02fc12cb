"""Compare the quality of routed requests with that of those held out, by surface, over the requests of some time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from gateway.parts.ledger.figures import against_holdout
from gateway.parts.ledger.quality import DRAWN, HOLDOUT
from gateway.parts.ledger.summaries import SummarisedRecords

_LABELS: Final = "SELECT * EXCLUDE (vector, counts, messages) FROM labels WHERE entry_ms >= $from_ms"


class Holdouts:
    """Compare, from records, the quality of routed requests with that of held-out ones."""

    def __init__(self, archive: SummarisedRecords) -> None:
        self._archive = archive
        archive.keep(DRAWN)

    async def since(self, from_ms: int) -> dict[str, Mapping[str, Any]]:
        """Compare routed with held-out requests since `from_ms` (Unix time), by surface; see `against_holdout`.

        Raises QueryError.
        """
        given = {"from_ms": from_ms}
        rated, labels = await asyncio.gather(
            self._archive.ask(HOLDOUT, given, from_ms=from_ms, summaries=(DRAWN,)), self._archive.ask(_LABELS, given)
        )
        parted: dict[str, tuple[list[Any], list[Any]]] = {}
        for place, rows in enumerate((rated, labels)):
            for row in rows:
                parted.setdefault(row["surface"], ([], []))[place].append(row)
        return {surface: against_holdout(*own) for surface, own in parted.items()}
