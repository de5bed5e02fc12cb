"""Exchange endpoint state between workers through a stream in the store; siblings learn of changes within a second.

Once a second a worker appends one entry with the state of its endpoints in use, and of those that changed, to a stream
that all workers and replicas follow. What others should know sooner, such as an ejection (`reports.is_pressing`), it
appends within a quarter of a second. Nothing here is on a request's path; when the store is missing, down or full, each
worker goes by its own observations. Entries are untrusted: they are checked field by field before they reach
`Endpoint.heard`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from cache.store.base import Append, Store, StoreUnavailable
from gateway.parts.fleet.reports import IDLE, Brief, ejection_from, is_pressing, report_of, rests, take_in
from gateway.tiers.breaker import Cause, Ejection

if TYPE_CHECKING:
    from gateway.config.backends import BackendConfig
    from gateway.tiers.endpoint import Endpoint

STREAM = "tierline:live"
_VERSION = 2
_KEEP = 1000
_LAST_SECONDS = 40
"""Entries that workers write in some seconds."""
_TICK_S = 0.25
_HEARTBEAT_S = 1.0
_OLD_MS = 2000
_SAID_S = 5.0
_RETRY_S = 0.5
_BLOCK_MS = 5000
_COUNT = 100
_LARGEST_ENTRY = 64 << 10
_LONGEST_NAME = 80
_MOST_CALLS = 1_000_000
_LONGEST_S = 1e6
_UNTOLD = Brief(0, 0, ("", ""), limited=False)
"""What no endpoint's state is, so that it is published."""

Clock = Callable[[], float]


class Gossip:
    """Publish one worker's endpoint state and follow its siblings'. Start and close it on the worker's event loop."""

    def __init__(self, store: Store, endpoints: Iterable[Endpoint], clock: Clock = time.monotonic) -> None:
        self.worker = secrets.token_hex(6)
        self._store = store
        self._endpoints = {_name_of(endpoint.config): endpoint for endpoint in endpoints if endpoint.config.configured}
        self._clock = clock
        self._told: dict[str, Brief] = dict.fromkeys(self._endpoints, IDLE)
        self._told_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start publishing and following; do nothing if no store is configured."""
        if self._store.state().status != "unconfigured":
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._look)
            self._following = asyncio.create_task(self._follow(), name="tierline.peers.follow")

    async def aclose(self) -> None:
        """Stop, and wait for the end of both tasks."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._telling, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        """Publish what siblings should know by now, unless that is under way, and look again soon."""
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._look)
        if self._telling is not None:
            return
        now = self._clock()
        beat = now - self._told_at >= _HEARTBEAT_S
        names: list[str] = []
        for name, told in self._told.items():
            if beat or is_pressing(self._endpoints[name], told):
                names.append(name)
        if names and (news := self._news(names, now, beat=beat)):
            self._telling = asyncio.create_task(self._tell(news), name="tierline.peers.tell")

    async def _tell(self, news: Mapping[str, Any]) -> None:
        try:
            await self._store.apply([Append(STREAM, self._entry(news), _KEEP)])
        except StoreUnavailable:
            # No sibling has seen it, so publish all states again, except the latencies, which would pile up.
            self._told = dict.fromkeys(self._told, _UNTOLD)
            await asyncio.sleep(_RETRY_S)
        finally:
            self._telling = None

    def _news(self, names: Iterable[str], now: float, *, beat: bool) -> dict[str, dict[str, Any]]:
        """Return the state of those of these endpoints that changed since it was published, and at a `beat` of all
        that are in use.
        """
        news: dict[str, dict[str, Any]] = {}
        for name in names:
            endpoint, told = self._endpoints[name], self._told[name]
            if told == IDLE and rests(endpoint):
                if endpoint.calls_limit.is_shared:
                    endpoint.share(now)
                continue
            state = report_of(endpoint, now)
            brief = _brief_of(state)
            if state.get("latency") or told != brief or (beat and brief != IDLE):
                self._told[name] = brief
                news[name] = state
        if beat:
            self._told_at = now
        return news

    def _entry(self, news: Mapping[str, Any]) -> bytes:
        return orjson.dumps({"v": _VERSION, "worker": self.worker, "backends": news})

    async def _follow(self) -> None:
        last_id: str | None = None
        while True:
            try:
                if last_id is None:
                    # Skip what was published before we started or while the store was unreachable: it is stale.
                    newest = await self._store.latest(STREAM, 1)
                    last_id = newest[0][0] if newest else "0"
                entries = await self._store.after(STREAM, last_id, _COUNT, _BLOCK_MS)
            except StoreUnavailable:
                last_id = None
                await asyncio.sleep(_RETRY_S)
                continue
            if entries:
                last_id = entries[-1][0]
                newest_ms = _milliseconds(last_id)
                for entry_id, value in entries:
                    if newest_ms - _milliseconds(entry_id) <= _OLD_MS:
                        self._hear(value)

    def _hear(self, value: bytes) -> None:
        entry = _parse(value)
        if entry is None or entry[0] == self.worker:
            return
        worker, backends = entry
        now = self._clock()
        for name, state in backends.items():
            endpoint = self._endpoints.get(name)
            if endpoint is not None and isinstance(state, dict):
                take_in(endpoint, worker, _read(state), now)


@dataclass(frozen=True, slots=True)
class ReportedEjection:
    """A backend that a worker does not call, as it says itself. `since_s` is in Unix seconds."""

    backend: str
    cause: Cause
    reason: str
    since_s: float
    at_least: bool
    """Whether it may have begun before: the entries reach no further back."""


def ejections_in(entries: Sequence[tuple[str, bytes]], now_s: float) -> list[ReportedEjection]:
    """Return the backends that are ejected now by any worker, from entries of the stream, newest first.

    A worker repeats an ejection every second until it ends, so one that was not said for some seconds is over, or its
    worker is gone. One whose time is over waits for a request to try the backend: without traffic it lasts no longer.
    """
    runs: dict[tuple[str, str], tuple[Ejection, float]] = {}
    over: set[tuple[str, str]] = set()
    for entry_id, value in entries:
        at_s = _milliseconds(entry_id) / 1000
        worker, backends = _parse(value) or ("", {})
        for name, state in backends.items():
            key = worker, name
            if key in over or not isinstance(state, dict):
                continue
            ejection = ejection_from(state.get("ejection"), 0.0)
            if ejection is None or (key not in runs and (now_s - at_s > _SAID_S or _is_over(ejection))):
                over.add(key)
            else:
                runs[key] = runs.get(key, (ejection, at_s))[0], at_s
    found: dict[str, ReportedEjection] = {}
    for (worker, name), (ejection, since_s) in runs.items():
        backend = name.rpartition("@")[0]
        report = ReportedEjection(backend, ejection.cause, ejection.reason, since_s, (worker, name) not in over)
        if backend not in found or since_s < found[backend].since_s:
            found[backend] = report
    return [found[backend] for backend in sorted(found)]


async def read_reports(store: Store, now_s: float) -> tuple[list[ReportedEjection], dict[str, tuple[int, int]]]:
    """Return the backends that are not called, and by backend the calls in flight and waiting.

    All that the stream keeps is read only where there are ejections. Raises StoreUnavailable.
    """
    recent = await store.latest(STREAM, _LAST_SECONDS)
    out = ejections_in(recent, now_s)
    if out:
        out = ejections_in(await store.latest(STREAM, _KEEP), now_s)
    return out, loads_in(recent, now_s)


def _is_over(ejection: Ejection) -> bool:
    """Return whether the next request is sent there again, which for a key, a quota or a model would fail as before."""
    return not ejection.refusal and ejection.until <= 0


def loads_in(entries: Sequence[tuple[str, bytes]], now_s: float) -> dict[str, tuple[int, int]]:
    """Return by backend the calls in flight and waiting of all workers, from entries of the stream, newest first.

    A worker repeats the state of a backend in use every second: one that was not said for some seconds is idle there.
    """
    seen: set[tuple[str, str]] = set()
    loads: dict[str, tuple[int, int]] = {}
    for entry_id, value in entries:
        if now_s - _milliseconds(entry_id) / 1000 > _SAID_S:
            break
        worker, backends = _parse(value) or ("", {})
        for name, state in backends.items():
            if (worker, name) not in seen and isinstance(state, dict):
                seen.add((worker, name))
                told, backend = _read(state), name.rpartition("@")[0]
                in_flight, waiting = loads.get(backend, (0, 0))
                loads[backend] = in_flight + told.get("in_flight", 0), waiting + told.get("waiting", 0)
    return loads


def _name_of(config: BackendConfig) -> str:
    """Return the backend's name in the stream: `NAME@HASH`, the hash of its base URL and model (12 hex digits)."""
    where = hashlib.sha256(f"{config.base_url}\n{config.model}".encode()).hexdigest()
    return f"{config.name}@{where[:12]}"


