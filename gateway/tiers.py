"""The ladder as it runs: each tier's endpoints, what they carry now, and which of them may be called.

An endpoint rests when it asked to (429, 503 with Retry-After: exactly that long, a minute at most), when it refuses our
key, or after five failures in a row; once its rest is over, one call at a time may try it until one succeeds. Each call
holds a Slot, which it ends once, saying how it went.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Sequence

from gateway.backends.base import Backend, BackendError, BadStatus
from gateway.blame import is_endpoints_fault
from gateway.settings import BackendConfig
from routing.decide import TierHealth

_MAX_REST_S = 60.0
_KEY_REFUSED_REST_S = 30.0
_FAILURES_TO_REST = 5
_FAILURE_REST_S = 5.0
_MAX_BACKOFF_S = 30.0
_OUR_KEY = frozenset({401, 402, 403})
_PAUSES = frozenset({429, 503, 529})

Clock = Callable[[], float]


class Endpoint:
    """One backend and its live state. Not thread-safe: it belongs to one event loop."""

    def __init__(self, config: BackendConfig, backend: Backend | None, clock: Clock = time.monotonic) -> None:
        self.config = config
        self.in_flight = 0
        self.resting_until = 0.0
        self._backend = backend
        self._clock = clock
        self._failures = 0
        self._probes = 0
        self._rest_reason = ""
        self._rest_began = 0.0
        self._asked = False
        self._failing = False

    @property
    def backend(self) -> Backend:
        """The backend; only for an endpoint that `unavailable()` does not rule out."""
        if self._backend is None:
            raise RuntimeError(f"backend {self.config.name} is unconfigured")
        return self._backend

    def unavailable(self) -> str:
        """Why it may not be called now; empty if it may."""
        if self._backend is None:
            return f"unconfigured: {self.config.unconfigured_reason}"
        if not self._rest_reason:
            return ""
        if self._clock() < self.resting_until or self._probes:
            return self._rest_reason
        return ""

    @property
    def failing(self) -> bool:
        """Whether it rests for its failures alone: when nothing else can answer, it is better asked than not."""
        return bool(self._rest_reason) and self._failing

    @property
    def full(self) -> bool:
        """Whether it already carries all the calls it may."""
        return self.in_flight >= self.config.max_in_flight

    def take(self) -> Slot:
        """A place for one call."""
        return Slot(self, self._clock())

    async def aclose(self) -> None:
        """Closes the backend's connections."""
        if self._backend is not None:
            await self._backend.aclose()

    def pause_s(self) -> float | None:
        """How much is left of a pause that it asked for; None if it did not, or the pause is over."""
        left = self.resting_until - self._clock()
        return left if self._asked and left > 0 else None

    def _enter(self) -> bool:
        """Counts a call in; whether it is one that tries a rested endpoint."""
        self.in_flight += 1
        probe = bool(self._rest_reason)
        self._probes += probe
        return probe

    def _leave(self, *, probe: bool) -> None:
        self.in_flight -= 1
        self._probes -= probe

    def _began(self, called_at: float) -> None:
        """A call that began then has begun to answer. One from before a rest does not end it."""
        if self._rest_reason and called_at >= self._rest_began and not self.pause_s():
            self._rest_reason = ""
            self.resting_until = 0.0

    def _succeeded(self, called_at: float) -> None:
        self._began(called_at)
        if not self._rest_reason:
            self._failures = 0

    def _failed(self, error: BackendError) -> None:
        """Decides whether, and how long, the endpoint rests. What fails during a rest can only make it longer."""
        if self._clock() >= self.resting_until:
            self._failures += 1
        status = error.status if isinstance(error, BadStatus) else None
        asked = error.retry_after_s if isinstance(error, BadStatus) else None
        if status in _OUR_KEY:
            self._rest(_KEY_REFUSED_REST_S, f"refusing our key (status {status})")
        elif asked is not None and status in _PAUSES:
            self._rest(min(asked, _MAX_REST_S), f"asking for a pause (status {status})", asked=True)
        elif status == 429:
            backoff = min(2.0 ** (self._failures - 1), _MAX_BACKOFF_S)
            jittered = backoff * random.uniform(0.8, 1.2)  # noqa: S311
            self._rest(jittered, "asking for a pause (status 429)", asked=True)
        elif self._failures >= _FAILURES_TO_REST:
            reason = f"failing ({error.error_type}, {self._failures} in a row)"
            self._rest(_FAILURE_REST_S, reason, failing=True)

    def _rest(self, seconds: float, reason: str, *, asked: bool = False, failing: bool = False) -> None:
        now = self._clock()
        if now + seconds > self.resting_until:
            if now >= self.resting_until:
                self._rest_began = now
            self.resting_until, self._rest_reason = now + seconds, reason
            self._asked, self._failing = asked, failing


