"""The Responses dialect: conversations with a strict provider over real sockets, and what is taken for an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.backends.base import (
    ALIVE,
    BackendRequest,
    BadStatus,
    ContextExceeded,
    InvalidReply,
    Truncated,
)
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.sse import EventParser
from gateway.chat.completions import assemble
from gateway.dialects.native import NATIVE, Native
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.responses.backend import ResponsesRequest
from gateway.parts.apis.dialects.responses.chunks import ResponseChunks
from gateway.parts.apis.dialects.responses.reply import NotAResponse, ReplyFailed
from gateway.parts.apis.kinds.responses.backend import ResponsesBackend
from gateway.parts.servers.custom_tools import short_name
from tests.support.responses_upstream import ResponsesUpstream, events_of
from tests.support.upstream import Reply, ToolCall

Json = dict[str, Any]
KEY = "sk-planted-canary"
MAKER = maker_of("here", KEY)
USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
BODY: Json = {"model": "chat", "messages": [USER], "tools": TOOLS, "reasoning_effort": "high"}
CITED = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "t", "url": "https://x"}
REPLIES = {
    "text": Reply(text="It is so."),
    "reasoning": Reply(text="It is so.", extra={"thinks": "Is it so? It must be."}),
    "hidden reasoning": Reply(text="It is so.", extra={"silent": True}),
    "call": Reply(tool_calls=(ToolCall("look", '{"at": "the sky"}'),), extra={"thinks": "I look."}),
    "text and calls": Reply(
        text="I look.", tool_calls=(ToolCall("look", "{}", "call_1"), ToolCall("look", '{"a": 1}', "call_2")),
        extra={"said": True, "silent": True, "phase": "commentary"},
    ),
    "custom": Reply(extra={"custom": ("shell", "ls -l\n"), "thinks": "The shell."}),
    "refusal": Reply(extra={"refusal": "I would rather not."}),
    "cited": Reply(text="It is so.", extra={"annotations": [CITED]}),
    "searched": Reply(text="Found.", extra={"items": [{"type": "web_search_call", "id": "ws_1"}], "thinks": "Search."}),
    "cut": Reply(text="It is", finish_reason="length"),
    "filtered": Reply(text="", finish_reason="content_filter"),
}  # fmt: skip


def backend_at(url: str, maker_key: str = KEY) -> ResponsesBackend:
    transport = Http1Transport(f"{url}/responses", max_in_flight=4, connect_timeout_s=1.0, max_reply=16 << 20)
    return ResponsesBackend(transport, model="large", key=KEY, maker=maker_of("here", maker_key))


@pytest.fixture(scope="module")
def running() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream(secret="the provider's") as upstream:
        yield upstream


@pytest.fixture
async def provider(running: ResponsesUpstream) -> AsyncIterator[ResponsesUpstream]:
    running.reset()
    running.refused.clear()
    running.reasons, running.refuses = True, ()
    yield running


@pytest.fixture
async def backend(provider: ResponsesUpstream) -> AsyncIterator[ResponsesBackend]:
    made = backend_at(provider.url)
    yield made
    await made.aclose()


async def whole(backend: ResponsesBackend, body: Json, *, logprobs: bool = False, native: Native | None = None) -> Json:
    return (await backend.complete(BackendRequest(body, ask_logprobs=logprobs, native=native))).value


async def streamed(
    backend: ResponsesBackend, body: Json, *, logprobs: bool = False, native: Native | None = None
) -> list[Json]:
    stream = await backend.stream(BackendRequest({**body, "stream": True}, ask_logprobs=logprobs, native=native))
    values: list[Json] = []
    try:
        while events := await stream.read():
            for event in events if events is not ALIVE else ():
                assert json.loads(event.data) == event.value
                values.append(event.value)
    finally:
        stream.close()
    return values


def comparable(completion: Json) -> Json:
    """A completion without what differs from one call to the next, or from whole to streamed."""
    text = json.dumps(completion)
    for number in range(1, 200):
        text = text.replace(f'resp_{number}"', 'resp"').replace(f'rs_{number}"', 'rs"')
        text = text.replace(f'call_custom_{number}"', 'call_custom"')
    value: Json = json.loads(text)
    choice = value["choices"][0]
    choice["logprobs"] = choice.get("logprobs")
    for detail in choice["message"].get("reasoning_details") or ():
        if detail["type"] == "reasoning.encrypted":
            detail["data"] = MAKER.unseal(detail["data"])[68:] if "custom" not in text else ""
    return value


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REPLIES)
async def test_whole_and_streamed_answers_are_the_same(
    backend: ResponsesBackend, provider: ResponsesUpstream, name: str
) -> None:
    provider.queue(REPLIES[name], REPLIES[name])
    expected = comparable(await whole(backend, BODY))
    chunks = await streamed(backend, BODY)
    assert comparable(assemble(chunks)) | {"object": ""} == expected | {"object": ""}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][:-1] == [None] * (len(chunks) - 2)
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert provider.refused == []


async def test_an_answer_in_full(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    provider.queue(REPLIES["call"])
    completion = await backend.complete(
        BackendRequest({**BODY, "seed": 1}, ask_logprobs=False, traceparent="00-1-2-01")
    )
    received = provider.requests[0]
    assert received.path == "/v1/responses"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.headers["traceparent"] == "00-1-2-01"
    assert received.body["reasoning"] == {"effort": "high"}
    assert completion.dropped == ("seed",)
    value = completion.value
    assert json.loads(completion.raw) == value
    choice = value["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "I look."
    assert message["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "the sky"}'}
    assert value["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert value["service_tier"] == "default"


@pytest.mark.parametrize(
    ("name", "finish"), [("text", "stop"), ("cut", "length"), ("filtered", "content_filter"), ("custom", "tool_calls")]
)
async def test_why_an_answer_ended(
    backend: ResponsesBackend, provider: ResponsesUpstream, name: str, finish: str
) -> None:
    provider.queue(REPLIES[name])
    assert (await whole(backend, BODY))["choices"][0]["finish_reason"] == finish


async def test_log_probabilities(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    provider.queue(REPLIES["text"], REPLIES["text"])
    logprobs = (await whole(backend, BODY, logprobs=True))["choices"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs["content"]] == ["It", " is", " so."]
    chunks = await streamed(backend, {**BODY, "logprobs": True, "top_logprobs": 2})
    assert assemble(chunks)["choices"][0]["logprobs"] == logprobs
    assert provider.requests[1].body["top_logprobs"] == 2


async def test_a_client_of_functions_gets_a_function_call(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    body = {"model": "chat", "messages": [USER], "functions": [TOOLS[0]["function"]], "function_call": "auto"}
    provider.queue(REPLIES["call"], REPLIES["call"])
    choice = (await whole(backend, body))["choices"][0]
    assert choice["message"]["function_call"] == {"name": "look", "arguments": '{"at": "the sky"}'}
    assert choice["finish_reason"] == "function_call"
    again = assemble(await streamed(backend, body))["choices"][0]
    assert (again["message"]["function_call"], again["finish_reason"]) == (
        choice["message"]["function_call"], "function_call",
    )  # fmt: skip


@pytest.mark.parametrize("stop", ["so", [" is s", "never"], "It"])
async def test_stop_sequences_are_cut_here(
    backend: ResponsesBackend, provider: ResponsesUpstream, stop: str | list[str]
) -> None:
    provider.queue(REPLIES["text"], REPLIES["text"])
    first = stop if isinstance(stop, str) else stop[0]
    expected = "It is so."[: "It is so.".index(first)]
    choice = (await whole(backend, {**BODY, "stop": stop}))["choices"][0]
    again = assemble(await streamed(backend, {**BODY, "stop": stop}))["choices"][0]
    assert [choice["message"]["content"], again["message"]["content"]] == [expected, expected]
    assert [choice["finish_reason"], again["finish_reason"]] == ["stop", "stop"]


async def test_stop_sequences_that_only_begin(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    provider.queue(REPLIES["text"])
    assert assemble(await streamed(backend, {**BODY, "stop": ["so. And", "s no"]}))["choices"][0]["message"][
        "content"
    ] == "It is so."  # fmt: skip


# --- conversations ----------------------------------------------------------------------------------------------------


def answered(message: Json) -> list[Json]:
    """The message as a client sends it back, with results for its calls."""
    calls = message.get("tool_calls") or ()
    return [message, *({"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls)]


@pytest.mark.parametrize("name", [name for name in REPLIES if name not in ("cut", "filtered")])
async def test_every_answer_can_be_sent_back(backend: ResponsesBackend, provider: ResponsesUpstream, name: str) -> None:
    """The provider knows its reasoning again, in its place, from whole answers and from streams."""
    again = [replace(call, id=f"{call.id}_again") for call in REPLIES[name].tool_calls]
    provider.queue(REPLIES[name], replace(REPLIES[name], tool_calls=tuple(again)))
    messages = [USER]
    for stream in (False, True):
        body = {**BODY, "messages": messages}
        made = assemble(await streamed(backend, body)) if stream else await whole(backend, body)
        message = {key: value for key, value in made["choices"][0]["message"].items() if value is not None}
        messages = [*messages, *answered(message), USER]
    await whole(backend, {**BODY, "messages": messages})
    assert provider.refused == []
    sent = provider.requests[-1].body["input"]
    reasoned = any(mark in (REPLIES[name].extra or {}) for mark in ("thinks", "silent"))
    assert [item["type"] for item in sent].count("reasoning") == (2 if reasoned else 0)


async def test_another_backends_reasoning_is_taken_out(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    provider.queue(REPLIES["call"])
    message = (await whole(backend, BODY))["choices"][0]["message"]
    elsewhere = backend_at(provider.url, maker_key="sk-other")
    body = {**BODY, "messages": [USER, *answered(message)]}
    completion = await elsewhere.complete(BackendRequest(body, ask_logprobs=False))
    await elsewhere.aclose()
    assert completion.dropped == ("reasoning",)
    assert provider.refused == []
    assert "I look." in str(provider.requests[-1].body["input"])


async def test_reasoning_that_the_provider_no_longer_knows(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    """A provider that has changed its keys refuses its own reasoning: the call is made once more, without."""
    provider.queue(REPLIES["call"])
    message = (await whole(backend, BODY))["choices"][0]["message"]
    provider._secret = b"another"
    try:
        body = {**BODY, "messages": [USER, *answered(message)]}
        completion = await backend.complete(BackendRequest(body, ask_logprobs=False))
    finally:
        provider._secret = b"the provider's"
    assert completion.dropped == ("reasoning",)
    assert [error["code"] for error in provider.refused] == ["invalid_encrypted_content"]


async def test_a_model_that_does_not_reason(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    """It refuses to be asked for encrypted reasoning, once: then it is asked no more."""
    provider.reasons = False
    assert (await whole(backend, BODY))["choices"][0]["message"]["content"]
    assert await streamed(backend, BODY)
    assert len(provider.refused) == 1
    assert len(provider.requests) == 3


async def test_one_clients_wrong_include_does_not_end_encrypted_reasoning(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    """The provider's refusal lists the values that there are, this one among them."""
    message = "Invalid value: 'x'. Supported values are: 'reasoning.encrypted_content' and 'code_interpreter'."
    told = {"message": message, "param": "include[0]", "code": "invalid_value", "type": "invalid_request_error"}
    provider.queue(Reply(status=400, body=json.dumps({"error": told}).encode()), REPLIES["text"])
    with pytest.raises(BadStatus):
        await whole(backend, BODY)
    await whole(backend, BODY)
    assert [request.body["include"] for request in provider.requests] == [["reasoning.encrypted_content"]] * 2


