"""The OpenAI dialect: what is sent, and what is taken for an answer, over real sockets."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from gateway.backends.base import ALIVE, BackendRequest, BadStatus, Completion, ContextExceeded, InvalidReply, Truncated
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.chat.usage import usage_of
from gateway.parts.servers.quota import HeaderQuota
from tests.support.raw_upstream import raw_upstream
from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply

KEY = "sk-planted-canary"
BODY: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0.5,
    "top_k": 40,
    "chat_template_kwargs": {"enable_thinking": False},
}
STREAM = BODY | {"stream": True}


def backend_at(url: str, key: str | None = KEY, quota: HeaderQuota | None = None, **server: Any) -> OpenAIBackend:
    transport = Http1Transport(f"{url}/chat/completions", max_in_flight=4, connect_timeout_s=1.0, max_reply=16 << 20)
    return OpenAIBackend(transport, model="small", key=key, quota=quota, **server)


@pytest.fixture
async def backend(upstream: Upstream) -> AsyncIterator[OpenAIBackend]:
    made = backend_at(upstream.url)
    yield made
    await made.aclose()


async def streamed(backend: OpenAIBackend, request: BackendRequest | None = None) -> list[dict[str, Any]]:
    """All events of a stream, to its end; each event's bytes are its value, on one line."""
    stream = await backend.stream(request or BackendRequest(STREAM, ask_logprobs=False))
    values = []
    try:
        while events := await stream.read():
            for event in events if events is not ALIVE else ():
                assert json.loads(event.data) == event.value
                assert b"\n" not in event.data
                values.append(event.value)
    finally:
        stream.close()
    return values


def said(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


def events(*data: str) -> bytes:
    """A whole SSE reply with these events."""
    body = "".join(f"data: {one}\n\n" for one in data).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


PART = '{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}'
LAST = '{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'


async def test_sends_the_body_with_its_own_model(backend: OpenAIBackend, upstream: Upstream) -> None:
    """The model is the backend's; everything else, unknown fields too, is the client's, and nothing is added."""
    await backend.complete(BackendRequest(BODY, ask_logprobs=False, traceparent="00-1-2-01"))
    received = upstream.requests[0]
    assert received.body == BODY | {"model": "small"}
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["traceparent"] == "00-1-2-01"
    assert received.headers["accept-encoding"] == "identity"
    assert received.headers["content-type"] == "application/json"
    assert BODY["model"] == "chat"


async def test_no_key_no_authorization(upstream: Upstream) -> None:
    """A backend without a key sends none."""
    backend = backend_at(upstream.url, key=None)
    await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    await backend.aclose()
    assert "authorization" not in upstream.requests[0].headers


async def test_asks_logprobs_only_when_told(backend: OpenAIBackend, upstream: Upstream) -> None:
    """Log-probabilities are asked for, one alternative a token, when the answer is to be judged, and else never."""
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=True))
    await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert upstream.requests[0].body["logprobs"] is True
    assert upstream.requests[0].body["top_logprobs"] == 1
    assert "logprobs" not in upstream.requests[1].body
    assert completion.value["choices"][0]["logprobs"]["content"]


async def test_always_asks_a_stream_for_its_usage(backend: OpenAIBackend, upstream: Upstream) -> None:
    """The totals are wanted for the ledger, whatever the client wants; its other stream options stay."""
    await streamed(
        backend, BackendRequest(STREAM | {"stream_options": {"include_obfuscation": False}}, ask_logprobs=False)
    )
    assert upstream.requests[0].body["stream_options"] == {"include_obfuscation": False, "include_usage": True}


async def test_asks_no_usage_of_a_server_that_refuses_the_question(upstream: Upstream) -> None:
    """Its streams have it unasked; what else the client wants of a stream is listed."""
    backend = backend_at(upstream.url, asks_usage=False)
    options = {"include_usage": True, "include_obfuscation": True, "other": None}
    request = BackendRequest(STREAM | {"stream_options": options}, ask_logprobs=False)
    stream = await backend.stream(request)
    stream.close()
    assert stream.dropped == ("stream_options.include_obfuscation",)
    await streamed(backend)
    await backend.aclose()
    assert [request.body for request in upstream.requests] == [STREAM | {"model": "small"}] * 2


