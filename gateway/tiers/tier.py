"""Group the interchangeable backends of one tier and choose one of them for each request. Build tiers of a config.

A backend that is slow but does not fail is not ejected: selection goes by live latency, so it gets few requests, and
those few show when it has recovered. When no backend of a tier is available, those that are ejected only for failed
calls may still be called.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING

from gateway.backends.base import Backend, Saturated, Transport
from gateway.backends.http_backend import Common
from gateway.backends.server_forms import FieldMemory, Quota, adapted, new_field_memory, new_quota, new_refused_kinds
from gateway.config.backends import USAGE_OPTION, BackendConfig, TierConfig
from gateway.config.schema import Deployment
from gateway.tiers.endpoint import Endpoint, OnRefusal
from routing.decide import TierHealth
from routing.load.limits import RetryBudget
from routing.load.selection import Candidate, PowerOfTwo, Selection, Sticky, Weighted

if TYPE_CHECKING:
    from gateway.backends.base import Identity
    from gateway.backends.server_forms import CallMemory
    from gateway.config.backends import Auth
    from gateway.tiers.slot import Slot, SlotRequest
    from routing.load.latency import Forecast


_FRESH_S = 0.25
_LOOKS = 20
_UNTRIED_S = 5.0
_IS_UNHINDERED: Callable[[Endpoint], bool] = attrgetter("unhindered")

Clock = Callable[[], float]


class Tier:
    """Hold the endpoints of one tier and choose among them.

    `select` is `power_of_two`, `weighted` or `sticky`. Not thread-safe: use it from one event loop.
    """

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
        """Whether selection uses the `affinity` of a `SlotRequest`."""
        self._clock = clock
        self._selection = _selection(select)
        self._retries = RetryBudget()
        self._configured = tuple(endpoint for endpoint in self.endpoints if endpoint.config.configured)
        configs = [endpoint.config for endpoint in self._configured or self.endpoints]
        self._capabilities: frozenset[str] = frozenset.intersection(*(c.can for c in configs))
        self.configured = bool(self._configured)
        """Whether at least one of its backends is configured."""
        self.free = all(config.price is not None and config.price.is_free for config in configs)
        """Whether all its backends have a price of 0."""
        self.priced = all(config.price is not None for config in configs)
        """Whether the price of each of its backends is known."""
        outputs = [config.max_output for config in configs]
        self.max_output = None if None in outputs else max(most for most in outputs if most is not None)
        """Most completion tokens of a call; None where some backend states none."""
        self.price = configs[0].price
        """Price of its first configured backend in US dollars per million tokens; used to compare tiers."""
        self.models = frozenset(endpoint.config.model for endpoint in self.endpoints)
        """Models of its backends."""
        self.makers = frozenset(config.maker().name for config in configs)
        """Names of the makers of its backends' signed reasoning (`gateway.dialects.reasoning`)."""
        self.refused = new_refused_kinds(clock)
        """What it is not asked for a while, as it has refused the like."""
        self._well: dict[int, tuple[float, TierHealth]] = {}
        self._candidates: dict[int, tuple[float, Mapping[Endpoint, Candidate]]] = {}
        self._looked = 0
        self._called_at = 0.0
        for endpoint in self.endpoints:
            endpoint.retries = self._retries
            endpoint.siblings = tuple(other for other in self._configured if other is not endpoint)

    def health(self, tokens_in: int = 0, batch: bool = False) -> TierHealth:
        """Return the tier's state for routing, with a forecast for a prompt of `tokens_in` tokens.

        A pessimistic forecast that keeps all requests away would never be corrected. So while a tier has had no call
        for five seconds, one in twenty reads of its health has no forecast.
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

    def state(self, tokens_in: int = 0, batch: bool = False) -> TierHealth:
        """Return what `health` does, for people: always with the forecast, and without an effect on later reads."""
        return self._health(tokens_in, self._clock(), batch=batch)

    def quantile_s(self, q: float, tokens_in: int, *, whole: bool) -> float | None:
        """Return quantile `q` of the time to the first token (or, with `whole`, to the whole answer) in seconds.

        The figure is that of the tier's fastest backend; None if there are no measurements.
        """
        now = self._clock()
        models = [endpoint.latency for endpoint in self._configured]
        quantiles = [model.whole(q, tokens_in, now) if whole else model.ttft(q, tokens_in, now) for model in models]
        return min((seconds for seconds in quantiles if seconds is not None), default=None)

    async def acquire(self, ask: SlotRequest, failed: Container[Endpoint] = ()) -> Slot:
        """Return a slot for one call: at once if an endpoint has room, else after a wait in one endpoint's queue.

        Endpoints in `failed` (they have failed this request already) are used last. Raises Saturated at once when the
        queue is full or the predicted wait exceeds `ask.wait_s`, and after `ask.wait_s` seconds in the queue. Safe to
        cancel: no slot is lost.
        """
        now = self._called_at = self._clock()
        self._looked = 0
        batch, models = ask.priority == "batch", ask.models
        among = self._configured if models is None else [one for one in self._configured if one.config.model in models]
        if not failed:
            self._retries.request(now)
            if not batch and (open_ := self._open(among, now)):
                chosen = open_[0] if len(open_) == 1 else self._choose(open_, ask, now)
                return chosen.place(ask, now, 0.0, retry=False)
        usable = self._usable(ask.tokens_in)
        if models is not None:
            usable = [endpoint for endpoint in usable if endpoint.config.model in models]
        with_room = [endpoint for endpoint in usable if endpoint.has_room(batch=batch, now=now)]
        if with_room:
            return self._choose(_fresh(with_room, failed), ask, now).place(ask, now, 0.0, retry=bool(failed))
        if not usable:
            raise Saturated(f"no backend of {self.name} may be called now", self.pause_s(ask.tokens_in))
        nearest = min(_fresh(usable, failed), key=lambda endpoint: endpoint.predicted_wait_s(batch=batch))
        return await nearest.wait(ask, retry=bool(failed))

    def may_retry(self, failed: Container[Endpoint]) -> bool:
        """Return whether the retry budget lets a request that the endpoints in `failed` failed be tried here.

        True is charged to the budget, so call this only for a retry that will be made.
        """
        healthy = any(server.well and server not in failed and not server.unavailable() for server in self._configured)
        return self._retries.may_retry(healthy, self._clock())

    def pause_s(self, tokens_in: int = 0) -> float | None:
        """Return the seconds until the first paused or quota-exhausted endpoint may be called; None if there is none.

        `tokens_in` is the length of the prompt that the quota must allow.
        """
        pauses = [endpoint.pause_s(tokens_in) for endpoint in self.endpoints]
        return min((pause for pause in pauses if pause is not None), default=None)

    def _health(self, tokens_in: int, now: float, *, batch: bool) -> TierHealth:
        count = max(1, len(self._configured))
        context = self.context()
        can = self._capabilities
        if any(endpoint.drops_tools for endpoint in self._configured):
            can -= {"tools"}
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
            return TierHealth(self.name, can, count, forecast=best, context=context)
        failing = any(endpoint.failing for endpoint in self.endpoints)
        return TierHealth(self.name, can, count, reason, failing, context=context)

    def context(self) -> int | None:
        """Return the smallest context window of its backends, in tokens; None if none is known."""
        least: int | None = None
        for endpoint in self._configured or self.endpoints:
            lengths = endpoint.lengths
            lengths.refresh()
            if lengths.context is not None and (least is None or lengths.context < least):
                least = lengths.context
        return least

    def _usable(self, tokens_in: int) -> list[Endpoint]:
        """Return the available endpoints; if there are none, those that are ejected only for failed calls."""
        available = [endpoint for endpoint in self._configured if not endpoint.unavailable(tokens_in)]
        return available or [endpoint for endpoint in self._configured if endpoint.failing]

    def _open(self, among: Sequence[Endpoint], now: float) -> Sequence[Endpoint]:
        """Return the endpoints that a call can go to at once, after those who wait at others have had their turn."""
        open_ = list(filter(_IS_UNHINDERED, among))
        if open_ and len(open_) < len(self._configured) and open_[0].queue.any_waits:
            for endpoint in open_:
                endpoint.admit(now)
            open_ = list(filter(_IS_UNHINDERED, open_))
        return open_

    def _choose(self, among: Sequence[Endpoint], ask: SlotRequest, now: float) -> Endpoint:
        if len(among) == 1:
            return among[0]
        by_endpoint = self._candidates_for(ask.tokens_in, now)
        candidates = []
        for endpoint in among:
            candidate = by_endpoint[endpoint]
            candidate.load = (endpoint.in_flight + endpoint.queue.size) / endpoint.capacity
            candidates.append(candidate)
        return among[self._selection.choose(candidates, ask.affinity, ask.tokens_in)]

    def _candidates_for(self, tokens_in: int, now: float) -> Mapping[Endpoint, Candidate]:
        """Return each endpoint's selection candidate for prompts of this length; the caller sets `load`.

        Cached per bucket of prompt length for 0.25 s.
        """
        bucket = tokens_in.bit_length()
        cached = self._candidates.get(bucket)
        if cached is None or now >= cached[0]:
            candidates = {model: self._candidate(i, model, tokens_in, now) for i, model in enumerate(self._configured)}
            cached = self._candidates[bucket] = (now + _FRESH_S, candidates)
        return cached[1]

    def _candidate(self, index: int, endpoint: Endpoint, tokens_in: int, now: float) -> Candidate:
        forecast = endpoint.forecast(tokens_in, batch=False, now=now)
        first = max(0.0, _first_s(forecast) - forecast.queue_s)
        slope = endpoint.latency.slope(now) if self.sticky else None
        return Candidate(index, zlib.crc32(endpoint.config.name.encode()), endpoint.weight, 0.0, first or None, slope)


def _first_s(forecast: Forecast) -> float:
    """Return the seconds until the first output: the first token, or the whole answer if no stream was measured."""
    return forecast.ttft_s or forecast.whole_s


def _fresh(endpoints: Sequence[Endpoint], failed: Container[Endpoint]) -> Sequence[Endpoint]:
    """Return the endpoints that have not failed the request; all of them if every one has."""
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


IdentityOf = Callable[["Auth"], "Identity"]


def build_tiers(deployment: Deployment, on_refusal: OnRefusal, calls: CallMemory | None = None) -> dict[str, Tier]:
    """Return the tiers by name. `calls` remembers the reasoning of tool calls."""
    waiting: Counter[str] = Counter()  # a surface's waiters are counted in the whole worker
    identity_of = cache(_identity)  # one for equal ones
    make = partial(_endpoint, waiting=waiting, identity_of=identity_of, calls=calls)
    tiers = {config.name: _tier(config, make) for config in deployment.tiers}
    unshared = deployment.unshared
    for endpoint in endpoints_of(tiers).values():
        endpoint.on_refusal = on_refusal
        endpoint.unshared = unshared
        on_refusal(endpoint.config, "", False)  # so that the metric exists from the start, as 0
    return tiers


def endpoints_of(tiers: Mapping[str, Tier]) -> dict[str, Endpoint]:
    """Return all endpoints by their backends' names."""
    return {endpoint.config.name: endpoint for tier in tiers.values() for endpoint in tier.endpoints}


