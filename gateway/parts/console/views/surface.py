"""One surface: which of its limits is missed, by which requests, and where their time went.

For each limit (an objective of the policy, such as `ttft_p95`) it is counted how many requests met it. Those that
missed the one that is looked at are compared with those that met it in two ways. Their time is split into parts that
add up (`PARTS`). And of each tier, backend, prompt length, policy version and so on it is said how many of its requests
missed the limit, beside all others, tested together (`console.compared`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from gateway.parts.console.bases import RecordedBases
from gateway.parts.console.compared import DIMENSIONS, chance_of, differing
from gateway.parts.console.filters import SPANS_S as LIST_SPANS_S
from gateway.parts.console.limits import GOODPUT_OBJECTIVE, NONE, TTFT, SurfaceLimit, limit_misses, limits_of
from gateway.parts.console.page import BadQuery, Page, PageError, Sources, whole_in
from gateway.parts.console.records import Records
from gateway.parts.console.standing import StandingReader, marks_within, version_marks
from gateway.parts.console.surface_counts import (
    BUCKETS,
    CHANGES,
    CHAT,
    SPANS,
    counts,
    first_bytes,
    keep_counts,
    slot_for,
    slot_of_entry,
    slotted,
    versions,
)
from gateway.parts.ledger.summaries import LATENCY, VALUES_OF, LogBins, Summary
from gateway.parts.ledger.tier_worth import steered_figures
from policies.model import STAGES
from policies.quantities import OF_STAGES

_MOST_GROUPS: Final = 12
PARTS: Final[Mapping[str, str]] = {
    "ours": "the gateway, before the first call",
    "drafts": "answers that were given up before",
    "queue": "the queue of its tier",
    "prefill": "the backend, up to its first token",
    "verdict": "held back until it was judged",
    "decode": "the rest of the answer",
}
"""Parts of a request's time, in order, in words. An answer that came whole has its first token with the last."""
_MET: Final = {"missed": False, "met": True}
_ENDED: Final = LogBins(1.1)
"""Of milliseconds until a request had what a limit is about: quantiles within 5%."""


def _times(slot: int) -> Summary:
    """Sums of the parts of the time of requests that met an objective, and of those that missed it, by how long it took
    until they had what the objective is about: their first token (`whole` is false), or all of the answer."""
    return slotted(
        "times",
        slot,
        f"""SELECT surface, slot_ms, objective, met, {_ENDED.bin("CASE WHEN whole THEN total_ms ELSE due END")} AS bin,
    count(*)::INTEGER AS n, sum(ours) AS ours, sum(drafts) AS drafts, sum(queue) AS queue, sum(prefill) AS prefill,
    sum(greatest(due - ours - drafts - queue - prefill, 0)) AS verdict, sum(greatest(total_ms - due, 0)) AS decode
FROM (
    SELECT surface, slot_ms, objective, met, NOT starts_with(objective, '{TTFT}') AS whole, total_ms, due,
        coalesce(began, due) AS ours,
        CASE WHEN began IS NULL THEN 0 ELSE greatest(coalesce(served.start_ms, due) - began, 0) END AS drafts,
        coalesce(served.queue_ms, 0) AS queue,
        coalesce(served.ttft_ms, greatest(served.total_ms - served.queue_ms, 0), 0) AS prefill
    FROM (
        SELECT surface, {slot_of_entry(slot)}, unnest(map_keys(slo)) AS objective, unnest(map_values(slo)) AS met,
            total_ms, coalesce(ttft_ms, total_ms) AS due,
            list_min(list_transform(list_filter(calls, lambda c: c.attempt > 0), lambda c: c.start_ms)) AS began,
            list_filter(calls, lambda one: one.attempt > 0 AND NOT one.wasted)[1] AS served
        FROM rows WHERE {CHAT} AND slo IS NOT NULL
    )
) GROUP BY ALL""",
    )


