"""A conversation: whether its turns changed tiers, why, and what that cost; and those that did so most often."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from gateway.archive.live import LiveArchive
from gateway.config.prices import Price
from gateway.config.schema import Deployment
from gateway.console.flips import Row, conversations_in, sums_of, turns_of
from gateway.console.kept_figures import KeptFigures, patience_for
from gateway.console.page import BadQuery, Page, PageError, Sources, whole_in
from policies.session import SessionCaps

SPANS: Final = {"1h": 3600, "6h": 6 * 3600, "24h": 86400}
MOST: Final = 500
"""Turns that a page shows, the latest."""
_AROUND_MS: Final = 12 * 3600 * 1000
"""How far before and after a known request the others are looked for."""
_LISTED: Final = 40
_LIST_ROWS: Final = 4000
_RECENT: Final = 1000
_FRESH_S: Final = 30.0
_COLUMNS: Final = (
    "entry_ms, entry_seq, started_s, conversation, session, request_id, tenant, surface, policy, path, tier, model, "
    "status, error, cost_usd, cost_unknown, counterfactual_usd, answer_tokens_in, dropped, calls, served, holdout, "
    "basis, given.min_tier AS min_tier, given.max_tier AS max_tier, decision.reason AS reason, "
    "decision.stand_in AS stand_in, list_transform(given.health, lambda one: one.unavailable) AS unavailable"
)
_LADDERS: Final = "SELECT id, (basis ->> '$.ladder[*]') AS ladder FROM bases WHERE id IN (SELECT unnest($ids))"
_SESSION: Final = """
SELECT count(*) AS requests, count(DISTINCT conversation) AS chats, sum(cost_usd) AS usd,
    coalesce(bool_or(cost_unknown), false) AS usd_unknown, max(started_s) - min(started_s) AS lasted_s
FROM requests WHERE session = $session AND surface = $surface AND entry_ms BETWEEN $from_ms AND $to_ms
"""
_CAPS: Final = "SELECT (basis -> '$.content.session') AS caps FROM bases WHERE id = $id"
_MOST_FLIPS: Final = f"""
SELECT conversation FROM (
    SELECT conversation, tier, lag(tier) OVER (PARTITION BY conversation ORDER BY started_s) AS before, entry_ms
    FROM requests WHERE conversation IN (
        SELECT conversation FROM requests WHERE conversation <> '' AND len(served) > 0
        GROUP BY conversation HAVING min(tier) <> max(tier)) AND len(served) > 0)
GROUP BY conversation ORDER BY count(*) FILTER (tier <> before) DESC, max(entry_ms) DESC LIMIT {_LISTED}
"""


class NoSuchConversation(PageError):
    """There is no request of that conversation; the message says where it was looked for."""

    status, title = 404, "Not recorded"


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page of one conversation, and the list of those that changed tiers most often."""
    view = ConversationView(sources.archive, sources.places.deployment)

    async def show(request: Request) -> Mapping[str, Any]:
        at = request.query_params.get("at", "")
        if at and whole_in(at) is None:
            raise BadQuery(f"at={at} is not a time in milliseconds")
        return await view.data(request.path_params["id"], whole_in(at))

    async def show_list(request: Request) -> Mapping[str, Any]:
        since = request.query_params.get("since", "1h")
        if since not in SPANS:
            raise BadQuery(f"since={since} is not a time span of this page; there are {', '.join(SPANS)}")
        return await view.most_flips(since, patience_for(request))

    yield Page("/conversations", "conversations.html", show_list)
    yield Page("/conversations/{id}", "conversation.html", show)


