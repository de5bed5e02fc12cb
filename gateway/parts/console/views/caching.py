"""The cache: what is served from it, what guards refused, how many hits are wrong, and taking a wrong one back.

Hits, savings and lookups are those of the archive. The error bound is what the gateways' audits published last
(`gateway.seams`), the sizes are counted in the store.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cache.store.base import Store, StoreUnavailable
from gateway.parts.cache_admin.administration import Administration
from gateway.parts.cache_admin.cache_view import scope_shown
from gateway.parts.console.kept_figures import KeptFigures, patience_for
from gateway.parts.console.page import Action, BadQuery, Page, Sources, allowed, form_of, person_in, whole_in
from gateway.parts.console.records import Records
from gateway.parts.console.wrong_hit_desk import WrongHitDesk
from gateway.parts.console.wrong_hits import WrongHits
from gateway.parts.ledger.summaries import Summary
from gateway.parts.measures.feedback import ServedHit
from gateway.parts.reasons import detail_names as detail
from gateway.parts.standard import is_provided
from gateway.seams import shown_published
from gateway.telemetry import names

SPANS: Final = {"1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400}
BUCKETS: Final = 60
HITS: Final = 25
LOOKUPS: Final = 2000
"""Newest requests with recorded hops of which the lookups are counted."""
SCOPES: Final = 40
WORDS: Final[Mapping[str, str]] = {
    "hit": "a hit",
    "similarity": "score or similarity too low",
    "no_neighbour": "nothing near is stored",
    "audit": "answered by a model, to compare",
    "absent": "what was near is gone",
    "expired": "what was near has expired",
    "timeout": "the store was too slow",
    "open": "the store is not asked for now",
    "cross_encoder_late": "the cross-encoder was too slow",
    "cross_encoder_busy": "the cross-encoder had too much to do",
    "cross_encoder_failed": "the cross-encoder failed",
    "guard: script": "in a script that the pair model cannot read",
    "guard: unknown_token": "with a sign that the pair model does not know",
    "guard: exchange": "one word in place of another that does not mean the same",
    "index_disagrees": "what was near was replaced",
    "min-similarity": "not similar enough for this request",
    "max-age": "too old for this request",
    "min-fresh": "expires too soon for this request",
    "tag": "its source has changed",
    "tier": "an answer of a tier that this request excludes",
}
"""Outcomes of lookups in words, where their own name is not one."""
_EXAMPLES: Final = 3
_FRESH_S: Final = 5.0
"""How long the counts of lookups and the sizes of scopes are shown again."""
_STALE_S: Final = 180.0
"""Age of published figures from which on no gateway seems to learn: running ones publish every minute."""
_TEXT_MOST: Final = 240
_Z: Final = 1.959964
_SLOT_MS: Final = 6 * 60_000
"""Of summaries that are kept: what the longer spans' buckets are whole numbers of."""


def _served(slot: int) -> Summary:
    """Counts of each surface's hits, and what answers cost and took, with sums of squares."""
    return Summary(
        f"served_{slot}",
        f"""SELECT surface, entry_ms - entry_ms % {slot} AS slot_ms, starts_with(path, 'cache-') AS hit,
    path = 'cache-semantic' AS by_meaning, status = 200 AND path <> '' AS answered, count(*) AS requests,
    sum(list_usd - cost_usd) AS saved_usd, sum(total_ms) AS total_ms,
    sum(total_ms * total_ms) AS total_squares,
    sum(counterfactual_usd - cost_usd) FILTER (NOT coalesce(cost_unknown, false)) AS against_strongest
FROM rows WHERE surface <> '' GROUP BY ALL""",
        slot,
        8 * 86400.0,
    )


