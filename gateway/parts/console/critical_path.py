"""Find the hops that a request's total time consists of: making any other one faster would not have made it shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.telemetry import names

if TYPE_CHECKING:
    from gateway.parts.console.bar import Bar

_NEAR_MS: Final = 0.05
"""A hop that ends this shortly before another begins is what that one waited for."""
_APART: Final = frozenset({names.REQUEST, names.CACHE_WRITE, names.SAMPLE, names.JUDGE})
"""The whole, what runs after the reply, and what an attempt contains."""


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A part of the total time. `number` is that of the hop; None where no hop ran. `queued`: it waited for a slot."""

    number: int | None
    start_ms: float
    end_ms: float
    queued: bool = False


def critical_path(bars: Sequence[Bar]) -> list[PathSegment]:
    """Return what the time of a request consists of, from its start to its end; nothing without its first hop.

    It goes back from the end: the hop that ended last is what was waited for, then what ended last before that one
    began. A hop that still ran at that moment, such as the late attempt beside which a hedge was started, counts up to
    there. A hop that lost its race ends because another won, so it never counts by its end.
    """
    root = next((bar for bar in bars if bar.name == names.REQUEST), None)
    if root is None:
        return []
    hops = [bar for bar in bars if bar.name not in _APART and bar.duration_ms > 0]
    found: list[PathSegment] = []
    at = root.end_ms
    while at > root.start_ms:
        before = [
            bar for bar in hops
            if bar.start_ms < at and not (bar.lost and (at == root.end_ms or bar.end_ms <= at + _NEAR_MS))
        ]  # fmt: skip
        if not before:
            found.append(PathSegment(None, root.start_ms, at))
            break
        last = max(before, key=lambda bar: (min(bar.end_ms, at), bar.served, bar.start_ms))
        end = at
        if last.end_ms < at - _NEAR_MS:
            found.append(PathSegment(None, last.end_ms, at))
            end = last.end_ms
        called = min(last.start_ms + last.queue_ms, end)
        if called < end:
            found.append(PathSegment(last.number, called, end))
        if last.queue_ms:
            found.append(PathSegment(last.number, last.start_ms, called, queued=True))
        at = last.start_ms
    return found[::-1]
