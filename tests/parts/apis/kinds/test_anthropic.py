"""The Messages API: what is sent, and what is taken for an answer, over real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from gateway.backends.base import ALIVE, BackendRequest, BadStatus, ContextExceeded, InvalidReply, Truncated
from gateway.backends.http1_transport import Http1Transport
from gateway.chat.completions import assemble
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.messages.backend_replies import MessageChunks
from gateway.parts.apis.dialects.messages.client import chat_body
from gateway.parts.apis.kinds.anthropic.backend import AnthropicBackend, _MessageStream
from gateway.parts.servers.quota import HeaderQuota
from tests.support.raw_upstream import raw_upstream
from tests.support.strict_messages import StrictMessages, error, events_of, redacted, text, thinking, tool_use
from tests.support.upstream import Reply

BODY: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
LOOK = {"type": "function", "function": {"name": "look"}}


@pytest.fixture(scope="module")
def claude() -> Iterator[StrictMessages]:
    with StrictMessages() as server:
        yield server


@pytest.fixture
async def backend(claude: StrictMessages) -> AsyncIterator[AnthropicBackend]:
    claude.reset()
    made = backend_at(claude.url)
    yield made
    await made.aclose()


def backend_at(url: str, key: str = StrictMessages.KEY, quota: HeaderQuota | None = None) -> AnthropicBackend:
    transport = Http1Transport(f"{url}/messages", max_in_flight=4, connect_timeout_s=1.0, max_reply=16 << 20)
    maker = maker_of("here", key)
    return AnthropicBackend(transport, model="claude-haiku-4-5", key=key, maker=maker, quota=quota)


def asked(large: bool = False, **body: Any) -> BackendRequest:
    """A request for a chat completion."""
    return BackendRequest({**BODY, **body}, ask_logprobs=False, large=large)


async def streamed(backend: AnthropicBackend, request: BackendRequest) -> list[dict[str, Any]]:
    """All chunks of a stream, to its end; each event's bytes are its value."""
    stream = await backend.stream(request)
    values = []
    try:
        while events := await stream.read():
            for event in events if events is not ALIVE else ():
                assert json.loads(event.data) == event.value
                values.append(event.value)
        assert stream.done_seen
    finally:
        stream.close()
    return values


@pytest.mark.parametrize("large", [False, True])
async def test_completes(backend: AnthropicBackend, claude: StrictMessages, large: bool) -> None:
    claude.say(thinking("let me see"), redacted("x"), text("Here: "), tool_use("look", {"at": "map"}, "toolu_1"))
    completion = await backend.complete(asked(large, tools=[LOOK], seed=1))
    message = completion.value["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Here: ", "let me see")
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":"map"}'}
    assert completion.value["usage"]["prompt_tokens"] == 23
    assert json.loads(completion.raw) == completion.value
    assert completion.dropped == ("seed",)
    headers = claude.requests[0].headers
    assert (headers["x-api-key"], headers["anthropic-version"]) == (claude.KEY, "2023-06-01")
    assert "authorization" not in headers


async def test_streams(backend: AnthropicBackend, claude: StrictMessages) -> None:
    claude.say(thinking("let me see"), text("Here it is."), tool_use("look", {"at": "map"}))
    chunks = await streamed(backend, asked(tools=[LOOK]))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Here it is."
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] == "tool_calls"
    assert chunks[-1]["usage"]["prompt_tokens"] == 23
    assert {(chunk["id"], chunk["model"]) for chunk in chunks} == {(chunks[0]["id"], "claude-haiku-4-5")}


async def test_a_conversation_with_thinking_and_tools(backend: AnthropicBackend, claude: StrictMessages) -> None:
    """What one reply thought goes back as it was; the server checks signatures and orders."""
    claude.say(thinking("first"), redacted("x"), tool_use("look", {"at": "map"}))
    claude.say(thinking("then"), text("Done."))
    body = {**BODY, "tools": [LOOK], "reasoning_effort": "low"}
    first = (await backend.complete(BackendRequest(body, ask_logprobs=False))).value["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a sea"}
    body["messages"] = [*BODY["messages"], first, result]
    again = await backend.complete(BackendRequest(body, ask_logprobs=False))
    assert (again.value["choices"][0]["message"]["content"], claude.refusals) == ("Done.", [])
    sent = claude.requests[1].body
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["thinking", "redacted_thinking", "tool_use"]
    assert sent["thinking"]["type"] == "enabled"


@pytest.mark.parametrize("bills", [True, False])
async def test_the_billing_line_is_for_anthropic_alone(claude: StrictMessages, bills: bool) -> None:
    """A server that offers the same API would see another beginning in each request."""
    claude.reset()
    transport = Http1Transport(f"{claude.url}/messages", max_in_flight=4, connect_timeout_s=1.0, max_reply=16 << 20)
    backend = AnthropicBackend(
        transport, model="claude-haiku-4-5", key=StrictMessages.KEY, maker=maker_of("here", "key"), bills=bills
    )
    line = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.330; cc_entrypoint=cli; cch=36ee5;"}
    prompt = {"type": "text", "text": "You are Claude Code."}
    own = {"model": "chat", "max_tokens": 10, "messages": BODY["messages"]}
    for system in ([line, prompt], [line]):
        chat, native = chat_body({**own, "system": system}, {})
        await backend.complete(BackendRequest(chat, ask_logprobs=False, native=native))
        assert claude.requests[-1].body.get("system", []) == (system if bills else system[1:])
    await backend.aclose()