def _stages(slot: int) -> Summary:
    """How often a stage took how long, of requests of surfaces that limit some (`slo.stages`), and `all` of them."""
    return slotted(
        "stages",
        slot,
        f"""SELECT surface, slot_ms, stage, {LATENCY.bin("took")} AS bin, count(*) AS n, sum(took) AS took
FROM (SELECT surface, {slot_of_entry(slot)}, unnest(list_append(map_keys(stages), 'all')) AS stage,
    unnest(list_append(map_values(stages), total_ms)) AS took FROM rows WHERE {CHAT} AND stages IS NOT NULL)
GROUP BY ALL""",
    )


_IN_WINDOW: Final = "surface = $surface AND slot_ms < $to_ms"
_BY_GROUP: Final = f"""
SELECT objective, dimension, value, sum(held)::INTEGER AS held, sum(missed)::INTEGER AS missed FROM {{rows}}
WHERE {_IN_WINDOW} GROUP BY ALL
"""
_BY_MET: Final = f"""
SELECT met, sum(n)::INTEGER AS requests, {", ".join(f"sum({part}) / sum(n) AS {part}" for part in PARTS)} FROM {{rows}}
WHERE {_IN_WINDOW} AND objective = $objective GROUP BY met
"""
_BY_STAGE: Final = f"""
SELECT stage, sum(n)::INTEGER AS requests, sum(took) AS took FROM {{rows}} WHERE {_IN_WINDOW} GROUP BY stage
"""
_BY_BUCKET: Final = f"""
SELECT {{bucket}} AS bucket, sum(requests)::INTEGER AS requests, sum(held)::INTEGER AS held, sum(good)::INTEGER AS good,
    sum(late)::INTEGER AS late, sum(failed)::INTEGER AS failed, sum(refused)::INTEGER AS refused,
    sum(steered) > 0 AS steered, arg_max(basis, latest_ms) FILTER (basis IS NOT NULL) AS basis
FROM {{rows}} WHERE {_IN_WINDOW} GROUP BY bucket ORDER BY bucket
"""
_BY_VERSION: Final = f"""
SELECT surface, policy, min(since_s) AS since_s, sum(requests)::INTEGER AS requests FROM {{rows}}
WHERE {_IN_WINDOW} GROUP BY ALL ORDER BY since_s
"""
_QUANTILES: Final = (0.5, 0.95, 0.99)


class NoSuchSurface(PageError):
    """There is no policy of that surface, and no request of it; the message says what there is."""

    status, title = 404, "No such surface"


