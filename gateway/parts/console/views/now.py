"""Now: whether anything is wrong, where, and since which change. A row per surface, and what needs somebody.

A surface is in one of three states: it misses a limit by more than chance (`needs`), it keeps them all (`well`), or it
has too few requests to say (`few`). The page begins with the worst of them, in a sentence.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.parts.access.pages.budget_needs import BudgetWatch
from gateway.parts.console.bases import RecordedBases
from gateway.parts.console.hours_before import BEFORE, BEFORE_S, SLOT_MS, compared_hours, gone, unjudged_need
from gateway.parts.console.kept_figures import KeptFigures
from gateway.parts.console.limits import GOODPUT_OBJECTIVE, limit_misses
from gateway.parts.console.live import LiveUpdates, added_in
from gateway.parts.console.needs import limits_held, needs_of_surface, state_of, verdict_of
from gateway.parts.console.page import Action, BadQuery, Page, Sources
from gateway.parts.console.records import Records
from gateway.parts.console.running_out import LimitWatch, child_needs, flapping
from gateway.parts.console.standing import (
    Need,
    StandingChip,
    StandingMark,
    StandingReader,
    StoreStanding,
    backends_of,
    chips_of,
    marks_within,
    needs_of,
    version_marks,
)
from gateway.parts.console.surface_counts import (
    BUCKETS,
    CHANGES,
    CHAT,
    SPANS,
    counts,
    first_bytes,
    keep_counts,
    slot_for,
    versions,
)
from gateway.parts.ledger.holdouts import Holdouts
from gateway.parts.ledger.saving import SAVING_SUMS, net_saving
from gateway.parts.ledger.summaries import LATENCY, Summary
from gateway.parts.recorder.decision_record import DecisionBasis
from gateway.telemetry import names
from policies.model import Policy

_FEWEST_RATINGS: Final = 20
"""Fewest rated answers per arm before its quality is shown against the held-out."""
_DEFAULT_SPANS: Final = ("1h", "6h", "24h")
"""Where no span is asked for: the first that has a request. If all of an hour's are of 15 minutes, these."""
_ADDED: Final = (
    "requests", "held", "good", "late", "failed", "refused", "escalated", "hits", "direct", "fallback", "cost",
    "cost_squares", "drafts", "unjudged", *SAVING_SUMS, "canary",
)  # fmt: skip
"""Columns of the counts that add up."""
_BY_BUCKET: Final = f"""
SELECT surface, ((slot_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER AS bucket,
    sum(COLUMNS('^({"|".join(_ADDED)})$')),
    bool_or(unknown) AS unknown, max(slot_ms) AS slot_ms, arg_max(basis, latest_ms) AS basis,
    arg_max(unavailable, latest_ms) FILTER (unavailable IS NOT NULL) AS unavailable
FROM {{counts}} GROUP BY surface, bucket ORDER BY surface, bucket
"""
_LAST_MINUTE: Final = f"""
SELECT surface, count(*) / 60.0 AS per_second, sum(total_ms) / 60000.0 AS in_flight FROM requests
WHERE {CHAT} GROUP BY surface
"""
_MISSES: Final = f"""
SELECT surface, objective, dimension, value, CASE dimension WHEN 'all' THEN ((slot_ms - $from_ms) * {BUCKETS}
    // $span_ms)::INTEGER END AS bucket, sum(held)::INTEGER AS held, sum(missed)::INTEGER AS missed
FROM {{misses}} WHERE dimension IN ('all', 'tier_', 'path_') GROUP BY ALL
"""
_DOWN_SINCE: Final = """
SELECT min(started_s) AS since_s FROM requests WHERE surface = $surface AND given IS NOT NULL AND entry_ms > (
    SELECT coalesce(max(entry_ms), 0) FROM requests
    WHERE surface = $surface AND given IS NOT NULL AND coalesce(given.health[$number].unavailable, '') = '')
"""
_UNJUDGED: Final = (
    "surface = $surface AND hops IS NOT NULL AND list_bool_or(list_transform(calls, lambda one: one.basis = 'none'))"
)
_UNKNOWN: Final[Mapping[str, Any]] = {
    "difference": None, "interval_95": None, "routed": {"labels": 0}, "held_out": {"labels": 0}
}  # fmt: skip
_QUALITY_S: Final = 10.0
"""How long the comparison with the holdout is shown before it is made anew, beside the page."""
_BEFORE_FRESH_S: Final = 30.0
"""How long the sums of the hours before are shown before they are made anew, beside the page."""
_FIRST_TIME_S: Final = 1.0
_IDLE: Final = {"per_second": 0.0, "in_flight": 0.0}
_LATEST: Final = "entry_ms, started_s, request_id, surface, path, tier, status, ttft_ms, total_ms"


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the page, and the stream of its updates."""
    standing = StandingReader(sources.store, sources.places.deployment, sources.gateway)
    gateway = "" if sources.gateway is None else sources.gateway.url
    view = NowView(sources.archive, standing, gateway, BudgetWatch(sources.store), sources.places.logs)

    async def part(span: str) -> str:
        return sources.render.part("now_live.html", await view.data(span))

    updates = LiveUpdates(sources.archive, part)

    async def show(request: Request) -> Mapping[str, Any]:
        return await view.data(_span_of(request) if "since" in request.query_params else await view.fitting_span())

    async def live(request: Request) -> Response:
        events = updates.updates(_span_of(request), added_in(request))
        return StreamingResponse(events, media_type="text/event-stream")

    yield Page("/now", "now.html", show, name="Now", key="n")
    yield Action("/now/live", live, "look", methods=("GET",))


def _span_of(request: Request) -> str:
    span = request.query_params.get("since", "1h")
    if span not in SPANS:
        raise BadQuery(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
    return span


class NowView:
    """Make the page."""

    def __init__(
        self,
        archive: Records,
        standing: StandingReader | None = None,
        gateway: str = "",
        budgets: BudgetWatch | None = None,
        logs: Path | None = None,
    ) -> None:
        """Without `standing` nothing is said of candidates, breakers, workers that differ, and what is degraded.

        Without `budgets` nothing is said of these, and without `logs` nothing of the processes that log there.

        `gateway` is the address that a first request can be sent to; empty where it is not known.
        """
        self._archive = archive
        self._standing = standing
        self._gateway = gateway
        self._budgets, self._logs, self._limits = budgets, logs, LimitWatch()
        self._bases = RecordedBases(archive)
        self._holdouts = KeptFigures(self._against_holdouts, fresh_s=_QUALITY_S)
        self._hours_before = KeptFigures(self._sums_before, fresh_s=_BEFORE_FRESH_S)
        keep_counts(archive, counts, first_bytes, versions, limit_misses)
        self._holdout = Holdouts(archive)

    async def fitting_span(self) -> str:
        """Return the shortest span that shows the latest requests, of those that are shown unasked."""
        now_ms = int(time.time() * 1000)
        newest = await self._archive.newest("entry_ms", CHAT, {}, 1)
        if not newest:
            return "15m"
        age_s = (now_ms - newest[0]["entry_ms"]) / 1000
        span = next((name for name in _DEFAULT_SPANS if age_s < SPANS[name]), _DEFAULT_SPANS[-1])
        if span != _DEFAULT_SPANS[0]:
            return span
        older = f"{CHAT} AND entry_ms < {now_ms - SPANS['15m'] * 1000}"
        between = now_ms - SPANS[span] * 1000, now_ms - SPANS["15m"] * 1000
        return span if await self._archive.newest("entry_ms", older, {}, 1, between_ms=between) else "15m"

    async def data(self, span: str = "1h") -> dict[str, Any]:
        """Return the figures of the latest `span`, one of SPANS' names, whose last bucket is under way.

        `per_second` and `in_flight`, the mean number of requests under way, are of the last minute: by Little's law the
        time that all which ended in it took together, in minutes. Percentiles are within 2%, and the quality is that
        of up to ten seconds ago.
        """
        now, added = time.time(), self._archive.added
        began = time.perf_counter()
        span_ms = SPANS[span] * 1000
        slot = slot_for(span_ms)
        from_ms = (int(now * 1000) // slot + 1) * slot - span_ms
        read = _NowQueries(self._archive, from_ms, span_ms, slot)
        latest = asyncio.create_task(self._archive.newest(_LATEST, "true", {}, 20))
        buckets, percentiles, missed, minute, changes, holdout = await asyncio.gather(
            read.buckets(),
            read.percentiles(),
            read.misses(),
            read.last_minute(int(now * 1000) - 60_000),
            read.changes(),
            self._holdouts.get(span, _FIRST_TIME_S),
        )
        before = await self._hours_before.get(span, _FIRST_TIME_S)
        by_surface: dict[str, list[dict[str, Any]]] = {}
        for row in buckets:
            row["ttft_p95"] = percentiles.get((row["surface"], row["bucket"]))
            by_surface.setdefault(row["surface"], []).append(row)
        surfaces = []
        for surface, rows in by_surface.items():
            whole = {"ttft_p95": percentiles.get((surface, None)), **minute.get(surface, _IDLE)}
            basis = await self._bases.of(next((row["basis"] for row in reversed(rows) if row["basis"]), None))
            quality = None if holdout is None else holdout.value.get(surface)
            surfaces.append(_surface(surface, rows, whole, basis, quality or _UNKNOWN, missed.get(surface, ())))
        standing = await self._add_standing(surfaces, by_surface, from_ms, span_ms)
        flips = [flip for view in surfaces for flip in _flips_in(view, by_surface[view["surface"]], from_ms, span_ms)]
        marks = [*version_marks(changes, standing), *standing.changes, *flips]
        needs = list(self._down())  # what may be the cause goes before the limits that are missed by it
        needs += needs_of(standing, self._standing) if self._standing is not None else []
        needs += [*child_needs(self._logs, now), *self._limits.needs(standing.readiness.get("tiers") or {}, now)]
        for level, what, todo, href in [] if self._budgets is None else await self._budgets.needs():
            needs.append(Need(level, what, None, todo, href))
        needs += flapping(flips, now, SPANS[span])
        for view in surfaces:
            own = list(needs_of_surface(view, missed.get(view["surface"], ()), marks, from_ms, span_ms))
            if view["state"] == "needs" and all(need.level != "bad" for need in own):
                view["state"] = "over"
            needs += own
        if before is not None:
            needs += await self._beside_before(surfaces, by_surface, before.value, marks, (from_ms, span_ms))
        needs.sort(key=lambda need: (need.level != "bad", need.until_s is not None))
        surfaces.sort(key=lambda surface: (-surface["severity"], surface["state"] != "few", -surface["requests"]))
        silent = sorted({*standing.readiness.get("surfaces", ()), *standing.surfaces} - set(by_surface))
        return {
            "added": added,
            "span": span,
            "spans": tuple(SPANS),
            "verdict": verdict_of(needs, surfaces, span),
            "totals": _totals(surfaces),
            "surfaces": surfaces,
            "silent": silent,
            "backends": list(backends_of(standing)),
            "gateway": self._gateway,
            "needs": needs,
            "marks": marks_within(marks, from_ms / 1000, SPANS[span]),
            "standing_problem": standing.problem,
            "latest": await latest,
            "now_s": now,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _sums_before(self, span: str) -> dict[str, dict[str, Any]]:
        """Return by surface the sums of the hours before a span."""
        to_ms = (int(time.time() * 1000) - SPANS[span] * 1000) // SLOT_MS * SLOT_MS
        given = {"from_ms": to_ms - max(BEFORE_S, SPANS[span]) * 1000, "to_ms": to_ms}
        rows = await self._archive.ask(BEFORE, given, from_ms=given["from_ms"], summaries=(counts(SLOT_MS),))
        return {row["surface"]: row for row in rows}

    async def _beside_before(
        self,
        surfaces: Sequence[dict[str, Any]],
        buckets: Mapping[str, Sequence[Mapping[str, Any]]],
        before: Mapping[str, Mapping[str, Any]],
        marks: Sequence[StandingMark],
        window: tuple[int, int],
    ) -> list[Need]:
        """Return what is not as it was in the hours before, and say so of each surface."""
        found: list[Need] = []
        for surface in surfaces:
            name = surface["surface"]
            rows, earlier = buckets[name], before.get(name)
            comparison = compared_hours(name, rows, earlier, marks, *window)
            own = [] if comparison is None else [comparison.need(name)]
            if unjudged_need(name, rows, surface["verifiers"], "") is not None:
                need = unjudged_need(name, rows, surface["verifiers"], await self._why_unjudged(name, window[0]))
                own += [] if need is None else [need]
            own += gone(name, rows, earlier, marks, *window)
            surface["moved"] = [] if comparison is None else [asdict(figure) for figure in comparison.figures]
            surface["state"] = "changed" if own and surface["state"] == "well" else surface["state"]
            found += own
        for name in before.keys() - buckets.keys():
            found += gone(name, (), before[name], marks, *window)
        return found

    async def _why_unjudged(self, surface: str, from_ms: int) -> str:
        """Return why a verifier was skipped, by the newest request of which that is recorded; '' if none is."""
        known = {"surface": surface}
        rows = await self._archive.newest("hops", _UNJUDGED, known, 1, between_ms=(from_ms, None), equal=known)
        hops = orjson.loads(rows[0]["hops"]) if rows else []
        told = [skipped for hop in hops for skipped in hop["attributes"].get(names.VERIFY_SKIPPED) or ()]
        return "; ".join(dict.fromkeys(told))

    async def _against_holdouts(self, span: str) -> dict[str, Mapping[str, Any]]:
        """Return by surface how the quality of routed requests compares with that of those held out."""
        return await self._holdout.since(int((time.time() - SPANS[span]) * 1000))

    async def _add_standing(
        self,
        surfaces: Sequence[dict[str, Any]],
        buckets: Mapping[str, Sequence[Mapping[str, Any]]],
        from_ms: int,
        span_ms: int,
    ) -> StoreStanding:
        """Add to each surface since when its tiers are down, and its chips; return what the store says."""
        for surface in surfaces:
            for number, tier in enumerate(surface["ladder"]):
                if (reason := surface["unavailable"].get(tier)) is not None:
                    bucket = _down_from(buckets[surface["surface"]], number)
                    at_ms = None if bucket is None else from_ms + bucket * span_ms // BUCKETS
                    since = None if at_ms is None else await self._down_since(surface["surface"], number, at_ms)
                    surface["unavailable"][tier] = {"reason": reason, "since_s": since}
        if self._standing is None:
            return StoreStanding(time.time())
        standing = await self._standing.read()
        for surface in surfaces:
            surface["policy"] = standing.surfaces.get(surface["surface"], {}).get("policy") or surface["policy"]
            surface["chips"] = list(chips_of(surface, surface["ladder"], standing, self._standing))
        return standing

    async def _down_since(self, surface: str, number: int, from_ms: int) -> float:
        """Return when a tier was first missed, in the bucket from `from_ms` on since which it is down."""
        rows = await self._archive.ask(_DOWN_SINCE, {"surface": surface, "number": number + 1}, from_ms=from_ms)
        return from_ms / 1000 if not rows or rows[0]["since_s"] is None else float(rows[0]["since_s"])

    def _down(self) -> Iterator[Need]:
        if self._archive.failing:
            todo = "Look whether the store runs; requests are answered meanwhile, without the caches."
            yield Need("bad", f"New requests are not seen: {self._archive.failing}", None, todo, "/requests")


class _NowQueries:
    """The queries of one page, over summaries from `from_ms` on, whose slots are `slot` milliseconds long."""

    def __init__(self, archive: Records, from_ms: int, span_ms: int, slot: int) -> None:
        self._archive = archive
        self._from = {"from_ms": from_ms}
        self._span = {**self._from, "span_ms": span_ms}
        self._counts, self._first_bytes, self._versions = counts(slot), first_bytes(slot), versions(slot)
        self._misses = limit_misses(slot)

    async def buckets(self) -> list[dict[str, Any]]:
        return await self._ask(_BY_BUCKET.format(counts=self._counts.name), self._span, self._counts)

    async def percentiles(self) -> dict[tuple[str, int | None], float]:
        """Return the 95th percentile of TTFT of each surface's buckets, and of all of them together (None)."""
        bucket = f"((slot_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER"
        counted = f"SELECT surface, {bucket} AS bucket, bin, n FROM {self._first_bytes.name}"
        sql = LATENCY.quantiles(counted, (("surface", "bucket"), ("surface",)), (0.95,))
        rows = await self._ask(sql, self._span, self._first_bytes)
        return {(row["surface"], row["bucket"]): row["quantiles"][0] for row in rows}

    async def misses(self) -> dict[str, list[dict[str, Any]]]:
        """Return by surface how many requests missed each limit: in each bucket, and of each tier and path."""
        rows = await self._ask(_MISSES.format(misses=self._misses.name), self._span, self._misses)
        found: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            found.setdefault(row["surface"], []).append(row)
        return found

    async def last_minute(self, minute_ms: int) -> dict[str, dict[str, Any]]:
        rows = await self._archive.ask(_LAST_MINUTE, from_ms=minute_ms)
        return {row["surface"]: row for row in rows}

    async def changes(self) -> list[dict[str, Any]]:
        return await self._ask(CHANGES.format(versions=self._versions.name, where="true"), None, self._versions)

    async def _ask(self, sql: str, values: dict[str, int] | None, summary: Summary) -> list[dict[str, Any]]:
        return await self._archive.ask(sql, values, from_ms=self._from["from_ms"], summaries=(summary,))


