"""The compliance suite of Open Responses (openresponses.org), told again: its cases, and what its schema requires.

Its own runner is in no package registry. The members of objects and the events are those of its specification's schema
of 2026; what else each must be is checked by the SDK's types. `NULLABLE` ones must be there and may be null.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from jsonschema_rs import Draft202012Validator

from tests.support.gateway import Gateway
from tests.support.response_events import checked
from tests.support.upstream import Reply, ToolCall, Upstream

Json = dict[str, Any]

NULLABLE = [
    "completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "user", "usage",
    "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key",
]  # fmt: skip
TYPES = {
    "string": "id object status model service_tier truncation",
    "integer": "created_at top_logprobs",
    "number": "top_p presence_penalty frequency_penalty temperature",
    "boolean": "parallel_tool_calls store background",
    "array": "output tools",
    "object": "text metadata",
}
USAGE = {"input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details"}
ITEMS = {
    "message": {"id", "type", "status", "role", "content"},
    "function_call": {"id", "type", "call_id", "name", "arguments", "status"},
    "reasoning": {"id", "type", "summary"},
}
PARTS = {"output_text": {"type", "text", "annotations", "logprobs"}, "refusal": {"type", "refusal"}}
EVENTS = {
    "response": "created queued in_progress completed failed incomplete",
    "response.output_item": "added done",
    "response.content_part": "added done",
    "response.output_text": "delta done",
    "response.refusal": "delta done",
    "response.function_call_arguments": "delta done",
    "response.reasoning_summary_part": "added done",
    "response.reasoning_summary_text": "delta done",
    "response.reasoning_text": "delta done",
    "response.output_text.annotation": "added",
}
KINDS = {"error", *(f"{name}.{what}" for name, ends in EVENTS.items() for what in ends.split())}
RESPONSE = Draft202012Validator(
    {
        "type": "object",
        "required": [*NULLABLE, "tool_choice", *(name for names in TYPES.values() for name in names.split())],
        "properties": {name: {"type": kind} for kind, names in TYPES.items() for name in names.split()},
    }
)
WEATHER: Json = {
    "type": "function",
    "name": "weather_at",
    "description": "Tell the weather at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6300010000050001"
        "0d0a2db40000000049454e44ae426082"
    )
).decode()


def said(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, Json] = {
    "basic text": {"input": [said("user", "Greet me in three words.")]},
    "system prompt": {"input": [said("system", "Speak like a sailor."), said("user", "Greet me.")]},
    "tool calling": {"input": [said("user", "How is the weather in Lisbon?")], "tools": [WEATHER]},
    "image input": {
        "input": [
            said(
                "user",
                [
                    {"type": "input_text", "text": "What is to be seen?"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
                ],
            )
        ]
    },
    "several turns": {
        "input": [said("user", "I am Bo."), said("assistant", "Hello, Bo."), said("user", "What is my name?")]
    },
}


@pytest.fixture(autouse=True)
def answers(local_upstream: Upstream, hosted_upstream: Upstream) -> Iterator[None]:
    """What the models say: they call the tool where there is one."""
    for upstream in (local_upstream, hosted_upstream):
        upstream.default = Reply(text="Ahoy there, friend.")
        upstream.on(lambda request: "tools" in request.body).reply(
            Reply(text="", tool_calls=(ToolCall("weather_at", '{"place":"Lisbon"}'),))
        )
    yield


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_the_suite(cached_gateway: Gateway, case: str, stream: bool) -> None:
    """It is completed, and all of it is as the schema has it, each event of a stream too."""
    body = {"model": "chat", "store": False, "stream": stream, **CASES[case]}
    reply = httpx2.post(f"{cached_gateway.url}/responses", json=body, timeout=20)
    assert reply.status_code == 200, reply.text
    if stream:
        events = checked(reply.content)
        assert {event["type"] for event in events} <= KINDS
        for response in (event["response"] for event in events if "response" in event):
            assert [str(error) for error in RESPONSE.iter_errors(response)] == []
        if case == "tool calling":
            told = [(event["type"], event.get("item", {}).get("type", "function_call")) for event in events]
            for kind in ("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"):
                assert (f"response.{kind}", "function_call") in told
            assert ("response.output_item.done", "function_call") in told
    response = events[-1]["response"] if stream else reply.json()
    assert [str(error) for error in RESPONSE.iter_errors(response)] == []
    assert response["status"] == "completed" and response["completed_at"] >= response["created_at"]
    assert response["usage"].keys() >= USAGE
    assert response["output"]
    for item in response["output"]:
        assert item.keys() >= ITEMS[item["type"]]
        for part in item.get("content", ()):
            assert part.keys() >= PARTS[part["type"]]
    kinds = {item["type"] for item in response["output"]}
    assert ("function_call" if case == "tool calling" else "message") in kinds
    names = {tool["name"]: tool.keys() for tool in response["tools"]}
    assert names == ({"weather_at": {*WEATHER, "strict"}} if case == "tool calling" else {})
