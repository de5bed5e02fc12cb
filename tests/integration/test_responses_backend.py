"""Chat-completions clients of a gateway whose stronger tier is called by the Responses API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.chat.completions import assemble
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
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
def other() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as upstream:
        yield upstream


@pytest.fixture
async def app(
    tmp_path: Path, upstream: Upstream, provider: ResponsesUpstream, other: ResponsesUpstream
) -> AsyncIterator[InProcess]:
    upstream.default = UNSURE

    def hosted(name: str, url: str) -> Json:
        able = ["tools", "json", "vision"]
        backend = {"kind": "responses", "base_url": url, "model": name, "key_env": "HOSTED_KEY", "capabilities": able}
        return {"name": name, "backends": [backend]}

    tiers = [
        {
            "name": "local",
            "backends": [{"base_url": upstream.url, "model": "small", "capabilities": ["tools", "json"]}],
        },
        hosted("hosted", provider.url),
        hosted("other", other.url),
    ]
    policy = CHAT.replace("[local, hosted]", "[local, hosted, other]")
    settings = {"tiers": tiers}
    async with in_process(tmp_path, upstream.url, provider.url, settings=settings, policies={"chat": policy}) as made:
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


def scripted(random: Random, number: int) -> Reply:
    """One of the answers that a reasoning model gives."""
    call = ToolCall("weather", '{"city": "Oslo"}', f"call_{number}")
    return random.choice(
        [
            Reply(text=f"Answer {number}.", extra={"thinks": f"Thought {number}."}),
            Reply(tool_calls=(call,), extra={"thinks": f"Asking {number}."}),
            Reply(tool_calls=(call, replace(call, id=f"{call.id}b")), extra={"silent": True, "said": True}),
            Reply(extra={"refusal": f"No {number}.", "silent": True}),
            Reply(text=f"Plain {number}."),
        ]
    )


async def test_conversations_of_both_apis_that_change_their_tier(
    app: InProcess, upstream: Upstream, provider: ResponsesUpstream, other: ResponsesUpstream
) -> None:
    """Two providers with keys of their own, and a local model that gives all its calls one id."""
    random, turns = Random(7), 0
    servers: dict[str, Upstream] = {"local": upstream, "hosted": provider, "other": other}
    for talk in (chat_turn, responses_turn) * 6:
        history: list[Json] = []
        open_calls: list[str] = []
        for _ in range(random.randint(2, 6)):
            turns += 1
            tier = random.choice(list(servers))
            own = Reply(tool_calls=(ToolCall("weather", '{"city": "Oslo"}', "call_0"),))
            servers[tier].queue(own if tier == "local" else scripted(random, turns))
            history, open_calls = await talk(app, tier, history, open_calls, stream=random.random() < 0.5)
    assert turns > 40
    assert provider.refused == other.refused == []
    assert min(len(provider.requests), len(other.requests), len(upstream.requests)) > 5


async def chat_turn(
    app: InProcess, tier: str, history: list[Json], open_calls: list[str], *, stream: bool
) -> tuple[list[Json], list[str]]:
    """One turn of a client of chat completions: its history, and the calls that wait for results."""
    new = [{"role": "tool", "tool_call_id": one, "content": "rain"} for one in open_calls] or [ASK]
    messages = [*history, *new]
    _, completion = await answer(app, messages, stream=stream, model=f"tier:{tier}")
    message = {name: value for name, value in completion["choices"][0]["message"].items() if value is not None}
    return [*messages, message], [call["id"] for call in message.get("tool_calls", ())]


async def responses_turn(
    app: InProcess, tier: str, history: list[Json], open_calls: list[str], *, stream: bool
) -> tuple[list[Json], list[str]]:
    """The same of a client of the Responses API, which sends all items back."""
    new = [{"type": "function_call_output", "call_id": one, "output": "rain"} for one in open_calls] or [ASK]
    given = [*history, *new]
    tools = [{"type": "function", "strict": False, **TOOLS[0]["function"]}]
    body = {"model": f"tier:{tier}", "input": given, "tools": tools, "reasoning": {"effort": "low"}, "stream": stream}
    response = await app.client.post("/v1/responses", json=body | {"include": ["reasoning.encrypted_content"]})
    assert response.status_code == 200, response.text
    made = response.json() if not stream else None
    if made is None:
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
        made = events[-1]["response"]
    calls = [item["call_id"] for item in made["output"] if item["type"] == "function_call"]
    return [*given, *made["output"]], calls


async def test_what_only_the_other_api_can_do_is_refused_by_name(app: InProcess, provider: ResponsesUpstream) -> None:
    body = {"model": "tier:hosted", "messages": [ASK], "n": 2}
    response = await app.client.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert provider.requests == []


async def test_the_systems_texts_are_one_for_a_server_that_knows_no_more(
    app: InProcess, provider: ResponsesUpstream
) -> None:
    """From a client of the same API, whose own body is passed on, and from one of chat completions."""
    asked = {"role": "user", "content": "a"}
    system = {"role": "developer", "content": "be brief"}
    body = {"model": "tier:hosted", "instructions": "be kind", "input": [system, asked]}
    assert (await app.client.post("/v1/responses", json=body)).status_code == 200
    chat = {"model": "tier:hosted", "messages": [{"role": "system", "content": "be kind"}, system, asked]}
    assert (await app.client.post("/v1/chat/completions", json=chat)).status_code == 200
    own, translated = (request.body for request in provider.requests)
    assert own["instructions"] == "be kind\n\nbe brief"
    for sent in own, translated:
        roles = [item["role"] for item in sent["input"]]
        assert "developer" not in roles and "system" not in roles[1:]
        assert "be kind\\n\\nbe brief" in json.dumps(sent)
