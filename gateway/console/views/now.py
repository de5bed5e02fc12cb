"""Now: whether anything is wrong, where, and since which change. A row per surface, and what needs somebody."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.archive.figures import against_holdout
from gateway.archive.live import LiveArchive
from gateway.archive.quality import DRAWN, HOLDOUT
from gateway.archive.summaries import LATENCY, Summary
from gateway.console.bases import RecordedBases
from gateway.console.kept_figures import KeptFigures
from gateway.console.live import LiveUpdates
from gateway.console.page import Action, BadQuery, Page, Sources
from gateway.console.standing import (
    Need,
    StandingChip,
    StandingMark,
    StandingReader,
    StoreStanding,
    chips_of,
    marks_within,
    needs_of,
    version_marks,
)
from gateway.console.surface_counts import BUCKETS, CHAT, SPANS, counts, first_bytes, keep, slot_for, versions
from policies.model import Policy
from routing.decision_basis import DecisionBasis

GOODPUT_OBJECTIVE: Final = 0.99
"""Share of requests that shall meet every limit of one request (ttft.p99, total.p99, deadline): what p99 means."""
_BURNS: Final = 2.0
"""A surface that uses up its error budget this much faster than it may needs somebody."""
_FEWEST: Final = 50
_LASTS_S: Final = 30.0
"""A tier that is down for less needs nobody."""
_Z: Final = 1.959964
_BY_BUCKET: Final = f"""
SELECT surface, ((slot_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER AS bucket,
    sum(COLUMNS('^(requests|held|good|escalated|hits|direct|fallback|failed|cost|known|saved|squares|canary)$')),
    bool_or(unknown) AS unknown, max(slot_ms) AS slot_ms, arg_max(basis, latest_ms) AS basis,
    arg_max(unavailable, latest_ms) FILTER (unavailable IS NOT NULL) AS unavailable
FROM {{counts}} GROUP BY surface, bucket ORDER BY surface, bucket
"""
_LAST_MINUTE: Final = f"""
SELECT surface, count(*) / 60.0 AS per_second, sum(total_ms) / 60000.0 AS in_flight FROM requests
WHERE {CHAT} GROUP BY surface
"""
_CHANGES: Final = "SELECT surface, policy, min(since_s) AS since_s FROM {versions} GROUP BY ALL ORDER BY since_s"
_DOWN_SINCE: Final = """
SELECT min(started_s) AS since_s FROM requests WHERE surface = $surface AND given IS NOT NULL AND entry_ms > (
    SELECT coalesce(max(entry_ms), 0) FROM requests
    WHERE surface = $surface AND given IS NOT NULL AND coalesce(given.health[$number].unavailable, '') = '')
"""
_LABELS: Final = "SELECT * EXCLUDE (vector, counts, messages) FROM labels WHERE entry_ms >= $from_ms"
_UNKNOWN: Final[Mapping[str, Any]] = {"difference": None, "interval_95": None}
_QUALITY_S: Final = 10.0
"""How long the comparison with the holdout is shown before it is made anew, beside the page."""
_FIRST_TIME_S: Final = 1.0
_IDLE: Final = {"per_second": 0.0, "in_flight": 0.0}
_LATEST: Final = "entry_ms, started_s, request_id, surface, path, tier, status, ttft_ms, total_ms"


@dataclass(frozen=True, slots=True)
class Saving:
    """Dollars that answers cost less than from the strongest tier, with the 95% interval of what repeats of the same
    traffic would show; `requests` are those whose price is known."""

    usd: float
    low: float
    high: float
    requests: int


def pages(sources: Sources) -> Iterator[Page | Action]:
    """Yield the page, and the stream of its updates."""
    view = NowView(sources.archive, StandingReader(sources.store, sources.places.deployment))

    async def part(span: str) -> str:
        return sources.render.part("now_live.html", await view.data(span))

    updates = LiveUpdates(sources.archive, part)

    async def show(request: Request) -> Mapping[str, Any]:
        return await view.data(_span_of(request))

    async def live(request: Request) -> Response:
        return StreamingResponse(updates.updates(_span_of(request)), media_type="text/event-stream")

    yield Page("/now", "now.html", show, name="Now", key="n")
    yield Action("/now/live", live, methods=("GET",))


def _span_of(request: Request) -> str:
    span = request.query_params.get("since", "1h")
    if span not in SPANS:
        raise BadQuery(f"since={span} is not a time span of this page; there are {', '.join(SPANS)}")
    return span


class NowView:
    """Make the page."""

    def __init__(self, archive: LiveArchive, standing: StandingReader | None = None) -> None:
        """Without `standing` nothing is said of candidates, breakers, and workers that differ."""
        self._archive = archive
        self._standing = standing
        self._bases = RecordedBases(archive)
        self._holdouts = KeptFigures(self._against_holdouts, fresh_s=_QUALITY_S)
        keep(archive, counts, first_bytes, versions)
        archive.keep(DRAWN)

    async def data(self, span: str = "1h") -> dict[str, Any]:
        """Return the figures of the latest `span`, one of SPANS' names, whose last bucket is under way.

        `per_second` and `in_flight`, the mean number of requests under way, are of the last minute: by Little's law the
        time that all which ended in it took together, in minutes. Percentiles are within 2%, and the quality is that
        of up to ten seconds ago.
        """
        now = time.time()
        began = time.perf_counter()
        span_ms = SPANS[span] * 1000
        slot = slot_for(span_ms)
        from_ms = (int(now * 1000) // slot + 1) * slot - span_ms
        read = _NowQueries(self._archive, from_ms, span_ms, slot)
        latest = asyncio.create_task(self._archive.newest(_LATEST, "true", {}, 20))
        buckets, percentiles, minute, changes, holdout = await asyncio.gather(
            read.buckets(),
            read.percentiles(),
            read.last_minute(int(now * 1000) - 60_000),
            read.changes(),
            self._holdouts.get(span, _FIRST_TIME_S),
        )
        by_surface: dict[str, list[dict[str, Any]]] = {}
        for row in buckets:
            row["ttft_p95"] = percentiles.get((row["surface"], row["bucket"]))
            by_surface.setdefault(row["surface"], []).append(row)
        surfaces = []
        for surface, rows in by_surface.items():
            whole = {"ttft_p95": percentiles.get((surface, None)), **minute.get(surface, _IDLE)}
            basis = await self._bases.of(next((row["basis"] for row in reversed(rows) if row["basis"]), None))
            quality = None if holdout is None else holdout.value.get(surface)
            surfaces.append(_surface(surface, rows, whole, basis, quality or _UNKNOWN))
        standing = await self._add_standing(surfaces, by_surface, from_ms, span_ms)
        flips = [flip for one in surfaces for flip in _flips_in(one, by_surface[one["surface"]], from_ms, span_ms)]
        return {
            "span": span,
            "spans": tuple(SPANS),
            "surfaces": surfaces,
            "needs": [
                *self._down(),
                *(need for one in surfaces for need in _needs(one, from_ms, span_ms)),
                *(needs_of(standing, self._standing) if self._standing is not None else ()),
            ],
            "marks": marks_within(
                [*version_marks(changes, standing), *standing.changes, *flips], from_ms / 1000, SPANS[span]
            ),
            "standing_problem": standing.problem,
            "latest": await latest,
            "now_s": now,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _against_holdouts(self, span: str) -> dict[str, Mapping[str, Any]]:
        """Return by surface how the quality of routed requests compares with that of those held out."""
        given = {"from_ms": int((time.time() - SPANS[span]) * 1000)}
        rated, labels = await asyncio.gather(
            self._archive.ask(HOLDOUT, given, from_ms=given["from_ms"], summaries=(DRAWN,)),
            self._archive.ask(_LABELS, given),
        )
        parted: dict[str, tuple[list[Any], list[Any]]] = {}
        for place, rows in enumerate((rated, labels)):
            for row in rows:
                parted.setdefault(row["surface"], ([], []))[place].append(row)
        return {surface: against_holdout(*own) for surface, own in parted.items()}

    async def _add_standing(
        self,
        surfaces: Sequence[dict[str, Any]],
        buckets: Mapping[str, Sequence[Mapping[str, Any]]],
        from_ms: int,
        span_ms: int,
    ) -> StoreStanding:
        """Add to each surface since when its tiers are down, and its chips; return what the store says."""
        for one in surfaces:
            for number, tier in enumerate(one["ladder"]):
                if (reason := one["unavailable"].get(tier)) is not None:
                    bucket = _down_from(buckets[one["surface"]], number)
                    at_ms = None if bucket is None else from_ms + bucket * span_ms // BUCKETS
                    since = None if at_ms is None else await self._down_since(one["surface"], number, at_ms)
                    one["unavailable"][tier] = {"reason": reason, "since_s": since}
        if self._standing is None:
            return StoreStanding(time.time())
        standing = await self._standing.read()
        for one in surfaces:
            one["chips"] = list(chips_of(one, one["ladder"], standing, self._standing))
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

    def __init__(self, archive: LiveArchive, from_ms: int, span_ms: int, slot: int) -> None:
        self._archive = archive
        self._from = {"from_ms": from_ms}
        self._span = {**self._from, "span_ms": span_ms}
        self._counts, self._first_bytes, self._versions = counts(slot), first_bytes(slot), versions(slot)

    async def buckets(self) -> list[dict[str, Any]]:
        return await self._ask(_BY_BUCKET.format(counts=self._counts.name), self._span, self._counts)

    async def percentiles(self) -> dict[tuple[str, int | None], float]:
        """Return the 95th percentile of TTFT of each surface's buckets, and of all of them together (None)."""
        bucket = f"((slot_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER"
        counted = f"SELECT surface, {bucket} AS bucket, bin, n FROM {self._first_bytes.name}"
        sql = LATENCY.quantiles(counted, (("surface", "bucket"), ("surface",)), (0.95,))
        rows = await self._ask(sql, self._span, self._first_bytes)
        return {(row["surface"], row["bucket"]): row["quantiles"][0] for row in rows}

    async def last_minute(self, minute_ms: int) -> dict[str, dict[str, Any]]:
        rows = await self._archive.ask(_LAST_MINUTE, from_ms=minute_ms)
        return {row["surface"]: row for row in rows}

    async def changes(self) -> list[dict[str, Any]]:
        return await self._ask(_CHANGES.format(versions=self._versions.name), None, self._versions)

    async def _ask(self, sql: str, values: dict[str, int] | None, summary: Summary) -> list[dict[str, Any]]:
        return await self._archive.ask(sql, values, from_ms=self._from["from_ms"], summaries=(summary,))


def _surface(
    surface: str,
    rows: Sequence[Mapping[str, Any]],
    whole: Mapping[str, Any],
    basis: DecisionBasis | None,
    holdout: Mapping[str, Any],
) -> dict[str, Any]:
    policy: Policy | None = None if basis is None else basis.policy

    def total(name: str) -> float:
        return math.fsum(row[name] or 0 for row in rows)

    requests, held, good = total("requests"), total("held"), total("good")
    unavailable = next((row["unavailable"] for row in reversed(rows) if row["unavailable"]), None)
    goodput = good / held if held else None
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
        "saving": _saving(total("known"), total("saved"), total("squares")),
        "quality": holdout["difference"],
        "quality_interval": holdout["interval_95"],
        "canary": int(total("canary")),
        "ladder": [] if policy is None else list(policy.ladder),
        "unavailable": _unavailable(policy, unavailable),
        "chips": list[StandingChip](),
    }


def _saving(count: float, total: float, squares: float) -> Saving | None:
    if not count:
        return None
    variance = max(squares - total * total / count, 0.0) * count / max(count - 1, 1)
    half = _Z * math.sqrt(variance)
    return Saving(total, total - half, total + half, int(count))


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


def _bad_over_time(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    found: list[float | None] = [None] * BUCKETS
    for row in rows:
        if 0 <= row["bucket"] < BUCKETS and row["held"]:
            found[row["bucket"]] = 1 - row["good"] / row["held"]
    return found


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


def _needs(surface: Mapping[str, Any], from_ms: int, span_ms: int) -> Iterator[Need]:
    name = surface["surface"]
    href = f"/requests?surface={name}"
    if surface["held"] >= _FEWEST and surface["burn"] is not None and surface["burn"] > _BURNS:
        most = _BURNS * (1 - GOODPUT_OBJECTIVE)
        over_time = enumerate(surface["over_time"]["bad"])
        first = next((bucket for bucket, share in over_time if share is not None and share > most), None)
        since = None if first is None else (from_ms + first * span_ms / BUCKETS) / 1000
        what = (
            f"{name}: {surface['goodput']:.1%} of requests met their limits; the objective is {GOODPUT_OBJECTIVE:.0%}"
        )
        yield Need("bad", what, since, "See which limit is missed, and by which tier.", f"/surfaces/{name}")
    for tier, down in surface["unavailable"].items():
        if down["since_s"] is not None and time.time() - down["since_s"] < _LASTS_S:
            continue  # a pause that a backend asks for is over in seconds
        todo = "Requests go to the other tiers meanwhile. Look at its backends' latest errors."
        what = f"{name}: tier {tier} cannot be had ({down['reason']})"
        yield Need("bad", what, down["since_s"], todo, f"{href}&is=failed")
    if surface["cost_unknown"]:
        what = f"{name}: a backend's price is not known, so cost and saving are too low by an unknown amount"
        yield Need("warn", what, None, "State it in the config (`price`), or see `tierline prices check`.", href)