_BY_BUCKET: Final = f"""
SELECT surface, ((slot_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER AS bucket, sum(requests) AS requests,
    coalesce(sum(requests) FILTER (hit AND NOT by_meaning), 0) AS exact,
    coalesce(sum(requests) FILTER (by_meaning), 0) AS semantic
FROM {{served}} GROUP BY ALL ORDER BY ALL
"""
_SAVED: Final = """
SELECT surface, hit, sum(requests) AS requests, sum(saved_usd) AS saved_usd, sum(total_ms) AS total_ms,
    sum(total_squares) AS total_squares, sum(against_strongest) AS against_strongest
FROM {served} WHERE answered GROUP BY ALL ORDER BY ALL
"""
_HIT: Final = (
    "entry_ms, started_s, request_id, trace_id, tenant, surface, path, tier, model, similarity, tokens_in, "
    "answer_tokens_out, counterfactual_usd, hops"
)


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the page, and the form that takes a wrong hit back."""
    view = CacheView(sources.archive, sources.store)
    deployment = sources.places.deployment
    wrong = WrongHits(sources.store, deployment.team_of, keep=deployment.telemetry.keep)

    async def show(request: Request) -> Mapping[str, Any]:
        span = request.query_params.get("since", "1h")
        if span not in SPANS:
            raise BadQuery(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
        data = await view.data(span, request.query_params.get("surface", ""), patience_for(request))
        return {**data, "may_change": person_in(request).may_some("cache.purge")}

    desk = WrongHitDesk(sources.archive, wrong)

    async def ask(request: Request) -> Mapping[str, Any]:
        query = request.query_params
        found = await desk.look(query.get("request", ""), whole_in(query.get("at", "")))
        return {**found, "may_change": allowed(request, "cache.purge", found["surface"])}

    async def take_back(request: Request) -> Response:
        """Take back the hit of a request, or undo that, and show what was done."""
        form = await form_of(request)
        request_id, at_ms = form.get("request", ""), whole_in(form.get("at", ""))
        surface = (await desk.look(request_id, at_ms))["surface"]
        if not allowed(request, "cache.purge", surface):
            raise HTTPException(403, f"You may look, and may not remove answers of {surface}.")
        done = await (desk.undo if form.get("do") == "undo" else desk.take_back)(request_id, at_ms)
        return sources.render.page(request, "wrong_hit.html", done)

    yield Page("/cache", "cache.html", show, name="Cache", key="c")
    yield Page("/cache/wrong", "wrong_hit.html", ask)
    yield Action("/cache/wrong", take_back, "cache.purge")


class CacheView:
    """Make the page."""

    def __init__(self, archive: Records, store: Store) -> None:
        self._archive = archive
        self._store = store
        self._administration = Administration(store)
        archive.keep(_served(_SLOT_MS))
        self._served = KeptFigures(self._surfaces, fresh_s=_FRESH_S)
        self._lookups = KeptFigures(self._counted, fresh_s=_FRESH_S)
        self._sizes: tuple[float, dict[str, Any]] | None = None

    async def data(self, span: str = "1h", surface: str = "", patience_s: float | None = None) -> dict[str, Any]:
        """Return the figures of the latest `span`, one of SPANS' names, with lookups and hits of one surface or all.

        `surfaces` and `lookups` are None if they are not there within `patience_s` seconds; None waits for them.
        """
        began, now = time.perf_counter(), time.time()
        made, lookups, hits, in_store = await asyncio.gather(
            self._served.get(span, patience_s),
            self._lookups.get(f"{span} {surface}", patience_s),
            self._hits(surface, int(now * 1000) - SPANS[span] * 1000),
            self._in_store(now),
        )
        return {
            "span": span,
            "spans": tuple(SPANS),
            "words": WORDS,
            "surface": surface,
            "surfaces": None if made is None else made.value,
            "lookups": None if lookups is None else lookups.value,
            "hits": hits,
            **in_store,
            "now_s": now,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _surfaces(self, span: str) -> list[dict[str, Any]]:
        """Return each surface's figures over a span, whose last bucket is under way."""
        span_ms = SPANS[span] * 1000
        slot = min(span_ms // BUCKETS, _SLOT_MS)
        from_ms = (int(time.time() * 1000) // slot + 1) * slot - span_ms
        served = _served(slot)
        given = {"from_ms": from_ms, "span_ms": span_ms}
        by_bucket, saved = (sql.format(served=served.name) for sql in (_BY_BUCKET, _SAVED))
        rows = await self._archive.ask(by_bucket, given, from_ms=from_ms, summaries=(served,))
        return surfaces_served(rows, await self._archive.ask(saved, from_ms=from_ms, summaries=(served,)))

    async def _in_store(self, now: float) -> dict[str, Any]:
        """Return the error bound of each surface, and the size of what is stored; the rest is shown without."""
        measures = is_provided("hit_bound")
        try:
            risks = [_risk_shown(risk, now) for risk in await shown_published(self._store)]
            return {"risks": risks, "measures": measures, "stored": await self._stored(), "store_fails": ""}
        except StoreUnavailable as down:
            return {"risks": [], "measures": measures, "stored": None, "store_fails": str(down)}

    async def _stored(self) -> dict[str, Any]:
        if self._sizes is None or time.monotonic() - self._sizes[0] > _FRESH_S:
            scopes = [scope_shown(stats) for stats in await self._administration.stats()]
            scopes.sort(key=lambda scope: -scope["bytes"])
            shown = {
                "scopes": scopes[:SCOPES],
                "left_out": max(0, len(scopes) - SCOPES),
                "entries": sum(scope["entries"] for scope in scopes),
                "bytes": sum(scope["bytes"] for scope in scopes),
                "purged": sum(scope["entries"] for scope in scopes if not scope["current"]),
            }
            self._sizes = time.monotonic(), shown
        return self._sizes[1]

    async def _counted(self, key: str) -> dict[str, Any]:
        """Return what the newest lookups by meaning came to; `key` is a span, a space, and a surface or nothing."""
        span, _, surface = key.partition(" ")
        where, values = _within(surface, int(time.time() * 1000) - SPANS[span] * 1000)
        columns = "entry_ms, request_id, surface, hops"
        rows = await self._archive.newest(columns, f"kept <> '' AND {where}", values, LOOKUPS)
        return await asyncio.to_thread(counted_lookups, rows)

    async def _hits(self, surface: str, from_ms: int) -> list[dict[str, Any]]:
        where, values = _within(surface, from_ms)
        rows = await self._archive.newest(_HIT, f"path = 'cache-semantic' AND {where}", values, HITS)
        if not rows:
            return []
        ids = ", ".join(f"$id{number}" for number in range(len(rows)))
        given = {f"id{number}": row["request_id"] for number, row in enumerate(rows)}
        ratings = await self._archive.ask(
            f"SELECT tenant, request_id, arg_max(score, (entry_ms, entry_seq)) AS score FROM feedback_all "
            f"WHERE request_id IN ({ids}) GROUP BY ALL",
            given,
        )
        scores = {(rating["tenant"], rating["request_id"]): rating["score"] for rating in ratings}
        return [_hit_shown(row, scores.get((row["tenant"], row["request_id"]))) for row in rows]


def _within(surface: str, from_ms: int) -> tuple[str, dict[str, Any]]:
    return "entry_ms >= $from_ms AND ($surface = '' OR surface = $surface)", {"from_ms": from_ms, "surface": surface}


def surfaces_served(buckets: Sequence[Mapping[str, Any]], saved: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each surface's hits over time and savings, the one with most requests first."""
    by_surface: dict[str, list[Mapping[str, Any]]] = {}
    for row in buckets:
        by_surface.setdefault(row["surface"], []).append(row)
    halves = {(row["surface"], row["hit"]): row for row in saved}
    shown = []
    for surface, rows in by_surface.items():
        requests, exact, semantic = (sum(row[name] for row in rows) for name in ("requests", "exact", "semantic"))
        shown.append(
            {
                "surface": surface,
                "requests": requests,
                "exact": exact,
                "semantic": semantic,
                "rate": (exact + semantic) / requests,
                "over_time": _over_time(rows),
                **savings(halves.get((surface, True)), halves.get((surface, False))),
            }
        )
    return sorted(shown, key=lambda row: -row["requests"])


def _over_time(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float] | None]:
    """Return the shares of exact hits and of hits by meaning in each bucket; None where no request was."""
    found: list[tuple[float, float] | None] = [None] * BUCKETS
    for row in rows:
        if 0 <= row["bucket"] < BUCKETS:
            found[row["bucket"]] = row["exact"] / row["requests"], row["semantic"] / row["requests"]
    return found


def savings(hits: Mapping[str, Any] | None, misses: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what hits saved: `saved_usd` is known exactly, as the list price of the stored answers' tokens is.

    `saved_ms` is estimated, with its 95% interval from the spread of both: what hits took less than as many answers of
    the same surface that were no hits; None where one of the two is missing, or too few to tell. `against_strongest` is
    the ledger's comparison: what the strongest tier would have cost for the same answers.
    """
    if hits is None:
        return {"saved_usd": None, "saved_ms": None, "against_strongest": None}
    known = {"saved_usd": hits["saved_usd"], "against_strongest": hits["against_strongest"]}
    few = misses is None or misses["requests"] < 2
    return {**known, "saved_ms": None if few or misses is None else _saved(hits, misses, "total_ms", "total_squares")}


def _saved(hits: Mapping[str, Any], misses: Mapping[str, Any], total: str, squares: str) -> dict[str, float]:
    count = hits["requests"]
    value = count * misses[total] / misses["requests"] - hits[total]
    spread = count**2 * _variance(misses, total, squares) / misses["requests"] + count * _variance(hits, total, squares)
    half = _Z * math.sqrt(spread)
    return {"value": value, "low": value - half, "high": value + half}


def _variance(of: Mapping[str, Any], total: str, squares: str) -> float:
    """Return the variance of single requests, from their sum and that of their squares; 0 of one alone."""
    count = of["requests"]
    return max(0.0, of[squares] - of[total] ** 2 / count) / (count - 1) if count > 1 else 0.0


def counted_lookups(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count outcomes and vetoes of the lookups by meaning in these requests' hops.

    A guard counts once per request: for the best candidate, for which it made the lookup a miss (`decided`), and for
    others that it refused beside it.
    """
    outcomes: Counter[str] = Counter()
    guards: dict[str, dict[str, Any]] = {}
    lookups = 0
    for row in rows:
        for hop in orjson.loads(row["hops"]):
            if hop["name"] != names.CACHE_SEMANTIC:
                continue
            lookups += 1
            a = hop["attributes"]
            decided = a.get(detail.GUARD, "")
            outcomes[a.get(names.CACHE_REASON) or a.get(names.CACHE_OUTCOME, "no outcome")] += 1
            beside = {veto.rpartition(" ")[0] for veto in a.get(names.VETOED, ())}
            for guard in filter(None, {decided, *beside}):
                vetoing = guards.setdefault(guard, {"guard": guard, "requests": 0, "decided": 0, "examples": []})
                vetoing["requests"] += 1
                vetoing["decided"] += guard == decided
                if guard == decided and len(vetoing["examples"]) < _EXAMPLES:
                    vetoing["examples"].append(
                        {
                            "request_id": row["request_id"],
                            "entry_ms": row["entry_ms"],
                            "similarity": a.get(names.SIMILARITY),
                            "number": hop["number"],
                        }
                    )
    ranked = sorted(guards.values(), key=lambda guard: (-guard["requests"], guard["guard"]))
    return {
        "requests": len(rows),
        "lookups": lookups,
        "outcomes": [{"outcome": name, "count": count} for name, count in outcomes.most_common()],
        "guards": ranked,
    }


def _risk_shown(risk: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return a surface's error bound: its figures, and in one word how it stands."""
    if risk["breached"]:
        state = "breached"
    elif risk["error_most"] is None:
        state = "few labels"
    else:
        state = "kept"
    return {**risk, "state": state, "stale": now - risk["at"] > _STALE_S}


def _hit_shown(row: Mapping[str, Any], rating: float | None) -> dict[str, Any]:
    """Return a hit as the page shows it: texts only where they were captured with the request."""
    hops = orjson.loads(row["hops"])
    root = hops[0]["attributes"] if hops else {}
    lookup: Mapping[str, Any] = next((hop["attributes"] for hop in hops if hop["name"] == names.CACHE_SEMANTIC), {})
    hit: ServedHit | None = ServedHit.of(hops)
    captured = names.PROMPT in root
    return {
        **{name: row[name] for name in row if name not in ("hops", "trace_id")},
        "entry": None if hit is None else hit.entry_id,
        "score": None if hit is None else hit.score,
        "threshold": lookup.get(names.THRESHOLD),
        "stage": lookup.get(names.STAGE, ""),
        "age_s": lookup.get(names.CACHE_AGE),
        "asked": str(root[names.PROMPT])[:_TEXT_MOST] if captured else None,
        "stored": str(lookup.get(names.NEIGHBOUR, ""))[:_TEXT_MOST] if captured else None,
        "rating": rating,
    }
