"""Chat completions whose client leaves or whose gateway stops at a chosen moment, at the ASGI endpoint in this process.

The upstreams and the store are behind real sockets; the connection to the client is the test's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.response_cache import ResponseCache
from gateway.caching import batches
from gateway.http.exchange import ChatCompletions
from gateway.parts.access.expected_costs import PRIOR
from gateway.steps import Steps
from gateway.telemetry import names
from tests.support.app import in_process
from tests.support.ask import record_of
from tests.support.store import LocalStore
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import eventually

BOTH = """
surface: chat
slo: {deadline: 20s}
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate:
  when: {confidence_below: 0.5}
  no_signal: accept
  stream: {hold_tokens: 3}
  speculate: {both: tokens_in < 100}
holdout: 0%
"""


class _Exchange:
    """One request and its connection. `leave()` disconnects the client; `before_send` is called for each message."""

    def __init__(self, request_id: str, *, stream: bool, cache: bytes = b"max-age=60") -> None:
        body = {"model": "chat", "stream": stream, "messages": [{"role": "user", "content": "hello there"}]}
        self._body = orjson.dumps(body)
        self._headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
        self._headers.append((b"x-tierline-cache", cache))
        self._on_gone: Callable[[], None] | None = None
        self.before_send: Callable[[Any], None] = lambda _: None
        self.sent: list[Any] = []

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        """See `request.context.ClientConnection`."""
        self._on_gone = callback

    def leave(self) -> None:
        """Disconnect, as `server.http_protocol` tells it."""
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()

    async def receive(self) -> Any:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.before_send(message)
        await asyncio.sleep(0)  # as where the connection has to be drained first
        self.sent.append(message)

    async def run(self, steps: Steps) -> None:
        """Have the request answered, in a task of its own."""
        endpoint = ChatCompletions(steps)
        async with asyncio.timeout(15):
            await asyncio.create_task(endpoint({"headers": self._headers}, self.receive, self.send))


class _LeavesWhenCancelled:
    """A backend that never answers, and whose client leaves at the moment at which its call is cancelled."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def complete(self, request: object) -> Any:
        raise AssertionError("only streams are asked for")

    async def stream(self, request: object) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            self._exchange.leave()

    async def aclose(self) -> None:
        """Close nothing: nothing is open."""


def in_flight(steps: Steps) -> int:
    return sum(endpoint.in_flight for tier in steps.tiers.values() for endpoint in tier.endpoints)


async def test_a_stream_that_wins_while_its_client_leaves_is_closed_and_charged_once(
    upstream: Upstream, hosted_upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client leaves while the call that lost is ended, so nobody reads the stream that won."""
    upstream.default = Reply(text="one two three four", before_first_s=0.1, fault=Fault.HANG_MID_STREAM, fault_after=4)
    exchange = _Exchange("winner", stream=True)
    options: dict[str, Any] = {"store_url": store.url, "policies": {"chat": BOTH}}
    async with in_process(tmp_path, upstream.url, hosted_upstream.url, **options) as app:
        (loser,) = app.steps.tiers["hosted"].endpoints
        monkeypatch.setattr(loser, "_backend", _LeavesWhenCancelled(exchange))
        await exchange.run(app.steps)
        assert exchange.sent == []
        await asyncio.to_thread(upstream.wait_for(1)[0].wait_gone, 2)
        assert in_flight(app.steps) == 0
        record = await record_of(app.steps.store, "winner")
    calls = {call["tier"]: call for call in record["ledger"]["calls"]}
    assert {tier: call["outcome"] for tier, call in calls.items()} == {"local": names.LOST, "hosted": names.LOST}
    assert 0 < calls["local"]["tokens_out"] <= 4  # those that came before it ended
    assert calls["hosted"]["tokens_out"] == PRIOR["completion_tokens"]  # it was sent, and what it made is not known
    assert record["ledger"]["tokens_out"] == sum(call["tokens_out"] for call in calls.values())
    assert [call["tier"] for call in record["ledger"]["calls"]].count("local") == 1
    assert record["ledger"]["cost_usd"] == pytest.approx(calls["local"]["cost_usd"] + calls["hosted"]["cost_usd"])
    assert record["ledger"]["status"] == 499


async def test_a_store_that_hangs_at_the_stop_costs_no_record(
    upstream: Upstream, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache write that does not end in time is given up when the gateway stops; its request is recorded."""
    monkeypatch.setattr(batches, "_CLOSE_S", 0.1)
    writing = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        writing.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(ResponseCache, "write_all", hang)
        async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
            answer = await app.ask("hello", {"x-request-id": "hanging"})
            assert answer.headers["x-tierline-path"] == "direct"
            await asyncio.wait_for(writing.wait(), 5)
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        record = await record_of(app.steps.store, "hanging")
        assert record["ledger"]["status"] == 200
        assert not await app.stored("hello")


async def test_a_client_that_leaves_during_an_error_does_not_cancel_it(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """The reply is told to its end, no cancellation comes out of the endpoint, and the record has the error."""
    upstream.default = error_reply(500)
    exchange = _Exchange("failing", stream=False)
    exchange.before_send = lambda _: exchange.leave()
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        await exchange.run(app.steps)
        assert exchange.sent[0]["status"] == 502
        assert not exchange.sent[-1].get("more_body")
        record = await record_of(app.steps.store, "failing")
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (502, "upstream_http_error")


async def test_a_stop_during_the_last_event_leaves_the_answer_whole(
    upstream: Upstream, store: LocalStore, tmp_path: Path
) -> None:
    """A stop that cuts the last write off is told to the client; the answer was complete, and is stored."""
    exchange = _Exchange("whole", stream=True, cache=b"no-cache")  # no equal request may share it

    def stop_at_end(message: Any) -> None:
        if b"data: [DONE]" in message.get("body", b"") and (task := asyncio.current_task()) is not None:
            task.cancel()

    exchange.before_send = stop_at_end
    async with in_process(tmp_path, upstream.url, store_url=store.url) as app:
        await exchange.run(app.steps)
        assert b'"code":"draining"' in exchange.sent[-1]["body"]
        record = await record_of(app.steps.store, "whole")
        (attempt,) = [hop for hop in record["hops"] if hop["name"] == names.ATTEMPT]
        assert attempt["attributes"][names.STREAM_END] == "done"
        await eventually(lambda: in_flight(app.steps) == 0, 5, "the slot")
        (write,) = [hop for hop in record["hops"] if hop["name"] == names.CACHE_WRITE]
        assert write["attributes"][names.CACHE_OUTCOME] == "stored"
