"""Show a person what they may read of the audit trail, by what an address asks for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from cache.store.base import Store
from gateway.errors import InvalidRequest
from gateway.parts.access.audit.entries import KINDS
from gateway.parts.access.audit.trail import CURSOR, AuditTrail, TrailFilter
from gateway.parts.access.keys.roles import Person
from gateway.parts.access.keys.self_service import may_read
from policies.quantities import read_duration

_PAGE: Final = 100
_FILTERS: Final = ("kind", "by", "subject", "since")
_SPANS: Final = ("1h", "24h", "7d", "30d", "90d")


class BadTrailQuery(InvalidRequest):
    """An address that asks for no part of the trail; the message says why."""

    title = "This address is not one"


class TrailView:
    """Read the audit trail for the console's pages."""

    def __init__(self, store: Store) -> None:
        self._trail = AuditTrail(store)

    def asked(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the page's data for the filters in its URL, without entries yet. Raises BadTrailQuery."""
        filters = {name: query.get(name, "") for name in _FILTERS}
        if not re.fullmatch(CURSOR, query.get("before", "")):
            raise BadTrailQuery("`before` is an entry's place, as the link Older has it.")
        _filter(filters)
        words = urlencode({name: value for name, value in filters.items() if value})
        return {**filters, "query": words, "kinds": KINDS, "spans": _SPANS, "entries": [], "older": "", "streams": None}

    async def page(self, person: Person, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the entries, and with `verify` whether the trail is whole. Raises StoreUnavailable, BadTrailQuery."""
        wanted = _filter({name: query.get(name, "") for name in _FILTERS})
        page = await self._trail.page(wanted, query.get("before", ""), _PAGE, partial(may_read, person))
        return {**page, "streams": await self._trail.checked() if query.get("verify") else None}


def _filter(query: Mapping[str, str]) -> TrailFilter:
    try:
        since = time.time() - read_duration(query["since"]) if query["since"] else 0.0
    except ValueError as error:
        raise BadTrailQuery(str(error)) from None
    return TrailFilter(query["kind"], query["by"], query["subject"], since)
