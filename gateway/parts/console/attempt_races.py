"""Find the attempts of a request that ran beside each other, and say who won and what the others cost.

A race is a hedge and the attempt that was late, a speculative attempt and the one before it, or further samples beside
an answer that they are compared with. Pure functions of a timeline's bars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.telemetry import names
from policies.quantities import dollars, milliseconds

if TYPE_CHECKING:
    from gateway.parts.console.bar import Bar

_BESIDE_MS: Final = 0.5
"""Attempts that overlap for less ran one after the other: one ends while the next begins."""


@dataclass(frozen=True, slots=True)
class Race:
    """Attempts that ran beside each other. `kind` is hedge, speculation, samples or parallel."""

    kind: str
    numbers: Sequence[int]
    """The request's hops, attempts first, each in the order in which they began."""
    winner: int | None
    """The hop whose text the client got; None if nobody's."""
    text: str
    """Who won and what it cost, in words."""
    unused_tokens: int
    """Tokens in and out of the calls whose text nobody got."""
    unused_usd: float
    cost_unknown: bool
    """Whether one of these calls has no known price, so that `unused_usd` is too low."""


def races_of(bars: Sequence[Bar]) -> list[Race]:
    """Return the races among the attempts and samples of a request, in the order in which they began."""
    runners = sorted((bar for bar in bars if bar.name in (names.ATTEMPT, names.SAMPLE)), key=lambda bar: bar.start_ms)
    races: list[Race] = []
    group: list[Bar] = []
    until = 0.0
    for bar in runners:
        if group and until - bar.start_ms < _BESIDE_MS:
            races += _race(group)
            group = []
        group.append(bar)
        until = max(until, bar.end_ms) if len(group) > 1 else bar.end_ms
    return races + _race(group)


def used_by(bar: Bar) -> str:
    """Return in words what an attempt used: tokens, dollars."""
    told = bar.attributes
    tokens = int(told.get(names.GEN_AI_TOKENS_IN) or 0) + int(told.get(names.GEN_AI_TOKENS_OUT) or 0)
    counted = " (estimated)" if tokens and told.get(names.USAGE_ESTIMATED) else ""
    price = "at an unknown price" if told.get(names.COST_UNKNOWN) else dollars(float(told.get(names.COST) or 0.0))
    return f"{tokens:,} tokens{counted}, {price}" if tokens else "no tokens reported"


def loss_of(bar: Bar) -> str:
    """Return in words when an attempt lost its race and what it cost; empty if it did not lose one."""
    if not bar.lost:
        return ""
    return f"cancelled at {milliseconds(bar.end_ms)}, {milliseconds(bar.duration_ms)} after it began: {used_by(bar)}"


def _race(group: Sequence[Bar]) -> list[Race]:
    if len(group) < 2:
        return []
    ordered = sorted(group, key=lambda bar: bar.name == names.SAMPLE)
    winner = next((bar for bar in ordered if bar.served), None)
    unused = [bar for bar in ordered if not bar.served]
    told = [bar.attributes for bar in unused]
    tokens = sum(int(hop.get(names.GEN_AI_TOKENS_IN) or 0) + int(hop.get(names.GEN_AI_TOKENS_OUT) or 0) for hop in told)
    usd = sum(float(hop.get(names.COST) or 0.0) for hop in told)
    unknown = any(hop.get(names.COST_UNKNOWN) for hop in told)
    kind = _kind(ordered)
    text = _words(kind, ordered, winner)
    text += f"; unused: {tokens:,} tokens, {'at least ' if unknown else ''}{dollars(usd)}"
    number = None if winner is None else winner.number
    return [Race(kind, [bar.number for bar in ordered], number, text, tokens, usd, unknown)]


def _kind(group: Sequence[Bar]) -> str:
    if any(bar.attributes.get(names.HEDGE) for bar in group):
        return "hedge"
    if any(bar.attributes.get(names.SPECULATIVE) for bar in group):
        return "speculation"
    return "samples" if any(bar.name == names.SAMPLE for bar in group) else "parallel"


def _words(kind: str, group: Sequence[Bar], winner: Bar | None) -> str:
    samples = sum(bar.name == names.SAMPLE for bar in group)
    if kind == "samples":
        return f"{samples} further {'answer' if samples == 1 else 'answers'} drawn beside it, to compare with"
    lost = [bar for bar in group if bar.lost]
    if winner is None:
        return "nobody won"
    if not lost:
        return f"{winner.label} won"
    first = min(bar.end_ms for bar in lost)
    losers = " and ".join(bar.label for bar in lost)
    return f"{winner.label} won, and {losers} {'was' if len(lost) == 1 else 'were'} cancelled at {milliseconds(first)}"
