"""Hold one backend and its live state: calls in flight, queue, latency, quota and ejection.

An endpoint is ejected (not called for a while) when its backend asks for a pause (429 or 503 with Retry-After: for
exactly that long, at most 60 s), when it refuses our key or account or lacks its model, or when its breaker trips (see
`breaker`). Queued requests are then rejected at once, so that they can go to another tier. The limit on calls in flight
is this worker's share of the config's `max_in_flight`, lowered while latency rises under load.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.backends.base import Backend, BackendError, BadStatus, Refusal, Saturated, TimedOut
from gateway.backends.server_forms import FieldMemory, Quota, new_quota, new_refusals
from gateway.dialects.told_lengths import ModelLengths
from gateway.parts.standard import one
from gateway.telemetry import names
from gateway.tiers.breaker import Breaker
from gateway.tiers.slot import Slot, SlotQueue, SlotRequest, Waiter
from routing.load.latency import Forecast, Forecasts, LatencyModel, queued
from routing.load.limits import CallLimit, Grants, LatencyLimit, Reserve, RetryBudget, floor_of

if TYPE_CHECKING:
    from gateway.backends.base import Identity
    from gateway.config.backends import BackendConfig

_LONGEST_PAUSE_S = 60.0
_REFUSED_S = 30.0
_MAX_BACKOFF_S = 30.0
_PAUSES = frozenset({429, 498, 503, 529})
_REFUSING = {
    "key": "refusing our key",
    "quota": "refusing our account, which is out of quota or credit",
    "model": "without its model {model}, or has another URL",
}
_LOWERED_S = 10.0
_LOWEST = 0.125
_HOLD_WEIGHT = 0.1
_BATCH_SURE = 0.75
"""Share of its permitted wait that the predicted wait of a batch request may take for it to be queued. Less than 1
because interactive requests that arrive later go ahead of it."""
_NOTHING_ASKED = SlotRequest()

Clock = Callable[[], float]
OnRefusal = Callable[["BackendConfig", str, bool], None]
"""Called with (config, reason, own) when a backend begins to refuse our key or account, and with an empty reason when
it answers again. `own` is True if this worker's own call showed it, False if a sibling worker reported it."""


@one("adaptive")
def new_latency_limit(most: int) -> LatencyLimit | None:
    """Return what lowers the limit on concurrent calls, from `most`, while a backend's latency rises under load."""


class KeyRenewal:
    """Know how often a backend's key has changed, and look for another. Use it from one event loop.

    A call that was refused for its key looks, and goes out once more with another: the provider may have revoked the
    old one before the gateway has read the new one.
    """

    __slots__ = ("changes", "look")

    def __init__(self) -> None:
        self.changes = 0
        """How often the key has changed."""
        self.look: Callable[[], Awaitable[None]] | None = None
        """Reads the key's file if that has changed; None for a key from elsewhere."""

    async def renewed(self, since: int) -> bool:
        """Return whether the key has changed since there were `since` changes, having looked for another if not."""
        if self.changes == since and self.look is not None:
            await self.look()
        return self.changes != since


