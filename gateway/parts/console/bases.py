"""Read what decisions were made by, which says a surface's limits and ladder at that time."""

from __future__ import annotations

from typing import Final

from gateway.parts.console.records import Records
from gateway.parts.recorder.decision_record import DecisionBasis

_BASIS: Final = "SELECT basis::VARCHAR AS basis FROM bases WHERE id = $id"


class RecordedBases:
    """The bases of recorded decisions, each read once."""

    def __init__(self, archive: Records) -> None:
        self._archive = archive
        self._known: dict[str, DecisionBasis | None] = {}

    async def of(self, name: str | None) -> DecisionBasis | None:
        """Return a basis by its id; None for None, or where it is not kept or cannot be read. Raises QueryError."""
        if name is None:
            return None
        if name not in self._known:
            rows = await self._archive.ask(_BASIS, {"id": name})
            try:
                self._known[name] = DecisionBasis.decode(rows[0]["basis"].encode()) if rows else None
            except ValueError:
                self._known[name] = None
        return self._known[name]
