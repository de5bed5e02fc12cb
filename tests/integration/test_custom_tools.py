"""Tools that take a free text reach a server that has none as functions, and their calls come back as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.dialects.pairs import gateway_of
from tests.support.dialect_streams import chat_stream
from tests.support.plain_http import PlainReply

Json = dict[str, Any]
TEXT = '*** Begin "Patch"\n+café\n*** End'
PATCH: Json = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files."}}
LOOK: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
EARLIER: list[Json] = [
    {"role": "user", "content": "Edit it."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "custom", "custom": {"name": "apply_patch", "input": TEXT}}],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "done"},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [None, {"type": "custom", "custom": {"name": "apply_patch"}}])
async def test_a_chat_client_s_custom_tool_at_a_server_without_any(
    stream: bool, choice: Json | None, tmp_path: Path
) -> None:
    """Whole and streamed, chosen or not, with an earlier call in the conversation and a function beside it."""
    bodies: list[Json] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        body = json.loads(raw)
        bodies.append(body)
        if any(tool["type"] != "function" for tool in body["tools"]):
            return PlainReply(b'{"error": {"message": "Missing tool function", "code": 400}}', status=400)
        made = [("apply_patch", {"input": TEXT}), ("look", {})]
        calls = [
            {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for at, (name, arguments) in enumerate(made, 1)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        ended = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [ended]}
        return PlainReply(chat_stream(whole), events=True) if stream else PlainReply(json.dumps(whole).encode())

    asked: Json = {"model": "chat", "messages": EARLIER, "tools": [PATCH, LOOK], "stream": stream}
    if choice is not None:
        asked["tool_choice"] = choice
    async with gateway_of(tmp_path, {"chat": {"model": "m", "capabilities": ["tools"]}}, reply) as app:
        got = await app.client.post("/v1/chat/completions", json=asked)
    assert got.status_code == 200, got.text
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["apply_patch", "look"]
    sent = bodies[0]["messages"][1]["tool_calls"][0]
    assert (sent["type"], json.loads(sent["function"]["arguments"])) == ("function", {"input": TEXT})
    if choice is not None:
        assert bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}
    calls = streamed_calls(got.text) if stream else got.json()["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": TEXT}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]


def streamed_calls(text: str) -> list[Json]:
    """The calls of a stream, their pieces joined."""
    calls: dict[int, Json] = {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for part in choice["delta"].get("tool_calls", ()):
                call = calls.setdefault(part["index"], {})
                call.update({name: part[name] for name in ("id", "type") if part.get(name)})
                for kind, member in (("custom", "input"), ("function", "arguments")):
                    if kind in part:
                        inner = call.setdefault(kind, {member: ""})
                        if part[kind].get("name"):
                            inner["name"] = part[kind]["name"]
                        inner[member] += part[kind].get(member) or ""
    return [calls[at] for at in sorted(calls)]