# --- the client's own form --------------------------------------------------------------------------------------------


async def test_a_client_of_this_dialect_gets_the_replys_own_form(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    provider.queue(REPLIES["text and calls"], REPLIES["text and calls"])
    own = Native("responses", {"model": "chat", "input": "hi", "store": True}, {})
    message = (await whole(backend, BODY, logprobs=True, native=own))["choices"][0]["message"]
    (event,) = message[NATIVE]
    assert event["type"] == "response.completed"
    assert [item["type"] for item in event["response"]["output"]] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert MAKER.unseal(event["response"]["output"][0]["encrypted_content"])
    chunks = await streamed(backend, BODY, logprobs=True, native=own)
    events = [event for chunk in chunks if chunk["choices"] for event in chunk["choices"][0]["delta"][NATIVE]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in chunks[-2]["choices"][0]["delta"][NATIVE]] == ["response.completed"]
    assert "gAAA" not in json.dumps(events).replace(f"tl1.{MAKER.name}.", "").replace(".gAAA", "")
    assert all(not event.get("logprobs") for event in events), "the client did not ask for them"
    assert comparable(assemble(chunks))["choices"][0]["message"]["tool_calls"] == message["tool_calls"]


async def test_the_clients_own_conversation(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    """Sealed items go out, come back, and are taken by the provider."""
    provider.queue(REPLIES["call"])
    message = (await whole(backend, BODY, native=Native("responses", {"input": "hi"}, {})))["choices"][0]["message"]
    output = message[NATIVE][0]["response"]["output"]
    given = [{"role": "user", "content": "hi"}, *output]
    given.append({"type": "function_call_output", "call_id": "call_scripted", "output": "done"})
    await whole(backend, BODY, native=Native("responses", {"input": given, "store": False}, {}))
    assert provider.refused == []
    assert [item.get("type") for item in provider.requests[-1].body["input"]].count("reasoning") == 1


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_an_error_names_the_clients_own_field(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    with pytest.raises(BadStatus) as refused:
        await whole(backend, {**BODY, "messages": [USER, {"role": "tool", "tool_call_id": "call_9", "content": ""}]})
    assert refused.value.callers_fault
    assert refused.value.told["param"] == "messages"
    assert "call_9" in refused.value.told["message"]


async def test_what_cannot_be_said_is_refused_before_any_call(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    with pytest.raises(BadStatus) as refused:
        await whole(backend, {**BODY, "n": 2})
    assert (refused.value.status, refused.value.told["param"]) == (400, "n")
    assert refused.value.callers_fault
    assert provider.requests == []


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("rate_limit_exceeded", BadStatus, 429),
        ("server_error", BadStatus, 500),
        ("invalid_prompt", BadStatus, 400),
        ("context_length_exceeded", ContextExceeded, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_that_fails(
    backend: ResponsesBackend,
    provider: ResponsesUpstream,
    code: str,
    kind: type[BadStatus],
    status: int,
    stream: bool,
) -> None:
    provider.queue(Reply(extra={"error": (code, "It failed.")}))
    with pytest.raises(kind) as failed:
        await (streamed(backend, BODY) if stream else whole(backend, BODY))
    assert failed.value.status == status


@pytest.mark.parametrize("arguments", [{"at": "map"}, '{"at":"map"}'])
async def test_calls_of_other_servers(backend: ResponsesBackend, provider: ResponsesUpstream, arguments: Any) -> None:
    """Arguments that are an object, and a call without an id, become what chat completions have."""
    item = {"type": "function_call", "name": "look", "arguments": arguments}
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [item],
    }
    events = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": arguments},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    data = "".join(f"data: {json.dumps(one)}\n\n" for one in events).encode()
    provider.queue(
        Reply(body=json.dumps(response).encode()), Reply(body=data, headers={"content-type": "text/event-stream"})
    )
    choices = [(await whole(backend, BODY))["choices"][0], assemble(await streamed(backend, BODY))["choices"][0]]
    for choice in choices:
        (call,) = choice["message"]["tool_calls"]
        assert (json.loads(call["function"]["arguments"]), choice["finish_reason"]) == ({"at": "map"}, "tool_calls")
        assert call["id"].startswith("call_")


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"not JSON",
        b'{"object": "response", "status": "completed", "output": null}',
        b'{"object": "response", "status": "queued", "output": []}',
        b'{"object": "response", "status": "in_progress", "output": []}',
        b'{"choices": []}',
    ],
)
async def test_what_is_no_response(backend: ResponsesBackend, provider: ResponsesUpstream, body: bytes) -> None:
    provider.queue(Reply(body=body))
    with pytest.raises(InvalidReply):
        await whole(backend, BODY)


def test_streams_cut_at_every_byte() -> None:
    """Wherever a stream is cut, it does not look whole, and what came before begins the answer."""
    upstream = ResponsesUpstream(secret="the provider's")
    for name, reply in REPLIES.items():
        response = upstream.response(replace(reply, text="Ich sähe 天."), {"model": "large"})
        events = list(events_of(response, replace(reply, text="Ich sähe 天.")))
        data = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events]
        full = _chunks(events)
        parser, chunks = EventParser(), ResponseChunks(ResponsesRequest({}), MAKER, "large")
        read: list[Json] = []
        for byte in b"".join(data)[:-1]:
            read += [chunk for event in parser.feed(bytes([byte])) for chunk in chunks.take(json.loads(event))]
            assert not chunks.finished
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in read), name
        assert [chunk["choices"] for chunk in read] == [chunk["choices"] for chunk in full[:-2]], name
        assert full[-2]["choices"][0]["finish_reason"], name


