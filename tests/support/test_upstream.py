"""The scripted upstream speaks OpenAI's wire format, and its faults are real ones."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply
from tests.support.wait import until

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi there"}]}


@pytest.fixture(scope="module")
def running() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture
def upstream(running: Upstream) -> Upstream:
    running.reset()
    return running


@pytest.fixture
def client(upstream: Upstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.url, api_key="k", max_retries=0, timeout=30) as client:
        yield client


def post(upstream: Upstream, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    reply = connection.getresponse()
    try:
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def events(raw: bytes) -> list[Any]:
    data = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def test_answers_with_logprobs_and_usage(upstream: Upstream, client: openai.OpenAI) -> None:
    """A completion carries the scripted text, one logprob a token when asked, and counted usage."""
    upstream.default = Reply(text="one two three", logprob=(-0.1, -0.2, -0.3))
    got = client.chat.completions.create(**ASK, logprobs=True)
    assert got.choices[0].message.content == "one two three"
    assert got.choices[0].finish_reason == "stop"
    assert [entry.logprob for entry in got.choices[0].logprobs.content] == [-0.1, -0.2, -0.3]
    assert got.usage.total_tokens == 5
    assert client.chat.completions.create(**ASK).choices[0].logprobs is None
    assert upstream.requests[0].body["logprobs"] is True
    assert upstream.requests[0].headers["authorization"] == "Bearer k"


def test_streams_with_usage_last(upstream: Upstream, client: openai.OpenAI) -> None:
    """A stream has the role first, a token and its logprob a chunk, a finish, and usage in a chunk of its own."""
    upstream.default = Reply(text="one two")
    chunks = list(
        client.chat.completions.create(**ASK, stream=True, logprobs=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one two"
    assert chunks[1].choices[0].logprobs.content[0].logprob == -0.05
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 2
    assert len({c.id for c in chunks}) == 1


def test_honours_max_tokens(upstream: Upstream, client: openai.OpenAI) -> None:
    """An answer over the limit is cut there and says so."""
    upstream.default = Reply(text="one two three")
    got = client.chat.completions.create(**ASK, max_tokens=2)
    assert (got.choices[0].message.content, got.choices[0].finish_reason) == ("one two", "length")


def test_calls_tools_in_both_forms(upstream: Upstream, client: openai.OpenAI) -> None:
    """Tool calls arrive whole in JSON and in parts in a stream."""
    upstream.default = Reply(tool_calls=(ToolCall("weather", '{"city":"Utrecht"}'),))
    got = client.chat.completions.create(**ASK).choices[0]
    assert got.finish_reason == "tool_calls"
    assert got.message.tool_calls[0].function.arguments == '{"city":"Utrecht"}'
    parts = [c.choices[0].delta.tool_calls for c in client.chat.completions.create(**ASK, stream=True)]
    assert "".join(p[0].function.arguments for p in parts if p) == '{"city":"Utrecht"}'


def test_queue_before_rules_before_default(upstream: Upstream, client: openai.OpenAI) -> None:
    """Queued replies go out once each; then the newest rule that matches; then the default."""
    upstream.on("hi").reply(Reply(text="first"), Reply(text="again"))
    upstream.queue(error_reply(503, headers={"retry-after": "7"}))
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**ASK)
    assert caught.value.response.headers["retry-after"] == "7"
    texts = [client.chat.completions.create(**ASK).choices[0].message.content for _ in range(3)]
    assert texts == ["first", "again", "again"]


def test_notes_when_the_peer_leaves(upstream: Upstream) -> None:
    """A client that leaves while it waits is seen within 100 ms, and is no longer in flight."""
    upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
    body = json.dumps(ASK).encode()
    peer = socket.create_connection(("127.0.0.1", upstream.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    peer.sendall(head.encode() + body)
    request = upstream.wait_for(1)[0]
    assert upstream.in_flight == 1
    left = time.monotonic()
    peer.close()
    assert request.wait_gone() - left < 0.1
    assert upstream.in_flight == 0


def test_refuses_and_listens_again(upstream: Upstream) -> None:
    """`refuse` really refuses connections, and `accept` brings the same port back."""
    upstream.refuse()
    with pytest.raises(ConnectionRefusedError):
        post(upstream, ASK)
    upstream.accept()
    assert post(upstream, ASK)[0] == 200


@pytest.mark.parametrize(
    ("fault", "finish", "done"),
    [
        (Fault.EOF_MID_STREAM, False, False),
        (Fault.NO_DONE, True, False),
        (Fault.DONE_WITHOUT_FINISH, False, True),
    ],
)
def test_streams_that_end_badly_but_cleanly(upstream: Upstream, fault: Fault, finish: bool, done: bool) -> None:
    """A stream can lack its finish_reason, its [DONE] or both, over a body that is whole to HTTP."""
    upstream.default = Reply(text="one two three", fault=fault)
    got = events(post(upstream, ASK | {"stream": True})[2])
    finished = any(e["choices"][0]["finish_reason"] for e in got if e != "[DONE]")
    assert (finished, got[-1] == "[DONE]") == (finish, done)


@pytest.mark.parametrize("fault", [Fault.RESET_MID_STREAM, Fault.CLOSE_MID_STREAM])
def test_streams_that_break(upstream: Upstream, fault: Fault) -> None:
    """A stream can break inside its body."""
    upstream.default = Reply(text="one two three", fault=fault)
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        post(upstream, ASK | {"stream": True})


@pytest.mark.parametrize("fault", [Fault.CLOSE_BEFORE_HEADERS, Fault.CLOSE_AFTER_HEADERS])
@pytest.mark.parametrize("stream", [False, True])
def test_replies_that_never_come(upstream: Upstream, fault: Fault, stream: bool) -> None:
    """The connection can close before the headers, or right after them."""
    upstream.default = Reply(fault=fault)
    with pytest.raises((http.client.RemoteDisconnected, http.client.IncompleteRead)):
        post(upstream, ASK | {"stream": stream})


def test_bodies_that_are_wrong(upstream: Upstream) -> None:
    """HTML, an error in a 200, no choices, broken JSON, a redirect, and the other kind of body than asked."""
    upstream.queue(*(Reply(fault=fault) for fault in (Fault.HTML, Fault.ERROR_IN_200, Fault.EMPTY_CHOICES)))
    assert post(upstream, ASK)[1]["content-type"] == "text/html"
    assert "error" in json.loads(post(upstream, ASK)[2])
    assert json.loads(post(upstream, ASK)[2])["choices"] == []
    upstream.queue(Reply(fault=Fault.MALFORMED_JSON), Reply(fault=Fault.REDIRECT), Reply(fault=Fault.OTHER_KIND))
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(post(upstream, ASK)[2])
    assert post(upstream, ASK)[0] == 307
    assert post(upstream, ASK | {"stream": True})[1]["content-type"] == "application/json"


def test_fragments_and_crlf(upstream: Upstream) -> None:
    """Events may come a byte at a time and end in CRLF."""
    upstream.default = Reply(text="one two", fragment=1, newline="\r\n")
    raw = post(upstream, ASK | {"stream": True})[2]
    assert b"\r\n\r\n" in raw
    assert events(raw)[-1] == "[DONE]"


def test_giant_replies_stop_with_their_reader(upstream: Upstream) -> None:
    """A giant reply is sent no faster than it is read, and stops when the reader leaves."""
    upstream.default = Reply(fault=Fault.GIANT)
    body = json.dumps(ASK).encode()
    with socket.create_connection(("127.0.0.1", upstream.port)) as peer:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)
        until(lambda: upstream.requests and upstream.requests[0].sent_bytes > 1 << 16)
    upstream.requests[0].wait_gone()
    assert upstream.requests[0].sent_bytes < 1 << 27


def test_delays_are_kept(upstream: Upstream) -> None:
    """The first token waits as told, and so does each after it."""
    upstream.default = Reply(text="one two three", before_first_s=0.05, between_s=0.02)
    started = time.monotonic()
    post(upstream, ASK | {"stream": True})
    assert time.monotonic() - started >= 0.05 + 3 * 0.02


def test_probes_are_not_model_calls(upstream: Upstream, client: openai.OpenAI) -> None:
    """Lists of models and health checks are answered and kept apart."""
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert (len(upstream.requests), len(upstream.probes)) == (0, 1)
