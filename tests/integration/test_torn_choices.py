"""A choice of a stream stays whole in every API, however its server repeats finish reasons or frames its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.dialects.pairs import gateway_of, whole_message
from tests.support.dialect_streams import message_stream
from tests.support.plain_http import PlainReply

Json = dict[str, Any]
NAME = {"name": "look"}
CALL = {"id": "call_1", "type": "function"}


def chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def piece(text: str, **more: Any) -> Json:
    named = NAME if more else {}
    return {"tool_calls": [{"index": 0, **more, "function": {**named, "arguments": text}}]}


EVERY = [chunk(piece('{"a":', **CALL), "tool_calls"), chunk(piece("1}"), "tool_calls")]
FIRST = [chunk(piece('{"a":', **CALL), "tool_calls"), chunk(piece("1}")), chunk({}, "stop")]
NO_CALL = [chunk({"content": "Done."}), chunk({}, "tool_calls")]
TEXT = [chunk({"content": "Do"}, "stop"), chunk({"content": "ne."}, "stop")]
FRAMES = {
    "as usual": lambda one: f"data: {one}\n\n",
    "one line end": lambda one: f"data: {one}\n",
    "named, one line end": lambda one: f"event: chunk\ndata: {one}\n",
    "one line end, CRLF": lambda one: f"data:{one}\r\n",
    "a space at the end": lambda one: f"data: {one} \n\n",
}
BODIES: dict[str, Json] = {
    "chat": {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {**NAME, "parameters": {"type": "object"}}}],
    },
    "messages": {
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{**NAME, "input_schema": {"type": "object"}}],
    },
    "responses": {"input": "hi", "tools": [{"type": "function", **NAME, "parameters": {"type": "object"}}]},
}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def read(api: str, text: str) -> tuple[str, list[str], list[str]]:
    """The text, the arguments of the calls, and the reasons for which the answer ended."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert not any(one.get("type") == "error" or ("error" in one and "choices" in one) for one in events), text
    if api == "chat":
        choices = [choice for one in events for choice in one["choices"]]
        said = "".join(choice["delta"].get("content") or "" for choice in choices)
        parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
        calls = ["".join(part["function"]["arguments"] for part in parts)] if parts else []
        assert text.rstrip().endswith("data: [DONE]")
        return said, calls, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if api == "messages":
        deltas = [one["delta"] for one in events if one["type"] == "content_block_delta"]
        starts = [one["content_block"] for one in events if one["type"] == "content_block_start"]
        given = "".join(delta.get("partial_json", "") for delta in deltas)
        calls = [given for block in starts if block["type"] == "tool_use"]
        reasons = [one["delta"]["stop_reason"] for one in events if one["type"] == "message_delta"]
        return "".join(delta.get("text", "") for delta in deltas), calls, reasons
    response = events[-1]["response"]
    said = "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])
    calls = [item["arguments"] for item in response["output"] if item["type"] == "function_call"]
    return said, calls, [response["status"]]


ENDS = {
    "chat": ("stop", "tool_calls"),
    "messages": ("end_turn", "tool_use"),
    "responses": ("completed", "completed"),
}


@pytest.mark.parametrize("frame", FRAMES)
async def test_a_choice_is_whole_in_every_api(frame: str, tmp_path: Path) -> None:
    for chunks, said, arguments in (
        (EVERY, "", ['{"a":1}']), (FIRST, "", ['{"a":1}']), (NO_CALL, "Done.", []), (TEXT, "Done.", []),
    ):  # fmt: skip
        data = [*(json.dumps(one) for one in chunks), "[DONE]"]
        raw = "".join(FRAMES[frame](one) for one in data).encode()
        for pieces in ((), tuple(range(7, len(raw), 31))):
            reply = PlainReply(raw, events=True, pieces=pieces)
            backend = {"chat": {"model": "m", "capabilities": ["tools"]}}
            async with gateway_of(tmp_path, backend, lambda path, body, reply=reply: reply) as app:
                for api, body in BODIES.items():
                    asked = {"model": "chat", "stream": True, **body}
                    got = await app.client.post(PATHS[api], json=asked)
                    assert got.status_code == 200, got.text
                    assert read(api, got.text) == (said, arguments, [ENDS[api][bool(arguments)]]), (api, got.text)


@pytest.mark.parametrize("cut", [False, True])
async def test_the_end_is_told_where_the_server_does_not_say_done(cut: bool, tmp_path: Path) -> None:
    """A finish reason beside a piece of the answer is its end, where the connection ends or breaks after it."""
    raw = "".join(f"data: {json.dumps(one)}\n\n" for one in EVERY).encode()
    backend = {"chat": {"model": "m", "capabilities": ["tools"]}}
    async with gateway_of(tmp_path, backend, lambda path, body: PlainReply(raw, events=True, cut=cut)) as app:
        got = await app.client.post(PATHS["chat"], json={"model": "chat", "stream": True, **BODIES["chat"]})
        assert read("chat", got.text) == ("", ['{"a":1}'], ["tool_calls"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_a_message_that_calls_nothing_ends_its_turn(api: str, stream: bool, tmp_path: Path) -> None:
    """A server of Anthropic's API says `tool_use` without a call; a client of the same API gets its own message."""
    message = whole_message([{"type": "text", "text": "Done."}], stop_reason="tool_use")

    def reply(path: str, body: bytes) -> PlainReply:
        return PlainReply(message_stream(message), events=True) if stream else PlainReply(json.dumps(message).encode())

    out = {"messages": {"kind": "anthropic", "model": "claude-sonnet-5-5", "capabilities": ["tools"]}}
    async with gateway_of(tmp_path, out, reply) as app:
        got = await app.client.post(PATHS[api], json={"model": "messages", "stream": stream, **BODIES[api]})
        if stream:
            assert read(api, got.text) == ("Done.", [], [ENDS[api][0]])
        else:
            value = got.json()
            assert (value["stop_reason"] if api == "messages" else value["choices"][0]["finish_reason"]) == ENDS[api][0]