@dataclass(frozen=True, slots=True)
class SurfaceWindow:
    """The time that a page is about, in Unix milliseconds: a whole number of slots. `span` is its name, one of SPANS;
    '' if it was drawn."""

    span: str
    from_ms: int
    to_ms: int
    slot: int

    @classmethod
    def around(cls, from_ms: int, to_ms: int) -> SurfaceWindow:
        """Return the window that has this time, and of its first and last slots all."""
        slot = slot_for(to_ms - from_ms)
        return cls("", from_ms // slot * slot, -(-to_ms // slot) * slot, slot)

    @classmethod
    def since(cls, span: str) -> SurfaceWindow:
        """Return the window of a span whose last slot is under way. Raises BadQuery."""
        if span not in SPANS:
            raise BadQuery(f"since={span} is not a time span of a surface; there are {', '.join(SPANS)}")
        length = SPANS[span] * 1000
        slot = slot_for(length)
        to_ms = (int(time.time() * 1000) // slot + 1) * slot
        return cls(span, to_ms - length, to_ms, slot)

    @property
    def bucket(self) -> str:
        """The SQL of the part of the window that a slot lies in."""
        return f"((slot_ms - {self.from_ms}) * {BUCKETS} // {self.to_ms - self.from_ms})::INTEGER"

    @property
    def list_span(self) -> str:
        """The shortest span of the list of requests that has all of it; `all` where none has."""
        age_s = int(time.time() - self.from_ms / 1000)
        return next((name for name, length_s in LIST_SPANS_S.items() if length_s >= age_s), "all")


@dataclass(frozen=True, slots=True)
class LimitGroup:
    """Requests that have a value in common: how many of them missed the limit, beside all others."""

    dimension: str
    value: str
    held: int
    missed: int
    of_all: float
    """The part of all misses that is theirs."""
    rate: float
    rest: float
    """The share of those that missed it among them, and among all others."""
    differs: bool
    """By more than chance."""
    href: str | None


def pages(sources: Sources) -> Iterator[Page]:
    """Yield the page."""
    view = SurfaceView(sources.archive, StandingReader(sources.store, sources.places.deployment))

    async def show(request: Request) -> Mapping[str, Any]:
        return await view.data(request.path_params["surface"], _window_of(request), request.query_params.get("limit"))

    yield Page("/surfaces/{surface}", "surface.html", show, script="charts.js")


def _window_of(request: Request) -> SurfaceWindow:
    """Return the window of a URL: `since`, or `from` and `to` in Unix milliseconds. Raises BadQuery."""
    query = request.query_params
    if query.get("from") or query.get("to"):
        start, end = whole_in(query.get("from", "")), whole_in(query.get("to", ""))
        if start is None or end is None or start >= end:
            raise BadQuery("`from` and `to` are Unix times in milliseconds, the earlier one first.")
        return SurfaceWindow.around(start, end)
    return SurfaceWindow.since(query.get("since", "1h"))


class SurfaceView:
    """Make the page."""

    def __init__(self, archive: Records, standing: StandingReader) -> None:
        self._archive = archive
        self._standing = standing
        self._bases = RecordedBases(archive)
        keep_counts(archive, counts, first_bytes, versions, limit_misses, _times, _stages)

    async def data(self, surface: str, window: SurfaceWindow, chosen: str | None) -> dict[str, Any]:
        """Return the figures of a surface; `chosen` is the limit that is looked at, else the one missed most.

        Raises NoSuchSurface and BadQuery.
        """
        began = time.perf_counter()
        changes = asyncio.create_task(
            self._ask(CHANGES.format(versions="{rows}", where=_IN_WINDOW), surface, window, versions)
        )
        misses, over_time, ttft, stages, of_versions, standing = await asyncio.gather(
            self._ask(_BY_GROUP, surface, window, limit_misses),
            self._ask(_BY_BUCKET, surface, window, counts),
            self._first_bytes(surface, window),
            self._stages(surface, window),
            self._ask(_BY_VERSION, surface, window, versions),
            self._standing.read(),
        )
        if not over_time:
            await self._must_be_known(surface, standing.surfaces)
        basis = await self._bases.of(next((row["basis"] for row in reversed(over_time) if row["basis"]), None))
        limits_s = {} if basis is None else basis.policy.slo.limits()
        limits = limits_of(misses, limits_s)
        looked_at = _looked_at(limits, chosen)
        times = await self._times(surface, window, looked_at) if looked_at else {}
        marks = [*version_marks(await changes, standing), *standing.changes]
        here = [mark for mark in marks if mark.surface in ("", surface)]
        ended = {name: sum(row[name] for row in over_time) for name in ("good", "late", "failed", "refused")}
        held, good = sum(row["held"] for row in over_time), ended["good"]
        return {
            "surface": surface,
            "span": window.span,
            "spans": tuple(SPANS),
            "from_ms": window.from_ms,
            "to_ms": window.to_ms,
            "list_span": window.list_span,
            "requests": sum(row["requests"] for row in over_time),
            "goodput": good / held if held else None,
            "ended": {**ended, "poor": held - good - ended["late"] - ended["failed"]},
            "burn": (1 - good / held) / (1 - GOODPUT_OBJECTIVE) if held else None,
            "objective": GOODPUT_OBJECTIVE,
            "policy": standing.surfaces.get(surface, {}).get("policy") or (basis and basis.policy.label),
            "versions": of_versions,
            "steered": await steered_figures(self._archive, surface, window.from_ms, window.to_ms)
            if any(row["steered"] for row in over_time)
            else None,
            "limits": limits,
            "looked_at": looked_at,
            "times": times,
            "stages": _with_limits(stages, limits),
            "parts": PARTS,
            "longest_ms": max((sum(row[part] for part in PARTS) for row in times.values() if row), default=0.0),
            "most": _greatest_difference(times, looked_at) if looked_at else "",
            "groups": _groups(misses, looked_at, surface, window) if looked_at else [],
            "over_time": _chart(over_time, ttft, window, limits_s),
            "marks": marks_within(here, window.from_ms / 1000, (window.to_ms - window.from_ms) / 1000),
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    async def _times(
        self, surface: str, window: SurfaceWindow, limit: SurfaceLimit
    ) -> dict[str, dict[str, Any] | None]:
        """Return the times of the requests that `missed` a limit and of those that `met` it; None where none did."""
        ended = f"SELECT met, bin, n FROM {{rows}} WHERE {_IN_WINDOW} AND objective = $objective"
        rows, quantiles = await asyncio.gather(
            self._ask(_BY_MET, surface, window, _times, objective=limit.name),
            self._ask(
                _ENDED.quantiles(ended, [["met"]], _QUANTILES[:2]), surface, window, _times, objective=limit.name
            ),
        )
        by_met = {row["met"]: row["quantiles"] for row in quantiles}
        found = {row["met"]: {**row, "ended": by_met[row["met"]]} for row in rows}
        return {name: found.get(met) for name, met in _MET.items()}

    async def _stages(self, surface: str, window: SurfaceWindow) -> dict[str, dict[str, Any]]:
        """Return of each stage, and of `all`: how many requests had it, its time in all and its quantiles, in ms."""
        binned = f"SELECT stage, bin, n FROM {{rows}} WHERE {_IN_WINDOW}"
        rows, quantiles = await asyncio.gather(
            self._ask(_BY_STAGE, surface, window, _stages),
            self._ask(LATENCY.quantiles(binned, [["stage"]], _QUANTILES), surface, window, _stages),
        )
        by_stage = {row["stage"]: row["quantiles"] for row in quantiles}
        return {row["stage"]: {**row, "quantiles": by_stage[row["stage"]]} for row in rows}

    async def _first_bytes(self, surface: str, window: SurfaceWindow) -> dict[int, list[float]]:
        """Return quantiles of the TTFT of streams in each bucket that has any."""
        counted = f"SELECT {window.bucket} AS bucket, bin, n FROM {{rows}} WHERE {_IN_WINDOW}"
        rows = await self._ask(LATENCY.quantiles(counted, [["bucket"]], _QUANTILES), surface, window, first_bytes)
        return {row["bucket"]: row["quantiles"] for row in rows}

    async def _ask(
        self, sql: str, surface: str, window: SurfaceWindow, of: Callable[[int], Summary], **more: str
    ) -> list[dict[str, Any]]:
        """Return what a query of a summary, {rows}, finds in a window."""
        summary = of(window.slot)
        sql = sql.replace("{rows}", summary.name).replace("{bucket}", window.bucket)
        values = {"surface": surface, "to_ms": window.to_ms, **more}
        return await self._archive.ask(sql, values, from_ms=window.from_ms, summaries=(summary,))

    async def _must_be_known(self, surface: str, registered: Mapping[str, Any]) -> None:
        if surface in registered:
            return
        rows = await self._archive.newest("surface", "true", {}, 2000)
        there = sorted({str(row["surface"]) for row in rows if row["surface"]} | set(registered))
        if surface not in there:
            raise NoSuchSurface(f"No request of {surface!r} is recorded. There are {', '.join(there) or 'none yet'}.")


def _with_limits(stages: Mapping[str, Mapping[str, Any]], limits: Sequence[SurfaceLimit]) -> list[dict[str, Any]]:
    """Return the stages in their order, each with its share of all time and its limit of the widest quantile."""
    found = []
    for row in (stages[stage] for stage in STAGES if stage in stages):
        own = [limit for limit in limits if limit.name.startswith(f"{OF_STAGES}{row['stage']}_")]
        share = row["took"] / stages["all"]["took"] if stages["all"]["took"] else 0.0
        found.append({**row, "share": share, "limit": max(own, key=lambda limit: limit.name, default=None)})
    return found


def _looked_at(limits: Sequence[SurfaceLimit], chosen: str | None) -> SurfaceLimit | None:
    """Return the limit of that name, else the one of no stage that is missed most often beside how often it may be."""
    if chosen and limits:
        found = next((limit for limit in limits if limit.name == chosen), None)
        if found is None:
            raise BadQuery(f"limit={chosen} is not a limit here; there are {', '.join(limit.name for limit in limits)}")
        return found
    whole = [limit for limit in limits if not limit.name.startswith(OF_STAGES)]
    return max(whole or limits, key=lambda limit: limit.share / limit.may_miss, default=None)


def _groups(
    misses: Sequence[Mapping[str, Any]], limit: SurfaceLimit, surface: str, window: SurfaceWindow
) -> list[LimitGroup]:
    """Return the groups with most misses beyond what the others' rate would give them, those that differ first."""
    rows = [row for row in misses if row["objective"] == limit.name and 0 < row["held"] < limit.held]
    tested = {
        (row["dimension"], row["value"]): chance_of(
            row["missed"], row["held"], limit.missed - row["missed"], limit.held - row["held"]
        )
        for row in rows
    }
    differ = differing(tested)
    groups = []
    for row in rows:
        key, name = (row["dimension"], row["value"]), row["dimension"].removesuffix("_")
        others = limit.held - row["held"]
        groups.append(
            LimitGroup(
                DIMENSIONS[name][0],
                row["value"],
                row["held"],
                row["missed"],
                row["missed"] / limit.missed if limit.missed else 0.0,
                row["missed"] / row["held"],
                (limit.missed - row["missed"]) / others,
                key in differ,
                _href(name, row["value"], surface, window),
            )
        )
    groups = [group for group in groups if group.missed and group.rate > group.rest]
    return sorted(groups, key=lambda group: (not group.differs, -group.held * (group.rate - group.rest)))[:_MOST_GROUPS]


def _href(name: str, value: str, surface: str, window: SurfaceWindow) -> str | None:
    """Return the list of a group's requests that missed a limit; None where the list has no such filter."""
    if name not in VALUES_OF or value == NONE:
        return None
    return f"/requests?{urlencode({'surface': surface, 'is': 'slow', name: value, 'since': window.list_span})}"


def _greatest_difference(times: Mapping[str, Mapping[str, Any] | None], limit: SurfaceLimit) -> str:
    """Return the part in which the requests that missed the limit exceed the others most; '' without such a one."""
    missed, met = times["missed"], times["met"]
    if missed is None or met is None:
        return ""
    parts = [part for part in PARTS if part != "decode" or not limit.to_first_token]
    most = max(parts, key=lambda part: missed[part] - met[part])
    return most if missed[most] > met[most] else ""


def _chart(
    rows: Sequence[Mapping[str, Any]],
    ttft: Mapping[int, Sequence[float]],
    window: SurfaceWindow,
    limits_s: Mapping[str, float],
) -> dict[str, Any]:
    """Return what is drawn over time: the middle of each bucket in Unix seconds, and a value or None in each."""
    by_bucket = {row["bucket"]: row for row in rows}
    width = (window.to_ms - window.from_ms) / BUCKETS
    places = range(BUCKETS)
    found = [by_bucket.get(place) for place in places]
    return {
        "at_s": [(window.from_ms + (place + 0.5) * width) / 1000 for place in places],
        "ttft": {
            f"p{level * 100:g}": [ttft[place][number] if place in ttft else None for place in places]
            for number, level in enumerate(_QUANTILES)
        },
        "limits": {name[5:]: limit * 1000 for name, limit in limits_s.items() if name.startswith(TTFT)},
        "requests": [0 if row is None else row["requests"] for row in found],
        "goodput": [row["good"] / row["held"] if row is not None and row["held"] else None for row in found],
    }
