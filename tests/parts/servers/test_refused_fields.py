"""What a backend refuses is learnt from its words, left out of the request and, if that helps, of later ones."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

import pytest

from gateway.backends.base import BackendRequest, BadStatus, FieldRefused
from gateway.backends.http1_transport import Http1Transport
from gateway.backends.openai import OpenAIBackend
from gateway.chat.stream_state import StreamState
from gateway.dialects.reasoning import NOBODY
from gateway.parts.apis.kinds.anthropic.backend import AnthropicBackend
from gateway.parts.apis.kinds.responses.backend import ResponsesBackend
from gateway.parts.servers.refused_fields import KEPT_S, RefusedFields, refused_in
from tests.support.upstream import Received, Reply, Upstream

ASKED = [{"role": "user", "content": "hi"}]


def openai(message: str, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI's API writes it."""
    return json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}
    ).encode()


BODY = {
    "model": "m",
    "messages": [{"role": "user", "name": "al", "content": [{"type": "text", "text": "hi", "cache_control": {}}]}],
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 1,
    "temperature": 0.2,
    "presence_penalty": 1,
    "reasoning_effort": "xhigh",
    "max_tokens": 5,
    "user": "me",
    "seed": 3,
    "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"strict": 1, "user": 2}}}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
}
UNKNOWN = "Extra inputs are not permitted"
FORMS: list[tuple[str, bytes, list[str]]] = [
    (
        "openai, argument",
        openai("Unrecognized request argument supplied: logprobs", "logprobs", "unsupported_parameter"),
        ["logprobs"],
    ),
    ("openai, arguments", openai("Unrecognized request arguments supplied: seed, user"), ["seed", "user"]),
    ("openai, unknown", openai("Unknown parameter: 'seed'.", "seed", "unknown_parameter"), ["seed"]),
    (
        "openai, limit",
        openai(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            "max_tokens",
            "unsupported_parameter",
        ),
        ["max_tokens"],
    ),
    (
        "openai, value",
        openai(
            "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) is supported.",
            "temperature",
            "unsupported_value",
        ),
        ["temperature=0.2"],
    ),
    (
        "openai, effort",
        openai("Invalid value: 'xhigh'. Supported values are: 'low' and 'high'.", "reasoning_effort", "invalid_value"),
        ['reasoning_effort="xhigh"'],
    ),
    (
        "openai, beside",
        openai("Function tools with reasoning_effort are not supported for m in /v1/chat/completions."),
        ["reasoning_effort (here)"],
    ),
    (
        "vllm, repr",
        json.dumps(
            {
                "object": "error",
                "message": f"[{{'type': 'extra_forbidden', 'loc': ('body', 'seed'), 'msg': '{UNKNOWN}', 'input': 3}}]",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        ).encode(),
        ["seed"],
    ),
    (
        "mistral",
        json.dumps(
            {
                "object": "error",
                "message": {
                    "detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": UNKNOWN}]
                },
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
        ).encode(),
        ["stream_options"],
    ),
    (
        "fastapi",
        json.dumps({"detail": [{"type": "extra_forbidden", "loc": ["body", "user"], "msg": UNKNOWN}]}).encode(),
        ["user"],
    ),
    (
        "anthropic, nested",
        json.dumps(
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": f"messages.0.content.0.cache_control: {UNKNOWN}"},
            }
        ).encode(),
        ["messages[].cache_control"],
    ),
    (
        "groq, member",
        openai("'messages.0' : for 'role:user' the following must be satisfied: property 'name' is unsupported"),
        ["messages[].name"],
    ),
    ("groq", openai("`logprobs` is not supported with this model"), ["logprobs"]),
    (
        "cerebras",
        json.dumps(
            {
                "message": "body.parallel_tool_calls: property 'body.parallel_tool_calls' is unsupported",
                "type": "invalid_request_error",
                "param": "parallel_tool_calls",
                "code": "wrong_api_format",
            }
        ).encode(),
        ["parallel_tool_calls"],
    ),
    (
        "gemini",
        json.dumps(
            [
                {
                    "error": {
                        "code": 400,
                        "message": 'Invalid JSON payload received. Unknown name "logprobs": Cannot find field.',
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ]
        ).encode(),
        ["logprobs"],
    ),
    (
        "deepseek",
        openai("Failed to deserialize the JSON body: unknown field `seed`, expected one of `user`"),
        ["seed"],
    ),
    (
        "xai, camel case",
        json.dumps({"code": "400", "error": "Model m does not support parameter presencePenalty."}).encode(),
        ["presence_penalty"],
    ),
    (
        "xai",
        json.dumps({"code": "bad", "error": "Argument not supported on this model: reasoning_effort"}).encode(),
        ["reasoning_effort"],
    ),
    ("ollama", openai('"m" does not support thinking'), ["reasoning_effort"]),
    (
        "gemini, member",
        openai('Unknown name "strict" at \'tools[0].function_declarations[0]\': Cannot find field.'),
        ["tools[].strict"],
    ),
    ("one of two", openai("`temperature` and `seed` cannot both be specified for this model."), ["seed (here)"]),
    ("text", b"parameter `seed` is not supported", ["seed"]),
    ("essential", openai("`tools` is not supported by this model", "tools"), ["tools"]),
    ("value out of range", openai("temperature must be between 0 and 2", "temperature", None), []),
    ("wrong type", openai("Invalid type for 'seed': expected an integer.", "seed", "invalid_type"), []),
    ("a picture", openai("Unsupported image for the user role", "messages[0].content"), []),
    ("no field of it", openai("Unknown parameter: 'foo'.", "foo", "unknown_parameter"), []),
    ("not an error", b"[]", []),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "fields"), [pytest.param(raw, fields, id=name) for name, raw, fields in FORMS])