def _identity(auth: Auth) -> Identity:
    return auth.identity()


def _tier(config: TierConfig, make: Callable[[BackendConfig], Endpoint]) -> Tier:
    endpoints = [make(backend) for backend in config.backends]
    for endpoint in endpoints:
        endpoint.tier = config.name
    return Tier(config.name, endpoints, select=config.select)


def _endpoint(
    config: BackendConfig, *, waiting: Counter[str], identity_of: IdentityOf, calls: CallMemory | None
) -> Endpoint:
    quota, refused = new_quota(), new_field_memory(config.name)
    identity = identity_of(config.auth) if config.auth is not None and config.configured else None
    backend = _backend(config, quota, refused, identity, calls)
    return Endpoint(config, backend, waiting=waiting, quota=quota, refused_fields=refused, identity=identity)


def _backend(
    config: BackendConfig,
    quota: Quota,
    refused: FieldMemory | None,
    identity: Identity | None,
    calls: CallMemory | None,
) -> Backend | None:
    if not config.configured:
        return None
    key = config.key.get_secret_value() if config.key is not None else None
    common = Common(model=config.model, key=key, maker=config.maker(), quota=quota, refused=refused)
    backend = config.make(common, partial(_transport, config, identity), calls)
    omit = frozenset(config.omit) - {USAGE_OPTION}
    return adapted(backend, config.rename, omit) if config.rename or omit else backend


def _transport(config: BackendConfig, identity: Identity | None, path: str) -> Transport:
    """Return the transport for calls to this path, which follows the base URL."""
    url = config.base_url + path
    transport = config.http.transport(
        url, max_in_flight=config.max_in_flight, connect_timeout_s=config.connect_timeout, max_reply=config.max_reply
    )
    return transport if identity is None else identity.signing(transport, url)
