"""Replies as servers really send them (rows B41, B42), whole and streamed, seen through each of the three APIs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.lanes import Rig
from tests.support.ask import events_of
from tests.support.upstream import Reply, Upstream

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PARIS, ROME = ("call_a", "look", '{"city":"Paris"}'), ("call_b", "look", '{"city":"Rome"}')
Seen = tuple[str, list[tuple[str, str, str]], str]
"""Text, calls as (id, name, arguments), and how the answer ended, in OpenAI's word; `failed` if it did not."""

Json = dict[str, Any]


def chat(rig: Rig, lane: str, stream: bool) -> Seen:
    """Ask by chat completions."""
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body = {"model": lane, "stream": stream, "tools": tools, "messages": [{"role": "user", "content": "hi"}]}
    answer = rig.post(json.dumps(body).encode())
    if answer.status != 200:
        return "", [], "failed"
    if not stream:
        choice = answer.json["choices"][0]
        calls = [(one["id"], *one["function"].values()) for one in choice["message"].get("tool_calls") or ()]
        return choice["message"]["content"] or "", calls, choice["finish_reason"]
    text, found, ends = "", {}, []
    for event in answer.events:
        if event == "[DONE]" or "error" in event:
            ends += ["failed"] if event != "[DONE]" else []
            continue
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls") or ():
                call = found.setdefault(piece["index"], ["", "", ""])
                call[0] += piece.get("id", "")
                call[1] += piece["function"].get("name", "")
                call[2] += piece["function"].get("arguments", "")
            if choice["finish_reason"] is not None:
                ends.append(choice["finish_reason"])
    (end,) = ends
    return text, [tuple(call) for call in found.values()], end


