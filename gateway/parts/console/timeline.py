"""Lay out a request on a time axis: its hops, the roads not taken, and the moments that matter, in milliseconds.

Pure functions of a record (see `telemetry.ledger`). Drawn by `console.svg`, on the request's page and for the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.parts.console.attempt_races import Race, races_of
from gateway.parts.console.bar import Bar
from gateway.parts.console.critical_path import PathSegment, critical_path
from gateway.parts.console.policy_keys import policy_keys
from gateway.parts.reasons import detail_names as detail
from gateway.seams import reasons_of
from gateway.telemetry import names
from policies.quantities import milliseconds

Record = Mapping[str, Any]
"""A record as `telemetry.ledger` encodes it, decoded."""

_ROOM: Final = 1.12
"""The axis ends this far after the last hop, in shares of it, unless the deadline comes first."""
_BREAK: Final = 1.8
"""A deadline later than this share of the axis is drawn behind a break in it."""
_BEFORE_BREAK: Final = 0.86
"""Share of the width in front of a break."""


@dataclass(frozen=True, slots=True)
class Ghost:
    """A tier that was not called, with what was expected of it: p50 and p95 of its first token, or its whole answer.

    It begins where the decision was made: at the route, or at the verdict on an attempt that it would have replaced.
    """

    tier: str
    start_ms: float
    duration_ms: float
    p95_ms: float | None
    text: str
    late: bool
    instead_of: str = ""
    """The attempt that it would have taken over from; empty for a tier that the request could have started at."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, in milliseconds after the request's start, that is drawn as a line through all rows."""

    kind: str
    """ttft (what the client got), commit, target (of the first token), deadline."""
    at_ms: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn. `end_ms` is where the axis ends, or breaks off if `broken`; the deadline lies behind the break."""

    bars: Sequence[Bar]
    ghosts: Sequence[Ghost]
    moments: Sequence[Moment]
    end_ms: float
    deadline_ms: float | None
    broken: bool
    target_ms: float | None
    """When the first token is due; None without such an objective."""
    races: Sequence[Race]
    path: Sequence[PathSegment]
    """What the total time consists of, in order and without gaps."""

    def rows(self) -> list[tuple[Race | None, list[Bar]]]:
        """Return the hops in order, those of one race together, where its first one stands."""
        of_hop = {number: race for race in self.races for number in race.numbers}
        by_number = {bar.number: bar for bar in self.bars}
        rows: list[tuple[Race | None, list[Bar]]] = []
        for bar in self.bars:
            race = of_hop.get(bar.number)
            if race is None:
                rows.append((None, [bar]))
            elif race.numbers[0] == bar.number:
                rows.append((race, [by_number[number] for number in race.numbers]))
        return rows

    def critical_ms(self, number: int | None, *, queued: bool | None = None) -> float:
        """Return how much of the total time passed in a hop; None for the time between all of them.

        `queued`: only its wait in a queue, or only the rest of it.
        """
        parts = (part for part in self.path if part.number == number and queued in (None, part.queued))
        return sum(part.end_ms - part.start_ms for part in parts)

    @property
    def total_ms(self) -> float:
        """Time from the request's start to its end."""
        return self.path[-1].end_ms if self.path else 0.0

    def left_ms(self, at_ms: float) -> float | None:
        """Return the time that is left until the deadline; None without one."""
        return None if self.deadline_ms is None else max(self.deadline_ms - at_ms, 0.0)

    def x(self, at_ms: float) -> float:
        """Return the place of a time on the axis, 0 to 1."""
        width = _BEFORE_BREAK if self.broken else 1.0
        if self.broken and at_ms > self.end_ms and self.deadline_ms is not None:
            behind = (at_ms - self.end_ms) / (self.deadline_ms - self.end_ms)
            return min(_BEFORE_BREAK + 0.03 + behind * 0.09, 0.995)
        return min(at_ms / self.end_ms * width, 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Return about six round times for the axis, with their labels."""
        rough = self.end_ms / 6
        power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 0.1
        step = next((power * unit for unit in (1, 2, 5, 10) if power * unit >= rough), rough)
        count = int(self.end_ms / step)
        return [(n * step, _short(n * step)) for n in range(count + 1) if n * step <= self.end_ms * 0.98]


def timeline_of(record: Record, given: Mapping[str, Any] | None, tiers: Sequence[str]) -> Timeline:
    """Lay out a record. `given` is the input of its decision (`decision_record.named`), `tiers` its ladder."""
    ledger = record["ledger"]
    bars = _bars(record)
    last = max((bar.end_ms for bar in bars if bar.name != names.CACHE_WRITE), default=0.0) or 0.001
    route = next((bar for bar in bars if bar.name == names.ROUTE), None)
    moments: list[Moment] = []
    deadline, target = _limits(bars[0] if bars else None, route, given)
    stream = bool(ledger.get("stream", bool(given and given.get("stream"))))
    called = {bar.attributes.get(names.TIER) for bar in bars}
    ghosts = [
        *_ghosts(route, given, tiers, called, target, deadline, stream),
        *(road for bar in bars if (road := _successor(bar, called, stream)) is not None),
    ]
    end = max([last, *(ghost.start_ms + ghost.duration_ms for ghost in ghosts if ghost.duration_ms < 4 * last)]) * _ROOM
    if target is not None and target < end * _BREAK:
        end = max(end, target * 1.05)
    broken = deadline is not None and deadline > end * _BREAK
    if deadline is not None:
        moments.append(Moment("deadline", deadline, f"deadline {_short(deadline)}"))
        if not broken:
            end = max(end, deadline * 1.02)
    if target is not None and (target <= end or broken):
        moments.append(Moment("target", target, f"first token due {_short(target)}"))
    moments += [
        Moment("commit", bar.verdict_ms, f"committed to attempt {bar.attributes[names.ATTEMPT_NUMBER]} "
               f"{_short(bar.verdict_ms)}")
        for bar in bars if stream and bar.served and bar.verdict_ms is not None
    ]  # fmt: skip
    if ledger["ttft_ms"] is not None:
        moments.append(Moment("ttft", ledger["ttft_ms"], f"first byte to the client {_short(ledger['ttft_ms'])}"))
    return Timeline(bars, ghosts, moments, end, deadline, broken, target, races_of(bars), critical_path(bars))


def _limits(root: Bar | None, route: Bar | None, given: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    """Return when the deadline is and when the first token is due; None for what the record does not say."""
    if root is not None and detail.DEADLINE in root.attributes:
        return root.attributes[detail.DEADLINE], root.attributes.get(detail.TTFT_TARGET)
    if route is None or not given:
        return None, None
    left, first = given.get("budget_s"), given.get("ttft_s")
    return (
        None if left is None else route.start_ms + left * 1000,
        None if first is None else route.start_ms + first * 1000,
    )


def _bars(record: Record) -> list[Bar]:
    served = record["ledger"].get("served") or ()
    to_first_token = any(detail.TTFT_TARGET in hop["attributes"] for hop in record["hops"])
    bars: list[Bar] = []
    for hop in record["hops"]:
        start, duration = hop["start_us"] / 1000, hop["duration_us"] / 1000
        attributes = hop["attributes"]
        number = attributes.get(names.ATTEMPT_NUMBER)
        first, queue = attributes.get(names.TTFT), float(attributes.get(names.QUEUE) or 0.0)
        queue = min(queue, duration) if hop["name"] == names.ATTEMPT else 0.0
        beside = sum(bar.name == hop["name"] and bar.end_ms > start for bar in bars)
        bars.append(
            Bar(
                hop["number"],
                hop["name"],
                _label(hop, attributes),
                _kind(hop["name"]),
                start,
                duration,
                hop["error"],
                number is not None and number in served,
                beside,
                reasons_of(hop, clause=False),
                attributes,
                queue,
                # The time to the first token begins with the call, which the queue delays.
                None if first is None or hop["name"] != names.ATTEMPT else start + queue + float(first),
                None if detail.VERDICT_AT not in attributes else start + float(attributes[detail.VERDICT_AT]),
                str(attributes.get(names.CLAUSE) or ""),
                _line_of(attributes.get(names.CLAUSE_LINE)),
                list(policy_keys(hop, to_first_token=to_first_token)),
                attributes.get(detail.BUDGET_LEFT),
            )
        )
    return bars


def _line_of(place: Any) -> int | None:
    """Return the line of FILE:LINE."""
    number = str(place or "").rpartition(":")[2]
    return int(number) if number.isdecimal() else None


def _label(hop: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    if hop["name"] == names.ATTEMPT:
        return f"attempt {attributes.get(names.ATTEMPT_NUMBER, '')} · {attributes.get(names.TIER, '')}".strip(" ·")
    return str(hop["name"])


def _kind(name: str) -> str:
    kinds = {names.EMBED: "embed", names.ROUTE: "route", names.ATTEMPT: "attempt", names.SAMPLE: "attempt"}
    if name == names.REQUEST:
        return "request"
    if name == names.CACHE_WRITE:
        return "write"
    return kinds.get(name, "cache" if name.startswith("cache.") else "other")


def _ghosts(
    route: Bar | None,
    given: Mapping[str, Any] | None,
    tiers: Sequence[str],
    called: set[Any],
    target: float | None,
    deadline: float | None,
    stream: bool,
) -> list[Ghost]:
    """Return the tiers that were not called, from where the decision was made.

    What the hop says is taken, as it says of each whether it would have been late; records of older versions hold it in
    the decision's input alone.
    """
    if route is None:
        return []
    if detail.OTHER_TIERS in route.attributes:
        return _described(route, called, stream)
    if not given:
        return []
    found = []
    for tier, health in zip(tiers, given.get("health") or (), strict=False):
        if tier in called or health is None:
            continue
        expected, slow = (health.get("ttft_s"), health.get("ttft_p95_s")) if stream else (health.get("whole_s"), None)
        took, p95 = (None if value is None else value * 1000 for value in (expected, slow))
        limit = target if stream and target is not None else deadline
        late = limit is not None and took is not None and route.end_ms + took > limit
        found.append(_ghost(tier, route.end_ms, took, p95, health.get("unavailable") or "", late, stream))
    return [road for road in found if road is not None]


def _described(route: Bar, called: set[Any], stream: bool) -> list[Ghost]:
    """Return the tiers that the route's hop says it did not start at, and that were not called later."""
    attributes = route.attributes
    lists = (attributes.get(name) or () for name in (
        detail.OTHER_TIERS, detail.OTHER_TTFT if stream else detail.OTHER_WHOLE, detail.OTHER_TTFT_P95,
        detail.OTHER_LATE, detail.OTHER_STATE,
    ))  # fmt: skip
    found = []
    for tier, expected, slow, late, state in zip(*lists, strict=False):
        if tier not in called:
            p95 = slow if stream and slow >= 0 else None
            took = expected if expected >= 0 else None
            found.append(_ghost(tier, route.end_ms, took, p95, state, late, stream))
    return [road for road in found if road is not None]


def _successor(bar: Bar, called: set[Any], stream: bool) -> Ghost | None:
    """Return the tier that could have taken over from a judged attempt, from its verdict on; None if it did, or none.

    Without a verdict there was no choice to make.
    """
    told = bar.attributes
    tier = told.get(detail.NEXT_TIER)
    if bar.verdict_ms is None or tier is None or tier in called:
        return None
    took = told.get(detail.NEXT_TTFT if stream else detail.NEXT_WHOLE, -1.0)
    if took < 0:
        return None
    road = _ghost(tier, bar.verdict_ms, took, None, "", bool(told.get(detail.NEXT_LATE)), stream)
    return None if road is None else replace(road, text=f"{road.text}, after the verdict", instead_of=bar.label)


def _ghost(
    tier: str, start_ms: float, took_ms: float | None, p95_ms: float | None, state: str, late: bool, stream: bool
) -> Ghost | None:
    """Return a tier that was not called, in words; None if nothing is known of it."""
    if state:
        return Ghost(tier, start_ms, 0.0, None, f"{tier}: not to be had ({state})", False)
    if took_ms is None:
        return None
    text = f"{tier}: {'first token' if stream else 'whole answer'} expected after {milliseconds(took_ms)}"
    text += f", p95 {milliseconds(p95_ms)}" if p95_ms is not None else ""
    return Ghost(tier, start_ms, took_ms, p95_ms, text + ("; would have been late" if late else ""), late)


def _short(value_ms: float) -> str:
    if value_ms >= 10_000:
        return f"{value_ms / 1000:.0f} s"
    if value_ms >= 1000:
        return f"{value_ms / 1000:.3g} s"
    return f"{value_ms:.3g} ms" if value_ms < 100 else f"{value_ms:.0f} ms"