@pytest.mark.parametrize(("store", "dropped"), [(True, ("store",)), (False, ()), (None, ())])
async def test_a_server_that_keeps_nothing_is_not_asked_to(
    upstream: Upstream, store: bool | None, dropped: tuple[str, ...]
) -> None:
    backend = backend_at(upstream.url, stores=False)
    completion = await backend.complete(BackendRequest(BODY | {"store": store}, ask_logprobs=False))
    await backend.aclose()
    assert completion.dropped == dropped
    assert "store" not in upstream.requests[0].body


async def test_completes(backend: OpenAIBackend, upstream: Upstream) -> None:
    """The bytes of an answer stay as they came."""
    upstream.default = Reply(text="one two", extra={"x_unknown": [1.50]})
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert completion.value["choices"][0]["message"]["content"] == "one two"
    assert json.loads(completion.raw) == completion.value
    assert completion.value["x_unknown"] == [1.5]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("fragment", [1, 9, None])
async def test_streams(backend: OpenAIBackend, upstream: Upstream, newline: str, fragment: int | None) -> None:
    """A stream arrives whole at every cut and with every line end."""
    upstream.default = Reply(text="one two three", newline=newline, fragment=fragment)
    chunks = await streamed(backend)
    assert said(chunks) == "one two three"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3


async def test_data_over_several_lines_is_put_on_one(backend: OpenAIBackend) -> None:
    """JSON that came in several `data:` lines is passed on in one."""
    with raw_upstream(events(PART.replace(",", ",\ndata: "), LAST, "[DONE]")) as server:
        other = backend_at(server.url)
        assert said(await streamed(other)) == "a"
        await other.aclose()


async def test_a_bare_usage_chunk_gets_its_choices() -> None:
    """B25: a chunk without `choices`, or with null, has an empty list when it leaves here."""
    with raw_upstream(events(PART, LAST, '{"usage":{}}', '{"choices":null}', "[DONE]")) as server:
        backend = backend_at(server.url)
        assert [len(chunk["choices"]) for chunk in await streamed(backend)] == [1, 1, 0, 0]
        await backend.aclose()


@pytest.mark.parametrize(
    "event",
    [
        "{",
        "[]",
        '{"choices":{}}',
        '{"choices":[null]}',
        '{"choices":[{"delta":"x"}]}',
        '{"choices":[{"index":[],"delta":{}}]}',
        '{"error":{"message":"secret prompt","code":"overloaded"}}',
        '{"error":"secret prompt","choices":[]}',
    ],
)
async def test_an_event_that_is_no_chunk(event: str) -> None:
    """What no client could read is an invalid reply, told without the upstream's own words."""
    with raw_upstream(events(PART, event, LAST, "[DONE]")) as server:
        backend = backend_at(server.url)
        with pytest.raises(InvalidReply) as caught:
            await streamed(backend)
        assert "secret" not in str(caught.value)
        await backend.aclose()


@pytest.mark.parametrize("bad", ["{", '{"error":{"code":"overloaded"}}'])
async def test_what_came_before_a_bad_event_came(bad: str) -> None:
    """The events before one that is no chunk are delivered, even if one read brought all; the next one fails."""
    with raw_upstream(events(PART, PART, bad, LAST)) as server:
        backend = backend_at(server.url)
        stream = await backend.stream(BackendRequest(STREAM, ask_logprobs=False))
        assert said([event.value for event in await stream.read()]) == "aa"
        for _ in range(2):
            with pytest.raises(InvalidReply):
                await stream.read()
        stream.close()
        await backend.aclose()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":null}',
        b"{}",
        b'{"choices":["x"]}',
        b'{"choices":[{"message":"x"}]}',
        b'{"error":{"message":"secret prompt"}}',
        b'{"error":{"message":"secret prompt"},"choices":[{"message":{"content":"x"}}]}',
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_is_no_completion(
    backend: OpenAIBackend, upstream: Upstream, body: bytes, stream: bool
) -> None:
    """An error in a 200, or anything without a message, is an invalid reply, asked for as a stream or not."""
    upstream.default = Reply(body=body)
    with pytest.raises(InvalidReply) as caught:
        if stream:
            await backend.stream(BackendRequest(STREAM, ask_logprobs=False))
        else:
            await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert "secret" not in str(caught.value)


