"""The gate: what a worker refuses before it has read it."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from pathlib import Path

import httpx2
import pytest

from gateway.errors import Overloaded
from gateway.request.load_shedding import MOST_LAG_S, LoadShedder
from tests.support.gateway import Gateway, serve
from tests.support.upstream import Fault, Reply, Upstream
from tests.support.wait import until


def test_one_too_many_is_refused() -> None:
    """So many requests are taken in hand, and another one as soon as one has left."""
    gate = LoadShedder(2)
    for _ in range(2):
        gate.enter()
        gate.check()
    gate.enter()
    with pytest.raises(Overloaded):
        gate.check()
    gate.leave()
    gate.check()


async def test_a_loop_that_is_behind_takes_nothing_new() -> None:
    """While the loop comes late again and again newcomers are refused; once it keeps up, they are welcome."""
    gate = LoadShedder(100)
    gate.start()
    try:
        time.sleep(2 * MOST_LAG_S)
        await asyncio.sleep(0.01)
        gate.check()  # one long stop is over by now: refusing would mend nothing
        async with asyncio.timeout(30):
            while gate.lag_s <= MOST_LAG_S:
                time.sleep(2 * MOST_LAG_S)
                await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            gate.check()
        async with asyncio.timeout(30):
            while gate.lag_s > MOST_LAG_S:
                await asyncio.sleep(0.01)
        gate.check()
    finally:
        gate.stop()


BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def _ask(gateway: Gateway) -> httpx2.Response:
    return httpx2.post(f"{gateway.url}/chat/completions", json=BODY, timeout=15)


def test_o1_a_full_worker_says_so_at_once(tmp_path: Path, upstream: Upstream) -> None:
    """503 with Retry-After and the envelope, whatever the body; once what is in hand has gone, there is room."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    with serve(tmp_path, upstream.url, settings={"limits": {"in_flight": 1}}) as gateway:
        waiting = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
        waiting.request("POST", "/v1/chat/completions", json.dumps(BODY), {"content-type": "application/json"})
        until(lambda: upstream.requests, 5, "a request in hand")
        refused = _ask(gateway)
        waiting.close()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "server_is_overloaded"
        assert refused.headers["x-request-id"]
        upstream.default = Reply()
        until(lambda: _ask(gateway).status_code == 200, 5, "room again")
