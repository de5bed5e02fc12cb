"""Say in words what is wrong with surfaces by their figures: which limit is missed, by whom, since which change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.parts.console.limits import (
    GOODPUT,
    GOODPUT_OBJECTIVE,
    NONE,
    SurfaceLimit,
    is_over,
    limits_of,
    may_miss,
    trouble_in,
)
from gateway.parts.console.standing import Need, StandingMark, is_passing
from gateway.parts.console.surface_counts import BUCKETS
from policies.model import Policy
from policies.quantities import OF_STAGES, milliseconds, percent, write_share

_IS: Final = {True: "is", False: "are"}
_BEFORE_S: Final = 300.0
"""A change so long before a trouble began is named beside it."""


def limits_held(
    misses: Sequence[Mapping[str, Any]], held: int, missed: int, policy: Policy | None
) -> list[SurfaceLimit]:
    """Return goodput, and the limits on many requests together; those on single requests are part of goodput."""
    limits = [SurfaceLimit(GOODPUT, None, held, missed, may_miss(GOODPUT))] if held else []
    limits_s = {} if policy is None else policy.slo.limits()
    sums: dict[str, dict[str, Any]] = {}
    for row in misses:
        if row["dimension"] == "all" and may_miss(row["objective"]) != may_miss(GOODPUT):
            summed = sums.setdefault(
                row["objective"], {"objective": row["objective"], "dimension": "all", "held": 0, "missed": 0}
            )
            summed["held"] += row["held"]
            summed["missed"] += row["missed"]
    return [*limits, *limits_of(sums.values(), limits_s)]


def state_of(limits: Sequence[SurfaceLimit]) -> str:
    verdicts = {limit.verdict for limit in limits}
    return "needs" if "missed" in verdicts else "few" if "few" in verdicts or not limits else "well"


def verdict_of(needs: Sequence[Need], surfaces: Sequence[Mapping[str, Any]], span: str) -> dict[str, str]:
    """Return the first sentence of the page, and how grave it is: bad, warn, few, good, or none without requests."""
    bad = [need for need in needs if need.level == "bad"]
    if bad:
        more = len(needs) - 1
        return {
            "level": "bad",
            "text": f"{bad[0].what.rstrip('.')}." + (f" And {more} more to look at." if more else ""),
        }
    requests = f"{sum(surface['requests'] for surface in surfaces):,} requests in the last {span}"
    few = [surface["surface"] for surface in surfaces if surface["state"] == "few"]
    well = [surface["surface"] for surface in surfaces if surface["state"] == "well"]
    over = [surface["surface"] for surface in surfaces if surface["state"] == "over"]
    changed = [surface["surface"] for surface in surfaces if surface["state"] == "changed"]
    if not surfaces:
        text = f"No request in the last {span}"
    elif not well and not over and not changed:
        text = f"Too few requests to say whether limits are kept: {requests}"
    elif few or over or changed:
        parts = [f"{', '.join(changed)} {_IS[len(changed) == 1]} not as in the hours before"] if changed else []
        parts += [f"{', '.join(over)} missed a limit earlier, and not since"] if over else []
        parts += [f"{', '.join(well)} {'keeps its' if len(well) == 1 else 'keep their'} limits"] if well else []
        parts[-1] += f" ({requests})"
        parts += [f"too few requests to say of {', '.join(few)}"] if few else []
        text = "; ".join(parts)
    else:
        text = f"Every surface with requests keeps its limits: {requests}"
    look = f"; {len(needs)} {'thing' if len(needs) == 1 else 'things'} to look at" if needs else ""
    level = "none" if not surfaces else "warn" if needs else "few" if not well else "good"
    return {"level": level, "text": f"{text}{look}."}


def needs_of_surface(
    surface: Mapping[str, Any],
    misses: Sequence[Mapping[str, Any]],
    marks: Sequence[StandingMark],
    from_ms: int,
    span_ms: int,
) -> Iterator[Need]:
    name = surface["surface"]
    href = f"/requests?surface={name}"
    for limit in surface["limits"]:
        if limit.verdict == "missed":
            yield _missed(surface, limit, misses, marks, from_ms, span_ms)
    for tier, down in surface["unavailable"].items():
        if is_passing(down["since_s"]):
            continue
        todo = "Requests go to the other tiers meanwhile. Look at its backends' latest errors."
        what = f"{name}: tier {tier} cannot be had ({down['reason']})."
        yield Need("bad", what, down["since_s"], todo, f"{href}&is=failed")
    if surface["cost_unknown"]:
        what = f"{name}: a backend's price is not known, so cost and saving are too low by an unknown amount."
        yield Need("warn", what, None, "State it in the config (`price`), or see `tierline prices check`.", href)


def _missed(
    surface: Mapping[str, Any],
    limit: SurfaceLimit,
    misses: Sequence[Mapping[str, Any]],
    marks: Sequence[StandingMark],
    from_ms: int,
    span_ms: int,
) -> Need:
    """Return what is to be said of a limit that is missed: by how much, by which tier and path, since which change."""
    name, bad, worst = surface["surface"], surface["over_time"]["bad"], limit.name
    if limit.name == GOODPUT:
        counted = (row for row in misses if not row["objective"].startswith(OF_STAGES))
        of_each = [row for row in counted if may_miss(row["objective"]) == limit.may_miss and row["dimension"] == "all"]
        per: dict[str, int] = {}
        for row in of_each:
            per[row["objective"]] = per.get(row["objective"], 0) + row["missed"]
        worst = max(per, key=lambda name: per[name], default="")
        what = f"{name}: {percent(surface['goodput'])} of requests were good, where {GOODPUT_OBJECTIVE:.0%} shall be"
        ended = surface["ended"]
        most_missed = f", {worst.replace('_', '.')} by {per[worst]:,}" if per.get(worst) else ""
        causes = [f"{ended['failed']:,} failed"] if ended["failed"] else []
        causes += [f"{ended['late']:,} came late{most_missed}"] if ended["late"] else []
        causes += [f"{ended['poor']:,} were degraded or invalid"] if ended["poor"] else []
        what += f" ({limit.missed:,} of {limit.held:,} were not" + (f": {', '.join(causes)})" if causes else ")")
        held, missed = bad
    else:
        at_most = "its limit" if limit.limit_ms is None else milliseconds(limit.limit_ms)
        thing = "first tokens" if limit.to_first_token else "answers"
        what = (
            f"{name}: {percent(limit.share)} of {thing} came later than {at_most}, where {write_share(limit.may_miss)} "
            f"may ({limit.name.replace('_', '.')}; {limit.missed:,} of {limit.held:,})"
        )
        held, missed = [0.0] * BUCKETS, [0.0] * BUCKETS
        for row in misses:
            if row["objective"] == limit.name and row["dimension"] == "all" and 0 <= row["bucket"] < BUCKETS:
                held[row["bucket"]] += row["held"]
                missed[row["bucket"]] += row["missed"]
    most = [text for prefix in ("tier_", "path_") if (text := _most(misses, worst, prefix))]
    what += f"; most of them {' and '.join(most)}" if most else ""
    time_of = trouble_in(held, missed, limit.may_miss)
    since = until = None
    if time_of is not None:
        since = (from_ms + time_of[0] * span_ms / BUCKETS) / 1000
        if is_over(held, missed, *time_of):
            until = (from_ms + (time_of[1] + 1) * span_ms / BUCKETS) / 1000
    first = next((place for place, count in enumerate(held) if count), 0)
    new = time_of is None or time_of[0] <= first  # there is no time before it to differ from
    change = None if new else _change_before(name, marks, since, span_ms / BUCKETS / 1000)
    # The first requests that there are were no better: it may have begun before them.
    todo = (
        "At least since then. " if new and since is not None else ""
    ) + "See which requests, and where their time went."
    if change is not None:
        todo = f"Just before: {change.text}. {todo}"
    query = f"?limit={worst}" if worst and worst != GOODPUT else ""
    return Need("bad" if until is None else "warn", f"{what}.", since, todo, f"/surfaces/{name}{query}", until)


def _most(misses: Sequence[Mapping[str, Any]], objective: str, dimension: str) -> str:
    """Return the tier or the path that most misses of a limit have, in words; '' where none has most of them."""
    rows = [row for row in misses if row["objective"] == objective and row["dimension"] == dimension and row["missed"]]
    top = max(rows, key=lambda row: int(row["missed"]), default=None)
    if top is None or top["value"] == NONE or 2 * top["missed"] <= sum(row["missed"] for row in rows):
        return ""
    return f"by tier {top['value']}" if dimension == "tier_" else f"on path {top['value']}"


def _change_before(
    surface: str, marks: Sequence[StandingMark], since_s: float | None, bucket_s: float
) -> StandingMark | None:
    """Return the latest change of a surface before its trouble began, or in the bucket in which it did."""
    if since_s is None:
        return None
    near = [
        mark
        for mark in marks
        if mark.surface in ("", surface) and since_s - _BEFORE_S <= mark.at_s <= since_s + bucket_s
    ]
    return max(near, key=lambda mark: mark.at_s, default=None)
