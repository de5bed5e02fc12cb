"""Differ: of the slow (or escalated, doubted, failed, refused) requests, or of a rectangle of time and latency, what do
they share that the others do not?

Each value of each dimension has two shares: of the selected requests, and of the rest in the same time. A dimension
ranks by its distance, half the sum of the differences of all its shares: 0 where selection and rest are alike, 1 where
they have no value in common. Of each value it is tested whether its two shares differ. With some hundred values a few
would differ by chance, so the tests are held together: the chance that any value at all is marked that does not differ
is at most 5% (`console.compared`).

Requests are counted by time, latency, what became of them, and one dimension at a time (`_shares`); files that are
closed are counted once. So a selection costs the same over an hour and over 30 days, and dimensions are not crossed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.archive.live import LiveArchive
from gateway.archive.summaries import VALUES_OF, Summary
from gateway.console.compared import DIMENSIONS, chance_of, differing
from gateway.console.page import BadQuery, Page, Sources, whole_in

_MINUTE: Final = 60_000
_QUARTER: Final = 15 * _MINUTE
_LONG: Final = 180 * _MINUTE


@dataclass(frozen=True, slots=True)
class HeatSpan:
    """A time span of the page: its length, the width of a column, and summaries' slots, in milliseconds."""

    length: int
    column: int
    slot: int


SPANS: Final[Mapping[str, HeatSpan]] = {
    "1h": HeatSpan(60 * _MINUTE, _MINUTE, _MINUTE),
    "6h": HeatSpan(360 * _MINUTE, _QUARTER, _QUARTER),
    "24h": HeatSpan(1440 * _MINUTE, 2 * _QUARTER, _QUARTER),
    "7d": HeatSpan(7 * 1440 * _MINUTE, _LONG, _LONG),
    "30d": HeatSpan(30 * 1440 * _MINUTE, 4 * _LONG, _LONG),
}
PRESETS: Final[Mapping[str, tuple[str, str, int]]] = {
    "slow": ("slow", "missed a limit of its surface", 1),
    "escalated": ("escalated", "went on to another tier after an answer that was not good enough", 2),
    "doubted": ("doubted", "an attempt's answer was judged not good enough", 4),
    "failed": ("failed", "status 500 and above", 8),
    "refused": ("refused", "status 400 to 499", 16),
}
"""Name, what it means, and its bit."""
_IS: Final = (
    "(coalesce(slow, false)::INTEGER + (path = 'escalated')::INTEGER * 2 + (status >= 500)::INTEGER * 8 "
    "+ (status >= 400 AND status < 500)::INTEGER * 16 "
    "+ coalesce(len(list_filter(calls, lambda c: c.outcome IN ('low_confidence', 'unfit'))) > 0, false)::INTEGER * 4)"
)
_PER_DECADE: Final = 4
_LOWEST: Final = 3
_HIGHEST: Final = 20
"""Bins of latency: up to 10 ms, a quarter of a decade each, and from 100 s on."""
_LATENCY: Final = (
    f"greatest(least(floor(log10(greatest(coalesce(ttft_ms, total_ms), 1)) * {_PER_DECADE}), {_HIGHEST}), "
    f"{_LOWEST})::TINYINT"
)


_NONE: Final = "none"
_MOST_VALUES: Final = 6
"""Values shown of each dimension, those that differ most."""
_FEW_FILES: Final = 3
"""Files that are read for a page where they are not summarised yet, as after a rotation; more would take too long."""


def _shares(slot: int, keep_s: float) -> Summary:
    """How many requests a slot has of each latency, outcome, and value of each dimension.

    A tenant with less than a 500th of the requests of a file is counted there among the others.
    """
    values = ", ".join(f"coalesce(nullif({sql}, ''), '{_NONE}') AS \"{name}\"" for name, (_, sql) in DIMENSIONS.items())
    dimensions = ", ".join(f'"{name}"' for name in ("all", *DIMENSIONS))
    of_each = f"SELECT entry_ms - entry_ms % {slot} AS slot_ms, {_LATENCY} AS latency, {_IS}::TINYINT AS what, "
    return Summary(
        f"shares_{slot}",
        "SELECT slot_ms, latency, what, dimension, value, count(*)::INTEGER AS n FROM (UNPIVOT ("
        "WITH named AS MATERIALIZED (SELECT tenant FROM rows GROUP BY tenant "
        "HAVING count(*) * 500 >= (SELECT count(*) FROM rows)) "
        f"{of_each} 'all' AS \"all\", {values} FROM rows) ON {dimensions} INTO NAME dimension VALUE value) "
        "GROUP BY ALL",
        slot,
        keep_s,
    )


_KEPT: Final = {_QUARTER: _shares(_QUARTER, 25 * 3600.0), _LONG: _shares(_LONG, 31 * 86400.0)}


