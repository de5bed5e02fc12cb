"""Carries what workers tell each other of their backends through the store, so that a sibling knows within a second.

Four times a second a worker that has news appends one entry, with the state of the endpoints that changed, to a stream
that all workers and replicas follow; once a second it repeats the state of those that are in use, so that siblings know
that it lives. Nothing here is on the path of a request, and a store that is missing, down or full only means that each
worker goes by what it sees itself. What comes from the stream is a stranger's word: only what `Endpoint.heard` may be
told is let through.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from cache.store.base import Append, Store, StoreUnavailable
from gateway.config.schema import BackendConfig
from gateway.tiers.endpoint import Endpoint

STREAM = "tierline:live"
_VERSION = 1
_KEEP = 1000
_TICK_S = 0.25
_HEARTBEAT_S = 1.0
_OLD_MS = 2000
_RETRY_S = 0.5
_BLOCK_MS = 1000
_COUNT = 100
_LARGEST_ENTRY = 64 << 10
_LONGEST_NAME = 80
_LONGEST_REASON = 200
_MOST_CALLS = 1_000_000
_LONGEST_S = 1e6

Clock = Callable[[], float]


class Gossip:
    """One worker's part in it. Started and closed by the worker's assembly, on its event loop."""

    def __init__(self, store: Store, endpoints: Iterable[Endpoint], clock: Clock = time.monotonic) -> None:
        self.worker = secrets.token_hex(6)
        self._store = store
        self._endpoints = {_name_of(one.config): one for one in endpoints if one.config.configured}
        self._clock = clock
        self._told: dict[str, tuple[Any, ...]] = {}
        self._told_at = -math.inf
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to tell and to follow; without a store there is nobody to tell."""
        if self._store.state().status != "unconfigured":
            self._tasks = [
                asyncio.create_task(self._tell(), name="tierline.peers.tell"),
                asyncio.create_task(self._follow(), name="tierline.peers.follow"),
            ]

    async def aclose(self) -> None:
        """Ends both."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            news = self._news()
            if news:
                try:
                    await self._store.apply([Append(STREAM, self._entry(news), _KEEP)])
                except StoreUnavailable:
                    # Nobody knows, so all of it is told again, save the latencies, which would pile up.
                    self._told = dict.fromkeys(self._told, ())
                    await asyncio.sleep(_RETRY_S)

    def _news(self) -> dict[str, dict[str, Any]]:
        """The state of the endpoints of which siblings would not know; every second of all that are in use."""
        now = self._clock()
        beat = now - self._told_at >= _HEARTBEAT_S
        news: dict[str, dict[str, Any]] = {}
        for name, endpoint in self._endpoints.items():
            state = endpoint.state(now)
            gist = _gist_of(state)
            if state.get("latency") or self._told.get(name, _IDLE) != gist or (beat and gist != _IDLE):
                self._told[name] = gist
                news[name] = state
        if beat and news:
            self._told_at = now
        return news

    def _entry(self, news: Mapping[str, Any]) -> bytes:
        return orjson.dumps({"v": _VERSION, "worker": self.worker, "backends": news})

    async def _follow(self) -> None:
        last_id: str | None = None
        while True:
            try:
                if last_id is None:
                    # What was told before we began, or while the store was gone, is old.
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
        told = _parse(value)
        if told is None or told[0] == self.worker:
            return
        worker, backends = told
        now = self._clock()
        for name, state in backends.items():
            endpoint = self._endpoints.get(name)
            if endpoint is not None and isinstance(state, dict):
                endpoint.heard(worker, _read(state), now)


def _name_of(config: BackendConfig) -> str:
    """The same in all gateways that call the same model at the same place, and in no other."""
    where = hashlib.sha256(f"{config.base_url}\n{config.model}".encode()).hexdigest()
    return f"{config.name}@{where[:12]}"


_IDLE: tuple[Any, ...] = (0, 0, None, False)


def _gist_of(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a state is news when it changes: not that time has passed."""
    rest = state.get("rest")
    return (
        state.get("in_flight", 0),
        state.get("waiting", 0),
        (rest["cause"], rest["reason"]) if rest else None,
        bool(state.get("quota_s")),
    )


def _milliseconds(entry_id: str) -> int:
    stamp = entry_id.partition("-")[0]
    return int(stamp) if stamp.isdecimal() else 0


def _parse(value: bytes) -> tuple[str, dict[str, Any]] | None:
    """The worker, and its states by backend; None of what is no entry of this version."""
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
    """What of a state makes sense; the rest is left out. The latencies are checked by the model that takes them."""
    read: dict[str, Any] = {"rest": _rest(state.get("rest"))}
    for key in ("in_flight", "waiting"):
        if type(count := state.get(key)) is int and 0 <= count <= _MOST_CALLS:
            read[key] = count
    for key in ("idle_s", "quota_s"):
        if (seconds := _seconds(state.get(key))) is not None:
            read[key] = seconds
    if isinstance(latency := state.get("latency"), dict):
        read["latency"] = latency
    return read


def _rest(rest: object) -> dict[str, Any] | None:
    if not isinstance(rest, dict):
        return None
    cause, reason, left_s = rest.get("cause"), rest.get("reason"), _seconds(rest.get("left_s"))
    if not isinstance(cause, str) or not isinstance(reason, str) or left_s is None:
        return None
    shown = "".join(filter(str.isprintable, reason[:_LONGEST_REASON]))
    return {"cause": cause, "reason": shown, "left_s": left_s}


def _seconds(value: object) -> float | None:
    if type(value) not in (int, float):
        return None
    seconds = float(value)  # type: ignore[arg-type]
    return seconds if 0 <= seconds <= _LONGEST_S else None
