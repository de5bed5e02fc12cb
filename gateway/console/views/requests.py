"""The list of requests: the newest that a filter lets through, a row of at most 400 bytes each, never their content."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from gateway.archive.live import LiveArchive
from gateway.console.access import Role
from gateway.console.filters import FLAGS, SPANS, Filter, filter_of
from gateway.console.page import Page, Sources
from gateway.console.policy_desk import PolicyDesk
from gateway.console.views.request import RequestView
from gateway.telemetry.ids import recorded_between

PAGE: Final = 50
_COLUMNS: Final = (
    "entry_ms, entry_seq, started_s, request_id, surface, policy, path, tier, model, status, error, attempts, ttft_ms, "
    "total_ms, cost_usd, cost_unknown, tokens_in, tokens_out, stream, arm, holdout, hedged, wasted_tokens, "
    "slow"
)
_CHOICES: Final = ("surface", "path", "tier", "policy", "error")
"""Columns of which the list offers the values that occur."""
_RECENT: Final = 2000
"""Rows, the newest, among which values are looked for."""


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the list, and the page of one request."""
    archive, desk = sources.archive, PolicyDesk(sources.archive, sources.store, sources.places)
    one = RequestView(archive, sources.store, sources.places.source, desk.text_in_force)

    async def show_list(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        wanted = filter_of(query.multi_items(), since="" if query.get("q") else "24h")
        peek = query.get("peek")
        return {
            **await requests_page(archive, wanted, query.get("before", "")),
            "peek": await one.data(peek) if peek else None,
            "texts": wanted.texts,
            "is": wanted.flags,
            "since": wanted.since,
            "slower": query.get("slower", ""),
        }

    async def show(request: Request) -> Mapping[str, Any]:
        at, opened = request.query_params.get("at", ""), request.query_params.get("hop", "")
        at_ms = int(at) if at.isdecimal() and len(at) < 16 else None
        request_id, why = request.path_params["request_id"], request.query_params.get("why")
        data = await one.data(request_id, at_ms)
        why = why or next(iter(data["others"]), None)
        asked = None if why is None else await one.alternatives(request_id, why, data["entry_ms"])
        return {
            **data,
            "why": why,
            "alternative": asked,
            "open": int(opened) if opened.isdecimal() else None,
            "may_change": request.state.role is Role.EDITOR,
        }

    yield Page("/requests", "requests.html", show_list, name="Requests", key="r")
    yield Page("/requests/{request_id}", "request.html", show)


async def requests_page(archive: LiveArchive, wanted: Filter, before: str = "") -> dict[str, Any]:
    """Return a page of the list. `before` is the place of the last row of the page before, as `more` has it."""
    began = time.perf_counter()
    rows, more = await newest_requests(archive, wanted, before, PAGE)
    return {
        "filter": {"query": wanted.query, "words": wanted.words},
        "rows": rows,
        "more": more,
        "first": not before,
        "choices": await _choices(archive),
        "flags": FLAGS,
        "spans": SPANS,
        "query_ms": (time.perf_counter() - began) * 1000,
    }


async def newest_requests(
    archive: LiveArchive, wanted: Filter, before: str, limit: int
) -> tuple[list[dict[str, Any]], str]:
    """Return the newest requests that a filter lets through, and what continues behind them; '' where nothing does.

    `before` is what an earlier call returned, or ''. Raises QueryError.
    """
    rows: list[dict[str, Any]] = []
    ms, _, number = before.partition("-")
    for exactly, told in _ways(wanted):
        where, values = wanted.where(time.time(), exactly)
        if ms.isdecimal() and number.isdecimal():
            where += " AND (entry_ms < $ms OR (entry_ms = $ms AND entry_seq < $number))"
            values |= {"ms": int(ms), "number": int(number)}
        if told is not None:
            where += f" AND entry_ms BETWEEN {told[0]} AND {told[1]}"
        between = told or (values.get("since_ms"), values.get("ms"))
        rows = await archive.newest(_COLUMNS, where, values, limit + 1, between_ms=between, equal=wanted.equal)
        if rows:
            break
    shown = rows[:limit]
    return shown, f"{shown[-1]['entry_ms']}-{shown[-1]['entry_seq']}" if len(rows) > limit else ""


def _ways(wanted: Filter) -> list[tuple[str, tuple[int, int] | None]]:
    """Return the ways to look for what is searched, the fastest first: which column it is, whole, and at which times.

    Our own ids tell their time. A whole id is found by files' Bloom filters; beginnings of ids need every row.
    """
    if not wanted.search:
        return [("", None)]
    told = recorded_between(wanted.search)
    first: list[tuple[str, tuple[int, int] | None]] = [] if told is None else [("", told)]
    return [*first, ("request_id", None), ("trace_id", None), ("", None)]


async def _choices(archive: LiveArchive) -> Mapping[str, Sequence[str]]:
    """Return the values that occur among the newest requests, the most frequent first."""
    rows = await archive.newest(", ".join(_CHOICES), "true", {}, _RECENT)
    row = {name: Counter(one[name] for one in rows) for name in _CHOICES}
    return {
        name: sorted(filter(None, found), key=found.__getitem__, reverse=True) for name, found in row.items() if found
    }