def test_every_servers_words_are_read(raw: bytes, fields: list[str]) -> None:
    """The fields that an error refuses, with the value where only that is refused; a caller's mistake refuses none."""
    found = refused_in(400, raw, BODY)
    shown = [
        one.shown + (f"={one.value.decode()}" if one.value else "") + ("" if one.always else " (here)") for one in found
    ]
    assert sorted(shown) == fields
    assert refused_in(500, raw, BODY) == refused_in(404, raw, BODY) == []


@pytest.mark.parametrize(
    "word", ["field ", "supplied, ", "a, ", "messages.0.", "messages[0] 'x'", "'", "_", "`seed", "\n"]
)
def test_long_errors_take_no_time(word: str) -> None:
    """A server may quote the request, and this runs on the event loop."""
    body = {**BODY, **{f"field_{number}": 1 for number in range(200)}}
    raw = openai(f"not supported: {word * (60_000 // len(word))}")
    began = time.thread_time()
    refused_in(400, raw, body)
    assert time.thread_time() - began < 0.1


def test_what_is_refused_is_left_out() -> None:
    """Marks anywhere in the messages, but nothing within the client's own schemas; the body itself stays as it is."""
    refused = RefusedFields("b")
    before = json.dumps(BODY)
    for _, raw, _ in FORMS:
        refused.remember(one for one in refused_in(400, raw, BODY) if one.may_be_left_out)
    refused.remember(refused_in(400, openai(f"tools.0.function.strict: {UNKNOWN}"), BODY))
    fitted, paths = refused.left_out(dict(BODY))
    assert json.dumps(BODY) == before
    assert fitted.pop("max_completion_tokens") == 5
    assert fitted == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"strict": 1, "user": 2}}}],
        "tool_choice": "auto",
    }
    assert "max_tokens" not in paths and {"logprobs", "messages[].cache_control", "temperature"} <= set(paths)


def test_a_refused_value_is_left_out_and_others_are_not() -> None:
    """A model that takes no temperature but 1 is still sent another effort than the one it lacks."""
    refused = RefusedFields("b")
    raw = openai(
        "Unsupported value: 'reasoning_effort' does not support 'xhigh'.", "reasoning_effort", "unsupported_value"
    )
    refused.remember(refused_in(400, raw, BODY))
    assert "reasoning_effort" not in refused.left_out(dict(BODY))[0]
    assert refused.left_out({**BODY, "reasoning_effort": "low"})[0]["reasoning_effort"] == "low"


def test_a_server_is_asked_again_after_some_hours() -> None:
    """It may have been upgraded meanwhile."""
    now = 0.0
    refused = RefusedFields("b", clock=lambda: now)
    refused.remember(refused_in(400, openai("Unknown parameter: 'seed'."), BODY))
    assert refused.names() == ["seed"] and "seed" not in refused.left_out(dict(BODY))[0]
    now = KEPT_S + 1
    assert "seed" in refused.left_out(dict(BODY))[0]
    assert not refused.until and refused.names() == []


def test_what_a_client_wrote_changes_nothing_for_others() -> None:
    """A server may quote a value: what that says of other fields holds for this request at most."""
    raw = openai("Invalid value: 'unsupported: `seed`, `user`'.", "reasoning_effort", "invalid_value")
    found = refused_in(400, raw, BODY)
    assert {one.shown for one in found if one.always} <= {"reasoning_effort"} and len(found) > 1


