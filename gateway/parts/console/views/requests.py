"""The list of requests: the newest that a filter lets through, how many there were over time, and who is new.

A row has at most 400 bytes, and of a prompt that is captured the first words.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.parts.console.filters import FLAGS, PROMPT_SQL, SPANS, SPANS_S, Filter, query_filter
from gateway.parts.console.live import LiveUpdates, added_in
from gateway.parts.console.page import Action, BadQuery, Page, Sources, allowed, whole_in
from gateway.parts.console.policy_desk import PolicyDesk
from gateway.parts.console.records import Records
from gateway.parts.console.views.request import RequestView
from gateway.parts.ledger.live import recorded_between

PAGE: Final = 50
_SNIPPET: Final = 80
"""Characters of a prompt that a row shows."""
_COLUMNS: Final = (
    "entry_ms, entry_seq, started_s, request_id, surface, policy, path, tier, model, status, error, attempts, ttft_ms, "
    "total_ms, cost_usd, cost_unknown, tokens_in, tokens_out, stream, arm, holdout, hedged, wasted_tokens, slow, "
    f"trace_id, left({PROMPT_SQL}, {_SNIPPET}) AS prompt"
)
_CHOICES: Final = ("surface", "path", "tier", "policy", "error")
"""Columns of which the list offers the values that occur."""
_RECENT: Final = 2000
"""Rows, the newest, among which values are looked for."""
_BARS: Final = 60
_OVER_TIME: Final = """
SELECT (entry_ms - $from_ms) // $step_ms AS bar, count(*) AS requests, count(*) FILTER (status >= 500) AS failed,
    count(*) FILTER (slow AND status < 500) AS slow