async def test_json_to_a_stream_request(backend: OpenAIBackend, upstream: Upstream) -> None:
    """B23: a whole answer where a stream was asked for is streamed from that, tool calls and usage included."""
    call = ToolCall("weather", '{"city":"Utrecht"}')
    upstream.default = Reply(fault=Fault.OTHER_KIND, tool_calls=(call,))
    chunks = await streamed(backend)
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == call.arguments
    assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert chunks[1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[2]["usage"]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_to_a_json_request(backend: OpenAIBackend, upstream: Upstream) -> None:
    """B23: a stream that nobody asked for is put together, if it is whole."""
    upstream.default = Reply(fault=Fault.OTHER_KIND, text="one two three")
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert completion.value["object"] == "chat.completion"
    assert completion.value["choices"][0]["message"]["content"] == "one two three"
    assert completion.value["choices"][0]["finish_reason"] == "stop"
    with raw_upstream(events(PART)) as server:
        other = backend_at(server.url)
        with pytest.raises(Truncated):
            await other.complete(BackendRequest(BODY, ask_logprobs=False))
        await other.aclose()


def whole(**members: Any) -> dict[str, Any]:
    """A completion that lacks nothing, with these members in place of its own."""
    message = {"role": "assistant", "content": "a", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]} | members
    return {name: value for name, value in made.items() if value is not ...}


async def completed(upstream: Upstream, backend: OpenAIBackend, body: bytes) -> Completion:
    upstream.default = Reply(body=body)
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert json.loads(completion.raw) == completion.value
    return completion


async def test_a_reply_that_lacks_nothing_stays_as_it_came(backend: OpenAIBackend, upstream: Upstream) -> None:
    """To the byte, its odd spacing and its unknown fields too."""
    body = json.dumps(whole(x_unknown=[1.5]), indent=3).encode()
    assert (await completed(upstream, backend, body)).raw == body


@pytest.mark.parametrize("finish", [..., None, "", 7], ids=["missing", "null", "empty", "number"])
async def test_a_completion_without_a_finish_is_none(backend: OpenAIBackend, upstream: Upstream, finish: Any) -> None:
    """Nobody knows whether such an answer is whole; one choice of several is enough."""
    good = whole()["choices"][0]
    bad = {name: value for name, value in (good | {"finish_reason": finish}).items() if value is not ...}
    with pytest.raises(InvalidReply):
        await completed(upstream, backend, json.dumps(whole(choices=[good, bad])).encode())


BOM = b"\xef\xbb\xbf"


async def test_a_byte_order_mark(backend: OpenAIBackend, upstream: Upstream) -> None:
    """A byte order mark is no part of an answer, JSON or stream, nor of an error."""
    body = json.dumps(whole()).encode()
    assert (await completed(upstream, backend, BOM + body)).raw == body
    upstream.default = Reply(status=400, body=BOM + b'{"error":{"message":"too long"}}')
    assert (await refused(backend)).told["message"] == "too long"
    reply = BOM + f"data: {PART}\n\ndata: {LAST}\n\ndata: [DONE]\n\n".encode()
    for fragment in (1, None):
        upstream.default = Reply(body=reply, headers={"Content-Type": "text/event-stream"}, fragment=fragment)
        assert said(await streamed(backend)) == "a"


@pytest.mark.parametrize("content_type", ["text/html", "text/plain", "application/jsonp"])
async def test_another_content_type(backend: OpenAIBackend, upstream: Upstream, content_type: str) -> None:
    """B22: a 200 that is not JSON or SSE by its own account is not parsed."""
    upstream.default = Reply(body=b'{"choices":[{"message":{}}]}', headers={"Content-Type": content_type})
    for attempt in (backend.complete, backend.stream):
        with pytest.raises(InvalidReply):
            await attempt(BackendRequest(BODY, ask_logprobs=False))