# --- over real sockets ------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as one:
        yield one


@pytest.fixture
async def backend(upstream: Upstream) -> AsyncIterator[OpenAIBackend]:
    transport = Http1Transport(
        f"{upstream.url}/chat/completions", max_in_flight=4, connect_timeout_s=1, max_reply=1 << 20
    )
    one = OpenAIBackend(transport, model="m", key="sk", refused=RefusedFields("b"))
    yield one
    await one.aclose()


def refuse(upstream: Upstream, *fields: str, but: Callable[[dict[str, Any]], bool] = lambda _body: False) -> None:
    """Make a server that refuses these fields, one at a time, as OpenAI's does."""

    def has(field: str) -> Callable[[Received], bool]:
        return lambda received: received.body.get(field) is not None and not but(received.body)

    for field in fields:
        raw = openai(
            f"Unsupported parameter: '{field}' is not supported with this model.", field, "unsupported_parameter"
        )
        upstream.on(has(field)).reply(Reply(status=400, body=raw))


@pytest.mark.parametrize("stream", [False, True])
async def test_once_without_it_and_then_never_with_it(backend: OpenAIBackend, upstream: Upstream, stream: bool) -> None:
    """What the gateway adds is not told; what the client asked for is. Later requests go out once."""
    refuse(upstream, "logprobs", "stream_options", "seed", "max_completion_tokens")
    body = {"messages": ASKED, "seed": 1, "max_completion_tokens": 9}
    for calls in (4 if stream else 3) + 1, 1:
        upstream.requests.clear()
        request = BackendRequest(body, ask_logprobs=True)
        if stream:
            reply = await backend.stream(request)
            dropped = reply.dropped
            while await reply.read():
                pass
            reply.close()
        else:
            dropped = (await backend.complete(request)).dropped
        assert len(upstream.requests) == calls
        assert dropped == ("seed",)
        sent = upstream.requests[-1].body
        assert sent["max_tokens"] == 9 and not {"seed", "logprobs", "top_logprobs", "stream_options"} & sent.keys()