@dataclass(frozen=True, slots=True)
class ComparedRequests:
    """Which requests are compared with the rest: with an outcome, and within a rectangle. Times are in Unix ms."""

    what: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    low: int | None = None
    """The lowest bin of latency; `high` is the highest one."""
    high: int | None = None

    @property
    def sql(self) -> str:
        """The condition in SQL over `_shares`."""
        parts = [f"what & {PRESETS[self.what][2]} <> 0"] if self.what else []
        bounds = (("slot_ms >=", self.from_ms), ("slot_ms <", self.to_ms), ("latency >=", self.low))
        parts += [f"{words} {value}" for words, value in (*bounds, ("latency <=", self.high)) if value is not None]
        return " AND ".join(parts) or "false"


@dataclass(frozen=True, slots=True)
class ValueShare:
    """One value of a dimension: how many of the selected requests and of the rest have it, and their shares."""

    value: str
    selected: int
    rest: int
    share: float
    rest_share: float
    p: float
    """How often chance alone gives such a difference, before the correction."""
    differs: bool
    href: str | None

    @property
    def difference(self) -> float:
        """The share of the selected less that of the rest."""
        return self.share - self.rest_share


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension: its distance (0 to 1), and its values, those that differ most first."""

    name: str
    title: str
    distance: float
    values: Sequence[ValueShare]
    more: int
    """Values that are not shown."""

    @property
    def differs(self) -> bool:
        """Whether any of its values does."""
        return any(one.differs for one in self.values)


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page."""
    view = DifferView(sources.archive)

    async def show(request: Request) -> Mapping[str, Any]:
        span, chosen = _asked(request)
        return await view.data(span, chosen)

    yield Page("/differ", "differ.html", show, name="Differ", key="d")