async def test_a_clients_version_and_betas_are_sent(backend: AnthropicBackend, claude: StrictMessages) -> None:
    own = {"model": "chat", "max_tokens": 10, "messages": BODY["messages"], "context_management": {"edits": []}}
    headers = {"anthropic-version": "2026-10-21", "anthropic-beta": "context-management-2025-06-27"}
    for _ in range(2):
        chat, native = chat_body(own, headers)
        await backend.complete(BackendRequest(chat, ask_logprobs=False, native=native))
    await backend.complete(asked())
    assert [request.headers.get("anthropic-beta") for request in claude.requests] == [headers["anthropic-beta"]] * 2 + [
        None
    ]
    assert [request.headers["anthropic-version"] for request in claude.requests] == ["2026-10-21"] * 2 + ["2023-06-01"]
    assert claude.requests[0].body["context_management"] == {"edits": []}


@pytest.mark.parametrize(
    ("status", "kind", "refusal", "pause", "callers"),
    [
        (400, "invalid_request_error", "", False, True),
        (401, "authentication_error", "key", False, False),
        (402, "billing_error", "quota", False, False),
        (403, "permission_error", "key", False, False),
        (404, "not_found_error", "model", False, False),
        (413, "request_too_large", "", False, False),
        (429, "rate_limit_error", "", True, False),
        (500, "api_error", "", False, False),
        (504, "timeout_error", "", False, False),
        (529, "overloaded_error", "", True, False),
    ],
)
async def test_errors(
    backend: AnthropicBackend, claude: StrictMessages, status: int, kind: str, refusal: str, pause: bool, callers: bool
) -> None:
    claude.queue(error(status, kind, "No.", **{"retry-after": "2"}))
    with pytest.raises(BadStatus) as raised:
        await backend.complete(asked())
    found = raised.value
    assert (found.status, found.refusal, found.asks_for_pause, found.callers_fault) == (status, refusal, pause, callers)
    assert (found.told["message"], found.retry_after_s) == ("No.", 2.0)


@pytest.mark.parametrize(
    "wrong",
    [{"tools": [{"type": "function", "function": {"parameters": 5}}]}, {"reasoning": 5, "metadata": [], "tools": 5}],
)
async def test_a_request_of_wrong_types_is_the_callers_fault(
    backend: AnthropicBackend, claude: StrictMessages, wrong: dict[str, Any]
) -> None:
    with pytest.raises(BadStatus) as raised:
        await backend.complete(asked(**wrong))
    assert (raised.value.status, raised.value.callers_fault) == (400, True)
    assert "cannot be translated" in raised.value.told["message"]
    assert claude.requests == []