@pytest.mark.parametrize(
    "words",
    [
        "'content' must be a string",
        "messages.0.content: Input should be a valid string",
        "json: cannot unmarshal array into Go struct field ChatMessage.messages.content of type string",
        "Failed to deserialize the JSON body: messages[0].content: invalid type: sequence, expected a string",
        "[{'role': 'user'}] messages[0].content is not a string",
    ],
)
async def test_texts_in_parts_are_one_text_where_a_server_takes_strings(
    backend: OpenAIBackend, upstream: Upstream, words: str
) -> None:
    """Once, then from the start; nothing is lost, so nothing is told, and a picture is no text."""
    text, picture = {"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "data:,"}}
    upstream.on(lambda request: isinstance(request.body["messages"][0]["content"], list)).reply(
        Reply(status=400, body=openai(words)), Reply(status=400, body=openai(words))
    )
    body = {"messages": [{"role": "user", "content": [text, {"type": "text", "text": "two"}]}]}
    for calls in (2, 3):
        reply = await backend.complete(BackendRequest(body, ask_logprobs=False))
        assert reply.dropped == () and len(upstream.requests) == calls
        assert upstream.requests[-1].body["messages"][0]["content"] == "one\ntwo"
    with pytest.raises(BadStatus):
        seen = [{"role": "user", "content": [text, picture]}]
        await backend.complete(BackendRequest({"messages": seen}, ask_logprobs=False))
    assert upstream.requests[-1].body["messages"] == seen


async def test_what_does_not_help_is_not_remembered(backend: OpenAIBackend, upstream: Upstream) -> None:
    """The error stands, and the next request is sent whole."""
    raw = openai("Unsupported parameter: 'seed' is not supported with this model.", "seed", "unsupported_parameter")
    upstream.queue(Reply(status=400, body=raw), Reply(status=400, body=openai("no")))
    with pytest.raises(BadStatus) as error:
        await backend.complete(BackendRequest({"messages": ASKED, "seed": 1}, ask_logprobs=False))
    assert error.value.told["message"] == "no" and error.value.callers_fault
    await backend.complete(BackendRequest({"messages": ASKED, "seed": 1}, ask_logprobs=False))
    assert upstream.requests[-1].body["seed"] == 1


async def test_what_is_refused_while_a_model_reasons_is_left_out_at_that_effort(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    """It is learnt once for each effort; a request that turns reasoning off keeps its temperature."""
    raw = openai("temperature=0.2 is not supported while reasoning is active.", "temperature", "unsupported_value")
    upstream.on(lambda got: got.body.get("temperature") and got.body.get("reasoning_effort") != "none").reply(
        Reply(status=400, body=raw)
    )
    asked = {"messages": ASKED, "temperature": 0.2}
    for body, calls, sent in (
        (asked, 2, False),
        (asked, 1, False),
        (asked | {"reasoning_effort": "none"}, 1, True),
        (asked | {"reasoning_effort": "high"}, 2, False),
        (asked | {"reasoning_effort": "high"}, 1, False),
    ):
        upstream.requests.clear()
        await backend.complete(BackendRequest(body, ask_logprobs=False))
        assert (len(upstream.requests), "temperature" in upstream.requests[-1].body) == (calls, sent)


async def test_what_is_refused_beside_another_field_is_sent_without_it_again(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    """An effort that the model takes only without tools is left out beside tools alone."""
    raw = openai("Function tools with reasoning_effort are not supported for m.", "reasoning_effort", None)
    upstream.on(lambda one: "tools" in one.body and "reasoning_effort" in one.body).reply(Reply(status=400, body=raw))
    tools = [{"type": "function", "function": {"name": "f"}}]
    both = {"messages": ASKED, "tools": tools, "reasoning_effort": "low"}
    assert (await backend.complete(BackendRequest(both, ask_logprobs=False))).dropped == ("reasoning_effort",)
    alone = BackendRequest({"messages": ASKED, "reasoning_effort": "low"}, ask_logprobs=False)
    assert (await backend.complete(alone)).dropped == ()
    assert upstream.requests[-1].body["reasoning_effort"] == "low"


@pytest.mark.parametrize("field", ["tools", "tool_choice", "response_format", "stop", "n"])
async def test_what_says_what_is_asked_is_never_left_out(
    backend: OpenAIBackend, upstream: Upstream, field: str
) -> None:
    """The model lacks it, so another may be asked; the request goes out once."""
    refuse(upstream, field)
    value = [{"type": "function", "function": {"name": "f"}}] if field == "tools" else "x"
    with pytest.raises(FieldRefused) as error:
        await backend.complete(BackendRequest({"messages": ASKED, field: value}, ask_logprobs=False))
    assert not error.value.callers_fault and error.value.told["param"] == field
    assert len(upstream.requests) == 1


async def test_both_names_of_the_limit_refused(backend: OpenAIBackend, upstream: Upstream) -> None:
    """An answer without its limit is none that was asked for."""
    refuse(upstream, "max_tokens", "max_completion_tokens")
    with pytest.raises(FieldRefused):
        await backend.complete(BackendRequest({"messages": ASKED, "max_tokens": 5}, ask_logprobs=False))
    assert [("max_tokens" in one.body) for one in upstream.requests] == [True, False, True]


async def test_the_other_dialects_learn_too(upstream: Upstream) -> None:
    """Fields are named as the client called them."""

    def transport() -> Http1Transport:
        return Http1Transport(
            f"{upstream.url}/chat/completions", max_in_flight=4, connect_timeout_s=1, max_reply=1 << 20
        )

    body = {"messages": ASKED, "reasoning_effort": "high", "temperature": 0.5, "max_tokens": 9000}
    responses = ResponsesBackend(transport(), model="m", key=None, maker=NOBODY, refused=RefusedFields())
    raw = openai(
        "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
        "reasoning.effort",
        "unsupported_parameter",
    )
    reply = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
    ]}  # fmt: skip
    upstream.queue(
        Reply(status=400, body=raw),
        Reply(status=200, body=json.dumps(reply).encode(), headers={"Content-Type": "application/json"}),
    )
    assert "reasoning_effort" in (await responses.complete(BackendRequest(body, ask_logprobs=False))).dropped
    assert "effort" not in upstream.requests[-1].body.get("reasoning", {})
    await responses.aclose()

    anthropic = AnthropicBackend(transport(), model="m", key=None, maker=NOBODY, refused=RefusedFields())
    raw = json.dumps(
        {"type": "error", "error": {"type": "invalid_request_error", "message": f"thinking: {UNKNOWN}"}}
    ).encode()
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
               "content": [{"type": "text", "text": "hello"}]}  # fmt: skip
    upstream.queue(
        Reply(status=400, body=raw),
        Reply(status=200, body=json.dumps(message).encode(), headers={"Content-Type": "application/json"}),
    )
    assert "reasoning_effort" in (await anthropic.complete(BackendRequest(body, ask_logprobs=False))).dropped
    assert "thinking" not in upstream.requests[-1].body
    await anthropic.aclose()


