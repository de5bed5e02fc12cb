"""What goes wrong while a broken stream is being gone on with: nothing may be lost then, nor told twice."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.lanes import Answer, Rig
from tests.support.gateway import serve
from tests.support.store import LocalStore
from tests.support.upstream import Fault, Reply, Upstream

WORDS = "one two three four five six seven eight nine ten"
BREAKS = Reply(text=WORDS, fault=Fault.CLOSE_MID_STREAM, fault_after=6, between_s=0.005)
SAID = "one two three four five six"
REST = Reply(text=" seven eight nine ten")
SURFACES = 12
POLICY = """
surface: {name}
slo: {{deadline: 5s}}
tiers: [{name}.weak, {name}.strong]
route: {{classifier: none, start: {{{name}.weak: otherwise}}}}
escalate:
  when: {{confidence_below: 0.5}}
  no_signal: accept
  stream: {{hold_tokens: 4, hold_max: 200ms}}
load: {{max_wait: 100ms}}
holdout: 0
"""


def _backend(url: str, continuation: str, **more: Any) -> dict[str, Any]:
    price = {"input": 1, "output": 10}
    return {"base_url": url, "model": "m", "price": price, "continuation": continuation, "adaptive": False, **more}


@pytest.fixture(scope="module")
def _rig(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    local, hosted = _upstreams
    surfaces = [f"s{number}" for number in range(SURFACES)]
    tiers: list[dict[str, Any]] = []
    for name in surfaces:
        tiers.append({"name": f"{name}.weak", "backends": [_backend(local.url, "none")]})
        few = {"max_in_flight": 1} if name == "s0" else {}
        patience = "300ms" if name == "s4" else "5s"  # s4's successor says nothing
        tiers.append(
            {"name": f"{name}.strong", "backends": [_backend(hosted.url, "prefill", patience=patience, **few)]}
        )
    policies = {name: POLICY.format(name=name) for name in surfaces}
    with serve(
        tmp_path_factory.mktemp("streams"),
        local.url,
        store_url=_store.url,
        policies=policies,
        settings={"tiers": tiers, "default_surface": "s0"},
    ) as gateway:
        yield Rig(gateway, _store.url)


@pytest.fixture
def rig(_rig: Rig, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream) -> Iterator[Rig]:
    """Streams that break at the first tier and are gone on with by the second; at the end no call may be left."""
    local_upstream.default, hosted_upstream.default = BREAKS, REST
    yield _rig
    _rig.idle()


@contextmanager
def streaming(rig: Rig, model: str, request_id: str) -> Iterator[socket.socket]:
    """A stream that is under way, on a bare connection."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"x-request-id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rig.gateway.port), 5) as connection:
        connection.sendall(head.encode() + body)
        yield connection


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("s1", Reply(fault=Fault.HANG_BEFORE_HEADERS)),
        ("s2", Reply(fault=Fault.HANG_AFTER_HEADERS)),
        ("s3", Reply(text=" seven " + "and so on " * 100, between_s=0.02)),
    ],
)
def test_a_client_that_leaves_meanwhile(rig: Rig, hosted_upstream: Upstream, name: str, reply: Reply) -> None:
    """Who leaves while another is asked to go on, or does, ends that call too; the break is booked all the same."""
    hosted_upstream.default = reply
    with streaming(rig, name, f"leaves-{name}"):
        hosted_upstream.wait_for(1)
    left = time.monotonic()
    assert hosted_upstream.requests[0].wait_gone(2) - left < 0.25
    record = rig.record(f"leaves-{name}")
    assert (record["ledger"]["status"], record["ledger"]["error"]) == (499, "client_gone")
    first, second = [hop for hop in record["hops"] if hop["name"] == "attempt"]
    assert first["error"] == "upstream_truncated"
    assert second["attributes"]["tierline.continues"] == 1
    assert all(hop["attributes"]["tierline.cost_usd"] for hop in (first, second))


def test_a_successor_that_says_nothing(rig: Rig, hosted_upstream: Upstream) -> None:
    """One that is silent for longer than it may be is given up, and the client is told of the first break, once."""
    hosted_upstream.default = Reply(fault=Fault.HANG_AFTER_HEADERS)
    answer = rig.stream("s4")
    assert answer.broken["code"] == "upstream_truncated"
    assert answer.text == SAID
    assert sum("error" in event for event in answer.events) == 1
    first, second = rig.hops(answer)
    assert (first["error"], second["error"]) == ("upstream_truncated", "upstream_timeout")
    hosted_upstream.requests[0].wait_gone(1)


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("s5", Reply(status=500, body=b"{}")),
        ("s6", Reply(fault=Fault.CLOSE_BEFORE_HEADERS)),
        ("s7", Reply(fault=Fault.ERROR_IN_200)),
        ("s8", Reply(fault=Fault.HTML)),
        ("s9", Reply(status=400, body=b'{"error": {"message": "no assistant message last"}}')),
    ],
)
def test_a_successor_that_fails(rig: Rig, hosted_upstream: Upstream, name: str, reply: Reply) -> None:
    """Whatever it answers, the client is told of the first break and of nothing else."""
    hosted_upstream.default = reply
    answer = rig.stream(name)
    assert answer.broken["code"] == "upstream_truncated"
    assert answer.text == SAID
    assert len(hosted_upstream.requests) == 1
    assert rig.record(answer.headers["x-request-id"])["ledger"]["attempts"] == 2


def test_a_successor_that_is_full(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A tier with no place is waited for no longer than any attempt would wait for it."""
    hosted_upstream.queue(Reply(text=" seven", fault=Fault.HANG_MID_STREAM, fault_after=1))
    with streaming(rig, "s0", "holds-the-place"):
        hosted_upstream.wait_for(1)
        began = time.monotonic()
        answer = rig.stream("s0", {"x-tierline-max-tier": "s0.strong"}, temperature=0.5)
        assert time.monotonic() - began < 2
    assert answer.broken["code"] == "upstream_truncated"
    assert len(hosted_upstream.requests) == 1


def test_many_at_once(rig: Rig, hosted_upstream: Upstream) -> None:
    """Fifty at once all come to their end, those that broke among them, and no place is lost."""
    hosted_upstream.default = Reply(text=WORDS)
    hosted_upstream.on(lambda request: request.body["messages"][-1]["role"] == "assistant").reply(REST)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(rig.stream("s10"))) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [(answer.text, answer.ended) for answer in answers] == [(WORDS, True)] * 50
    assert any(b"continued-by=s10.strong" in answer.body for answer in answers)


def test_a_request_that_allows_no_other_tier(rig: Rig, hosted_upstream: Upstream) -> None:
    """A request that is clamped to one tier is gone on with by no other."""
    answer = rig.stream("s11", {"x-tierline-max-tier": "s11.weak"})
    assert answer.broken["code"] == "upstream_truncated"
    assert hosted_upstream.requests == []