class Slot:
    """One call's place at an endpoint. It ends once, by whichever verdict comes first; later ones change nothing."""

    __slots__ = ("_began_at", "_over", "_probe", "endpoint")

    def __init__(self, endpoint: Endpoint, now: float) -> None:
        self.endpoint = endpoint
        self._began_at = now
        self._over = False
        self._probe = endpoint._enter()

    def began(self) -> None:
        """A stream has begun to answer: others may call too. Whether it succeeds is seen at its end."""
        self.endpoint._began(self._began_at)

    def succeeded(self) -> None:
        """The call gave an answer, good or not."""
        if not self._over:
            self.endpoint._succeeded(self._began_at)
            self.free()

    def failed(self, error: BackendError) -> None:
        """The call gave none. Whether that is the endpoint's fault is decided in `gateway.blame`."""
        if self._over:
            return
        if is_endpoints_fault(error, self.endpoint.config.patience):
            self.endpoint._failed(error)
        elif isinstance(error, BadStatus):
            self.endpoint._succeeded(self._began_at)
        self.free()

    def free(self) -> None:
        """The call is over, and nothing is learnt from it."""
        if not self._over:
            self._over = True
            self.endpoint._leave(probe=self._probe)


class Tier:
    """One rung: endpoints that are as good as each other."""

    def __init__(self, name: str, endpoints: Sequence[Endpoint], clock: Clock = time.monotonic) -> None:
        self.name = name
        self.endpoints = tuple(endpoints)
        self._clock = clock
        self._turn = 0
        configured = [endpoint.config for endpoint in endpoints if endpoint.config.configured]
        self._capabilities: frozenset[str] = frozenset.intersection(
            *(frozenset[str](config.capabilities) for config in configured or [e.config for e in endpoints])
        )
        self._healthy = TierHealth(name, self._capabilities, max(1, len(configured)))

    def health(self) -> TierHealth:
        """What routing may know of it now."""
        reason = ""
        for endpoint in self.endpoints:
            reason = endpoint.unavailable()
            if not reason:
                return self._healthy
        failing = any(endpoint.failing for endpoint in self.endpoints)
        return TierHealth(self.name, self._capabilities, self._healthy.endpoints, reason, failing)

    def pick(self, failed: Container[Endpoint | None] = ()) -> Endpoint | None:
        """The available endpoint with the fewest calls in flight, in turn among equals; None when all are full.

        Those that have `failed` the same request already come last, though failing fast keeps them the least loaded.
        A tier that is asked though none is available has nothing better than the failing ones.
        """
        self._turn += 1
        vacant = [endpoint for endpoint in self.endpoints if not endpoint.full]
        open_ = [endpoint for endpoint in vacant if not endpoint.unavailable()]
        open_ = open_ or [endpoint for endpoint in vacant if endpoint.failing]
        if failed:
            open_ = [endpoint for endpoint in open_ if endpoint not in failed] or open_
        if not open_:
            return None
        start = self._turn % len(open_)
        return min(open_[start:] + open_[:start], key=lambda endpoint: endpoint.in_flight)

    def pause_s(self) -> float | None:
        """How long until an endpoint that asked for a pause may be called again; None if none did."""
        return min((pause for endpoint in self.endpoints if (pause := endpoint.pause_s()) is not None), default=None)
