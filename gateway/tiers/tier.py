"""One rung of the ladder: backends that are as good as each other, and which of them is called.

A backend that has become slow without failing is not ejected. Selection goes by live latency, so it gets little; what
it still gets shows when it is well again. A tier never rules out its last backend: one that rests for its failures
alone is asked when nothing else can answer.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Container, Sequence
from typing import Any

from gateway.backends.base import Saturated
from gateway.tiers.endpoint import Endpoint
from gateway.tiers.line import Ask
from gateway.tiers.slot import Slot
from routing.allowances import RetryBudget
from routing.decide import TierHealth
from routing.latency import Forecast
from routing.selection import Candidate, PowerOfTwo, Selection, Sticky, Weighted

_FRESH_S = 0.25

Clock = Callable[[], float]


class Tier:
    """Not thread-safe: it belongs to one event loop. `select` is how one of several endpoints is chosen."""

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Endpoint],
        clock: Clock = time.monotonic,
        select: str = "power_of_two",
    ) -> None:
        self.name = name
        self.endpoints = tuple(endpoints)
        self.sticky = select == "sticky" and len(self.endpoints) > 1
        """Whether the `affinity` of an `Ask` matters."""
        self._clock = clock
        self._selection = _selection(select)
        self._retries = RetryBudget()
        self._configured = tuple(endpoint for endpoint in self.endpoints if endpoint.config.configured)
        self._candidates = {endpoint: _candidate(i, endpoint) for i, endpoint in enumerate(self._configured)}
        configs = [endpoint.config for endpoint in self._configured or self.endpoints]
        self._capabilities: frozenset[str] = frozenset.intersection(*(frozenset[str](c.capabilities) for c in configs))
        self.free = all(config.price.input == 0 == config.price.output for config in configs)
        """Whether its calls cost nothing."""
        self._well: dict[int, tuple[float, TierHealth]] = {}
        for endpoint in self.endpoints:
            endpoint.retries = self._retries
            endpoint.siblings = tuple(other for other in self._configured if other is not endpoint)

    def health(self, tokens_in: int = 0, batch: bool = False) -> TierHealth:
        """What routing may know of it now; the forecast is for a prompt of so many tokens."""
        now = self._clock()
        if not batch and self._configured and _all_unhindered(self._configured):
            bucket = tokens_in.bit_length()
            cached = self._well.get(bucket)
            if cached is None or now >= cached[0]:
                cached = self._well[bucket] = (now + _FRESH_S, self._health(tokens_in, now, batch=False))
            return cached[1]
        return self._health(tokens_in, now, batch=batch)

    async def acquire(self, ask: Ask, failed: Container[Endpoint] = ()) -> Slot:
        """A place for one call, at once where there is room, else after a wait in the line of one endpoint.

        An endpoint that has `failed` this request already comes last. Raises Saturated: at once when no line has a
        place for this request or it would wait there for longer than it may, and when it has waited that long. Safe to
        cancel: no place is lost.
        """
        now = self._clock()
        batch = ask.priority == "batch"
        if not failed:
            self._retries.request(now)
        usable: Sequence[Endpoint] = [e for e in self._configured if e.breaker.rest is None or not e.unavailable()]
        if not usable:
            usable = [endpoint for endpoint in self._configured if endpoint.failing]
        roomy = [endpoint for endpoint in usable if endpoint.has_room(batch=batch, now=now)]
        if roomy:
            chosen = roomy[0] if len(roomy) == 1 else self._choose(_fresh_first(roomy, failed), ask, now)
            return chosen.take(ask, retry=bool(failed))
        if not usable:
            raise Saturated(f"no backend of {self.name} may be called now", self.pause_s())
        nearest = min(_fresh_first(usable, failed), key=lambda one: one.predicted_wait_s(batch=batch))
        return await nearest.wait(ask, retry=bool(failed))

    def pick(self, failed: Container[Endpoint | None] = ()) -> Endpoint | None:
        """An endpoint with room; None when there is none."""
        now = self._clock()
        usable = [e for e in self._configured if not e.unavailable()] or [e for e in self._configured if e.failing]
        roomy = [endpoint for endpoint in usable if not endpoint.full]
        return self._choose(_fresh_first(roomy, failed), Ask(), now) if roomy else None

    def may_retry(self, failed: Container[Endpoint]) -> bool:
        """Whether a request that others have `failed` may be tried here; a yes counts, so ask only if it will be."""
        healthy = any(one.well and one not in failed and not one.unavailable() for one in self._configured)
        return self._retries.may_retry(healthy, self._clock())

    def pause_s(self) -> float | None:
        """How long until an endpoint that asked for a pause may be called again; None if none did."""
        return min((pause for endpoint in self.endpoints if (pause := endpoint.pause_s()) is not None), default=None)

    def _health(self, tokens_in: int, now: float, *, batch: bool) -> TierHealth:
        count = max(1, len(self._configured))
        reason = ""
        best: Forecast | None = None
        for endpoint in self.endpoints:
            if why := endpoint.unavailable():
                reason = why
                continue
            forecast = endpoint.forecast(tokens_in, batch=batch, now=now)
            if best is None or _first_s(forecast) < _first_s(best):
                best = forecast
        if best is not None:
            return TierHealth(self.name, self._capabilities, count, forecast=best)
        failing = any(endpoint.failing for endpoint in self.endpoints)
        return TierHealth(self.name, self._capabilities, count, reason, failing)

    def _choose(self, among: Sequence[Endpoint], ask: Ask, now: float) -> Endpoint:
        if len(among) == 1:
            return among[0]
        candidates = []
        for endpoint in among:
            forecast = endpoint.forecast(ask.tokens_in, batch=False, now=now)
            candidate = self._candidates[endpoint]
            candidate.weight, candidate.load = endpoint.weight, endpoint.load
            candidate.ttft_s = _first_s(forecast) if forecast.known else None
            candidate.slope_s = endpoint.latency.slope(now) if self.sticky else None
            candidates.append(candidate)
        return among[self._selection.choose(candidates, ask.affinity, ask.tokens_in)]


def _all_unhindered(endpoints: Sequence[Endpoint]) -> bool:
    for endpoint in endpoints:  # noqa: SIM110  (a generator costs three times as much, on every request)
        if not endpoint.unhindered:
            return False
    return True


def _first_s(forecast: Forecast) -> float:
    """When something comes: the first token, or where only whole answers were seen, those."""
    return forecast.ttft_s or forecast.whole_s


def _fresh_first(endpoints: Sequence[Endpoint], failed: Container[Any]) -> Sequence[Endpoint]:
    if not failed:
        return endpoints
    return [endpoint for endpoint in endpoints if endpoint not in failed] or endpoints


def _selection(select: str) -> Selection:
    kinds: dict[str, Callable[[random.Random], Selection]] = {
        "power_of_two": PowerOfTwo,
        "weighted": Weighted,
        "sticky": Sticky,
    }
    return kinds[select](random.Random())  # noqa: S311


def _candidate(index: int, endpoint: Endpoint) -> Candidate:
    return Candidate(index, zlib.crc32(endpoint.config.name.encode()), endpoint.config.weight, 0.0, None)
