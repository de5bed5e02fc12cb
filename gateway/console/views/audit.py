"""The audit trail: who changed which key, team, budget, policy or config, when and why, and whether it is whole."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from cache.store.base import StoreUnavailable
from gateway.audit.entries import KINDS
from gateway.audit.trail import CURSOR, AuditTrail, TrailFilter
from gateway.console.page import Action, BadQuery, Page, Sources, person_in
from gateway.keys.self_service import may_read
from policies.quantities import read_duration

_PAGE: Final = 100
_FILTERS: Final = ("kind", "by", "subject", "since")
SPANS: Final = ("1h", "24h", "7d", "30d", "90d")


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the list, which says with `?verify=1` whether the trail is whole."""
    trail = AuditTrail(sources.store)

    async def show(request: Request) -> Mapping[str, Any]:
        query = {name: request.query_params.get(name, "") for name in _FILTERS}
        before = request.query_params.get("before", "")
        if not re.fullmatch(CURSOR, before):
            raise BadQuery("`before` is an entry's place, as the link Older has it.")
        try:
            found = await trail.page(_filter(query), before, _PAGE, partial(may_read, person_in(request)))
            streams = await trail.checked() if request.query_params.get("verify") else None
            problem = ""
        except StoreUnavailable as down:
            found, streams, problem = {"entries": [], "older": ""}, None, str(down)
        filters = urlencode({name: value for name, value in query.items() if value})
        return {
            **found,
            "streams": streams,
            "problem": problem,
            **query,
            "query": filters,
            "kinds": KINDS,
            "spans": SPANS,
        }

    yield Page("/audit", "audit.html", show, name="Audit", key="a", does="audit.see")


def _filter(query: Mapping[str, str]) -> TrailFilter:
    try:
        since = time.time() - read_duration(query["since"]) if query["since"] else 0.0
    except ValueError as error:
        raise BadQuery(str(error)) from None
    return TrailFilter(query["kind"], query["by"], query["subject"], since)
