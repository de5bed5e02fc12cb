"""Say from the ledger how long the first step of a canary would take: until it passes, and until it is taken back.

The same tests judge as in a canary (`sequential`), on the sums that as many sticky units as are needed
would have if they were like those recorded. A unit is what the policy's `rollout.sticky` keeps together. Requests of an
earlier rollout hold their unit; of others a conversation is counted where its first turn is, and its requests are taken
to succeed and cost independently of each other. The ledger holds no API keys, so `key` counts tenants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.parts.rollout.policy import Guard, Rollout
from gateway.parts.rollout.sequential import COST, FEWEST_UNITS, SLOW, GuardTest, Sums
from policies.quantities import milliseconds, write_share

if TYPE_CHECKING:
    import duckdb

Counted = Literal["units", "turns", "tenants"]
"""How units were counted: by the recorded unit of an earlier rollout, by first turns, or by tenants."""

ASSUMED: Final = Rollout(steps=("5%",), guard=Guard(goodput="-1%"))
"""What a canary is taken to be where a policy has no `rollout`."""
_MOST: Final = 1e9
_FEWEST_KNOWN: Final = 20
_ROWS: Final = "FROM requests r {rated} WHERE r.surface = $surface AND ($since IS NULL OR r.started_s >= $since)"
_RATED: Final = "LEFT JOIN feedback f ON f.tenant = r.tenant AND f.request_id = r.request_id"
_ANSWERED: Final = "r.status = 200 AND r.error IS NULL AND r.ttft_ms IS NOT NULL"
_BAD: Final = "(NOT r.good)::DOUBLE"
_POOR: Final = "CASE WHEN f.score IS NOT NULL THEN 1 - least(greatest(f.score, 0), 1) END"


@dataclass(frozen=True, slots=True)
class GuardForecast:
    """One guard: after how many units of the candidate it is decided; None if not by a thousand million of them.

    `within` if the candidate is as good as what is in force, `crossed` if it is worse by `worse`, twice what the guard
    allows (for `ttft_p95` in seconds, for cost as a share).
    """

    guard: str
    worse: float
    within: int | None
    crossed: int | None


@dataclass(frozen=True, slots=True)
class CanaryForecast:
    """The first step of a canary. Hours are at the pace recorded, and no less than the shortest step for passing."""

    share: float
    sticky: str
    own: bool
    """Whether steps and guards are the policy's own, not ASSUMED."""
    counted: Counted
    units_per_hour: float
    """Units of the candidate in an hour."""
    requests_per_unit: float
    guards: tuple[GuardForecast, ...]
    passes: int | None
    passes_h: float | None
    step_max_h: float
    undecided: str
    unknown: tuple[str, ...] = ()
    """Guards on which nothing is recorded."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return asdict(self)

    def hours(self, units: int) -> float:
        """Return how long so many units of the candidate take."""
        return units / self.units_per_hour

    def lines(self) -> list[str]:
        """Return the forecast as a person reads it."""
        units = _UNITS[self.sticky]
        assumed = "" if self.own else "; no `rollout`, so 5% and goodput -1% are taken"
        lines = [
            f"canary at {write_share(self.share)}: {self.units_per_hour:,.0f} {units} an hour at the pace "
            f"recorded, {self.requests_per_unit:.1f} requests each ({_HOW[self.counted]}{assumed})"
        ]
        if self.passes is None or self.passes_h is None:
            open_ = [guard.guard for guard in self.guards if guard.within is None] + list(self.unknown)
            lines.append(
                f"  unchanged, it is not decided: nothing recorded settles {', '.join(open_)}; {self.undecided}"
            )
        else:
            slowest = max(self.guards, key=lambda guard: guard.within or 0).guard if self.guards else ""
            last = f"; {slowest} is decided last" if len(self.guards) > 1 else ""
            late = self.passes_h > self.step_max_h
            ends = f", but a step ends after {self.step_max_h:.3g} h: {self.undecided}" if late else ""
            lines.append(
                f"  unchanged, it passes after about {_rounded(self.passes)} {units}, {self.passes_h:.1f} h{last}{ends}"
            )
        for guard in self.guards:
            if guard.crossed is None:
                lines.append(f"  {guard.guard} worse by {_worse(guard)}: not seen")
            else:
                hours = self.hours(guard.crossed)
                back = f"back after about {_rounded(guard.crossed)} {units}, {hours:.1f} h"
                lines.append(f"  {guard.guard} worse by {_worse(guard)}: {back}")
        return lines


@dataclass(frozen=True, slots=True)
class _Measure:
    """Sums of a guard's measure over all units: in force, of a candidate as good, and of one that is worse."""

    control: Sums
    good: Sums
    bad: Sums