class ConversationView:
    """Find conversations and say what their flips cost, at the prices of the config."""

    def __init__(self, archive: LiveArchive, deployment: Deployment) -> None:
        self._archive = archive
        self._kept = KeptFigures(self._most_flips, fresh_s=_FRESH_S)
        self._tiers = [tier.name for tier in deployment.tiers]
        self._prices: dict[str, Price | None] = {
            backend.name: backend.price for tier in deployment.tiers for backend in tier.backends
        }
        self._ladders: dict[str, Sequence[str]] = {}
        self._telling: dict[str, tuple[float, frozenset[str]]] = {}

    async def data(self, name: str, at_ms: int | None = None) -> dict[str, Any]:
        """Return the page of a conversation, of several with this name the one with the request that ended at `at_ms`.

        Without it that is the latest. Raises NoSuchConversation.
        """
        began = time.perf_counter()
        where, values = "conversation = $name", {"name": name}
        if at_ms is not None:
            where += f" AND entry_ms BETWEEN {at_ms - _AROUND_MS} AND {at_ms + _AROUND_MS}"
        found = await self._archive.newest(_COLUMNS, where, values, MOST) if name else []
        if not found:
            raise NoSuchConversation(
                f"No request of a conversation {name!r} is recorded here. It may be older than what is kept "
                "(`ledger.keep`), or be recorded by a gateway that did not name conversations yet."
            )
        rows = sorted(found, key=_in_order)
        several = conversations_in(rows)
        own = next((one for one in several if any(row["entry_ms"] == at_ms for row in one)), several[-1])
        ladders = await self._ladders_of(own)
        turns = turns_of(own, ladders, self._prices, await self._telling_of(own[-1]["surface"], own))
        return {
            "name": name,
            "tenant": own[-1]["tenant"],
            "surface": own[-1]["surface"],
            "started": own[0]["started_s"],
            "lasted_ms": (own[-1]["started_s"] - own[0]["started_s"]) * 1000,
            "policies": list(dict.fromkeys(row["policy"] for row in own)),
            "ladder": ladders.get(own[-1]["basis"] or "", self._tiers),
            "turns": turns,
            "sums": sums_of(turns),
            "session": await self._session_of(own),
            "others": [_link(one) for one in several if one is not own],
            "cut": len(found) == MOST,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def most_flips(self, since: str, patience_s: float | None = None) -> dict[str, Any]:
        """Return the conversations that changed tiers most often, of the latest `since`, one of SPANS' names.

        `listed` is None if they are not found within `patience_s` seconds; None waits for them.
        """
        made = await self._kept.get(since, patience_s)
        return {
            "since": since,
            "spans": tuple(SPANS),
            "listed": None if made is None else made.value,
            "query_ms": 0.0 if made is None else made.took_ms,
        }

    async def _most_flips(self, since: str) -> list[dict[str, Any]]:
        from_ms = int((time.time() - SPANS[since]) * 1000)
        most = await self._archive.ask(_MOST_FLIPS, from_ms=from_ms)
        rows = await self._turns_of([row["conversation"] for row in most], from_ms)
        ladders = await self._ladders_of(rows)
        by_name: dict[str, list[Row]] = {}
        for row in rows:
            by_name.setdefault(row["conversation"], []).append(row)
        listed = []
        for found in by_name.values():
            telling = await self._telling_of(found[-1]["surface"], found)
            for own in conversations_in(found):
                turns = turns_of(own, ladders, self._prices, telling)
                sums = sums_of(turns)
                if sums.flips:
                    tiers = [turn.tier for turn in turns if turn.backend]
                    listed.append({**_link(own), "surface": own[-1]["surface"], "tiers": tiers[-24:], "sums": sums})
        listed.sort(key=lambda one: (-one["sums"].flips, -one["at"]))
        return listed[:_LISTED]

    async def _turns_of(self, names: Sequence[str], from_ms: int) -> list[Row]:
        """Return the requests of some conversations from a time on, the latest _LIST_ROWS, in their order."""
        if not names:
            return []
        values = {f"name{number}": name for number, name in enumerate(names)}
        among = f"entry_ms >= {from_ms} AND conversation IN ({', '.join(f'${name}' for name in values)})"
        found = await self._archive.newest(_COLUMNS, among, values, _LIST_ROWS, between_ms=(from_ms, None))
        return sorted(found, key=_in_order)

    async def _ladders_of(self, rows: Sequence[Row]) -> Mapping[str, Sequence[str]]:
        """Return the ladder of each basis that rows name; each is read once."""
        new = sorted({row["basis"] for row in rows if row["basis"]} - self._ladders.keys())
        if new:
            for row in await self._archive.ask(_LADDERS, {"ids": new}):
                self._ladders[row["id"]] = row["ladder"]
        return self._ladders

    async def _session_of(self, rows: Sequence[Row]) -> dict[str, Any] | None:
        """Return what the session of a conversation has used on its surface, and the policy's caps.

        None where the session is this conversation alone and nothing caps it.
        """
        last, caps = rows[-1], None
        if basis := next((row["basis"] for row in reversed(rows) if row["basis"]), None):
            found = await self._archive.ask(_CAPS, {"id": basis})
            read = SessionCaps.model_validate_json(found[0]["caps"]) if found and found[0]["caps"] else None
            caps = None if read is None else read.model_dump()
        if not last["session"]:
            return None
        around = {"from_ms": rows[0]["entry_ms"] - _AROUND_MS, "to_ms": last["entry_ms"] + _AROUND_MS}
        (used,) = await self._archive.ask(
            _SESSION, {"session": last["session"], "surface": last["surface"], **around}, from_ms=around["from_ms"]
        )
        return {**used, "caps": caps} if caps is not None or used["chats"] > 1 else None

    async def _telling_of(self, surface: str, rows: Sequence[Row]) -> frozenset[str]:
        """Return the backends whose providers said what was cached: in `rows`, or lately on the surface."""
        known = self._telling.get(surface)
        if known is None or time.monotonic() - known[0] > _FRESH_S:
            recent = await self._archive.newest("calls", "surface = $surface", {"surface": surface}, _RECENT)
            known = self._telling[surface] = time.monotonic(), _telling(recent)
        return known[1] | _telling(rows)


def _in_order(row: Row) -> tuple[float, int, int]:
    return row["started_s"], row["entry_ms"], row["entry_seq"]


def _telling(rows: Sequence[Row]) -> frozenset[str]:
    return frozenset(
        call["backend"]
        for row in rows
        for call in row["calls"] or ()
        if call["tokens_cached"] or call["tokens_cache_write"]
    )


def _link(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "name": rows[-1]["conversation"],
        "at": rows[-1]["entry_ms"],
        "started": rows[0]["started_s"],
        "requests": len(rows),
    }
