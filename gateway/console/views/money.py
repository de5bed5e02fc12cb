"""Money: what was spent, wasted and saved, by tenant, surface, tier or model; what is reserved; and where it goes.

The figures are those of `tierline ledger` (`gateway.archive.figures`), computed in SQL; the saving is that of
`gateway.archive.saving`. By tier and by model money is that of whoever was called, requests and savings are those of
whoever answered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from cache.store.base import Store, StoreUnavailable
from gateway.archive.live import LiveArchive
from gateway.archive.saving import ESTIMATED_COST, SAVING_SQL, SAVING_SUMS, NetSaving, net_saving
from gateway.archive.summaries import Summary
from gateway.cascade.daily_budget import DailyBudget
from gateway.console.filters import BadFilter, Filter, filter_of
from gateway.console.kept_figures import KeptFigures, patience_for
from gateway.console.page import Page, Sources
from gateway.console.spending_forecast import DAYS, SpendingForecast, forecast
from gateway.console.svg.bars import TONES
from gateway.telemetry.ledger import PLAYGROUND
from routing.decision_basis import BasisError, DecisionBasis

BY: Final = ("surface", "tenant", "tier", "model", "path", "policy")
"""Columns by which money is shown; that of keys and teams is on the page Usage."""
SPANS: Final = {"1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
BARS: Final = 48
_LISTED: Final = 60
_FRESH_S: Final = 60.0
"""How long the history of a forecast, and what was spent beside the requests, is used again."""
_SHOWN_S: Final = 5.0
"""How long a page is shown again."""
_SLOT_MS: Final = 86400 * 1000 // BARS
"""Of the summaries that are kept: a bar of the day. Bars of longer spans are several of it."""
_KEPT_S: Final = 32 * 86400.0
_GROUPS: Final = {"money": ("surface", "tier", "model", "path", "policy"), "owners": ("tenant", "surface")}
"""Columns of BY that a kept summary tells apart. Of all together there would be as many groups as requests."""
_UNUSED: Final = "len(list_filter(calls, lambda c: c.wasted AND c.attempt > 0 AND c.tokens_in + c.tokens_out > 0)) > 0"
"""SQL of whether a request has an answer that nobody got: a draft, or one that lost a race; no sample and no judge."""
_BY_CALL: Final = ("tier", "model")
"""Columns by which money is that of whoever was called."""
_ADDED: Final = (
    "requests", "spent", "wasted", "wasteful", "unpriced", "prompt_caches", *SAVING_SUMS,
)  # fmt: skip
"""Columns of a summary that add up."""
_ALL_ADDED: Final = f"sum(COLUMNS('^({'|'.join(_ADDED)})$'))"
_BY_NAME: Final = f"SELECT {{by}} AS name, {_ALL_ADDED} FROM {{sums}} WHERE {{where}} GROUP BY name"
_BY_BAR: Final = """
SELECT ((slot_ms - $from_ms) // $bar_ms)::INTEGER AS bar, list_position($top, {by}) AS place, sum(spent) AS spent
FROM {sums} WHERE {where} GROUP BY ALL
"""
_BY_HOUR: Final = """
SELECT slot_ms // 3600000 AS hour, sum(spent) AS spent, min(first_ms) AS first_ms FROM {sums} WHERE {where}
GROUP BY hour
"""
_BY_KIND: Final = """
SELECT kind, call_tier AS tier, sum(calls) AS calls, sum(usd) AS usd, sum(tokens) AS tokens FROM {waste} WHERE {where}
GROUP BY ALL ORDER BY usd DESC, tokens DESC
"""
_CHOSEN_OF: Final[Mapping[str, Sequence[str]]] = {"owners": ("tenant",), "money": ("surface", "tier", "model")}
"""Columns whose values the page offers, by summary."""
_BASES: Final = """
SELECT surface, arg_max(basis, latest_ms) AS basis FROM {sums} WHERE surface <> '' GROUP BY surface ORDER BY surface
"""
_BESIDE: Final = """
SELECT (SELECT sum(judge_usd + CASE WHEN small.served THEN strong.cost_usd ELSE small.cost_usd END) FROM labels
        WHERE entry_ms >= $from_ms) AS comparisons,
    (SELECT count(*) FROM labels WHERE entry_ms >= $from_ms) AS compared,
    (SELECT sum(cost_usd) FROM shadows WHERE entry_ms >= $from_ms) AS shadows,
    (SELECT count(*) FROM shadows WHERE entry_ms >= $from_ms) AS shadowed,
    (SELECT sum(spent) FROM {played}) AS playground,
    (SELECT coalesce(sum(requests), 0) FROM {played}) AS played
"""
_COUNTED: Final = f"coalesce(arm, '') <> '{PLAYGROUND}'"


def _sums(slot: int, name: str, columns: Sequence[str], where: str = "true") -> Summary:
    """Sums of the requests of each group of these columns of BY, among those for which a condition holds."""
    groups = ", ".join(columns)
    slotted = f"entry_ms - entry_ms % {slot} AS slot_ms"
    called = ", ".join(f"one.{column} AS {column}" if column in _BY_CALL else column for column in columns)
    counted = f"FROM rows WHERE {_COUNTED} AND ({where})"
    none = ", ".join(f"0 AS {column}" for column in SAVING_SUMS)
    return Summary(
        f"{name}_{slot}",
        f"""SELECT {groups}, {slotted}, min(entry_ms) AS first_ms, max(entry_ms) AS latest_ms,
    arg_max(basis, entry_ms) AS basis, count(*) AS requests, sum(cost_usd - of_calls) AS spent, 0.0 AS wasted,
    count(*) FILTER (unused) AS wasteful, count(*) FILTER (coalesce(cost_unknown, false)) AS unpriced,
    coalesce(sum(prompt_cache_usd), 0) AS prompt_caches, {SAVING_SQL}
FROM (SELECT *, coalesce(list_sum(list_transform(calls, lambda c: c.cost_usd)), 0) AS of_calls, {_UNUSED} AS unused,
    {ESTIMATED_COST} AS estimated_cost {counted}) GROUP BY ALL
UNION ALL BY NAME SELECT {called}, slot_ms, min(entry_ms) AS first_ms, max(entry_ms) AS latest_ms,
    NULL::VARCHAR AS basis, 0 AS requests, sum(one.cost_usd) AS spent,
    sum(one.cost_usd) FILTER (one.wasted) AS wasted, 0 AS wasteful, 0 AS unpriced, 0.0 AS prompt_caches, {none}
FROM (SELECT * EXCLUDE (calls), {slotted}, unnest(calls) AS one {counted}) GROUP BY ALL""",
        slot,
        _KEPT_S,
    )


def _waste(slot: int, name: str, columns: Sequence[str], where: str = "true") -> Summary:
    """Calls whose answer nobody got, of each group of these columns of BY, by why it was not used and by their tier."""
    groups = ", ".join(columns)
    return Summary(
        f"{name}_waste_{slot}",
        f"""SELECT {groups}, slot_ms, one.tier AS call_tier, CASE WHEN one.attempt = 0
        THEN if(one.verifier = 'judge', 'judge', 'sample')
        WHEN one.outcome = 'lost' THEN 'race' WHEN one.outcome IN ('low_confidence', 'unfit') THEN 'draft'
        ELSE 'other' END AS kind,
    count(*) AS calls, sum(one.cost_usd) AS usd, sum(one.tokens_in + one.tokens_out) AS tokens
FROM (SELECT {groups}, entry_ms - entry_ms % {slot} AS slot_ms, unnest(calls) AS one
    FROM rows WHERE wasted_tokens > 0 AND {_COUNTED} AND ({where}))
WHERE one.wasted GROUP BY ALL""",
        slot,
        _KEPT_S,
    )


def _played(slot: int) -> Summary:
    """What the playground's requests cost."""
    return Summary(
        f"played_{slot}",
        f"""SELECT entry_ms - entry_ms % {slot} AS slot_ms, count(*) AS requests, sum(cost_usd) AS spent
FROM rows WHERE arm = '{PLAYGROUND}' GROUP BY ALL""",
        slot,
        _KEPT_S,
        figures=False,
    )


@dataclass(frozen=True, slots=True)
class MoneyRow:
    """The money of the requests of one name, such as a tenant's; `href` leads to them."""

    name: str
    requests: int
    spent: float
    wasted: float
    wasteful: int
    """Requests with an answer that nobody got."""
    unpriced: int
    """Requests that called a backend whose price nobody states: `spent` is too low by theirs."""
    saving: NetSaving | None
    prompt_caches: float
    """US dollars that providers' prompt caches saved, less what writing to them cost more."""
    unknown: int
    """Requests that cannot be compared: of unknown price, or not answered."""
    tone: int
    """Colour of its bars."""
    query: str
    """The filter of its requests, as the query of a URL."""


@dataclass(frozen=True, slots=True)
class DayReserve:
    """US dollars that the store holds for a surface's comparisons today (UTC): spent, and reserved for those under way.

    `cap` is the most for the day; None where the policy that says it is a candidate's.
    """

    surface: str
    purpose: str
    usd: float
    cap: float | None


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page."""
    view = MoneyView(sources.archive, sources.store)

    async def make(key: str) -> dict[str, Any]:
        by, _, query = key.partition(" ")
        return await view.data(filter_of(parse_qsl(query), since="24h"), by)

    kept = KeptFigures(make, fresh_s=_SHOWN_S)

    async def show(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        wanted = filter_of(query.multi_items(), since="24h")
        by = query.get("by", "surface")
        if by not in BY:
            raise BadFilter(f"by={by} is nothing that money is shown by; there are {', '.join(BY)}")
        if wanted.flags or wanted.slower_ms is not None or wanted.search or not wanted.texts.keys() <= {*BY}:
            raise BadFilter(f"Money is filtered by {', '.join(BY)}; /requests takes the other filters.")
        if wanted.since not in SPANS:
            raise BadFilter(f"Money is shown of a time span that ends now: since={', '.join(SPANS)}")
        made = await kept.get(f"{by} {wanted.query}", patience_for(request))
        return {**_shown(wanted, by), "choices": dict.fromkeys(BY, ()), "total": None} if made is None else made.value

    yield Page("/money", "money.html", show, name="Money", key="m")


class MoneyView:
    """Make the page, of spans from a day on by summaries that the archive keeps."""

    def __init__(self, archive: LiveArchive, store: Store) -> None:
        self._archive = archive
        self._budget = DailyBudget(store)
        self._known: dict[str, tuple[float, Any]] = {}
        self._caps: dict[str, float | None] = {}
        for name, columns in _GROUPS.items():
            archive.keep(_sums(_SLOT_MS, name, columns))
            archive.keep(_waste(_SLOT_MS, name, columns))
        archive.keep(_played(_SLOT_MS))

    async def data(self, wanted: Filter, by: str, now_s: float | None = None) -> dict[str, Any]:
        """Return the money of the requests of a filter, which has a time span, by a column of BY.

        The last bar is under way, so the span begins up to one bar of the day later than it says.
        """
        began = time.perf_counter()
        now = time.time() if now_s is None else now_s
        span_ms = SPANS[wanted.since] * 1000
        slot = min(span_ms // BARS, _SLOT_MS)
        from_ms = (int(now * 1000) // slot + 1) * slot - span_ms
        read = _MoneyQueries(self._archive, wanted, by, from_ms, slot)
        sums, waste, hours, choices, reserved, beside = await asyncio.gather(
            read.by_name(),
            read.by_kind(),
            self._hours(wanted, now),
            self._choices(wanted.since, from_ms),
            self._reserved(wanted.since, from_ms),
            self._beside(wanted.since, from_ms, slot),
        )
        ranked = sorted(sums, key=lambda row: (-(row["spent"] or 0), -row["requests"], str(row["name"] or "")))
        top = [row["name"] for row in ranked[: TONES - 1]]
        rows = [_row(row, wanted, by, place) for place, row in enumerate(ranked[:_LISTED])]
        return {
            **_shown(wanted, by),
            "choices": choices,
            "total": _money(sums, "all", 0, wanted.query),
            "rows": rows,
            "more": len(ranked) - len(rows),
            "names": [*(name or "none" for name in top), *(["all others"] if len(ranked) > len(top) else [])],
            "bars": _bars(await read.by_bar(top, span_ms // BARS), len(top) + (len(ranked) > len(top))),
            "from_s": from_ms / 1000,
            "step_s": span_ms / BARS / 1000,
            "waste": waste,
            "forecasts": _forecasts(hours, now),
            "reserved": reserved,
            "beside": beside,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _hours(self, wanted: Filter, now: float) -> list[dict[str, Any]]:
        """Return what was spent in each hour of this month, and of the last DAYS days, for a filter."""
        oldest = min(_month(now)[0], now - (DAYS + 1) * 86400)
        from_ms = int(oldest * 1000) // _SLOT_MS * _SLOT_MS
        ever = replace(wanted, since="")
        by = next(iter(ever.texts), "surface")
        read = _MoneyQueries(self._archive, ever, by, from_ms, _SLOT_MS)
        return await self._once(f"hours {ever.query}", read.by_hour)

    async def _beside(self, since: str, from_ms: int, slot: int) -> Mapping[str, Any]:
        """Return what comparisons, shadows and the playground cost, which are of no client's request."""
        played = _played(slot)
        sql = _BESIDE.format(played=played.name)

        def ask() -> Awaitable[list[dict[str, Any]]]:
            return self._archive.ask(sql, {"from_ms": from_ms}, from_ms=from_ms, summaries=(played,))

        [row] = await self._once(f"beside {since}", ask)
        return row

    async def _once(self, key: str, ask: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        """Return what a query found within the last minute, else what it finds now."""
        known = self._known.get(key)
        if known is None or time.monotonic() - known[0] > _FRESH_S:
            found = await ask()
            now = time.monotonic()
            self._known = {name: one for name, one in self._known.items() if now - one[0] <= _FRESH_S}
            known = self._known[key] = now, found
        rows: list[dict[str, Any]] = known[1]
        return rows

    async def _choices(self, since: str, from_ms: int) -> Mapping[str, Sequence[str]]:
        """Return the values of columns that occur since a time."""
        found: dict[str, Sequence[str]] = {}
        for name, columns in _CHOSEN_OF.items():
            values = ", ".join(f"list(DISTINCT {column}) AS {column}" for column in columns)
            [row] = await self._of_kept(name, f"SELECT {values} FROM {name}_{_SLOT_MS}", since, from_ms)
            found |= {column: sorted(filter(None, row[column] or ())) for column in columns}
        return found

    async def _of_kept(self, name: str, sql: str, since: str, from_ms: int) -> list[dict[str, Any]]:
        summary = _sums(_SLOT_MS, name, _GROUPS[name])
        begins = from_ms // _SLOT_MS * _SLOT_MS
        return await self._once(f"{sql} {since}", lambda: self._archive.ask(sql, from_ms=begins, summaries=(summary,)))

    async def _reserved(self, since: str, from_ms: int) -> list[DayReserve] | None:
        """Return what the store has for the comparisons of today, of the surfaces that were asked since a time.

        None if the store does not answer.
        """
        rows = await self._of_kept("money", _BASES.format(sums=f"money_{_SLOT_MS}"), since, from_ms)
        latest = {row["surface"]: row["basis"] for row in rows}
        found = []
        for surface, basis in latest.items():
            cap = await self._cap(basis)
            try:
                spent = await self._budget.spent(surface)
                shadows = await self._budget.spent(f"shadow:{surface}")
            except StoreUnavailable:
                return None
            if cap is not None or spent:
                found.append(DayReserve(surface, "comparisons", spent, cap))
            if shadows:
                found.append(DayReserve(surface, "shadows", shadows, None))
        return found

    async def _cap(self, basis: str | None) -> float | None:
        """Return the most that the comparisons of a decision's policy may cost in a day; None if it has none."""
        if basis is None:
            return None
        if basis not in self._caps:
            self._caps[basis] = await self._cap_of(basis)
        return self._caps[basis]

    async def _cap_of(self, basis: str) -> float | None:
        rows = await self._archive.ask("SELECT basis::VARCHAR AS basis FROM bases WHERE id = $id", {"id": basis})
        try:
            learn = DecisionBasis.decode(rows[0]["basis"].encode()).policy.learn if rows else None
        except BasisError:
            return None
        return None if learn is None else learn.max_usd_per_day


class _MoneyQueries:
    """Ask for the money of a filter's requests from a time on, by one column.

    Each is read from a summary that tells apart all columns that it is about, else from the requests themselves.
    """

    def __init__(self, archive: LiveArchive, wanted: Filter, by: str, from_ms: int, slot: int) -> None:
        self._archive = archive
        self._by = by
        self._from_ms = from_ms
        self._slot = slot
        self._where, self._values = replace(wanted, since="").where(0.0)
        self._sums, self._of_sums = self._summary(_sums, {by, *wanted.texts})
        self._waste, self._of_waste = self._summary(_waste, {*wanted.texts})

    def _summary(self, make: Callable[..., Summary], needed: set[str]) -> tuple[Summary, str]:
        """Return a summary for these columns, and the condition that its rows must fulfil."""
        for name, columns in _GROUPS.items():
            if needed <= {*columns}:
                return make(self._slot, name, columns), self._where
        return make(self._slot, "some", (self._by,), self._where), "true"

    async def by_name(self) -> list[dict[str, Any]]:
        """Return the sums of each value of the column."""
        sql = _BY_NAME.format(by=self._by, sums=self._sums.name, where=self._of_sums)
        return await self._ask(sql, self._sums)

    async def by_bar(self, top: Sequence[str], bar_ms: int) -> list[dict[str, Any]]:
        """Return what was spent in each bar, by the place in `top` of the column's value; None for other values."""
        sql = _BY_BAR.format(by=self._by, sums=self._sums.name, where=self._of_sums)
        return await self._ask(sql, self._sums, from_ms=self._from_ms, top=list(top), bar_ms=bar_ms)

    async def by_hour(self) -> list[dict[str, Any]]:
        """Return what was spent in each hour since 1970, and when its first request was."""
        return await self._ask(_BY_HOUR.format(sums=self._sums.name, where=self._of_sums), self._sums)

    async def by_kind(self) -> list[dict[str, Any]]:
        """Return the calls whose answer nobody got, by why and by tier, the dearest first."""
        return await self._ask(_BY_KIND.format(waste=self._waste.name, where=self._of_waste), self._waste)

    async def _ask(self, sql: str, summary: Summary, **values: Any) -> list[dict[str, Any]]:
        given = {**self._values, **values}
        return await self._archive.ask(sql, given, from_ms=self._from_ms, summaries=(summary,))


def _shown(wanted: Filter, by: str) -> dict[str, Any]:
    """Return what the page says of the requests that are asked for."""
    return {
        "by": by,
        "columns": BY,
        "since": wanted.since,
        "spans": tuple(SPANS),
        "filter": {"query": wanted.query, "words": wanted.words, "texts": wanted.texts},
    }


def _row(row: Mapping[str, Any], wanted: Filter, by: str, place: int) -> MoneyRow:
    name = row["name"] or ""
    return _money([row], name or "none", min(place, TONES - 1), wanted.with_(**{by: name}) if name else "")


def _money(rows: Sequence[Mapping[str, Any]], name: str, tone: int, query: str) -> MoneyRow:
    """Add up rows of sums."""
    total = {column: math.fsum(row[column] or 0 for row in rows) for column in _ADDED}
    return MoneyRow(
        name=name,
        requests=int(total["requests"]),
        spent=total["spent"],
        wasted=total["wasted"],
        wasteful=int(total["wasteful"]),
        unpriced=int(total["unpriced"]),
        saving=net_saving(total),
        prompt_caches=total["prompt_caches"],
        unknown=int(total["requests"] - total["known"]),
        tone=tone,
        query=query,
    )


def _bars(found: Sequence[Mapping[str, Any]], parts: int) -> list[list[float]]:
    bars = [[0.0] * max(parts, 1) for _ in range(BARS)]
    for row in found:
        place = parts - 1 if row["place"] is None else row["place"] - 1
        bars[row["bar"]][place] += row["spent"]
    return bars


def _forecasts(hours: Sequence[Mapping[str, Any]], now: float) -> dict[str, SpendingForecast]:
    """Return what today and this month (UTC) will have cost."""
    by_hour = {int(row["hour"]): float(row["spent"] or 0) for row in hours}
    first = min((row["first_ms"] / 1000 for row in hours), default=now)
    return {
        name: forecast(
            by_hour, first, now, end, math.fsum(usd for hour, usd in by_hour.items() if hour >= start // 3600)
        )
        for name, (start, end) in {"today": _day(now), "this month": _month(now)}.items()
    }


def _day(now: float) -> tuple[float, float]:
    """Return when the day (UTC) began and ends, in Unix seconds."""
    start = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return start.timestamp(), (start + timedelta(days=1)).timestamp()


def _month(now: float) -> tuple[float, float]:
    start = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start.timestamp(), (start + timedelta(days=32)).replace(day=1).timestamp()