def canary_forecast(
    database: duckdb.DuckDBPyConnection, surface: str, since: float | None, rollout: Rollout | None, goodput: float
) -> CanaryForecast | None:
    """Return how long the first step would take; None where the requests do not span any time.

    `goodput` is the share of requests within their objectives, for records that do not say so; NaN if unknown.
    """
    rules = ASSUMED if rollout is None else rollout
    rows, values = _ROWS.format(rated=""), {"surface": surface, "since": since}

    def one(sql: str) -> tuple[Any, ...]:
        return tuple(0 if value is None else value for value in database.execute(sql, values).fetchall()[0])

    count, span_s, marked, firsts, tenants = one(
        "SELECT count(*), max(r.started_s) - min(r.started_s), count(DISTINCT nullif(r.unit, '')), "
        f"count(*) FILTER (r.given.turns <= 1), count(DISTINCT r.tenant) {rows}"
    )
    if not count or span_s <= 0:
        return None
    counted: Counted = "turns" if marked < _FEWEST_KNOWN else "units"
    counted = "tenants" if rules.sticky != "conversation" else counted
    key = {"units": "nullif(r.unit, '')", "tenants": "r.tenant", "turns": ""}[counted]
    sizes = 1.0, 1.0
    if counted == "turns":
        # Whoever asks a k-th turn has asked all before it: the sum of k^2 over conversations is that of 2k - 1.
        turns, squares = one(f"SELECT count(*), sum(2 * greatest(r.given.turns, 1) - 1) {rows} AND r.given IS NOT NULL")
        sizes = (turns / firsts, squares / firsts) if firsts else sizes

    def sums(value: str) -> Sums:
        rated = _ROWS.format(rated=_RATED if "f.score" in value else "")
        if key:
            per_unit = f"SELECT count(x) AS n, sum(x) AS s FROM (SELECT {key} AS u, {value} AS x {rated}) "
            per_unit += "WHERE u IS NOT NULL AND x IS NOT NULL GROUP BY u"
            moments = "count(*), sum(n), sum(s), sum(n * n), sum(n * s), sum(s * s)"
            return Sums(*map(float, one(f"SELECT {moments} FROM ({per_unit})")))
        n, mean, variance = one(f"SELECT count(x), avg(x), var_pop(x) FROM (SELECT {value} AS x {rated})")
        units, nn = n / sizes[0], n / sizes[0] * sizes[1]
        return Sums(units, float(n), n * mean, nn, mean * nn, mean**2 * nn + variance * n)

    measures, unknown = {}, []
    for guard, allowed in rules.guard:
        if allowed is not None:
            measure = _measure(guard, abs(allowed), sums, one, rows, goodput)
            if measure.control.n > 0:
                measures[guard] = measure
            else:
                unknown.append(guard)
    seen = {"units": marked, "tenants": tenants, "turns": count / sizes[0]}[counted]
    of_units = count
    if counted == "units":
        of_units = one(f"SELECT count(*) {rows} AND r.unit <> ''")[0]
    share, per_unit_ = rules.steps[0], of_units / seen
    per_hour = count / per_unit_ / span_s * 3600 * share
    within_alpha = 1 - rules.sure
    crossed_alpha = within_alpha / max(1, len(measures) + len(unknown)) / len(rules.steps)
    guards = tuple(
        _decided(guard, measure, abs(getattr(rules.guard, guard)), share, seen, within_alpha, crossed_alpha)
        for guard, measure in measures.items()
    )
    within = [guard.within for guard in guards]
    passes = None if None in within or unknown else max([FEWEST_UNITS, *(unit for unit in within if unit is not None)])
    passes_h = None if passes is None else max(passes / per_hour, rules.step_min / 3600)
    return CanaryForecast(
        share, rules.sticky, rollout is not None, counted, per_hour, per_unit_, guards, passes, passes_h,
        rules.step_max / 3600, rules.undecided, tuple(unknown),
    )  # fmt: skip


