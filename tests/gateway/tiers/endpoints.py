"""Endpoints on a clock that stands, in front of no backend."""

from __future__ import annotations

from collections import Counter

from gateway.backends.base import Backend, BackendError, BackendRequest, Completion, EventStream
from gateway.config.backends import BackendConfig
from gateway.tiers import Endpoint, SlotRequest

CHAT = SlotRequest("chat", "interactive", wait_s=5.0, max_waiting=1000, tokens_in=100, stream=True)
BATCH = SlotRequest("batch", "batch", wait_s=5.0, max_waiting=1000, tokens_in=100)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoBackend:
    """A backend that is never called."""

    async def complete(self, request: BackendRequest) -> Completion:
        raise AssertionError

    async def stream(self, request: BackendRequest) -> EventStream:
        raise AssertionError

    async def aclose(self) -> None: ...


BACKEND: Backend = NoBackend()


def endpoint_of(
    clock: Clock, name: str = "local-1", waiting: Counter[str] | None = None, **changes: object
) -> Endpoint:
    """An endpoint of two places, unless told otherwise."""
    config = {"name": name, "base_url": "http://127.0.0.1:9/v1", "model": "m", "max_in_flight": 2} | changes
    return Endpoint(BackendConfig.model_validate(config), BACKEND, clock, waiting)


def unconfigured(clock: Clock, name: str) -> Endpoint:
    """An endpoint that lacks its key."""
    config = {"name": name, "model": "m", "unconfigured_reason": "no key"}
    return Endpoint(BackendConfig.model_validate(config), None, clock)


def fail(endpoint: Endpoint, *errors: BackendError) -> None:
    """These calls were all under way at once, and end with these errors, one after another."""
    slots = [endpoint.take() for _ in errors]
    for slot, error in zip(slots, errors, strict=True):
        slot.failed(error)


def held(clock: Clock, endpoint: Endpoint, seconds: float, calls: int = 50) -> None:
    """So many calls were made, each of which took so long."""
    for _ in range(calls):
        slot = endpoint.take(CHAT)
        clock.now += seconds
        slot.free()