def test_a_mark_that_is_refused_in_a_systems_turn_stays_in_others() -> None:
    """Without the marks of the user's turns, nothing of a conversation would be read from the prompt cache."""
    marked = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    turns = [{"role": "user", "content": [marked]}, {"role": "system", "content": [marked]}]
    body = {"model": "m", "messages": turns, "max_tokens": 5}
    told = {"type": "invalid_request_error", "message": f"messages.1.content.0.cache_control: {UNKNOWN}"}
    found = refused_in(400, json.dumps({"type": "error", "error": told}).encode(), body)
    refused = RefusedFields()
    refused.remember(found)
    sent, paths = refused.left_out(body)
    plain = {"type": "text", "text": "a"}
    assert sent["messages"] == [turns[0], {"role": "system", "content": [plain]}]
    assert paths == ["messages[].cache_control"]
    only_users = {**body, "messages": turns[:1]}
    assert refused.left_out(only_users) == (only_users, [])


REFUSES_STREAMED: Final = openai("logprobs is not supported with tools + stream", None, None)
"""llama.cpp's words."""
TOOLS: Final = [{"type": "function", "function": {"name": "f"}}]


def is_refused(received: Received) -> bool:
    """Whether llama.cpp refuses a request."""
    return all(received.body.get(name) for name in ("logprobs", "tools", "stream"))


async def test_what_is_refused_beside_tools_in_a_stream_is_learnt_as_that(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    """The combination costs one call more, once; each of its members alone is sent whole."""
    upstream.on(is_refused).reply(Reply(status=400, body=REFUSES_STREAMED))
    asked = BackendRequest({"messages": ASKED, "tools": TOOLS}, ask_logprobs=True)
    for calls in (2, 1):
        upstream.requests.clear()
        stream = await backend.stream(asked)
        stream.close()
        assert len(upstream.requests) == calls and stream.dropped == ()
        sent = upstream.requests[-1].body
        assert sent["stream"] and sent["tools"] and not {"logprobs", "top_logprobs"} & sent.keys()
    upstream.requests.clear()
    await backend.complete(asked)
    (await backend.stream(BackendRequest({"messages": ASKED}, ask_logprobs=True))).close()
    assert [one.body["logprobs"] for one in upstream.requests] == [True, True]


async def test_a_held_draft_is_asked_whole_where_a_stream_has_no_signal(
    backend: OpenAIBackend, upstream: Upstream
) -> None:
    """Its log-probabilities come then, in the chunks of a stream; the refusal costs one call more, once."""
    upstream.on(is_refused).reply(Reply(status=400, body=REFUSES_STREAMED))
    upstream.default = Reply(text="It is", logprob=-0.5)
    options = {"stream_options": {"include_usage": True}}
    asked = BackendRequest({"messages": ASKED, "tools": TOOLS, **options}, ask_logprobs=True, held=True)
    for calls in (2, 1):
        upstream.requests.clear()
        state = StreamState(judged=True)
        stream = await backend.stream(asked)
        while events := await stream.read():
            for event in events:
                state.add(event.value)
        assert len(upstream.requests) == calls and stream.dropped == ()
        sent = upstream.requests[-1].body
        assert sent["logprobs"] and not {"stream", "stream_options"} & sent.keys()
        assert state.finished and state.usage is not None
        assert state.text == "It is"
        assert set(state.evidence(wants_json=False, own_limit=False, complete=True).logprobs or ()) == {-0.5}


async def test_a_value_that_is_refused_beside_tools_is_not_learnt(backend: OpenAIBackend, upstream: Upstream) -> None:
    """Another value may be taken, so each request is tried."""
    raw = openai("Function tools with reasoning_effort are not supported for m.", "reasoning_effort", None)
    upstream.on(lambda one: one.body.get("reasoning_effort") == "low").reply(Reply(status=400, body=raw))
    body = {"messages": ASKED, "tools": TOOLS}
    await backend.complete(BackendRequest({**body, "reasoning_effort": "low"}, ask_logprobs=False))
    await backend.complete(BackendRequest({**body, "reasoning_effort": "high"}, ask_logprobs=False))
    assert upstream.requests[-1].body["reasoning_effort"] == "high"
