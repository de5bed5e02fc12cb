"""Say what pages read the recorded requests by, which the part `ledger` keeps (`gateway.parts.ledger.live`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gateway.parts.ledger.summaries import SummarisedRecords


class Records(SummarisedRecords, Protocol):
    """The recorded requests as of now. Its queries raise QueryError."""

    failing: str
    """Why the newest requests cannot be followed; '' if they can."""

    @property
    def damaged(self) -> Mapping[Path, str]:
        """The files that cannot be read and are left out, each with the reason."""

    async def newest(
        self,
        columns: str,
        where: str,
        values: Mapping[str, Any],
        limit: int,
        *,
        between_ms: tuple[int | None, int | None] = (None, None),
        equal: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the newest requests for which a condition holds, newest first."""

    async def by_id(self, columns: str, request_id: str, at_ms: int | None = None) -> list[dict[str, Any]]:
        """Return the newest request of an id, none if there is none."""

    def cursor(self) -> Any:
        """Return a connection of DuckDB's to the records, for one thread at a time."""

    @property
    def added(self) -> int:
        """How often requests were added; it grows with every addition, and begins anew with the process."""

    async def wait_for_requests(self, added: int, timeout_s: float) -> bool:
        """Return whether requests were added more than `added` times, at the latest within `timeout_s`."""