class _Cut:
    """A response whose body comes in pieces of so many bytes."""

    status = 200

    def __init__(self, body: bytes, size: int) -> None:
        self._pieces = [body[at : at + size] for at in range(0, len(body), size)]

    async def chunk(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def close(self, *, end_is_due: bool = False) -> None:
        """Do nothing."""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
async def test_a_stream_cut_anywhere_is_the_same(claude: StrictMessages, size: int) -> None:
    claude.say(thinking("let mé see"), text("Paris — it is."), tool_use("look", {"at": "sea"}, "toolu_1"))
    message = {**claude._message({"model": "claude"}), "id": "msg_1"}
    claude._script.clear()
    body = b"".join(
        f"event: {event['type']}\r\ndata: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode()
        for event in events_of(message)
    )

    async def read(size: int) -> list[dict[str, Any]]:
        response: Any = _Cut(body, size)
        stream = _MessageStream(response, MessageChunks(maker_of("here", "key"), native=True))
        values = []
        while events := await stream.read():
            values += [event.value for event in events if events is not ALIVE]
        assert stream.done_seen
        return [{**value, "created": 0} for value in values]

    assert await read(size) == await read(len(body))


async def test_a_prompt_that_is_too_long(backend: AnthropicBackend, claude: StrictMessages) -> None:
    claude.queue(error(400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"))
    with pytest.raises(ContextExceeded):
        await backend.complete(asked())


async def test_errors_within_a_stream(backend: AnthropicBackend, claude: StrictMessages) -> None:
    message = claude._message({"model": "claude"})
    begun = [json.dumps(event) for event in list(events_of(message))[:4]]
    failed = json.dumps({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    events = {"content-type": "text/event-stream"}

    def stream(*said: str) -> Reply:
        return Reply(body="".join(f"data: {one}\n\n" for one in said).encode(), headers=events)

    claude.queue(stream(*begun, failed))
    with pytest.raises(BadStatus) as raised:
        await streamed(backend, asked())
    assert (raised.value.status, raised.value.asks_for_pause) == (529, False)
    claude.queue(stream(json.dumps({"type": "error", "error": {"type": "odd_error"}})))
    with pytest.raises(InvalidReply, match="odd_error"):
        await streamed(backend, asked())
    claude.queue(stream(json.dumps({"type": "content_block_delta", "index": 0})))
    with pytest.raises(InvalidReply, match="Messages API"):
        await streamed(backend, asked())
    claude.queue(stream(*begun))
    with pytest.raises(AssertionError):  # it ended, and not by its last event
        await streamed(backend, asked())


def odd(content: list[dict[str, Any]] | None, stop_reason: str | None) -> dict[str, Any]:
    """A message as another server of this API may send it."""
    usage = {"input_tokens": 3, "output_tokens": 2}
    head = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": usage,
    }
    return {**head, "content": content, "stop_reason": stop_reason}


async def both(backend: AnthropicBackend, claude: StrictMessages, message: dict[str, Any]) -> list[dict[str, Any]]:
    """The choice of a message, whole, and the one that its stream makes up."""
    data = b"".join(
        f"data: {json.dumps(one)}\n\n".encode() for one in events_of({**message, "content": message["content"] or []})
    )
    claude.queue(
        Reply(body=json.dumps(message).encode()), Reply(body=data, headers={"content-type": "text/event-stream"})
    )
    whole = (await backend.complete(asked(tools=[LOOK]))).value["choices"][0]
    streams = assemble(await streamed(backend, asked(tools=[LOOK])))["choices"][0]
    return [whole, streams]


@pytest.mark.parametrize("given", [{"at": "map"}, '{"at":"map"}'])
async def test_calls_of_other_servers(backend: AnthropicBackend, claude: StrictMessages, given: Any) -> None:
    """A call whose input is a text, that has no id, or after which the turn only ends, is a call all the same."""
    block = {"type": "tool_use", "name": "look", "input": given}
    choices = await both(backend, claude, odd([block], "end_turn"))
    for choice in choices[: 1 if isinstance(given, str) else 2]:  # streams have the text of the input in any case
        (call,) = choice["message"]["tool_calls"]
        assert (json.loads(call["function"]["arguments"]), choice["finish_reason"]) == ({"at": "map"}, "tool_calls")
        assert call["id"].startswith("call_")


async def test_an_answer_that_was_cut_off_before_its_first_word(
    backend: AnthropicBackend, claude: StrictMessages
) -> None:
    """It is an empty one, however the server writes that."""
    for choice in await both(backend, claude, odd(None, "max_tokens")):
        assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "length")


async def test_an_answer_that_ends_in_an_error(backend: AnthropicBackend, claude: StrictMessages) -> None:
    """A stop reason that says so is a failed call."""
    for call in (backend.complete, partial(streamed, backend)):
        message = odd([text("Half")], "error")
        data = b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in events_of(message))
        claude.queue(
            Reply(body=json.dumps(message).encode())
            if call == backend.complete
            else Reply(body=data, headers={"content-type": "text/event-stream"})
        )
        with pytest.raises(InvalidReply):
            await call(asked())


async def test_a_stream_for_json_and_json_for_a_stream(backend: AnthropicBackend, claude: StrictMessages) -> None:
    message = claude._message({"model": "claude"})
    claude.queue(
        Reply(
            body=b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events_of(message)),
            headers={"content-type": "text/event-stream"},
        ),
        Reply(body=json.dumps(message).encode()),
    )
    said = "The scripted Claude says hello."
    assert (await backend.complete(asked())).value["choices"][0]["message"]["content"] == said
    chunks = await streamed(backend, asked())
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]) == said


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"no json",
        b'{"type":"message","content":"text","stop_reason":"end_turn"}',
        b'{"type":"message","content":[{"type":"text"}],"stop_reason":null}',
        b'{"type":"message","content":[5],"stop_reason":"end_turn"}',
        b'{"type":"error","error":{"type":"odd_error","message":"x"}}',
    ],
)
async def test_what_is_no_answer(backend: AnthropicBackend, claude: StrictMessages, body: bytes) -> None:
    claude.queue(Reply(body=body))
    with pytest.raises(InvalidReply):
        await backend.complete(asked())


async def test_a_stream_that_breaks_off(claude: StrictMessages, backend: AnthropicBackend) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    data = b'data: {"type":"message_start","message":{"id":"msg_1","model":"m","usage":{}}}\n\n'
    with raw_upstream(head + b"%x\r\n%b\r\n" % (len(data), data)) as raw:
        broken = backend_at(raw.url)
        with pytest.raises(Truncated):
            await streamed(broken, asked())
        await broken.aclose()


async def test_limits_in_headers_reach_the_quota(claude: StrictMessages, backend: AnthropicBackend) -> None:
    quota = HeaderQuota()
    limited = backend_at(claude.url, quota=quota)
    limits = {
        "anthropic-ratelimit-input-tokens-limit": "1000",
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": "30",
    }
    claude.queue(error(429, "rate_limit_error", "Slow down.", **limits))
    with pytest.raises(BadStatus):
        await limited.complete(asked())
    await limited.aclose()
    assert quota.tight
    assert quota.wait_s(time.monotonic(), 10) > 0
