"""One rung of the ladder: backends that are as good as each other, and which of them is called.

A backend that has become slow without failing is not ejected. Selection goes by live latency, so it gets little; what
it still gets shows when it is well again. A tier never rules out its last backend: one that rests for its failures
alone is asked when nothing else can answer.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from gateway.backends.base import Saturated
from gateway.tiers.endpoint import Endpoint
from gateway.tiers.queue import SlotRequest
from gateway.tiers.slot import Slot
from routing.decide import TierHealth
from routing.load.budgets import RetryBudget
from routing.load.latency import Forecast
from routing.load.selection import Candidate, PowerOfTwo, Selection, Sticky, Weighted

_FRESH_S = 0.25
_LOOKS = 20
_UNTRIED_S = 5.0

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
        """Whether the `affinity` of an `SlotRequest` matters."""
        self._clock = clock
        self._selection = _selection(select)
        self._retries = RetryBudget()
        self._configured = tuple(endpoint for endpoint in self.endpoints if endpoint.config.configured)
        configs = [endpoint.config for endpoint in self._configured or self.endpoints]
        self._capabilities: frozenset[str] = frozenset.intersection(*(frozenset[str](c.capabilities) for c in configs))
        self.configured = bool(self._configured)
        """Whether at least one of its backends is."""
        self._context = min((c.context for c in configs if c.context is not None), default=None)
        self.free = all(config.price.input == 0 == config.price.output for config in configs)
        """Whether its calls cost nothing."""
        self.price = configs[0].price
        """Of its first backend; what its calls are compared by."""
        self._well: dict[int, tuple[float, TierHealth]] = {}
        self._candidates: dict[int, tuple[float, Mapping[Endpoint, Candidate]]] = {}
        self._looked = 0
        self._called_at = 0.0
        for endpoint in self.endpoints:
            endpoint.retries = self._retries
            endpoint.siblings = tuple(other for other in self._configured if other is not endpoint)

    def health(self, tokens_in: int = 0, batch: bool = False) -> TierHealth:
        """What routing may know of it now; the forecast is for a prompt of so many tokens.

        A forecast that keeps everyone away would never be proved wrong: of twenty requests that look at a tier which
        has had no call for five seconds, one is told nothing.
        """
        now = self._clock()
        self._looked += 1
        if self._looked > _LOOKS and now - self._called_at > _UNTRIED_S:
            self._looked = 0
            return replace(self._health(tokens_in, now, batch=batch), forecast=None)
        for endpoint in self._configured:
            if not endpoint.unhindered or (batch and not endpoint.has_room(batch=True, now=now)):
                return self._health(tokens_in, now, batch=batch)
        bucket = tokens_in.bit_length()
        cached = self._well.get(bucket)
        if cached is None or now >= cached[0]:
            cached = self._well[bucket] = (now + _FRESH_S, self._health(tokens_in, now, batch=False))
        return cached[1]

    def quantile_s(self, q: float, tokens_in: int, *, whole: bool) -> float | None:
        """That quantile of the time to a first token, or to a whole answer, of its fastest backend; None if unknown."""
        now = self._clock()
        models = [endpoint.latency for endpoint in self._configured]
        known = [model.whole(q, tokens_in, now) if whole else model.ttft(q, tokens_in, now) for model in models]
        return min((seconds for seconds in known if seconds is not None), default=None)

    async def acquire(self, ask: SlotRequest, failed: Container[Endpoint] = ()) -> Slot:
        """A place for one call, at once where there is room, else after a wait in the line of one endpoint.

        An endpoint that has `failed` this request already comes last. Raises Saturated: at once when no line has a
        place for this request or it would wait there for longer than it may, and when it has waited that long. Safe to
        cancel: no place is lost.
        """
        now = self._called_at = self._clock()
        self._looked = 0
        batch = ask.priority == "batch"
        if not failed:
            self._retries.request(now)
            if not batch and (open_ := [endpoint for endpoint in self._configured if endpoint.unhindered]):
                return self._choose(open_, ask, now).place(ask, now, 0.0, retry=False)
        usable = self._usable(ask.tokens_in)
        roomy = [endpoint for endpoint in usable if endpoint.has_room(batch=batch, now=now)]
        if roomy:
            return self._choose(_fresh(roomy, failed), ask, now).place(ask, now, 0.0, retry=bool(failed))
        if not usable:
            raise Saturated(f"no backend of {self.name} may be called now", self.pause_s(ask.tokens_in))
        nearest = min(_fresh(usable, failed), key=lambda endpoint: endpoint.predicted_wait_s(batch=batch))
        return await nearest.wait(ask, retry=bool(failed))

    def may_retry(self, failed: Container[Endpoint]) -> bool:
        """Whether a request that others have `failed` may be tried here; a yes counts, so ask only if it will be."""
        healthy = any(one.well and one not in failed and not one.unavailable() for one in self._configured)
        return self._retries.may_retry(healthy, self._clock())

    def pause_s(self, tokens_in: int = 0) -> float | None:
        """How long until an endpoint that asked for a pause, or is out of quota, may be called; None if none is."""
        pauses = [endpoint.pause_s(tokens_in) for endpoint in self.endpoints]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _health(self, tokens_in: int, now: float, *, batch: bool) -> TierHealth:
        count = max(1, len(self._configured))
        reason = ""
        best: Forecast | None = None
        for endpoint in self.endpoints:
            if why := endpoint.unavailable(tokens_in):
                reason = why
                continue
            forecast = endpoint.forecast(tokens_in, batch=batch, now=now)
            if best is None or _first_s(forecast) < _first_s(best):
                best = forecast
        if best is not None:
            return TierHealth(self.name, self._capabilities, count, forecast=best, context=self._context)
        failing = any(endpoint.failing for endpoint in self.endpoints)
        return TierHealth(self.name, self._capabilities, count, reason, failing, context=self._context)

    def _usable(self, tokens_in: int) -> list[Endpoint]:
        """The available ones; where there is none, those that rest for their failures alone."""
        available = [endpoint for endpoint in self._configured if not endpoint.unavailable(tokens_in)]
        return available or [endpoint for endpoint in self._configured if endpoint.failing]

    def _choose(self, among: Sequence[Endpoint], ask: SlotRequest, now: float) -> Endpoint:
        if len(among) == 1:
            return among[0]
        known = self._known(ask.tokens_in, now)
        candidates = []
        for endpoint in among:
            candidate = known[endpoint]
            candidate.load = (endpoint.in_flight + endpoint.line.size) / endpoint.capacity
            candidates.append(candidate)
        return among[self._selection.choose(candidates, ask.affinity, ask.tokens_in)]

    def _known(self, tokens_in: int, now: float) -> Mapping[Endpoint, Candidate]:
        """What is known of each endpoint for prompts of this length, but for its load."""
        bucket = tokens_in.bit_length()
        cached = self._candidates.get(bucket)
        if cached is None or now >= cached[0]:
            known = {one: self._candidate(i, one, tokens_in, now) for i, one in enumerate(self._configured)}
            cached = self._candidates[bucket] = (now + _FRESH_S, known)
        return cached[1]

    def _candidate(self, index: int, endpoint: Endpoint, tokens_in: int, now: float) -> Candidate:
        forecast = endpoint.forecast(tokens_in, batch=False, now=now)
        first = max(0.0, _first_s(forecast) - forecast.queue_s)
        slope = endpoint.latency.slope(now) if self.sticky else None
        return Candidate(index, zlib.crc32(endpoint.config.name.encode()), endpoint.weight, 0.0, first or None, slope)


def _first_s(forecast: Forecast) -> float:
    """When something comes: the first token, or where only whole answers were seen, those."""
    return forecast.ttft_s or forecast.whole_s


def _fresh(endpoints: Sequence[Endpoint], failed: Container[Endpoint]) -> Sequence[Endpoint]:
    """Those that have not failed the request; all of them where there are none."""
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