def messages(rig: Rig, lane: str, stream: bool) -> Seen:
    """Ask by the Messages API."""
    tools = [{"name": "look", "input_schema": SCHEMA}]
    body = {"model": lane, "stream": stream, "tools": tools, "messages": [{"role": "user", "content": "hi"}]}
    sent = json.dumps({**body, "max_tokens": 50}).encode()
    answer = rig.request("POST", "/v1/messages", sent, {"content-type": "application/json"})
    if answer.status != 200:
        return "", [], "failed"
    words = {"end_turn": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
    if not stream:
        blocks, end = answer.json["content"], words[answer.json["stop_reason"]]
        inputs = [json.dumps(one.get("input"), separators=(",", ":")) for one in blocks]
    else:
        blocks, inputs, end = [], [], "failed"
        for event in events_of(answer.body):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"])
                inputs.append("")
            elif event["type"] == "content_block_delta":
                blocks[-1]["text"] = blocks[-1].get("text", "") + event["delta"].get("text", "")
                inputs[-1] += event["delta"].get("partial_json", "")
            elif event["type"] == "message_delta":
                end = words[event["delta"]["stop_reason"]]
    calls = [(one["id"], one["name"], said) for one, said in zip(blocks, inputs, strict=True) if one["type"] != "text"]
    return "".join(one["text"] for one in blocks if one["type"] == "text"), calls, end


def responses(rig: Rig, lane: str, stream: bool) -> Seen:
    """Ask by the Responses API."""
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    body = json.dumps({"model": lane, "stream": stream, "tools": tools, "input": "hi"}).encode()
    answer = rig.request("POST", "/v1/responses", body, {"content-type": "application/json"})
    if answer.status != 200:
        return "", [], "failed"
    reply = events_of(answer.body)[-1].get("response") if stream else answer.json
    if reply is None or reply["status"] == "failed":
        return "", [], "failed"
    text, calls = "", []
    for item in reply["output"]:
        if item["type"] == "message":
            text += "".join(one["text"] for one in item["content"])
        else:
            calls.append((item["call_id"], item["name"], item["arguments"]))
    return text, calls, "length" if reply["status"] == "incomplete" else "tool_calls" if calls else "stop"


APIS: list[Callable[[Rig, str, bool], Seen]] = [chat, messages, responses]


def reply_of(choice: Json | None, *chunks: Json, **more: Any) -> Reply:
    """A reply of this choice; or a stream of these choices, each in a chunk of its own."""
    head = {"id": "x", "created": 1, "model": "m", **more}
    if choice is not None:
        whole = {**head, "object": "chat.completion", "choices": [{"index": 0, **choice}]}
        return Reply(body=json.dumps(whole).encode())
    values = [
        {**head, "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **one}]}
        for one in chunks
    ]
    data = [json.dumps(value) for value in values]
    return Reply(
        body="".join(f"data: {one}\n\n" for one in [*data, "[DONE]"]).encode(),
        headers={"Content-Type": "text/event-stream"},
    )


def call(seen: tuple[str, str, str], arguments: Any = ..., **members: Any) -> Json:
    """A tool call of the reply."""
    function = {"name": seen[1], "arguments": seen[2] if arguments is ... else arguments}
    return {"id": seen[0], "type": "function", "function": function, **members}


def said(text: str, finish: str | None = "") -> Json:
    return {"delta": {"content": text}, "finish_reason": finish}


BOTH = [call(PARIS, json.loads(PARIS[2])), call(ROME)]
CASES: list[Any] = [
    pytest.param(
        reply_of(
            None,
            {"delta": {"tool_calls": [call(PARIS, index=0)]}},
            {"delta": {"tool_calls": [call(ROME, index=0)]}},
            {"delta": {}, "finish_reason": "tool_calls"},
        ),
        ("", [PARIS, ROME], "tool_calls"),
        id="B42-one-index",
    ),
    pytest.param(
        reply_of({"message": {"content": None, "tool_calls": BOTH}, "finish_reason": "tool_calls"}),
        ("", [PARIS, ROME], "tool_calls"),
        id="B42-an-object-as-arguments",
    ),
    pytest.param(
        reply_of(
            None,
            {"delta": {"tool_calls": [call(PARIS, {"city": "Paris"}, index=0)]}},
            {"delta": {}, "finish_reason": "STOP"},
        ),
        ("", [PARIS], "tool_calls"),
        id="B42-an-object-in-a-stream-that-ends-with-stop",
    ),
    pytest.param(
        reply_of(None, said(""), said("Hello "), said("there"), said("", "stop")),
        ("Hello there", [], "stop"),
        id="B41-empty-finish-in-each-chunk",
    ),
    pytest.param(
        reply_of(
            None,
            {"delta": {"tool_calls": [call(PARIS, "", index=0)]}, "finish_reason": ""},
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": PARIS[2][:8]}}]}, "finish_reason": ""},
            {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": PARIS[2][8:]}}]}, "finish_reason": ""},
            {"delta": {}, "finish_reason": "eos"},
        ),
        ("", [PARIS], "tool_calls"),
        id="B41-empty-finish-beside-a-call",
    ),
    pytest.param(
        reply_of({"message": {"content": "Hi"}, "finish_reason": "MAX_TOKENS"}),
        ("Hi", [], "length"),
        id="B41-MAX_TOKENS",
    ),
    pytest.param(reply_of({"finish_reason": "length"}), ("", [], "length"), id="B41-no-message"),
    pytest.param(
        reply_of({"message": {"content": "Half"}, "finish_reason": "error", "error": {"code": 502, "message": "gone"}}),
        ("", [], "failed"),
        id="B41-error",
    ),
    pytest.param(
        reply_of(None, said("Half", None), said("", "error")), ("", [], "failed"), id="B41-error-at-the-end-of-a-stream"
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(("reply", "expected"), CASES)
def test_a_reply_in_its_servers_own_form(
    rig: Rig, local_upstream: Upstream, reply: Reply, expected: Seen, stream: bool
) -> None:
    """Every API's client gets the same answer, in its own form, whatever the server's form is."""
    lane = rig.take("lone")
    local_upstream.default = reply
    for ask in APIS:
        seen = ask(rig, lane, stream)
        if expected[2] == "failed" and stream:
            assert seen[2] == "failed", ask.__name__
        else:
            assert seen == expected, ask.__name__


def test_b41_a_failed_answer_is_the_next_tiers(rig: Rig, local_upstream: Upstream, hosted_upstream: Upstream) -> None:
    """An answer whose finish says that it failed is one that the next tier gives, and none that is stored."""
    lane = rig.take("lane")
    local_upstream.default = reply_of({"message": {"content": "Half"}, "finish_reason": "error"})
    hosted_upstream.default = Reply(text="The whole of it.")
    assert chat(rig, lane, stream=False) == ("The whole of it.", [], "stop")
    assert not rig.cached(lane)
