"""Now: whether anything is wrong, where, and since which change. A row per surface, and what needs somebody."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.archive.figures import against_holdout
from gateway.archive.live import LiveArchive
from policies.model import Policy
from routing.decision_basis import BasisError, DecisionBasis

SPANS: Final = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 86400}
BUCKETS: Final = 60
GOODPUT_OBJECTIVE: Final = 0.99
"""Share of requests that shall meet every limit of one request (ttft.p99, total.p99, deadline): what p99 means."""
_BURNS: Final = 2.0
"""A surface that uses up its error budget this much faster than it may needs somebody."""
_FEWEST: Final = 50
_Z: Final = 1.959964
_CHAT: Final = "NOT contains(surface, '/') AND surface <> ''"
_BY_BUCKET: Final = f"""
SELECT surface, ((entry_ms - $from_ms) * {BUCKETS} // $span_ms)::INTEGER AS bucket, count(*) AS requests,
    count(*) FILTER (good IS NOT NULL OR status >= 500) AS held, count(*) FILTER (good AND status < 500) AS good,
    count(*) FILTER (path = 'escalated') AS escalated, count(*) FILTER (starts_with(path, 'cache')) AS hits,
    count(*) FILTER (path = 'direct') AS direct, count(*) FILTER (path = 'fallback' OR path = 'degraded') AS fallback,
    count(*) FILTER (status >= 500) AS failed, sum(cost_usd) AS cost, bool_or(cost_unknown) AS unknown,
    count(*) FILTER (known) AS known, sum(saved) FILTER (known) AS saved, sum(saved * saved) FILTER (known) AS squares,
    quantile_cont(ttft_ms, 0.95) FILTER (stream AND ttft_ms IS NOT NULL) AS ttft_p95
FROM (SELECT *, coalesce(counterfactual_usd, 0) - cost_usd AS saved,
        counterfactual_usd IS NOT NULL AND NOT coalesce(cost_unknown, false) AS known
    FROM requests WHERE entry_ms >= $from_ms AND {_CHAT})
GROUP BY ALL ORDER BY ALL
"""
_WHOLE: Final = f"""
SELECT surface, arg_max(basis, entry_ms) FILTER (basis IS NOT NULL) AS basis, max(entry_ms) AS latest_ms,
    quantile_cont(ttft_ms, 0.95) FILTER (stream AND ttft_ms IS NOT NULL) AS ttft_p95,
    count(*) FILTER (arm = 'candidate') AS canary, count(*) FILTER (entry_ms >= $minute_ms) / 60.0 AS per_second,
    coalesce(sum(total_ms) FILTER (entry_ms >= $minute_ms), 0) / 60000.0 AS in_flight,
    arg_max(list_transform(given.health, one -> one.unavailable), entry_ms) FILTER (given IS NOT NULL) AS unavailable
FROM requests WHERE entry_ms >= $from_ms AND {_CHAT} GROUP BY surface ORDER BY surface
"""
_CHANGES: Final = f"""
SELECT surface, policy, min(started_s) AS since_s, count(*) AS requests FROM requests
WHERE entry_ms >= $from_ms AND {_CHAT} AND policy <> '' GROUP BY ALL ORDER BY since_s
"""
_RATED: Final = f"""
SELECT r.tenant, r.request_id, r.surface, r.holdout, f.score FROM requests r
LEFT JOIN feedback f USING (tenant, request_id)
LEFT JOIN (SELECT DISTINCT tenant, request_id, 1 AS judged FROM labels) l USING (tenant, request_id)
WHERE r.entry_ms >= $from_ms AND {_CHAT.replace("surface", "r.surface")} AND r.holdout IS NOT NULL
    AND (f.score IS NOT NULL OR l.judged IS NOT NULL)
"""
_LABELS: Final = "SELECT * FROM labels WHERE entry_ms >= $from_ms"
_LATEST: Final = (
    "SELECT entry_ms, started_s, request_id, surface, path, tier, status, ttft_ms, total_ms FROM requests "
    "ORDER BY entry_ms DESC, entry_seq DESC LIMIT 20"
)


@dataclass(frozen=True, slots=True)
class Need:
    """Something that needs somebody: what is wrong, since when (Unix seconds; None if not known), and what to do."""

    level: str
    """bad or warn."""
    what: str
    since_s: float | None
    todo: str
    href: str


@dataclass(frozen=True, slots=True)
class Saving:
    """Dollars that answers cost less than from the strongest tier, with the 95% interval of what repeats of the same
    traffic would show; `requests` are those whose price is known."""

    usd: float
    low: float
    high: float
    requests: int


class NowView:
    """Make the page. Bases of decisions, which say the limits of each surface, are read once."""

    def __init__(self, archive: LiveArchive) -> None:
        self._archive = archive
        self._bases: dict[str, DecisionBasis | None] = {}

    async def data(self, span: str = "1h") -> dict[str, Any]:
        """Return the figures of the latest `span`, one of SPANS' names.

        `per_second` and `in_flight`, the mean number of requests under way, are of the last minute: by Little's law the
        time that all which ended in it took together, in minutes.
        """
        now = time.time()
        began = time.perf_counter()
        span_ms = SPANS[span] * 1000
        given = {"from_ms": int(now * 1000) - span_ms}
        minute = {**given, "minute_ms": int(now * 1000) - 60_000}
        ask = self._archive.ask
        buckets = await ask(_BY_BUCKET, {**given, "span_ms": span_ms})
        whole = {row["surface"]: row for row in await ask(_WHOLE, minute)}
        changes = await ask(_CHANGES, given)
        labels = await ask(_LABELS, given)
        rated = await ask(_RATED, given)
        by_surface: dict[str, list[Mapping[str, Any]]] = {}
        for row in buckets:
            by_surface.setdefault(row["surface"], []).append(row)
        surfaces = []
        for surface, rows in by_surface.items():
            basis = await self._basis(whole[surface]["basis"])
            own = [row for row in rated if row["surface"] == surface]
            own_labels = [label for label in labels if label["surface"] == surface]
            surfaces.append(_surface(surface, rows, whole[surface], basis, against_holdout(own, own_labels)))
        marks = _marks(changes, given["from_ms"] / 1000, SPANS[span])
        return {
            "span": span,
            "spans": tuple(SPANS),
            "surfaces": surfaces,
            "needs": [*self._down(), *(need for one in surfaces for need in _needs(one, given["from_ms"], span_ms))],
            "marks": marks,
            "latest": await ask(_LATEST),
            "now_s": now,
            "query_ms": (time.perf_counter() - began) * 1000,
        }

    def _down(self) -> Iterator[Need]:
        if self._archive.failing:
            todo = "Look whether the store runs; requests are answered meanwhile, without the caches."
            yield Need("bad", f"New requests are not seen: {self._archive.failing}", None, todo, "/requests")

    async def _basis(self, name: str | None) -> DecisionBasis | None:
        if name is None:
            return None
        if name not in self._bases:
            rows = await self._archive.ask("SELECT basis::VARCHAR AS basis FROM bases WHERE id = $id", {"id": name})
            try:
                self._bases[name] = DecisionBasis.decode(rows[0]["basis"].encode()) if rows else None
            except BasisError:
                self._bases[name] = None
        return self._bases[name]


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
        "canary": whole["canary"],
        "unavailable": _unavailable(policy, whole["unavailable"]),
    }


def _saving(count: float, total: float, squares: float) -> Saving | None:
    if not count:
        return None
    variance = max(squares - total * total / count, 0.0) * count / max(count - 1, 1)
    half = _Z * math.sqrt(variance)
    return Saving(total, total - half, total + half, int(count))


def _unavailable(policy: Policy | None, reasons: Sequence[str | None] | None) -> dict[str, str]:
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


def _marks(changes: Sequence[Mapping[str, Any]], from_s: float, span_s: float) -> list[dict[str, Any]]:
    """Return the policy versions that came into use within the window, with their place in it (0 to 1)."""
    seen: dict[str, int] = {}
    marks = []
    for change in changes:
        seen[change["surface"]] = seen.get(change["surface"], 0) + 1
        if seen[change["surface"]] > 1:  # the first version of a surface was there before, or is all that is known
            at = (change["since_s"] - from_s) / span_s
            marks.append(
                {"surface": change["surface"], "policy": change["policy"], "at": at, "since_s": change["since_s"]}
            )
    return marks


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
        yield Need("bad", what, since, "See which limit is missed, and by which tier.", f"{href}&is=slow")
    for tier, reason in surface["unavailable"].items():
        todo = "Requests go to the other tiers meanwhile. Look at its backends' latest errors."
        yield Need("bad", f"{name}: tier {tier} cannot be had ({reason})", None, todo, f"{href}&is=failed")
    if surface["cost_unknown"]:
        what = f"{name}: a backend's price is not known, so cost and saving are too low by an unknown amount"
        yield Need("warn", what, None, "State it in the config (`price`), or see `tierline prices check`.", href)
