"""A backend that thinks for long, and sends comments or pings meanwhile (row B40): through every API and transport."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.gateway import Gateway, serve
from tests.support.raw_upstream import Part, raw_upstream
from tests.support.store import LocalStore

IDLE_S = 0.6
"""Idle limit of the backends."""
BEATS = 12
BETWEEN_S = 0.25
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
POLICY = """
surface: chat
slo: {{deadline: {deadline}}}
tiers: [chat-http1, chat-httpx2, claude, thinks]
route: {{classifier: none, start: {{chat-http1: otherwise}}}}
cache: {{exact: {{ttl: 0s}}, coalesce: false}}
holdout: 0
"""


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(value)}\n\n".encode()


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def during(beats: list[bytes]) -> Iterator[Part]:
    """The signs of life of three seconds, in turns."""
    for number in range(BEATS):
        yield beats[number % len(beats)]
        yield BETWEEN_S


BEGIN = [HEAD, chunk({"role": "assistant", "content": ""}), chunk({"content": "a "})]
END = [chunk({"content": "b"}), chunk({}, "stop"), b"data: [DONE]\n\n"]
CHAT: list[Part] = [*BEGIN, *during([b": keep-alive\n\n", b": a line alone\n", b"event: ping\n\n", b":\r\n\r\n"]), *END]
THINKS: list[Part] = [*BEGIN, *during([chunk({"reasoning_content": "hm "})]), *END]
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip
CLAUDE: list[Part] = [
    HEAD,
    event("message_start", message=MESSAGE),
    *during([event("ping"), event("of_a_later_version")]),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a b"}),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 3}),
    event("message_stop"),
]


def backend(url: str, **more: Any) -> dict[str, Any]:
    return {"base_url": url, "model": "m", "price": {"input": 1, "output": 1}, "idle_timeout": f"{IDLE_S}s", **more}


def served(stack: ExitStack, store: LocalStore, folder: Any, deadline: str) -> Gateway:
    """A gateway before backends that think for three seconds."""
    chat, claude = (stack.enter_context(raw_upstream(*parts)) for parts in (CHAT, CLAUDE))
    thinks = stack.enter_context(raw_upstream(*THINKS))
    tiers = [
        *({"name": f"chat-{one}", "backends": [backend(chat.url, http={"client": one})]} for one in CLIENTS),
        {"name": "claude", "backends": [backend(claude.url, kind="anthropic")]},
        {"name": "thinks", "backends": [backend(thinks.url)]},
    ]
    settings = {"tiers": tiers, "default_surface": "chat"}
    policies = {"chat": POLICY.format(deadline=deadline)}
    gateway = serve(folder, chat.url, store_url=store.url, policies=policies, settings=settings)
    return stack.enter_context(gateway)


CLIENTS = ("http1", "httpx2")


@pytest.fixture(scope="module")
def gateway(_store: LocalStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with ExitStack() as stack:
        yield served(stack, _store, tmp_path_factory.mktemp("life"), "20s")


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
    "/v1/responses": {"input": "hi"},
}


def stream(gateway: Gateway, path: str, tier: str) -> list[tuple[float, bytes]]:
    """The lines of a stream, each with its time in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=15)
    body = {"model": f"tier:{tier}", "stream": True, **BODIES[path]}
    connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    lines: list[tuple[float, bytes]] = []
    while line := response.readline():
        lines.append((time.monotonic(), line.rstrip(b"\n")))
    connection.close()
    return lines


def text_of(lines: list[tuple[float, bytes]]) -> str:
    """The text of a stream in any of the dialects."""
    text = ""
    for _, line in lines:
        if line.startswith(b"data: {"):
            value = json.loads(line[6:])
            if value.get("type") == "response.output_text.delta":
                text += value["delta"]
            elif value.get("type") == "content_block_delta":
                text += value["delta"].get("text", "")
            for choice in value.get("choices", ()):
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return text


SIGNS = {
    "/v1/chat/completions": b": the model is at work",
    "/v1/completions": b": the model is at work",
    "/v1/messages": b"event: ping",
    "/v1/responses": b"event: response.in_progress",
}


def test_b40_comments_and_pings_are_life(gateway: Gateway) -> None:
    """Over any transport and in any API, no idle limit ends such a stream, and the client hears something meanwhile,
    once in two seconds.
    """
    cases = [("/v1/chat/completions", f"chat-{client}") for client in CLIENTS]
    cases += [(path, tier) for path in BODIES for tier in ("claude", "chat-http1")]
    cases += [(path, "thinks") for path in ("/v1/completions", "/v1/messages")]  # which tell no thoughts unasked
    with ThreadPoolExecutor(len(cases)) as pool:
        streams = dict(zip(cases, pool.map(lambda case: stream(gateway, *case), cases), strict=True))
    for (path, tier), lines in streams.items():
        assert text_of(lines) == "a b", (path, tier, lines)
        begun = 1 if path == "/v1/responses" else 0
        told = [at for at, line in lines if line == SIGNS[path]][begun:]
        assert 1 <= len(told) <= 2, (path, tier, lines)
        assert not any(b'"error":{' in line for _, line in lines)


def test_b40_the_deadline_still_holds(_store: LocalStore, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever signs of life come, the request's time ends the stream."""
    with ExitStack() as stack:
        gateway = served(stack, _store, tmp_path_factory.mktemp("life-short"), "1s")
        began = time.monotonic()
        lines = stream(gateway, "/v1/chat/completions", "chat-http1")
        assert time.monotonic() - began < 2.5
        assert b"deadline_exceeded" in lines[-2][1] or b"deadline_exceeded" in lines[-1][1], lines
