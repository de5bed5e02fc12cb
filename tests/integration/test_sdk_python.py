"""The official OpenAI SDK for Python works by changing only the base URL, errors and hang-ups included."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.gateway import Gateway
from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply

ASK: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi there"}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0, timeout=30) as client:
        yield client


def test_completes(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A completion parses into the SDK's types, with text, finish reason and usage."""
    local_upstream.default = Reply(text="one two three")
    got = client.chat.completions.create(**ASK)
    assert got.object == "chat.completion"
    assert got.choices[0].message.content == "one two three"
    assert got.choices[0].finish_reason == "stop"
    assert got.choices[0].logprobs is None
    assert got.usage is not None and got.usage.completion_tokens == 3


def test_headers_through_with_raw_response(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """The raw response carries our headers, and the request id that the caller chose."""
    raw = client.chat.completions.with_raw_response.create(**ASK, extra_headers={"x-request-id": "mine-1"})
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse()._request_id == "mine-1"
    assert raw.headers["x-tierline-surface"] == "chat"
    assert raw.headers["x-tierline-policy"].startswith("chat@")
    assert raw.headers["x-tierline-tier"] == "local"
    assert raw.headers["x-tierline-path"] == "direct"
    assert raw.headers["x-tierline-attempts"] == "1"


def test_unknown_fields_reach_the_backend(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """What we do not know is passed on as it came; only the model is another."""
    client.chat.completions.create(**ASK, seed=7, extra_body={"top_k": 40, "chat_template_kwargs": {"a": [1.5]}})
    body = local_upstream.requests[0].body
    assert (body["seed"], body["top_k"], body["chat_template_kwargs"]) == (7, 40, {"a": [1.5]})
    assert body["model"] == "small"
    assert body["messages"] == ASK["messages"]


def test_logprobs_when_asked(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """Log-probabilities are there for a caller who asks for them, JSON and stream alike, and for nobody else."""
    local_upstream.default = Reply(text="one two", logprob=(-0.1, -0.2))
    got = client.chat.completions.create(**ASK, logprobs=True)
    assert [entry.logprob for entry in got.choices[0].logprobs.content] == [-0.1, -0.2]
    chunks = list(client.chat.completions.create(**ASK, logprobs=True, stream=True))
    found = [entry.logprob for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert found == [-0.1, -0.2]
    assert all(c.choices[0].logprobs is None for c in client.chat.completions.create(**ASK, stream=True))


def test_streams(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A stream has one id, the role first, the whole text, and a finish reason; no usage unless asked."""
    local_upstream.default = Reply(text="one two three four five six seven")
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two three four five six seven"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len({c.id for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)


def test_streams_usage_when_asked(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """With include_usage the last chunk has the totals and no choices."""
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(local_upstream.default.pieces())
    assert all(c.usage is None for c in chunks[:-1])


def test_stream_escalates_unseen(client: openai.OpenAI, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """A stream whose first tokens are not good enough is another tier's stream, from its first byte."""
    local_upstream.default = Reply(text="er I do not really know that", logprob=-4.0)
    hosted_upstream.default = Reply(text="It is forty-two, as everybody knows.")
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "It is forty-two, as everybody knows."
    assert len({(c.id, c.model) for c in chunks}) == 1
    assert (len(local_upstream.requests), len(hosted_upstream.requests)) == (1, 1)


def test_calls_tools(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """Tools reach the backend untouched, and the SDK's stream helper puts the call together."""
    local_upstream.default = Reply(tool_calls=(ToolCall("weather", '{"city":"Utrecht"}'),))
    got = client.chat.completions.create(**ASK, tools=[WEATHER]).choices[0]
    assert got.finish_reason == "tool_calls"
    assert got.message.tool_calls[0].function.arguments == '{"city":"Utrecht"}'
    assert local_upstream.requests[0].body["tools"] == [WEATHER]
    with client.chat.completions.stream(**ASK, tools=[WEATHER]) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls[0].function.arguments == '{"city":"Utrecht"}'


def test_tool_calls_that_lack_index_and_id(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A backend that leaves both out of its deltas is no trouble to the SDK's stream helper."""
    deltas = ({"function": {"name": "weather", "arguments": ""}, "type": "function"}, {"function": {"arguments": "{}"}})
    chunks: list[Any] = [{"delta": {"tool_calls": [delta]}} for delta in deltas]
    chunks.append({"delta": {}, "finish_reason": "tool_calls"})
    events = "".join(f"data: {json.dumps({'choices': [{'index': 0, **chunk}]})}\n\n" for chunk in chunks)
    local_upstream.default = Reply(body=events.encode(), headers={"Content-Type": "text/event-stream"})
    with client.chat.completions.stream(**ASK, tools=[WEATHER]) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("weather", "{}")
    assert call.id.startswith("call_")


def test_lists_models(client: openai.OpenAI) -> None:
    """The models are the surfaces, each of which can be asked for by its id."""
    listed = {model.id: model for model in client.models.list()}
    assert "chat" in listed
    assert client.models.retrieve("chat") == listed["chat"]
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


def test_unknown_model(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """An unknown model is the SDK's NotFoundError, with code and request id, and calls no backend."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ASK | {"model": "no-such-model"})
    assert caught.value.code == "model_not_found"
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]
    assert caught.value.request_id
    assert not local_upstream.requests


def test_bad_request(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A body that is wrong is the SDK's BadRequestError and names the parameter."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="chat", messages="hello")  # type: ignore[call-overload]
    assert (caught.value.code, caught.value.param) == ("invalid_type", "messages")
    assert not local_upstream.requests


def test_the_callers_fault_found_by_the_backend(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A backend's 400 comes back as the SDK's BadRequestError with the backend's own code, and is not retried."""
    local_upstream.default = error_reply(400, "no such field", "invalid_request_error", "unknown_field")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASK)
    assert caught.value.code == "unknown_field"
    assert len(local_upstream.requests) == 1


def test_no_retry_where_it_cannot_help(
    own_gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """When every backend refuses our keys the client sees a 502, and x-should-retry stops the SDK's retries."""
    local_upstream.default = hosted_upstream.default = error_reply(401, "bad key", "invalid_request_error")
    with (
        openai.OpenAI(base_url=own_gateway.url, api_key="any", max_retries=2, timeout=30) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(**ASK)
    assert (caught.value.status_code, caught.value.code) == (502, "upstream_http_error")
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert (len(local_upstream.requests), len(hosted_upstream.requests)) == (1, 1)


@pytest.mark.parametrize("fault", [Fault.EOF_MID_STREAM, Fault.RESET_MID_STREAM, Fault.DONE_WITHOUT_FINISH])
def test_broken_streams_raise(client: openai.OpenAI, local_upstream: Upstream, fault: Fault) -> None:
    """A stream that the backend broke after the commit raises in the client: it never reads as a whole answer."""
    local_upstream.default = Reply(text="one two three four five six seven eight", fault=fault, fault_after=6)
    stream = client.chat.completions.create(**ASK, stream=True)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "upstream_truncated"
    assert caught.value.message.startswith("The answer broke off: ")
    assert caught.value.__context__ is None, "there is one error, not two"


def test_leaving_cancels_the_backend(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """Closing the stream ends the backend's call at once."""
    local_upstream.default = Reply(text="word " * 200, between_s=0.02)
    stream = client.chat.completions.create(**ASK, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    left = time.monotonic()
    stream.close()
    assert local_upstream.requests[0].wait_gone() - left < 0.5


async def test_async_client(gateway: Gateway, local_upstream: Upstream) -> None:
    """The async client completes, streams, and can be cancelled while it waits, which cancels the backend."""
    async with openai.AsyncOpenAI(base_url=gateway.url, api_key="any", max_retries=0, timeout=30) as client:
        local_upstream.default = Reply(text="one two")
        got = await client.chat.completions.create(**ASK)
        assert got.choices[0].message.content == "one two"
        stream = await client.chat.completions.create(**ASK, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "one two"

        local_upstream.default = Reply(fault=Fault.HANG_BEFORE_HEADERS)
        waiting = asyncio.create_task(client.chat.completions.create(**ASK))
        await asyncio.to_thread(local_upstream.wait_for, 3)
        waiting.cancel()
        await asyncio.to_thread(local_upstream.requests[2].wait_gone)