def _surface(
    surface: str,
    rows: Sequence[Mapping[str, Any]],
    whole: Mapping[str, Any],
    basis: DecisionBasis | None,
    holdout: Mapping[str, Any],
    misses: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    policy: Policy | None = None if basis is None else basis.policy

    def total(name: str) -> float:
        return math.fsum(row[name] or 0 for row in rows)

    requests, held, good = total("requests"), total("held"), total("good")
    late, failed = total("late"), total("failed")
    unavailable = next((row["unavailable"] for row in reversed(rows) if row["unavailable"]), None)
    goodput = good / held if held else None
    limits = limits_held(misses, int(held), int(held - good), policy)
    rated = min(holdout["routed"]["labels"], holdout["held_out"]["labels"])
    enough = rated >= _FEWEST_RATINGS and holdout["difference"] is not None
    return {
        "surface": surface,
        "policy": None if policy is None else policy.label,
        "requests": int(requests),
        "per_second": whole["per_second"],
        "in_flight": whole["in_flight"],
        "goodput": goodput,
        "held": int(held),
        "burn": None if goodput is None else (1 - goodput) / (1 - GOODPUT_OBJECTIVE),
        "ttft_p95": whole["ttft_p95"],
        "ttft_limit": None if policy is None or policy.slo.ttft.p95 is None else policy.slo.ttft.p95 * 1000,
        "paths": {name: total(name) / requests for name in ("hits", "direct", "escalated", "fallback", "failed")},
        "over_time": {
            "escalated": _over_time(rows, "escalated"),
            "hits": _over_time(rows, "hits"),
            "ttft_p95": _over_time(rows, "ttft_p95", share=False),
            "bad": _bad_over_time(rows),
        },
        "per_1000": total("cost") / requests * 1000,
        "cost_unknown": any(row["unknown"] for row in rows),
        "saving": net_saving(sums := {name: total(name) for name in SAVING_SUMS}),
        "limits": limits,
        "state": state_of(limits),
        "severity": max((limit.share / limit.may_miss for limit in limits if limit.verdict == "missed"), default=0.0),
        "cost": total("cost"),
        "good": int(good),
        "saved": sums,
        "rated": rated,
        "quality": holdout["difference"] if enough else None,
        "quality_interval": holdout["interval_95"] if enough else None,
        "canary": int(total("canary")),
        "ended": {
            "good": int(good),
            "late": int(late),
            "poor": int(held - good - late - failed),
            "failed": int(failed),
            "refused": int(total("refused")),
        },
        "unjudged": int(total("unjudged")),
        "verifiers": [] if policy is None else _verifiers(policy),
        "moved": list[dict[str, Any]](),
        "ladder": [] if policy is None else list(policy.ladder),
        "unavailable": _unavailable(policy, unavailable),
        "chips": list[StandingChip](),
    }


def _verifiers(policy: Policy) -> list[str]:
    """Return who is asked how sure a draft is, besides its own log-probabilities."""
    there = {"judge": policy.escalate.judge is not None, "agreement": policy.escalate.agreement is not None}
    asked = policy.escalate.verify if policy.escalate.when.asks_for_confidence else ()
    return [by for by in asked if there.get(by, False)]


def _unavailable(policy: Policy | None, reasons: Sequence[str | None] | None) -> dict[str, Any]:
    """Return the tiers that the latest decision could not have, and why."""
    if policy is None or not reasons:
        return {}
    return {tier: reason for tier, reason in zip(policy.ladder, reasons, strict=False) if reason}


def _over_time(rows: Sequence[Mapping[str, Any]], name: str, *, share: bool = True) -> list[float | None]:
    found: list[float | None] = [None] * BUCKETS
    for row in rows:
        if 0 <= row["bucket"] < BUCKETS and row[name] is not None:
            found[row["bucket"]] = row[name] / row["requests"] if share else row[name]
    return found


def _bad_over_time(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return how many requests were held against limits in each bucket, and how many of them were not good."""
    held, bad = [0.0] * BUCKETS, [0.0] * BUCKETS
    for row in rows:
        if 0 <= row["bucket"] < BUCKETS:
            held[row["bucket"]], bad[row["bucket"]] = row["held"], row["held"] - row["good"]
    return held, bad


def _down_from(rows: Sequence[Mapping[str, Any]], number: int) -> int | None:
    """Return the bucket since which a tier, by its place in the ladder, is down; None if it is in all of the span."""
    found = None
    for row in reversed(rows):
        if not row["unavailable"] or number >= len(row["unavailable"]):
            continue
        if not row["unavailable"][number]:
            return found
        found = row["bucket"]
    return None


def _flips_in(
    surface: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], from_ms: int, span_ms: int
) -> Iterator[StandingMark]:
    """Yield a mark for each bucket at whose end a tier's state differs from that at the end of the one before."""
    last: dict[str, bool] = {}
    for row in rows:
        for tier, reason in zip(surface["ladder"], row["unavailable"] or (), strict=False):
            down = bool(reason)
            if last.setdefault(tier, False) != down:
                at_s = (from_ms + row["bucket"] * span_ms / BUCKETS) / 1000
                words = f"went down: {reason}" if down else "came back"
                yield StandingMark(surface["surface"], "breaker", at_s, f"tier {tier} {words}")
            last[tier] = down


def _totals(surfaces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all surfaces together."""
    held, good = (sum(surface[name] for surface in surfaces) for name in ("held", "good"))
    ended = {
        name: sum(row["ended"][name] for row in surfaces) for name in ("good", "late", "poor", "failed", "refused")
    }
    sums = {name: math.fsum(surface["saved"][name] for surface in surfaces) for name in SAVING_SUMS}
    return {
        "requests": sum(surface["requests"] for surface in surfaces),
        "goodput": good / held if held else None,
        "ended": ended,
        "cost": math.fsum(surface["cost"] for surface in surfaces),
        "cost_unknown": any(surface["cost_unknown"] for surface in surfaces),
        "saving": net_saving(sums),
    }
