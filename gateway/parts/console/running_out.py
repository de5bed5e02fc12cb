"""Say in words what runs out or does not stay up: providers' rate limits, processes and tiers that restart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.parts.console.standing import Need, StandingMark

_OFTEN: Final = 3
_LATELY_S: Final = 900.0
_FELL: Final = 0.5
_REMEMBERED_S: Final = 86400.0
_UNITS: Final = {"requests": "requests", "tokens_in": "input tokens", "tokens_out": "output tokens"}


class LimitWatch:
    """Remember the highest rate limit that each backend's provider allowed, and say where it allows much less now."""

    def __init__(self) -> None:
        self._highest: dict[tuple[str, str], tuple[float, float]] = {}
        self._fell: dict[tuple[str, str], float] = {}

    def needs(self, tiers: Mapping[str, Mapping[str, Any]], now_s: float) -> Iterator[Need]:
        """Yield the limits that fell, by `tiers` of `/readyz`."""
        for tier, state in tiers.items():
            for backend, own in state["backends"].items():
                for unit, limit in (own.get("headroom") or {}).items():
                    if not (of := limit.get("of")):
                        continue
                    key = backend, unit
                    highest, at = self._highest.get(key, (0.0, 0.0))
                    if of >= highest or now_s - at > _REMEMBERED_S:
                        self._highest[key] = of, now_s
                    if of > _FELL * self._highest[key][0]:
                        self._fell.pop(key, None)
                        continue
                    since = self._fell.setdefault(key, now_s)
                    what = (
                        f"The provider of backend {backend} of tier {tier} allows {of:,.0f} {_UNITS[unit]} a minute, "
                        f"where it allowed {self._highest[key][0]:,.0f}."
                    )
                    todo = "Look at the account's tier and bills there, or add a backend."
                    yield Need("warn", what, since, todo, "/requests?is=failed")


def child_needs(logs: Path | None, now_s: float) -> Iterator[Need]:
    """Yield the processes of `tierline up` that end again and again, by what their supervisor notes beside its logs."""
    for child, ends in ends_of(logs).items() if logs is not None else ():
        late = [(at, how) for at, how in ends if now_s - at <= _LATELY_S]
        if len(late) < _OFTEN:
            continue
        name = "The local model" if child == "local" else f"The process {child}"
        often = f"{len(late)} times in the last {_LATELY_S / 60:.0f} min"
        what = f"{name} ended {often}: it {late[-1][1]}, and is started again."
        todo = f"See {logs / f'{child}.log' if logs else child}: memory, the model's file, its context and slots."
        yield Need("bad", what, late[0][0], todo, "/requests?is=failed")


def flapping(marks: Sequence[StandingMark], now_s: float, span_s: float) -> Iterator[Need]:
    """Yield the tiers that went down again and again within a span, however short each time was."""
    downs: dict[str, list[StandingMark]] = {}
    for mark in marks:
        if mark.kind == "breaker" and " went down: " in mark.text and now_s - mark.at_s <= span_s:
            downs.setdefault(mark.text.partition(" went down: ")[0], []).append(mark)
    for tier, own in downs.items():
        times = sorted({mark.at_s for mark in own})
        if len(times) < _OFTEN:
            continue
        why = max(own, key=lambda mark: mark.at_s).text.partition(" went down: ")[2]
        what = f"{tier[0].upper()}{tier[1:]} went down {len(times)} times: {why}."
        todo = "It comes back each time. Look at its backends' log and memory."
        yield Need("warn", what, times[0], todo, "/requests?is=failed")


def ends_of(logs: Path) -> dict[str, list[tuple[float, str]]]:
    """Return the latest unexpected ends of each process with its log in a folder: Unix seconds, and how it ended.

    `gateway.parts.local` notes them there.
    """
    ends = {}
    for file in logs.glob("*.ends"):
        with contextlib.suppress(OSError, ValueError):
            lines = (line.partition(" ") for line in file.read_text().splitlines())
            ends[file.name.removesuffix(".ends")] = [(float(at), how) for at, _, how in lines]
    return ends
