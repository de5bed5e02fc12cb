"""Backends that would go cold get a request for one token before they do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.backends.base import BackendError, BackendRequest, BadStatus, Completion, EventStream
from gateway.cascade.fields import with_set_fields
from gateway.config.backends import BackendConfig
from gateway.parts.fleet.reports import take_in
from gateway.parts.servers.prompt_cache import KeepWarm
from gateway.tiers import Endpoint
from tests.support.wait import eventually


class Counting:
    """Answers, or fails with `error`, and remembers the bodies."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.error: BackendError | None = None

    async def complete(self, request: BackendRequest) -> Completion:
        self.bodies.append(request.body)
        if self.error is not None:
            raise self.error
        return Completion(b"{}", {})

    async def stream(self, request: BackendRequest) -> EventStream:
        raise AssertionError

    async def aclose(self) -> None: ...


def endpoint_of(backend: Counting, **warm: object) -> Endpoint:
    config = {"name": "local", "base_url": "http://127.0.0.1:9/v1", "model": "m", "warm": {"ttft": "1s"} | warm}
    return Endpoint(BackendConfig.model_validate(config), backend)


@asynccontextmanager
async def keeping(*endpoints: Endpoint) -> AsyncIterator[Counter[tuple[str, str]]]:
    counted: Counter[tuple[str, str]] = Counter()
    warmth = KeepWarm(endpoints, lambda backend, how: counted.update([(backend, how)]))
    warmth.start()
    try:
        yield counted
    finally:
        await warmth.aclose()


async def test_a_silent_backend_gets_one_token_requests() -> None:
    """Again and again, before it grows cold; between them it is not thought cold."""
    backend = Counting()
    endpoint = endpoint_of(backend, after="300ms", keep=True)
    assert endpoint.forecast(10, batch=False, now=endpoint.now()).cold
    async with keeping(endpoint) as counted:
        await eventually(lambda: len(backend.bodies) >= 3, 3.0, "three requests")
        assert backend.bodies[0]["max_tokens"] == 1
        assert not endpoint.forecast(10, batch=False, now=endpoint.now()).cold
        assert counted["local", "warmed"] >= 2 and endpoint.in_flight == 0


async def test_what_the_config_sets_is_sent() -> None:
    """Its fields may choose what is loaded: without them, another variant of the model would be kept warm."""
    backend = Counting()
    fields = {"set": {"reasoning_effort": "low"}, "force": {"chat_template_kwargs": {"enable_thinking": False}}}
    config = {
        "name": "local",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "warm": {"ttft": "1s", "after": "300ms"},
    }
    config["warm"]["keep"] = True
    endpoint = Endpoint(BackendConfig.model_validate({**config, **fields}), backend)
    warmth = KeepWarm([endpoint], lambda *_: None, with_fields=with_set_fields)
    warmth.start()
    await eventually(lambda: bool(backend.bodies), 3.0, "a request")
    await warmth.aclose()
    assert backend.bodies[0].items() >= {**fields["set"], **fields["force"], "max_tokens": 1}.items()


async def test_without_keep_nothing_is_sent() -> None:
    """That a backend grows cold is a fact; to pay for its warmth is a choice."""
    before = len(asyncio.all_tasks())
    async with keeping(endpoint_of(Counting(), after="300ms")):
        assert len(asyncio.all_tasks()) == before


async def test_a_backend_that_siblings_call_is_left_alone() -> None:
    """One worker's calls warm it for all."""
    backend = Counting()
    endpoint = endpoint_of(backend, after="400ms", keep=True)
    take_in(endpoint, "sibling", {"idle_s": 0.0}, endpoint.now())
    async with keeping(endpoint):
        for _ in range(50):
            take_in(endpoint, "sibling", {"idle_s": 0.0}, endpoint.now())
            await asyncio.sleep(0.02)
        assert not backend.bodies
        await eventually(lambda: bool(backend.bodies), 2.0, "a request once the sibling is silent")


async def test_a_backend_at_work_is_left_alone() -> None:
    """A call in flight keeps it warm."""
    backend = Counting()
    endpoint = endpoint_of(backend, after="100ms", keep=True)
    slot = endpoint.take()
    async with keeping(endpoint):
        await asyncio.sleep(0.4)
        assert not backend.bodies
        slot.free()
        await eventually(lambda: bool(backend.bodies), 2.0, "a request afterwards")


async def test_a_failure_is_counted_and_tried_again_later() -> None:
    """Like any other call it may show that the backend is ill, and its end that it is well again."""
    backend = Counting()
    backend.error = BadStatus(500)
    endpoint = endpoint_of(backend, after="100ms", keep=True)
    async with keeping(endpoint) as counted:
        await eventually(lambda: counted["local", "failed"] == 5, 3.0, "failures")
        assert endpoint.unavailable()
        backend.error = None
        await eventually(lambda: counted["local", "warmed"] > 0, 4.0, "the request that tries it")
        assert not endpoint.unavailable()