async def test_cut_bytes_over_a_socket(backend: ResponsesBackend, provider: ResponsesUpstream) -> None:
    reply = REPLIES["reasoning"]
    response = provider.response(reply, {"model": "large"})
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events_of(response, reply)).encode()
    headers = {"content-type": "text/event-stream"}
    for end in range(0, len(data), 97):
        provider.queue(Reply(body=data[:end], headers=headers))
        chunks = await streamed(backend, BODY)
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    provider.queue(Reply(body=data, headers=headers))
    with pytest.raises(Truncated):
        provider.queue(Reply(body=data[:-200], headers=headers))
        await whole(backend, BODY)
        await whole(backend, BODY)


def test_a_server_that_streams_no_deltas() -> None:
    """Some send items when they are done, or the response alone."""
    upstream = ResponsesUpstream(secret="the provider's")
    for name, reply in REPLIES.items():
        response = upstream.response(reply, {"model": "large"})
        events = list(events_of(response, reply))
        expected = _comparable_chunks(_chunks(events))
        done = [one for one in events if not one["type"].endswith((".delta", ".added", ".part.done", "_text.done"))]
        assert _comparable_chunks(_chunks(done)) == expected, name
        assert _comparable_chunks(_chunks(events[-1:])) == expected, name


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_text.delta", "delta": 7},
        {"type": "response.function_call_arguments.delta", "output_index": 3, "delta": "x"},
        {"type": "response.output_item.added", "item": None},
        {"type": "response.completed"},
        {"type": "response.cancelled"},
    ],
)
def test_events_that_make_no_sense(event: Json) -> None:
    with pytest.raises(NotAResponse):
        _chunks([event])


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "rate_limit_exceeded", "message": "m", "param": None},
        {"type": "error", "error": {"type": "invalid_request_error", "code": "rate_limit_exceeded", "message": "m"}},
        {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "m"}}},
    ],
)
def test_errors_in_a_stream(event: Json) -> None:
    with pytest.raises(ReplyFailed) as failed:
        _chunks([event])
    assert failed.value.code == "rate_limit_exceeded"