async def test_a_content_encoding(backend: OpenAIBackend, upstream: Upstream) -> None:
    """B30: an encoding that was not asked for is refused before a byte of it is read."""
    upstream.default = Reply(headers={"Content-Encoding": "gzip"})
    for attempt in (backend.complete, backend.stream):
        with pytest.raises(InvalidReply):
            await attempt(BackendRequest(BODY, ask_logprobs=False))


async def refused(backend: OpenAIBackend) -> BadStatus:
    with pytest.raises(BadStatus) as caught:
        await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    return caught.value


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9),
        ({"Retry-After": format_datetime(datetime.now(UTC) - timedelta(seconds=9), usegmt=True)}, 0),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "later"}, None),
        ({}, None),
    ],
)
async def test_retry_after(
    backend: OpenAIBackend, upstream: Upstream, headers: dict[str, str], seconds: float | None
) -> None:
    """What an endpoint asks for in seconds or milliseconds is taken at its word; nonsense is nothing asked."""
    upstream.default = error_reply(429, headers=headers)
    assert (await refused(backend)).retry_after_s == seconds


async def test_retry_after_a_date(backend: OpenAIBackend, upstream: Upstream) -> None:
    """So is an HTTP date."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    upstream.default = error_reply(503, headers={"Retry-After": date})
    assert (await refused(backend)).retry_after_s == pytest.approx(30, abs=2)


CALLERS = (400, 406, 422)
OURS = (201, 302, 401, 402, 403, 404, 405, 408, 410, 413, 409, 425, 429, 500, 502, 503, 529)


@pytest.mark.parametrize("status", CALLERS + OURS)
async def test_whose_fault_a_status_is(backend: OpenAIBackend, upstream: Upstream, status: int) -> None:
    """A 4xx that any endpoint would give is the caller's; all else is the backend's, or our key's or model's."""
    upstream.default = error_reply(status, "scripted")
    error = await refused(backend)
    assert (error.status, error.callers_fault) == (status, status in CALLERS)
    assert b"scripted" in error.body


SAID_TOO_LONG = [
    (400, "request (8720 tokens) exceeds the available context size (4096 tokens), try increasing it"),
    (500, "Context size has been exceeded."),
    (400, "This model's maximum context length is 4097 tokens. However, you requested 5000 tokens."),
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    (400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"),
    (422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000"),
    (400, "the input length exceeds the context length"),
    (400, "prompt too long; exceeded max context length by 4 tokens"),
    (400, "The number of tokens to keep from the initial prompt is greater than the context length."),
    (400, "prompt is too long: 208310 tokens > 200000 maximum"),
    (400, "input length and `max_tokens` exceed context limit: 199211 + 20000 > 200000"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048575)."),
    (400, "Input is too long for requested model."),
    (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    (413, "Prompt is too long"),
]
SAID_OTHERWISE = [
    (400, "messages[0].content must be a string"),
    (400, "max_tokens must be at least 1"),
    (413, "Request Entity Too Large"),
    (429, "Rate limit reached for tokens per min; the maximum context length is not the matter"),
    (500, "the server had an error"),
]


@pytest.mark.parametrize(("status", "message"), SAID_TOO_LONG + SAID_OTHERWISE)
async def test_a_request_too_long_is_told_from_other_errors(
    backend: OpenAIBackend, upstream: Upstream, status: int, message: str
) -> None:
    """In the words of each server: it is no fault of the caller's, for another model may hold it."""
    upstream.default = error_reply(status, message)
    error = await refused(backend)
    assert isinstance(error, ContextExceeded) is ((status, message) in SAID_TOO_LONG)
    assert error.status == status
    assert not (isinstance(error, ContextExceeded) and error.callers_fault)


async def test_a_quoted_key_is_taken_out(backend: OpenAIBackend, upstream: Upstream) -> None:
    """An endpoint that quotes our key in its error does not make us repeat it."""
    upstream.default = error_reply(400, f"bad key {KEY}")
    error = await refused(backend)
    assert KEY.encode() not in error.body
    assert KEY not in repr(error)


