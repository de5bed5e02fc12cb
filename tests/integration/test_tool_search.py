"""Codex looks for tools by a tool of its own: at a chat server that is a function, and its calls come back as items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.dialects.pairs import gateway_of
from tests.support.dialect_streams import chat_stream
from tests.support.plain_http import PlainReply

Json = dict[str, Any]
SEARCH: Json = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
MAIL: Json = {
    "type": "namespace",
    "name": "mail",
    "description": "Letters.",
    "tools": [{"type": "function", "name": "send", "parameters": {"type": "object"}, "defer_loading": True}],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_and_what_it_found(stream: bool, tmp_path: Path) -> None:
    bodies: list[Json] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        bodies.append(json.loads(raw))
        found = len(bodies[-1]["messages"]) > 1
        name, arguments = ("mail__send", "{}") if found else ("tool_search", '{"query":"letters"}')
        call = {"id": f"call_{len(bodies)}", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        if stream:
            return PlainReply(chat_stream(whole), events=True)
        return PlainReply(json.dumps(whole).encode())

    async with gateway_of(tmp_path, {"chat": {"model": "m", "capabilities": ["tools"]}}, reply) as app:

        async def ask(items: list[Json]) -> list[Json]:
            asked = {"model": "chat", "store": False, "stream": stream, "tools": [SEARCH], "input": items}
            got = await app.client.post("/v1/responses", json=asked)
            assert got.status_code == 200, got.text
            if not stream:
                return list(got.json()["output"])
            events = [json.loads(line[6:]) for line in got.text.splitlines() if line.startswith("data: ")]
            done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
            assert done == events[-1]["response"]["output"]
            return done

        items: list[Json] = [{"role": "user", "content": "Write a letter."}]
        [call] = await ask(items)
        assert (call["type"], call["execution"], call["arguments"]) == (
            "tool_search_call",
            "client",
            {"query": "letters"},
        )
        assert [tool["function"]["name"] for tool in bodies[-1]["tools"]] == ["tool_search"]
        output = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [MAIL]}
        [sent] = await ask([*items, call, {**output, "status": "completed"}])
        assert (sent["type"], sent["namespace"], sent["name"]) == ("function_call", "mail", "send")
        assert [tool["function"]["name"] for tool in bodies[-1]["tools"]] == ["mail__send", "tool_search"]
        _, said, result = bodies[-1]["messages"]
        assert said["tool_calls"][0]["function"] == {"name": "tool_search", "arguments": '{"query":"letters"}'}
        assert result["tool_call_id"] == call["call_id"] and "mail__send" in result["content"]


async def test_a_provider_s_own_search_is_left_out_and_all_tools_are_there(tmp_path: Path) -> None:
    bodies: list[Json] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        bodies.append(json.loads(raw))
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return PlainReply(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode())

    async with gateway_of(tmp_path, {"chat": {"model": "m", "capabilities": ["tools"]}}, reply) as app:
        asked = {"model": "chat", "tools": [{"type": "tool_search"}, MAIL], "input": "hi"}
        got = await app.client.post("/v1/responses", json=asked)
        assert got.status_code == 200, got.text
        assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["mail__send"]
        assert "tools[0]" in got.headers["x-tierline-dropped"]
