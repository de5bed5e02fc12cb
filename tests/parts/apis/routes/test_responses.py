"""Streams of `/v1/responses` whose upstream is cut at any byte never end silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.raw_upstream import raw_upstream
from tests.support.response_events import checked
from tests.support.upstream import Upstream

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
POLICY = CHAT.replace("hold_tokens: 4", "hold_tokens: 1").replace("  exact: {ttl: 1h}", "  never: [otherwise]")


def sse(deltas: list[dict[str, Any]], finish: str) -> bytes:
    """The bytes of an upstream's whole stream."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [json.dumps({"id": "x", "choices": [choice]}, separators=(",", ":")) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def call(name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return {"tool_calls": [{"index": 0, "function": function} | ({} if name is None else {"id": "c"})]}


STREAMS = (
    sse([{"reasoning_content": "h"}, {"content": "a"}, {"content": "b"}], "stop"),
    sse([call("f", ""), call(None, '{"q":1}')], "tool_calls"),
)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
async def test_a_stream_cut_at_any_byte(tmp_path: Path, step: int) -> None:
    """It ends in an error, as a reply or as its last events; only a stream with its finish is completed."""
    body = {"model": "chat", "input": "hi", "stream": True, "tools": [{"type": "function", "name": "f"}]}
    with raw_upstream(b"") as upstream:
        async with in_process(tmp_path, upstream.url, policies={"chat": POLICY}) as app:
            for data in STREAMS:
                finished = data.index(b'"finish_reason":"') + len(b'"finish_reason":"stop"')
                ends = set()
                for length in (*range(0, len(data), step), len(data)):
                    upstream.parts = [HEAD + data[:length]]
                    reply = await app.client.post("/v1/responses", json=body)
                    if reply.status_code != 200:
                        assert reply.json()["error"]["code"], length
                        ends.add("refused")
                        continue
                    end = checked(reply.content)[-1]["type"]
                    ends.add(end)
                    assert (end == "response.completed") <= (length >= finished), length
                assert end == "response.completed"
                assert ends == {"refused", "response.failed", "response.completed"}


async def test_a_conversation_of_thousands_of_items(tmp_path: Path, upstream: Upstream) -> None:
    """It is answered like any other, up to the most messages that the config allows."""
    items = [{"role": "user", "content": f"line {number}"} for number in range(2000)]
    async with in_process(tmp_path, upstream.url, settings={"limits": {"messages": 1500}}) as app:
        reply = await app.client.post("/v1/responses", json={"model": "chat", "input": items})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
        reply = await app.client.post("/v1/responses", json={"model": "chat", "input": items[:1500]})
        assert reply.status_code == 200
    assert len(upstream.requests[0].body["messages"]) == 1500
