"""Lay out a request on a time axis: its hops, the roads not taken, and the moments that matter, in milliseconds.

Pure functions of a record (see `telemetry.ledger`). Drawn by `console.svg`, on the request's page and for the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.telemetry import names
from gateway.telemetry.reasons import explain, milliseconds

Record = Mapping[str, Any]
"""A record as `telemetry.ledger` encodes it, decoded."""

_ROOM: Final = 1.12
"""The axis ends this far after the last hop, in shares of it, unless the deadline comes first."""
_BREAK: Final = 1.8
"""A deadline later than this share of the axis is drawn behind a break in it."""
_BEFORE_BREAK: Final = 0.86
"""Share of the width in front of a break."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One hop. `lane` counts the hops of the same name that ran when this one began: parallel ones lie side by side."""

    number: int
    name: str
    label: str
    kind: str
    """What it is drawn as: cache, embed, route, attempt, write or other."""
    start_ms: float
    duration_ms: float
    error: str | None
    served: bool
    """Whether the client got the text of this attempt."""
    lane: int
    reasons: Sequence[str]
    attributes: Mapping[str, Any]
    first_ms: float | None
    """Of an attempt: from the request's start to its first token."""
    verdict_ms: float | None
    """Of an attempt: from the request's start until it was judged."""
    clause: str
    """The key of the policy that decided the hop; empty if none did."""
    line: int | None
    """The line of the policy's file where that stands; None where it came from no file."""

    @property
    def end_ms(self) -> float:
        """Time from the request's start to the end of the hop."""
        return self.start_ms + self.duration_ms


@dataclass(frozen=True, slots=True)
class Ghost:
    """A tier that was not called, with what was expected of it: p50 and p95 of its first token, or its whole answer."""

    tier: str
    start_ms: float
    duration_ms: float
    p95_ms: float | None
    text: str
    late: bool


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time that is marked through all rows."""

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
    """Lay out a record. `given` is the input of its decision (`routing.decision_record.named`), `tiers` its ladder."""
    ledger = record["ledger"]
    bars = _bars(record)
    last = max((bar.end_ms for bar in bars if bar.name != names.CACHE_WRITE), default=0.0) or 0.001
    route = next((bar for bar in bars if bar.name == names.ROUTE), None)
    moments: list[Moment] = []
    deadline, target = _limits(bars[0] if bars else None, route, given)
    ghosts = _ghosts(route, given, tiers, {bar.attributes.get(names.TIER) for bar in bars}, target, deadline)
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
    if ledger["ttft_ms"] is not None:
        moments.append(Moment("ttft", ledger["ttft_ms"], f"first byte to the client {_short(ledger['ttft_ms'])}"))
    return Timeline(bars, ghosts, moments, end, deadline, broken)


def _limits(root: Bar | None, route: Bar | None, given: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    """Return when the deadline is and when the first token is due; None for what the record does not say."""
    if root is not None and names.DEADLINE in root.attributes:
        return root.attributes[names.DEADLINE], root.attributes.get(names.TTFT_TARGET)
    if route is None or not given:
        return None, None
    left, first = given.get("budget_s"), given.get("ttft_s")
    return (
        None if left is None else route.start_ms + left * 1000,
        None if first is None else route.start_ms + first * 1000,
    )


def _bars(record: Record) -> list[Bar]:
    served = record["ledger"].get("served") or ()
    bars: list[Bar] = []
    for hop in record["hops"]:
        start, duration = hop["start_us"] / 1000, hop["duration_us"] / 1000
        attributes = hop["attributes"]
        number = attributes.get(names.ATTEMPT_NUMBER)
        first = attributes.get(names.TTFT)
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
                explain(hop),
                attributes,
                None if first is None or hop["name"] != names.ATTEMPT else start + float(first),
                None if names.VERDICT_AT not in attributes else start + float(attributes[names.VERDICT_AT]),
                str(attributes.get(names.CLAUSE) or ""),
                _line_of(attributes.get(names.CLAUSE_LINE)),
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
) -> list[Ghost]:
    """Return the tiers of the ladder that were not called, from where the decision was made."""
    if route is None or not given:
        return []
    found = []
    start = route.end_ms
    for tier, health in zip(tiers, given.get("health") or (), strict=False):
        if tier in called or health is None:
            continue
        if health.get("unavailable"):
            found.append(Ghost(tier, start, 0.0, None, f"{tier}: not to be had ({health['unavailable']})", False))
            continue
        stream = bool(given.get("stream"))
        expected, slow = (health.get("ttft_s"), health.get("ttft_p95_s")) if stream else (health.get("whole_s"), None)
        if expected is None:
            continue
        took, p95 = expected * 1000, None if slow is None else slow * 1000
        limit = target if stream and target is not None else deadline
        late = limit is not None and start + took > limit
        what = "first token" if stream else "whole answer"
        text = f"{tier}: {what} expected after {milliseconds(took)}"
        text += f", p95 {milliseconds(p95)}" if p95 is not None else ""
        found.append(Ghost(tier, start, took, p95, text + ("; would have been late" if late else ""), late))
    return found


def _short(value_ms: float) -> str:
    if value_ms >= 10_000:
        return f"{value_ms / 1000:.0f} s"
    if value_ms >= 1000:
        return f"{value_ms / 1000:.3g} s"
    return f"{value_ms:.3g} ms" if value_ms < 100 else f"{value_ms:.0f} ms"