def _brief_of(state: Mapping[str, Any]) -> Brief:
    """Return the part of a state whose change is published: everything but the values that change with time alone."""
    ejection = state.get("ejection")
    return Brief(
        state.get("in_flight", 0),
        state.get("waiting", 0),
        (ejection["cause"], ejection["reason"]) if ejection else None,
        bool(state.get("quota_s")),
    )


def _milliseconds(entry_id: str) -> int:
    stamp = entry_id.partition("-")[0]
    return int(stamp) if stamp.isdecimal() else 0


def _parse(value: bytes) -> tuple[str, dict[str, Any]] | None:
    """Return (worker, state by backend name); None for an invalid entry or one of another version."""
    if len(value) > _LARGEST_ENTRY:
        return None
    try:
        entry = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(entry, dict) or entry.get("v") != _VERSION:
        return None
    worker, backends = entry.get("worker"), entry.get("backends")
    if not isinstance(worker, str) or not 0 < len(worker) <= _LONGEST_NAME or not isinstance(backends, dict):
        return None
    return worker, backends


def _read(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid fields of a state. `ejection` and `latency` are checked by those who read them."""
    read: dict[str, Any] = {"ejection": state.get("ejection")}
    for key in ("in_flight", "waiting"):
        if type(count := state.get(key)) is int and 0 <= count <= _MOST_CALLS:
            read[key] = count
    for key in ("idle_s", "quota_s"):
        if (seconds := _seconds(state.get(key))) is not None:
            read[key] = seconds
    if isinstance(latency := state.get("latency"), dict):
        read["latency"] = latency
    return read


def _seconds(value: object) -> float | None:
    if type(value) not in (int, float):
        return None
    seconds = float(value)  # type: ignore[arg-type]
    return seconds if 0 <= seconds <= _LONGEST_S else None
