"""Chat-completions clients of a gateway whose stronger tier is called by the Responses API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.chat.completions import assemble
from tests.support.app import InProcess, in_process
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.upstream import Reply, ToolCall, Upstream

Json = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
UNSURE = Reply(text="I do not know.", logprob=-3.0)
CALL = Reply(tool_calls=(ToolCall("weather", '{"city": "Oslo"}', "call_1"),), extra={"thinks": "I ask the weather."})
ASK = {"role": "user", "content": "What is the weather in Oslo?"}


@pytest.fixture
def provider() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as upstream:
        yield upstream


@pytest.fixture
async def app(tmp_path: Path, upstream: Upstream, provider: ResponsesUpstream) -> AsyncIterator[InProcess]:
    upstream.default = UNSURE
    tiers = [
        {
            "name": "local",
            "backends": [{"base_url": upstream.url, "model": "small", "capabilities": ["tools", "json"]}],
        },
        {
            "name": "hosted",
            "backends": [
                {
                    "kind": "responses",
                    "base_url": provider.url,
                    "model": "large",
                    "key_env": "HOSTED_KEY",
                    "capabilities": ["tools", "json", "vision"],
                }
            ],
        },
    ]
    async with in_process(tmp_path, upstream.url, provider.url, settings={"tiers": tiers}) as made:
        yield made


async def answer(app: InProcess, messages: list[Json], *, stream: bool, **more: Any) -> tuple[Any, Json]:
    """The response, and the completion in it, streamed or not."""
    body = {"model": "chat", "messages": messages, "tools": TOOLS, "reasoning_effort": "high", "stream": stream, **more}
    response = await app.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return response, response.json()
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return response, assemble([json.loads(event) for event in events[:-1]])


@pytest.mark.parametrize("stream", [False, True])
async def test_function_tools_with_a_reasoning_effort(
    app: InProcess, provider: ResponsesUpstream, stream: bool
) -> None:
    """A request that the local tier cannot answer: its tool call, the tool's result, and the answer to it."""
    provider.queue(CALL, Reply(text="It rains.", extra={"thinks": "It said rain."}))
    response, completion = await answer(app, [ASK], stream=stream, seed=7)
    assert response.headers["x-tierline-path"] == "escalated"
    assert response.headers["x-tierline-tier"] == "hosted"
    assert response.headers["x-tierline-dropped"] == "seed"
    choice = completion["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert message["reasoning_content"] == "I ask the weather."
    assert provider.requests[0].body["reasoning"] == {"effort": "high"}

    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
    response, completion = await answer(app, [ASK, message, result], stream=stream)
    assert completion["choices"][0]["message"]["content"] == "It rains."
    assert "x-tierline-dropped" not in response.headers
    assert [item["type"] for item in provider.requests[1].body["input"]] == [
        "message", "reasoning", "function_call", "function_call_output",
    ]  # fmt: skip
    assert provider.refused == []


async def test_the_usage_of_a_stream_only_on_request(app: InProcess, provider: ResponsesUpstream) -> None:
    provider.queue(CALL, CALL)
    _, without = await answer(app, [ASK], stream=True)
    _, with_usage = await answer(app, [ASK], stream=True, stream_options={"include_usage": True}, user="2")
    assert without.get("usage") is None
    assert with_usage["usage"]["prompt_tokens"] == 7


async def test_what_only_the_other_api_can_do_is_refused_by_name(app: InProcess, provider: ResponsesUpstream) -> None:
    body = {"model": "tier:hosted", "messages": [ASK], "n": 2}
    response = await app.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert provider.requests == []