async def test_a_status_counts_even_if_its_body_breaks(backend: OpenAIBackend) -> None:
    """The status and its Retry-After are known before the body, and hold without it."""
    reply = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\nContent-Length: 100\r\n\r\n{"
    with raw_upstream(reply) as server:
        other = backend_at(server.url)
        assert (await refused(other)).retry_after_s == 5
        await other.aclose()


async def test_a_stream_that_breaks_is_truncated(backend: OpenAIBackend, upstream: Upstream) -> None:
    """A reset in the middle of a stream is told apart from an endpoint that cannot be reached."""
    upstream.default = Reply(fault=Fault.RESET_MID_STREAM)
    with pytest.raises(Truncated):
        await streamed(backend)


@pytest.mark.parametrize("fault", [None, Fault.NO_DONE])
async def test_says_whether_done_was_seen(backend: OpenAIBackend, upstream: Upstream, fault: Fault | None) -> None:
    """After the end of a stream it is known whether `[DONE]` came."""
    upstream.default = Reply(fault=fault)
    stream = await backend.stream(BackendRequest(STREAM, ask_logprobs=False))
    while await stream.read():
        pass
    assert stream.done_seen is (fault is None)
    stream.close()


@pytest.mark.parametrize("status", ["200 OK", "429 Too Many Requests"])
async def test_the_quota_hears_the_rate_limit_headers_of_every_reply(status: str) -> None:
    """Of one that was served and of one that was refused."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/event-stream\r\n"
    limits = "x-ratelimit-remaining-requests: 0\r\nx-ratelimit-reset-requests: 6s\r\n"
    quota = HeaderQuota()
    reply = f"{head}{limits}Content-Length: 14\r\n\r\ndata: [DONE]\n\n"
    with raw_upstream(reply.encode()) as server:
        backend = backend_at(server.url, quota=quota)
        for _ in range(10):
            with contextlib.suppress(BadStatus):
                (await backend.stream(BackendRequest(STREAM, ask_logprobs=False))).close()
        await backend.aclose()
    assert 5 < quota.wait_s(time.monotonic()) <= 6


async def test_an_entry_in_place_of_its_list() -> None:
    """In mistral.rs's streams a chunk's log-probabilities are its one entry: clients and the judge read a list."""
    entry = {"token": "It", "logprob": -0.5, "bytes": [73, 116], "top_logprobs": [{"token": 3, "logprob": -0.5}]}
    pieces = [{"delta": {"content": "It", "role": "assistant"}, "logprobs": entry, "finish_reason": None, "index": 0}]
    pieces += [{"delta": {"content": None}, "logprobs": None, "finish_reason": "stop", "index": 0}]
    events = b"".join(b"data: %b\n\n" % json.dumps({"choices": [piece]}).encode() for piece in pieces)
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {len(events) + 14}\r\n\r\n"
    with raw_upstream(head.encode() + events + b"data: [DONE]\n\n") as server:
        other = backend_at(server.url)
        chunks = await streamed(other)
        await other.aclose()
    assert chunks[0]["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}


async def test_an_answer_of_llama_cpp_that_a_stop_string_may_end_is_read_as_a_stream(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    """Whole, it would lack the log-probabilities of as many tokens as the stop string has, of the answer's own."""
    asked = BackendRequest({**BODY, "stop": ["."]}, ask_logprobs=True)
    upstream.default = Reply(text="It is so", logprob=-0.5)
    await backend.complete(asked)
    upstream.default = Reply(text="It is so", logprob=-0.5, extra={"timings": {"predicted_n": 3}})
    await backend.complete(asked)
    upstream.requests.clear()
    found = await backend.complete(asked)
    assert upstream.requests[0].body["stream"] is True
    choice = found.value["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is so", "stop")
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5] * 3
    assert json.loads(found.raw) == found.value and usage_of(found.value) is not None
    for other in (
        BackendRequest({**BODY, "stop": ["."]}, ask_logprobs=False),
        BackendRequest(BODY, ask_logprobs=True),
        BackendRequest({**BODY, "stop": ["."], "tools": [{"type": "function"}]}, ask_logprobs=True),
    ):
        upstream.requests.clear()
        await backend.complete(other)
        assert "stream" not in upstream.requests[0].body