FROM requests WHERE {where} AND entry_ms BETWEEN $from_ms AND $to_ms GROUP BY bar"""
_NEWER: Final = """
SELECT count(*) AS requests FROM requests
WHERE {where} AND (entry_ms > $ms OR (entry_ms = $ms AND entry_seq > $number))"""


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the list with its stream of what is new, and the page of one request."""
    archive, desk = sources.archive, PolicyDesk(sources.archive, sources.store, sources.places)
    view = RequestView(archive, sources.store, sources.places.source, desk.text_in_force)

    async def show_list(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        wanted = _filter_in(query.multi_items())
        peek = query.get("peek")
        data = await requests_page(archive, wanted, query.get("before", ""))
        if wanted.search and not data["rows"] and not query.get("before"):
            # No id begins so: then they are words.
            wanted = replace(wanted, search="", prompt=wanted.search)
            data = await requests_page(archive, wanted)
        elif wanted.search and not request.url.path.endswith(".json") and len(data["rows"]) == 1:
            [row] = data["rows"]
            if wanted.search in (row["request_id"], row["trace_id"]):
                address = f"/requests/{quote(row['request_id'], safe='')}?at={row['entry_ms']}"
                raise HTTPException(303, headers={"location": address})
        return {
            **data,
            "peek": await view.data(peek, whole_in(query.get("at", ""))) if peek else None,
            "texts": wanted.texts,
            "is": wanted.flags,
            "since": wanted.since,
            "prompt": wanted.prompt,
            "slower": query.get("slower", ""),
        }

    async def newer(key: str) -> str:
        query, _, after = key.rpartition("#")
        count = await newer_than(archive, _filter_in(parse_qsl(query)), after)
        return sources.render.part("requests_newer.html", {"newer": count, "query": query})

    updates = LiveUpdates(archive, newer)

    async def live(request: Request) -> Response:
        pairs = [pair for pair in request.query_params.multi_items() if pair[0] not in ("after", "added")]
        after = request.query_params.get("after", "")
        _place(after)  # refused now; the updates are made when nobody can be told any more
        key = f"{_filter_in(pairs).query}#{after}"
        return StreamingResponse(updates.updates(key, added_in(request)), media_type="text/event-stream")

    async def show(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        data = await view.data(request.path_params["request_id"], whole_in(query.get("at", "")))
        return {
            **data,
            "open": whole_in(query.get("hop", "")),
            "may_change": allowed(request, "cache.purge", data["ledger"]["surface"]),
        }

    yield Page("/requests", "requests.html", show_list, name="Requests", key="r")
    yield Action("/requests/live", live, "look", methods=("GET",))
    yield Page("/requests/{request_id:path}", "request.html", show)


def _filter_in(pairs: list[tuple[str, str]]) -> Filter:
    """Return the filter of a query, words of the prompt included. Raises BadFilter."""
    given = dict(pairs)
    return replace(
        query_filter(pairs, since="" if given.get("q") else "24h"), prompt=given.get("prompt", "").strip()[:200]
    )


async def requests_page(archive: Records, wanted: Filter, before: str = "") -> dict[str, Any]:
    """Return a page of the list. `before` is the place of the last row of the page before, as `more` has it."""
    began, added = time.perf_counter(), archive.added
    (rows, more), over_time, choices = await asyncio.gather(
        request_page(archive, wanted, before, PAGE), _over_time(archive, wanted), _choices(archive)
    )
    newest = f"{rows[0]['entry_ms']}-{rows[0]['entry_seq']}" if rows else f"{int(time.time() * 1000)}-0"
    return {
        "filter": {"query": wanted.query, "words": wanted.words},
        "rows": rows,
        "more": more,
        "first": not before,
        "newest": newest,
        "added": added,
        "over_time": over_time,
        "choices": choices,
        "flags": FLAGS,
        "spans": SPANS,
        "query_ms": (time.perf_counter() - began) * 1000,
    }


def _place(text: str) -> tuple[int, int]:
    """Return a place of the list: the milliseconds and the number of its newest entry. Raises BadQuery."""
    ms, number = _place_in(text)
    if ms is None or number is None:
        raise BadQuery(f"after={text} is no place in the list; reload it.")
    return ms, number


async def newer_than(archive: Records, wanted: Filter, place: str) -> int:
    """Return how many requests that a filter lets through were recorded after a place of the list. Raises BadQuery."""
    ms, number = _place(place)
    where, values = wanted.where(time.time())
    sql = _NEWER.format(where=where)
    rows = await archive.ask(sql, values | {"ms": ms, "number": number}, from_ms=ms)
    return int(rows[0]["requests"])


def _place_in(text: str) -> tuple[int | None, int | None]:
    """Return the two numbers of a place in the list, MILLISECONDS-NUMBER; None for what is none."""
    ms, _, number = text.partition("-")
    return whole_in(ms), whole_in(number)


async def _over_time(archive: Records, wanted: Filter) -> dict[str, Any] | None:
    """Return how many requests a filter lets through in each part of its time; None for a search by id or by words.

    Words are looked for in the hops of each request: the list reads as many as it must, and this would read all.
    """
    if wanted.search or wanted.prompt:
        return None
    now = time.time()
    where, values = wanted.where(now)
    to_ms = int(now * 1000)
    since_ms = to_ms - SPANS_S[wanted.since] * 1000 if wanted.since else None
    first = await archive.ask(f"SELECT min(entry_ms) AS first FROM requests WHERE {where}", values, from_ms=since_ms)
    from_ms = min(int(first[0]["first"] or since_ms or to_ms), to_ms - 1)  # the chart begins with the first of them
    step_ms = max(1, -(-(to_ms - from_ms + 1) // _BARS))
    rows = await archive.ask(
        _OVER_TIME.format(where=where), values | {"from_ms": from_ms, "to_ms": to_ms, "step_ms": step_ms},
        from_ms=from_ms,
    )  # fmt: skip
    bars = [{"requests": 0, "failed": 0, "slow": 0} for _ in range(_BARS)]
    for row in rows:
        bars[row["bar"]] = {name: int(row[name]) for name in ("requests", "failed", "slow")}
    sums = {name: sum(bar[name] for bar in bars) for name in ("requests", "failed", "slow")}
    return {"from_ms": from_ms, "to_ms": to_ms, "step_ms": step_ms, "bars": bars, **sums}


async def request_page(archive: Records, wanted: Filter, before: str, limit: int) -> tuple[list[dict[str, Any]], str]:
    """Return the newest requests that a filter lets through, and what continues behind them; '' where nothing does.

    `before` is what an earlier call returned, or ''. Raises QueryError.
    """
    rows: list[dict[str, Any]] = []
    ms, number = _place_in(before)
    for exactly, told in _ways(wanted):
        where, values = wanted.where(time.time(), exactly)
        if ms is not None and number is not None:
            where += " AND (entry_ms < $ms OR (entry_ms = $ms AND entry_seq < $number))"
            values |= {"ms": ms, "number": number}
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


async def _choices(archive: Records) -> Mapping[str, Sequence[str]]:
    """Return the values that occur among the newest requests, the most frequent first."""
    rows = await archive.newest(", ".join(_CHOICES), "true", {}, _RECENT)
    row = {name: Counter(row[name] for row in rows) for name in _CHOICES}
    return {
        name: sorted(filter(None, found), key=found.__getitem__, reverse=True) for name, found in row.items() if found
    }