def _asked(request: Request) -> tuple[str, ComparedRequests]:
    """Return the span and the selection of a URL. Raises BadQuery."""
    query = request.query_params
    span, what = query.get("since", "24h"), query.get("is", "")
    if span not in SPANS:
        raise BadQuery(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
    if what and what not in PRESETS:
        raise BadQuery(f"is={what} is not a selection; there are {', '.join(PRESETS)}")
    numbers: dict[str, int | None] = {}
    for name in ("from", "to", "low", "high"):
        text = query.get(name, "")
        numbers[name] = whole_in(text)
        if text and numbers[name] is None:
            raise BadQuery(f"{name}={text} is not a number of milliseconds")
    low, high = numbers["low"], numbers["high"]
    if None not in (numbers["from"], numbers["to"]) and (numbers["from"] or 0) >= (numbers["to"] or 0):
        raise BadQuery("The selection ends before it begins: `to` has to be later than `from`")
    if low is not None and high is not None and low >= high:
        raise BadQuery("The selection is empty: `high` has to be more milliseconds than `low`")
    lowest = None if low is None else _bin(low)
    highest = None if high is None else _bin(high) - 1
    chosen = ComparedRequests(what, numbers["from"], numbers["to"], lowest, highest)
    return span, chosen if chosen != ComparedRequests() else ComparedRequests("slow")


class DifferView:
    """Make the page."""

    def __init__(self, archive: LiveArchive) -> None:
        self._archive = archive
        for summary in _KEPT.values():
            archive.keep(summary)

    async def data(self, name: str, chosen: ComparedRequests) -> dict[str, Any]:
        """Return the heat map of a span, one of SPANS' names, and what the selection differs in from the rest."""
        began, now_ms = time.perf_counter(), int(time.time() * 1000)
        span = SPANS[name]
        end_ms = (now_ms // span.slot + 1) * span.slot
        from_ms = end_ms - span.length
        shares = _KEPT.get(span.slot, _shares(span.slot, 0))
        done, files = self._archive.summarised_since(shares, from_ms) if span.slot in _KEPT else (0, 0)
        common = {
            "span": name,
            "spans": tuple(SPANS),
            "presets": {key: words for key, (_, words, _) in PRESETS.items()},
            "selection": _as_query(chosen),
            "what": chosen.what,
            "from_ms": from_ms,
            "to_ms": end_ms,
            "column_ms": span.column,
        }
        if files - done > _FEW_FILES:
            return {**common, "preparing": (done, files), "heat": None, "dimensions": [], "query_ms": _since_ms(began)}
        ask = self._archive.ask
        column = f"((slot_ms - {from_ms}) // {span.column})::INTEGER"
        cells, values = await asyncio.gather(
            ask(
                f"SELECT {column} AS at, latency, sum(n)::BIGINT AS n, "
                f"(sum(n) FILTER ({chosen.sql}))::BIGINT AS selected FROM {shares.name} WHERE dimension = 'all' "
                "GROUP BY ALL",
                from_ms=from_ms,
                summaries=(shares,),
            ),
            ask(
                f"SELECT dimension, value, sum(n)::BIGINT AS n, coalesce(sum(n) FILTER ({chosen.sql}), 0)::BIGINT "
                f"AS selected FROM {shares.name} GROUP BY ALL",
                from_ms=from_ms,
                summaries=(shares,),
            ),
        )
        whole = next((row for row in values if row["dimension"] == "all"), {"n": 0, "selected": 0})
        return {
            **common,
            "preparing": None,
            "requests": whole["n"],
            "selected": whole["selected"],
            "heat": _heat(cells, span, from_ms, chosen),
            "dimensions": _ranked(values, whole["selected"], whole["n"] - whole["selected"], name, chosen),
            "query_ms": _since_ms(began),
        }


def _heat(cells: Sequence[Mapping[str, Any]], span: HeatSpan, from_ms: int, chosen: ComparedRequests) -> dict[str, Any]:
    """Return the heat map: columns with their times, rows with their lower edges in milliseconds, cells that are not
    empty, and the rectangle that is selected, in columns and rows."""
    columns = span.length // span.column
    rows = list(range(_LOWEST, _HIGHEST + 1))
    left, right = chosen.from_ms, chosen.to_ms
    first = 0 if left is None else max(0, (left - from_ms) // span.column)
    last = columns - 1 if right is None else min(columns - 1, (right - 1 - from_ms) // span.column)
    low = _LOWEST if chosen.low is None else chosen.low
    high = _HIGHEST if chosen.high is None else chosen.high
    is_drawn = (chosen.from_ms, chosen.to_ms, chosen.low, chosen.high) != (None, None, None, None)
    return {
        "columns": [from_ms + number * span.column for number in range(columns + 1)],
        "edges_ms": [_edge_ms(row) for row in rows],
        "rows": len(rows),
        "cells": [(cell["at"], cell["latency"] - _LOWEST, cell["n"], cell["selected"] or 0) for cell in cells],
        "most": max((cell["n"] for cell in cells), default=0),
        "box": (first, last, low - _LOWEST, high - _LOWEST) if is_drawn and first <= last else None,
    }


def _ranked(
    rows: Sequence[Mapping[str, Any]], selected: int, rest: int, span: str, chosen: ComparedRequests
) -> list[Dimension]:
    """Return the dimensions, the one with the greatest distance first; none if there is nothing to compare."""
    if not selected or not rest:
        return []
    tested = {}
    for row in rows:
        if row["dimension"] != "all":
            p = chance_of(row["selected"], selected, row["n"] - row["selected"], rest)
            tested[row["dimension"], row["value"]] = p
    differ = differing(tested)
    dimensions = []
    for name, (title, _) in DIMENSIONS.items():
        shares = []
        for row in (row for row in rows if row["dimension"] == name):
            value, inside, outside = row["value"], row["selected"], row["n"] - row["selected"]
            href = _href(name, value, span, chosen)
            p = tested[name, value]
            shares.append(
                ValueShare(value, inside, outside, inside / selected, outside / rest, p, (name, value) in differ, href)
            )
        if len(shares) > 1:
            distance = math.fsum(abs(one.difference) for one in shares) / 2
            shares.sort(key=lambda one: -abs(one.difference))
            dimensions.append(Dimension(name, title, distance, shares[:_MOST_VALUES], len(shares[_MOST_VALUES:])))
    return sorted(dimensions, key=lambda one: (not one.differs, -one.distance))


def _href(name: str, value: str, span: str, chosen: ComparedRequests) -> str | None:
    """Return the list of the selected requests that have a value; None where the list has no such filter."""
    query = {"since": span, "is": chosen.what if chosen.what != "doubted" else ""}
    if chosen.low is not None:
        query["slower"] = f"{_edge_ms(chosen.low):g}ms"
    if name == "stream" and value == "streamed":
        return f"/requests?{urlencode([(key, part) for key, part in query.items() if part])}&is=stream"
    if name not in VALUES_OF or value in (_NONE, "others"):
        return None
    query[name] = value
    return f"/requests?{urlencode({key: part for key, part in query.items() if part})}"


def _as_query(chosen: ComparedRequests) -> dict[str, Any]:
    """Return the selection as the URL has it."""
    high = None if chosen.high is None else _edge_ms(chosen.high + 1)
    low = None if chosen.low is None else _edge_ms(chosen.low)
    return {"is": chosen.what, "from": chosen.from_ms, "to": chosen.to_ms, "low": low, "high": high}


def _bin(ms: float) -> int:
    """Return the bin that begins nearest to a latency."""
    return min(max(round(math.log10(max(ms, 1)) * _PER_DECADE), _LOWEST), _HIGHEST + 1)


def _edge_ms(number: int) -> int:
    """Return where a bin begins, in milliseconds; the lowest one at 0."""
    return 0 if number <= _LOWEST else round(10 ** (number / _PER_DECADE))


def _since_ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000
