"""Usage: what each key, team and tenant has spent on which days, of which budget, what is reserved, and where it goes;
and to who may see all of them, what surfaces and providers cost, and what was saved (`gateway.parts.ledger.costs`).

Spent is by the ledger, as `tierline usage` has it, of the month that runs (UTC) or of any days (`usage_range`). A
budget's own figures are those of its counter in the store, which requests are held to, in its own window.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cache.store.base import Store
from gateway.parts.access.pages.usage_owners import UsageOwners
from gateway.parts.console.live import LiveUpdates, added_in
from gateway.parts.console.page import Action, BadQuery, Page, Sources, allowed
from gateway.parts.console.records import Records
from gateway.parts.console.spending_forecast import DAYS, forecast
from gateway.parts.console.svg.bars import TONES
from gateway.parts.console.usage_range import UsageRange
from gateway.parts.ledger.costs import Costs
from gateway.parts.ledger.summaries import Summary
from gateway.parts.ledger.usage import TEAM
from policies.quantities import NANO

BY: Final = ("key", "team", "tenant", "day")
_OF_TEAMS: Final = ("key", "team", "day")
"""What is shown to who may see some teams alone: tenants' figures and budgets are of others too."""
_LISTED: Final = 100
_LATEST: Final = 20
_SLOT_MS: Final = 1800 * 1000
_DOES: Final = "usage.see"
_ALL: Final = "*"
_USED: Final = Summary(
    f"usage_{_SLOT_MS}",
    f"""SELECT coalesce(tenant, '') AS tenant, coalesce(team, '') AS team, coalesce("key", '') AS "key",
    entry_ms - entry_ms % {_SLOT_MS} AS slot_ms, count(*) AS requests, sum(tokens_in + tokens_out) AS tokens,
    sum(coalesce(charged_usd, cost_usd)) AS spent, coalesce(sum(list_usd), 0) AS list,
    count(*) FILTER (coalesce(cost_unknown, false)) AS unpriced, min(started_s) AS first_s
FROM rows GROUP BY ALL""",
    _SLOT_MS,
    (DAYS + 33) * 86400.0,
    figures=False,
)
_SUMS: Final = f"""
SELECT {{name}} AS name, sum(requests)::BIGINT AS requests,
    sum(tokens)::BIGINT AS tokens, sum(spent) AS spent, sum(list) AS list, sum(unpriced)::BIGINT AS unpriced
FROM {_USED.name} WHERE slot_ms < $until_ms AND {{where}} GROUP BY name ORDER BY {{order}}
"""
_BARS: Final = f"""
SELECT ((slot_ms - $from_ms) // $bar_ms)::INTEGER AS bar, list_position($top, {{name}}) AS place, sum(spent) AS spent
FROM {_USED.name} WHERE slot_ms < $until_ms AND {{where}} GROUP BY ALL
"""
_NAMES: Final[Mapping[str, str]] = {
    "key": '"key"',
    "team": TEAM,
    "tenant": "tenant",
    "day": "strftime(make_timestamp(slot_ms * 1000), '%Y-%m-%d')",
}
"""SQL of what a row is of, by the column of BY."""
_HOURS: Final = f"""
SELECT {{by}} AS name, slot_ms // 3600000 AS hour, sum(spent) AS spent, min(first_s) AS first_s
FROM {_USED.name} WHERE list_contains($names, {{by}}) GROUP BY ALL
"""
_COLUMNS: Final = (
    "entry_ms, started_s, request_id, tenant, team, key, surface, tier, path, status, charged_usd, cost_usd, list_usd, "
    "cost_unknown, tokens_in, tokens_out"
)


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the page, the stream of its updates, and its table as CSV."""
    view = UsageView(sources.archive, sources.store)

    async def part(key: str) -> str:
        by, query, teams = key.split(" ")
        seen = None if teams == _ALL else teams.split(",")
        span = UsageRange.asked_for(dict(parse_qsl(query)), time.time())
        return sources.render.part("usage_live.html", await view.data(by, seen, span=span))

    updates = LiveUpdates(sources.archive, part)

    async def show(request: Request) -> Mapping[str, Any]:
        added = sources.archive.added
        return {**await view.data(_by(request), _teams(request), span=_span(request)), "added": added}

    async def live(request: Request) -> Response:
        teams = _teams(request)
        key = f"{_by(request)} {_span(request).query} {_ALL if teams is None else ','.join(teams)}"
        return StreamingResponse(updates.updates(key, added_in(request)), media_type="text/event-stream")

    async def table(request: Request) -> Response:
        by = _by(request)
        data = await view.data(by, _teams(request), span=_span(request))
        name = f"usage-by-{by}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(_csv(by, data["rows"]), media_type="text/csv", headers=headers)

    yield Page("/usage", "usage.html", show, name="Usage", key="u", does=_DOES)
    yield Action("/usage/live", live, _DOES, methods=("GET",))
    yield Action("/usage.csv", table, _DOES, methods=("GET",))


def _by(request: Request) -> str:
    by, columns = request.query_params.get("by", "key"), BY if allowed(request, _DOES) else _OF_TEAMS
    if by not in columns:
        raise BadQuery(f"by={by} is nothing that usage is shown by; there are {', '.join(columns)}")
    return by


def _span(request: Request) -> UsageRange:
    return UsageRange.asked_for(request.query_params, time.time())


def _teams(request: Request) -> list[str] | None:
    """Return the teams of their own tenant that the person who asks may see; None for all."""
    if allowed(request, _DOES):
        return None
    return UsageOwners.teams_of(request.state.person, _DOES)


class UsageView:
    """Make the page, by a summary that the archive keeps."""

    def __init__(self, archive: Records, store: Store) -> None:
        self._archive = archive
        self._owners = UsageOwners(store)
        archive.keep(_USED)
        self._all_costs = Costs(archive)

    async def data(
        self,
        by: str,
        teams: Sequence[str] | None = None,
        now_s: float | None = None,
        span: UsageRange | None = None,
    ) -> dict[str, Any]:
        """Return the usage of some days, or this month's, by a column of BY, of the requests of some teams, or all.

        The newest requests too.
        """
        began = time.perf_counter()
        now = time.time() if now_s is None else now_s
        span = span or UsageRange.asked_for({}, now)
        start, end = span.start_s, span.end_s
        where, values = "true", {}
        if teams is not None:
            where, values = f"list_contains($teams, {TEAM})", {"teams": list(teams)}
        order = "name DESC" if by == "day" else "spent DESC, requests DESC, name"
        within = {**values, "until_ms": int(end * 1000)}
        sums, latest, budgets, costs = await asyncio.gather(
            self._ask(_SUMS.format(name=_NAMES[by], where=where, order=order), within, start),
            self._archive.newest(_COLUMNS, where, values, _LATEST),
            self._owners.budgets(),
            self._costs(teams, span),
        )
        of_owner: dict[str, list[Any]] = {}
        for budget in budgets or ():
            if budget.account.kind == by:
                of_owner.setdefault(budget.account.owner, []).append(budget)
        shown = [row["name"] for row in sums]
        if span.runs and (teams is None or by == "team"):
            shown += [name for name in of_owner if name not in shown and (teams is None or name in teams)]
        rows_of = {row["name"]: row for row in sums}
        history_s = min(start, now - (DAYS + 1) * 86400)
        hours = {} if by == "day" or not span.runs else await self._hours(by, shown[:_LISTED], history_s)
        top = [] if by == "day" else shown[: TONES - 1]
        rows = [
            _owner(name, rows_of.get(name, {}), of_owner.get(name, ()), hours.get(name, ({}, now)), now, end)
            for name in shown[:_LISTED]
        ]
        return {
            "by": by,
            "columns": BY if teams is None else _OF_TEAMS,
            "span": {
                "words": span.words,
                "query": span.query,
                "first": span.first,
                "last": span.last,
                "runs": span.runs,
            },
            "names_of_bars": [*(name or "none" for name in top), *(["all others"] if len(shown) > len(top) else [])],
            "bars": await self._bars(by, where, within, span, top, len(top) + (len(shown) > len(top))),
            "from_s": start,
            "step_s": span.days_a_bar * 86400,
            "rows": rows,
            "more": len(shown) - len(rows),
            "total": {
                name: math.fsum(row[name] for row in sums)
                for name in ("requests", "tokens", "spent", "list", "unpriced")
            },
            "costs": costs,
            "costs_by": Costs.BY,
            "budgets_known": budgets is not None,
            "latest": latest,
            "names": await self._owners.names(
                {*(shown[:_LISTED] if by == "key" else ()), *(row["key"] for row in latest)}
            ),
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _bars(
        self, by: str, where: str, within: Mapping[str, Any], span: UsageRange, top: Sequence[str], parts: int
    ) -> list[list[float]]:
        """Return what was spent in each part of the days, by the place of its owner in `top`, of all others last."""
        bars = [[0.0] * max(parts, 1) for _ in range(span.bars)]
        from_ms, bar_ms = int(span.start_s * 1000), span.days_a_bar * 86_400_000
        given = {**within, "top": list(top), "from_ms": from_ms, "bar_ms": bar_ms}
        for row in await self._ask(_BARS.format(name=_NAMES[by], where=where), given, span.start_s):
            bars[row["bar"]][parts - 1 if row["place"] is None else row["place"] - 1] += row["spent"] or 0.0
        return bars

    async def _costs(self, teams: Sequence[str] | None, span: UsageRange) -> dict[str, Any] | None:
        """Return what all requests of the days cost; None for who may see those of some teams alone."""
        return None if teams is not None else await self._all_costs.between(span.start_s, span.end_s)

    async def _hours(self, by: str, names: Sequence[str], oldest: float) -> dict[str, tuple[dict[int, float], float]]:
        """Return what some owners spent in each hour since 1970, and when the first request of each was."""
        found: dict[str, tuple[dict[int, float], float]] = {}
        for row in await self._ask(_HOURS.format(by=_NAMES[by]), {"names": list(names)}, oldest):
            hours, first = found.get(row["name"], ({}, math.inf))
            hours[int(row["hour"])] = float(row["spent"] or 0)
            found[row["name"]] = hours, min(first, row["first_s"])
        return found

    async def _ask(self, sql: str, values: Mapping[str, Any], oldest: float) -> list[dict[str, Any]]:
        from_ms = int(oldest * 1000) // _SLOT_MS * _SLOT_MS
        return await self._archive.ask(sql, values, from_ms=from_ms, summaries=(_USED,))


def _owner(
    name: str,
    row: Mapping[str, Any],
    budgets: Sequence[Any],
    history: tuple[Mapping[int, float], float],
    now: float,
    end: float,
) -> dict[str, Any]:
    """Return what one owner has used this month, and each budget in its present window; money in US dollars.

    `forecast` is None for a budget that does not end.
    """
    spent = float(row.get("spent") or 0)
    return {
        "name": name or "none",
        "requests": row.get("requests", 0),
        "tokens": row.get("tokens", 0),
        "spent": spent,
        "list": float(row.get("list") or 0),
        "unpriced": row.get("unpriced", 0),
        "month": forecast(*history, now, end, spent),
        "budgets": [
            {
                "window": budget.account.window.name if budget.account.window else "",
                "spent": budget.spent / NANO,
                "limit": budget.account.limit / NANO,
                "reserved": budget.reserved / NANO,
                "share": budget.spent / budget.account.limit if budget.account.limit else float(budget.spent > 0),
                "forecast": (ends := budget.account.ends) and forecast(*history, now, ends, budget.spent / NANO),
            }
            for budget in budgets
        ],
    }


def _csv(by: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each budget of each owner, and for each owner without one."""
    text = io.StringIO()
    own, of = ("requests", "tokens", "spent", "list", "unpriced"), ("window", "spent", "limit", "reserved", "share")
    out = csv.writer(text)
    named = ("charged_usd", "hits_at_list_usd", "of_unknown_price", "window", "budget_spent_usd", "budget_usd")
    out.writerow((by, "requests", "tokens", *named, "reserved_usd", "share"))
    for row in rows:
        name = f"'{row['name']}" if row["name"][:1] in "=+-@" else row["name"]  # else a spreadsheet computes it
        budgets: Sequence[Mapping[str, Any]] = row["budgets"] or ({},)
        for budget in budgets:
            out.writerow((name, *(row[column] for column in own), *(budget.get(column, "") for column in of)))
    return text.getvalue()