def _chunks(events: list[Json]) -> list[Json]:
    chunks = ResponseChunks(ResponsesRequest({}), MAKER, "large")
    return [chunk for event in events for chunk in chunks.take(event)]


def _comparable_chunks(chunks: list[Json]) -> Json:
    made = assemble(chunks)
    made.pop("created")
    return made


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"text": 5},
        {"web_search_options": 5},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": ["y"]}]},
        {"messages": [{**USER, "role": "assistant", "reasoning_details": [{"type": "reasoning.text", "text": 5}]}]},
    ],
)
async def test_a_request_of_wrong_types_is_the_callers_fault(
    backend: ResponsesBackend, provider: ResponsesUpstream, wrong: Json, large: bool
) -> None:
    """The translation meets values that were not checked when the request arrived."""
    with pytest.raises(BadStatus) as raised:
        await backend.complete(BackendRequest({**BODY, **wrong}, ask_logprobs=False, large=large))
    assert raised.value.callers_fault
    assert (raised.value.told["code"], provider.requests) == ("invalid_type", [])


async def test_names_longer_than_openai_takes_are_cut_for_the_provider_alone(
    backend: ResponsesBackend, provider: ResponsesUpstream
) -> None:
    """In a translated request: a client of Anthropic's API may name a tool with 128 characters."""
    long = "look_" * 20
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "name": long}}]  # type: ignore[dict-item]
    body = {**BODY, "tools": tools}
    own = Native("messages", {}, {})
    provider.default = Reply(tool_calls=(ToolCall(short_name(long), "{}"),))
    message = (await whole(backend, body, native=own))["choices"][0]["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == [long]
    values = await streamed(backend, body, native=own)
    deltas = [choice["delta"] for value in values for choice in value["choices"]]
    names = [call["function"].get("name") for delta in deltas for call in delta.get("tool_calls") or ()]
    assert [name for name in names if name] == [long]
    assert provider.requests[-1].body["tools"][0]["name"] == short_name(long)