class Endpoint:
    """Track one backend's state and admit calls to it.

    `waiting` counts the queued requests of each surface over all endpoints of the worker. Not thread-safe: use it from
    one event loop.
    """

    drops_tools: bool | None = None
    """Whether its server leaves tools out of the prompt in silence; None where that is not known."""

    def __init__(
        self,
        config: BackendConfig,
        backend: Backend | None,
        clock: Clock = time.monotonic,
        waiting: Counter[str] | None = None,
        quota: Quota | None = None,
        refused_fields: FieldMemory | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.config = config
        self.identity = identity
        """The identity of a cloud that signs its calls; other endpoints may have the same one."""
        self.tier = ""
        """Name of its tier."""
        self.refused_fields = refused_fields
        """The request fields that its model has refused, and that it is not sent for some hours, if that is learnt."""
        self.key = KeyRenewal()
        """How often its key has changed, and what looks for another."""
        self.refusals = new_refusals(clock)
        """What it refused in words that no rule knows."""
        self.lengths = ModelLengths(config.context, config.max_output, clock)
        """How many tokens its model takes."""
        self.quota = quota or new_quota()
        """Remaining rate limits of the backend, updated with every reply."""
        self.now = clock
        self.in_flight = 0
        self.batch_in_flight = 0
        self.well = True
        """Whether the last call to the backend succeeded."""
        self.refused: Refusal = ""
        """What of ours it refuses, or lacks, until a call succeeds again; empty if nothing."""
        self.on_refusal: OnRefusal = _ignore_refusal
        self.unshared: frozenset[str] = frozenset()
        """Tenants whose clients are told of its prompt cache, because it holds nothing of others."""
        self.mean_out = 0.0
        """Completion tokens that its whole answers to requests have had of late; 0 before one is known."""
        self.latency = LatencyModel()
        self.breaker = Breaker()
        self._waiting: Counter[str] = Counter() if waiting is None else waiting
        self.queue = SlotQueue(config.queue.length, self._waiting)
        self.siblings: tuple[Endpoint, ...] = ()
        self.retries = RetryBudget()
        self._backend = backend
        most = config.max_in_flight
        self.calls_limit = CallLimit(most, new_latency_limit(most) if config.adaptive else None)
        self._reserve = Reserve()
        self._grants = Grants()
        cold = (None, 0.0) if config.warm is None else (config.warm.after, config.warm.ttft)
        self.forecasts = Forecasts(self.latency, config.prior, *cold)
        self._hold_s = 0.0
        self._pauses = 0
        self._weight = 1.0
        self._weight_until = 0.0
        self.capacity = config.max_in_flight
        """The number of calls that this worker may have in flight now."""
        self.alternatives = 0 if config.head is None else config.head.alternatives
        """Alternatives of each token that its confidence head reads; 0 without a head."""
        self.described = names.of_call(config.name, config.gen_ai_provider, config.model, config.base_url)
        """The trace attributes that every call to it begins with."""

    @property
    def backend(self) -> Backend:
        """The backend. Raises RuntimeError if it is unconfigured; check `unavailable()` first."""
        if self._backend is None:
            raise RuntimeError(f"backend {self.config.name} is unconfigured")
        return self._backend

    def rekey(self, key: str | None) -> None:
        """Send another key from now on, and call the backend again if it had refused the former one."""
        self.backend.rekey(key)
        self.key.changes += 1
        self.breaker.rekeyed(self.now())

    def unavailable(self, tokens_in: int = 0) -> str:
        """Return why it may not be called now with a prompt of `tokens_in` tokens; '' if it may."""
        if self._backend is None:
            return f"unconfigured: {self.config.unconfigured_reason}"
        if self.breaker.ejection is not None and (reason := self.breaker.reason(self.now())):
            return reason
        if self.quota.tight and (wait_s := self.quota.wait_s(self.now(), tokens_in)) > 0:
            return f"{names.OUT_OF_QUOTA} for {max(1, round(wait_s))} s"
        return ""

    @property
    def unhindered(self) -> bool:
        """Whether a call can go out at once: not ejected, has room, empty queue, quota not tight. Cheap to read."""
        return (
            self.breaker.ejection is None
            and self.in_flight < self.capacity
            and not self.queue.size
            and not self.quota.tight
        )

    @property
    def shown(self) -> str:
        """Its load and state in words, for the trace of a request that another endpoint got."""
        state = f"{self.config.name}: {self.in_flight} of {self.capacity} in flight, {self.queue.size} waiting"
        why_not = self.unavailable()
        return f"{state}, {why_not}" if why_not else state

    @property
    def failing(self) -> bool:
        """Whether it is ejected only for failed calls, so that it may be called when no other endpoint is available."""
        return self.breaker.failing(self.now())

    @property
    def full(self) -> bool:
        """Whether it has as many calls in flight as it may."""
        return self.in_flight >= self.capacity

    @property
    def weight(self) -> float:
        """Weight in the tier: the config's, halved for ten seconds by each 503 or 529 (down to an eighth)."""
        if self._weight_until and self.now() >= self._weight_until:
            self._weight, self._weight_until = 1.0, 0.0
        return self.config.weight * self._weight

    def pause_s(self, tokens_in: int = 0) -> float | None:
        """Return the seconds until a requested pause ends and the quota allows `tokens_in` tokens; None if now."""
        now = self.now()
        pause = self.breaker.pause_s(now)
        if self.quota.tight and (wait_s := self.quota.wait_s(now, tokens_in)) > 0:
            return max(wait_s, pause or 0.0)
        return pause

    def idle_s(self, now: float) -> float | None:
        """Return the seconds since the backend last answered this worker or a reporting sibling; None if never."""
        return self.forecasts.idle_s(now)

    def has_room(self, *, batch: bool, now: float) -> bool:
        """Return whether a new call may have a slot at once, with no queued request entitled to it first."""
        if self.in_flight >= self.capacity or (self.queue.size and self.queue.ahead_of(batch=batch)):
            return False
        return not batch or self._admits_batch(now)

    def take(self, ask: SlotRequest = _NOTHING_ASKED, queued_s: float = 0.0, *, retry: bool = False) -> Slot:
        """Return a slot for one call now, regardless of the limit on calls in flight."""
        return self.place(ask, self.now(), queued_s, retry=retry)

    def place(self, ask: SlotRequest, now: float, queued_s: float, *, retry: bool) -> Slot:
        """Return a slot as `take` does, with `now` passed in to save a clock read."""
        self.quota.spent(ask.tokens_in)
        self.in_flight += 1
        if ask.priority == "batch":
            self.batch_in_flight += 1
        else:
            self._reserve.entered(self.in_flight - self.batch_in_flight, now)
        probe = self.breaker.ejection is not None and self.breaker.enter()
        return Slot(self, ask, now, queued_s, probe=probe, retry=retry)

    async def wait(self, ask: SlotRequest, *, retry: bool = False) -> Slot:
        """Wait in the queue for a slot and return it.

        Raises Saturated at once if the predicted wait exceeds the permitted one, and when the permitted wait is over.
        Safe to cancel: a slot granted to a cancelled request goes to the next one.
        """
        predicted = self.predicted_wait_s(batch=ask.priority == "batch")
        cap = self.config.queue.wait
        longest = ask.wait_s if cap is None else min(ask.wait_s, cap)
        ahead_s = predicted - self._turn_s(batch=ask.priority == "batch")
        if longest <= 0 or ahead_s > (longest * _BATCH_SURE if ask.priority == "batch" else longest):
            raise Saturated(f"{self.config.name} is full; the predicted wait is {ahead_s * 1000:.0f} ms", predicted)
        waiter = self.queue.join(ask, self.now(), predicted, retry=retry)
        if self.queue.batch == 1 and ask.priority == "batch":
            self._grants.begin(self._batch_per_second(), self.now())
        timer = asyncio.get_running_loop().call_later(longest, self._overdue, waiter)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().free()
            raise
        finally:
            timer.cancel()
            self.queue.leave(waiter)

    def predicted_wait_s(self, *, batch: bool) -> float:
        """Return the seconds that a new request would wait for a slot; 0 if it would get one at once."""
        if self.has_room(batch=batch, now=self.now()):
            return 0.0
        predicted = (self.queue.ahead_of(batch=batch) + 1) * self._turn_s(batch=batch)
        return max(predicted, self._as_granted_s()) if batch and self.queue.batch else predicted

    def forecast(self, tokens_in: int, *, batch: bool, now: float) -> Forecast:
        """Return the expected latency of the next call with a prompt of `tokens_in` tokens, its wait included."""
        forecast = self.forecasts.unqueued(tokens_in, now)
        if self.has_room(batch=batch, now=now):
            return forecast
        return queued(forecast, self.predicted_wait_s(batch=batch))

    async def aclose(self) -> None:
        """Reject all queued requests with Saturated and close the backend's connections."""
        self.queue.turn_all_away(Saturated("the gateway is shutting down"))
        if self._backend is not None:
            await self._backend.aclose()
        if self.identity is not None:
            await self.identity.aclose()

    # A Slot reports its call through the methods below. Times are of the clock `now`; `called_at` is when the call
    # went out.

    def began(self, called_at: float, tokens_in: int, now: float) -> None:
        """Record that the first token of a stream has arrived."""
        self.well = True
        self.forecasts.answered(now)
        self.breaker.answered(called_at, now)
        if self.refused:
            self.note_refusal(own=True)
        self.latency.observe_ttft(tokens_in, now - called_at, now)
        self.capacity = self.calls_limit.observe(tokens_in, now - called_at, self.in_flight, now, whole=False)
        if self._waiting:
            self.admit(now)

    def answered(self, called_at: float, tokens_in: int, now: float) -> None:
        """Record the latency of an answer that arrived whole; `well_again` must follow."""
        self.latency.observe_whole(tokens_in, now - called_at, now)
        self.capacity = self.calls_limit.observe(tokens_in, now - called_at, self.in_flight, now, whole=True)
        if self._waiting:
            self.admit(now)

    def well_again(self, called_at: float, now: float, *, retry: bool) -> None:
        """Record that a call ended without a fault of the endpoint, whatever the answer."""
        self.well = True
        if retry:
            self.retries.retry_succeeded(now)
        self.forecasts.answered(now)
        if self._pauses and self.breaker.pause_s(now) is None:
            self._pauses = 0
        self.breaker.succeeded(called_at, now)
        if self.refused:
            self.note_refusal(own=True)

    def failed(self, error: BackendError, called_at: float, now: float, *, retry: bool) -> None:
        """Record that a call failed by the endpoint's fault, and eject the endpoint if need be."""
        self.well = False
        if retry:
            self.retries.retry_failed(now)
        closed = self.breaker.ejection is None
        status = error.status if isinstance(error, BadStatus) else None
        retry_after_s = error.retry_after_s if isinstance(error, BadStatus) else None
        if status in _PAUSES or isinstance(error, TimedOut):
            self.capacity = self.calls_limit.overloaded(now)
        if status in (498, 503, 529):
            self._weight, self._weight_until = max(_LOWEST, self._weight / 2), now + _LOWERED_S
        if isinstance(error, BadStatus) and error.refusal:
            reason = f"{_REFUSING[error.refusal].format(model=self.config.model)} (status {error.status})"
            self.breaker.begin(error.refusal, _REFUSED_S, reason, now, error.status)
        elif isinstance(error, BadStatus) and error.asks_for_pause:
            reason = f"asking for a pause (status {error.status})"
            self.breaker.pause(self._pause(retry_after_s, now), reason, now, error.status)
        else:
            alone = not any(not other.unavailable() for other in self.siblings)
            self.breaker.failed(error.error_type, called_at, now, alone=alone)
            if alone and self.breaker.ejection is not None:
                for other in self.siblings:
                    other.breaker.cut(self.breaker.ejection.until)
        self.note_refusal(own=True)
        self.reject_queued(closed, now)

    def leave(self, called_at: float, now: float, *, batch: bool, probe: bool) -> None:
        """Record that a call is over and give its slot to the next queued request."""
        self.in_flight -= 1
        self.batch_in_flight -= batch
        if probe:
            self.breaker.leave_probe()
        held = now - called_at
        self._hold_s += _HOLD_WEIGHT * (held - self._hold_s) if self._hold_s else held
        self._reserve.hold_s = self._grants.hold_s = self._hold_s
        if self._waiting:
            self.admit(now)

    def note_refusal(self, *, own: bool) -> None:
        """Call `on_refusal` once when a refusal begins and once when it ends. Another kind of failure ends none."""
        ejection = self.breaker.ejection
        refused = "" if ejection is None else ejection.refusal or self.refused
        if refused != self.refused:
            self.refused = refused
            self.on_refusal(self.config, ejection.reason if ejection is not None else "", own)

    def _pause(self, retry_after_s: float | None, now: float) -> float:
        if retry_after_s is not None:
            return min(retry_after_s, _LONGEST_PAUSE_S)
        if self.breaker.pause_s(now) is None:
            self._pauses += 1
        return min(2.0 ** max(0, self._pauses - 1), _MAX_BACKOFF_S) * random.uniform(0.8, 1.2)  # noqa: S311

    def share(self, now: float) -> None:
        """Compute anew how many calls may be in flight, and let waiting requests in."""
        self.capacity = self.calls_limit.share(now)
        if self._waiting:
            self.admit(now)

    def reject_queued(self, was_well: bool, now: float) -> None:
        """Reject the queued requests after an ejection, unless it is for failed calls and had begun before.

        An endpoint that is ejected only for failed calls may still be called when nothing else is available.
        """
        ejection = self.breaker.ejection
        if ejection is not None and self.queue.size and (was_well or not self.breaker.failing(now)):
            left = max(0.0, ejection.until - now)
            self.queue.turn_all_away(Saturated(f"{self.config.name} is {ejection.reason}", left))

    def _admits_batch(self, now: float) -> bool:
        batch = self.batch_in_flight
        return self._reserve.admits_batch(self.capacity, self.in_flight - batch, batch, now)

    def admit(self, now: float) -> None:
        """Give its free slots to waiting requests: to whoever has waited longest at any endpoint of the tier."""
        if self.quota.tight and (wait_s := self.quota.wait_s(now)) > 0:
            self.queue.turn_all_away(Saturated(f"{self.config.name} is out of quota", wait_s))
        while self.in_flight < self.capacity:
            waiter = self._from_sibling() or self.queue.next(batch_may=self._admits_batch(now))
            if waiter is None:
                return
            if waiter.ask.priority == "batch":
                self._grants.granted(self._batch_per_second(), now)
            waiter.future.set_result(self.place(waiter.ask, now, now - waiter.since, retry=waiter.retry))

    def _from_sibling(self) -> Waiter | None:
        """Take the interactive request that waits at a sibling, if it has waited longer than each that waits here.

        A retry stays where it waits: it may have failed here. So does a request that may not have this model. An
        endpoint that is not well takes nobody's requests.
        """
        if not self.siblings or self.breaker.ejection is not None or self.quota.tight or self.queue.batch_is_due:
            return None
        own = self.queue.first()
        since, waits_at = math.inf if own is None else own.since, None
        for sibling in self.siblings:
            first = sibling.queue.first() if sibling.queue.size else None
            if first is None or first.retry or first.since >= since:
                continue
            if first.ask.models is None or self.config.model in first.ask.models:
                since, waits_at = first.since, sibling
        return None if waits_at is None else waits_at.queue.take_first()

    def _overdue(self, waiter: Waiter) -> None:
        predicted = self.predicted_wait_s(batch=waiter.ask.priority == "batch")
        self.queue.turn_away(waiter, Saturated(f"{self.config.name} had no free slot within the wait", predicted))

    def _as_granted_s(self) -> float:
        """Return the seconds that a new batch request would wait at the rate at which batch requests get slots now."""
        least = floor_of(self.capacity) / self._hold_s if self._hold_s else math.inf
        return (self.queue.batch + 1) / max(self._grants.per_second(self.now()), least)

    def _batch_per_second(self) -> float:
        """Return how many slots a second should become free for batch requests, from the mean length of a call."""
        turn_s = self._turn_s(batch=True)
        return 1 / turn_s if turn_s else math.inf

    def _turn_s(self, *, batch: bool) -> float:
        """Return the mean seconds between two slots that become free for queued requests of this kind.

        Batch requests alone in the queue share only the slots that are neither interactive nor reserved.
        """
        places = self.capacity
        if batch and not self.queue.interactive:
            interactive = self.in_flight - self.batch_in_flight
            reserved = self._reserve.kept(interactive, self.now())
            places = max(floor_of(places), places - interactive - reserved)
        return self._hold_s / places


def _ignore_refusal(config: BackendConfig, reason: str, own: bool) -> None:
    """Do nothing: the default of `Endpoint.on_refusal`."""