def _measure(
    guard: str,
    allowed: float,
    sums: Callable[[str], Sums],
    query: Callable[[str], tuple[Any, ...]],
    rows: str,
    goodput: float,
) -> _Measure:
    """Read the sums of what a guard compares: the more, the worse."""
    if guard == COST:
        control = sums("CASE WHEN NOT coalesce(r.cost_unknown, false) THEN r.cost_usd END")
        return _Measure(control, control, _times(control, 1 + 2 * allowed))
    if guard == SLOW:
        (p95,) = query(f"SELECT quantile_cont(r.ttft_ms, 0.95) {rows} AND {_ANSWERED}")

        def late(after_ms: float) -> Sums:
            return sums(f"CASE WHEN {_ANSWERED} THEN (r.ttft_ms > {after_ms!r})::DOUBLE END")

        allowed_ms = allowed * 1000
        return _Measure(late(p95), late(p95 + allowed_ms), late(p95 - allowed_ms))
    control = sums(_BAD if guard == "goodput" else _POOR)
    if guard == "goodput" and not control.n and not math.isnan(goodput):
        control = _raised(_times(sums("1.0"), 0.0), 1 - goodput)
    return _Measure(control, control, _raised(control, 2 * allowed))


def _decided(
    guard: str, measure: _Measure, allowed: float, share: float, seen: float, within_alpha: float, crossed_alpha: float
) -> GuardForecast:
    def arms(candidate: Sums, units: float) -> tuple[Sums, Sums]:
        return _times_units(candidate, units / seen), _times_units(measure.control, units / seen * (1 - share) / share)

    test = GuardTest(guard, allowed)

    def is_within(units: float) -> bool:
        return test.proof(*arms(measure.good, units), within_alpha, worse=False) > 1

    def is_crossed(units: float) -> bool:
        return test.proof(*arms(measure.bad, units), crossed_alpha, worse=True) > 1

    return GuardForecast(guard, 2 * allowed, _least_units(is_within), _least_units(is_crossed))


def _least_units(is_decided: Callable[[float], bool]) -> int | None:
    """Return the least number of units with which it is decided, to a hundredth."""
    low, high = 1.0, float(FEWEST_UNITS)
    while not is_decided(high):
        if high > _MOST:
            return None
        low, high = high, high * 2
    while high - low > max(0.5, low * 0.01):
        middle = (low + high) / 2
        low, high = (low, middle) if is_decided(middle) else (middle, high)
    return math.ceil(high)


def _times_units(sums: Sums, factor: float) -> Sums:
    """Return the sums over so many times as many units."""
    return Sums(*(getattr(sums, field.name) * factor for field in fields(Sums)))


def _times(sums: Sums, factor: float) -> Sums:
    """Return the sums with every value so many times as large."""
    return Sums(sums.units, sums.n, sums.s * factor, sums.nn, sums.ns * factor, sums.ss * factor**2)


def _raised(sums: Sums, share: float) -> Sums:
    """Return the sums of a share of events with as many more, which come independently of each other."""
    more = min(share, max(0.0, 1 - float(sums.mean)))
    ss = sums.ss + 2 * more * sums.ns + more**2 * sums.nn + more * (1 - more) * sums.n
    return Sums(sums.units, sums.n, sums.s + more * sums.n, sums.nn, sums.ns + more * sums.nn, ss)


_UNITS: Final[Mapping[str, str]] = {"conversation": "conversations", "key": "keys", "tenant": "tenants"}
_HOW: Final[Mapping[Counted, str]] = {
    "units": "counted by the units of earlier rollouts",
    "turns": "counted by their first turns",
    "tenants": "counted by tenants",
}


def _worse(guard: GuardForecast) -> str:
    return milliseconds(guard.worse * 1000) if guard.guard == SLOW else write_share(guard.worse)


def _rounded(units: int) -> str:
    return f"{float(f'{units:.2g}'):,.0f}"
