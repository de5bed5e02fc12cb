"""What Codex CLI asks of a provider of its `model_providers`, item by item, before servers that refuse as the real do.

Source: its configuration reference (`wire_api = "responses"`, `env_key`, `http_headers`, the retries and the idle time
of streams), and what Codex CLI 0.171.0 was seen to send. Behind the gateway is OpenAI's Responses API (`responses`:
requests go on as they are), its chat completions (`openai`), or Anthropic's API (`anthropic`). Its sessions are proven
in test_sessions.py, signs of life in tests/faults/test_signs_of_life.py, and the program itself in tests/clients.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_claude_code_contract import Behind, behind, events
from tests.integration.test_recipes import refused
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.strict_messages import StrictMessages, text, tool_use
from tests.support.upstream import Fault, Reply, ToolCall, Upstream, error_reply

THREAD = "01a217a3-13d8-7713-801f-c50bdddd08ee"
TURN = {"session_id": THREAD, "thread_id": THREAD, "request_kind": "turn", "window_number": 0}
HEADERS = {
    "authorization": "Bearer any",
    "accept": "text/event-stream",
    "user-agent": "codex_exec/0.171.0 (Debian 12.0.0; x86_64) xterm (codex_exec; 0.171.0)",
    "originator": "codex_exec",
    "session-id": THREAD,
    "thread-id": THREAD,
    "x-client-request-id": THREAD,
    "x-codex-beta-features": "remote_compaction_v2",
    "x-codex-window-id": f"{THREAD}:0",
    "x-codex-turn-metadata": json.dumps(TURN),
}
_PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
_AGENT = {"type": "function", "name": "close_agent", "description": "Close it.", "strict": False}


def said(role: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{len(texts[0])}", "role": role, "content": parts}


BODY: dict[str, Any] = {
    "model": "claude-codex",
    "stream": True,
    "input": [
        said("developer", "You are Codex."),
        said("developer", "The sandbox is read-only.", "Be brief."),
        said("user", "read the note"),
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "description": "Run.", "strict": False, "parameters": _PARAMETERS},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Tools for sub-agents.",
            "tools": [{**_AGENT, "parameters": {"type": "object", "properties": {}}}],
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": THREAD,
    "client_metadata": {"x-codex-turn-metadata": json.dumps(TURN), "session_id": THREAD, "thread_id": THREAD},
}
CALL = {"cmd": "cat note.txt"}


async def send(one: Behind, body: dict[str, Any] | None = None) -> Any:
    """Post a request as Codex does."""
    return await one.app.client.post("/v1/responses", json={**BODY, **(body or {})}, headers=HEADERS)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ResponsesUpstream, StrictMessages]]:
    with ResponsesUpstream() as responses, StrictMessages() as claude:
        yield responses, claude


@pytest.fixture(params=["responses", "openai", "anthropic"])
async def one(
    request: pytest.FixtureRequest, tmp_path: Path, servers: Any, upstream: Upstream
) -> AsyncIterator[Behind]:
    """A gateway before each of the three APIs, whose model calls the command and then says what it read."""
    responses, claude = servers
    upstream.on(refused).reply(error_reply(400, "Unrecognized request argument supplied."))
    server = {"responses": responses, "openai": upstream, "anthropic": claude}[request.param]
    if server is not upstream:
        server.reset()
    models = {"responses": "gpt-5.4", "openai": "gpt-4o-mini", "anthropic": "claude-opus-4-8"}
    backend = {"kind": request.param, "base_url": server.url, "model": models[request.param]}
    async with behind(tmp_path, server, {**backend, "capabilities": ["tools", "json", "vision"]}) as made:
        if isinstance(server, StrictMessages):
            server.say(tool_use("exec_command", CALL))
            server.say(text("It is sunny."))
        else:
            call = ToolCall("exec_command", json.dumps(CALL), id="call_1")
            server.queue(Reply(tool_calls=(call,), finish_reason="tool_calls"), Reply(text="It is sunny."))
        yield made


def refusals(one: Behind) -> list[Any]:
    """What the server behind has refused."""
    match one.server:
        case StrictMessages():
            return one.server.refusals
        case ResponsesUpstream():
            return one.server.refused
    return [*filter(refused, one.server.requests)]


async def test_a_turn_with_a_command(one: Behind) -> None:
    """The call, and the answer once its output is there: all items of the turn go back, reasoning included."""
    found = events(await send(one))
    (done,) = [event["item"] for event in found if event["type"] == "response.output_item.done"
               and event["item"]["type"] == "function_call"]  # fmt: skip
    assert (done["name"], json.loads(done["arguments"])) == ("exec_command", CALL)
    output = {"type": "function_call_output", "call_id": done["call_id"], "output": "sunny"}
    answered = events(await send(one, {"input": [*BODY["input"], *found[-1]["response"]["output"], output]}))
    assert answered[-1]["response"]["output"][-1]["content"][0]["text"] == "It is sunny."
    assert refusals(one) == []


async def test_the_events_are_those_that_codex_reads(one: Behind) -> None:
    """Numbered, typed and nested; each item is done before the response is, whose usage counts what was cached."""
    found = events(await send(one))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created" and found[0]["response"]["id"].startswith("resp_")
    done = [event["item"]["id"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["type"] == "response.completed"
    assert done == [item["id"] for item in found[-1]["response"]["output"]]
    usage = found[-1]["response"]["usage"]
    assert {
        "input_tokens",
        "input_tokens_details",
        "output_tokens",
        "output_tokens_details",
        "total_tokens",
    } <= usage.keys()
    assert "cached_tokens" in usage["input_tokens_details"] and "reasoning_tokens" in usage["output_tokens_details"]


async def test_what_says_who_asks_goes_no_further(one: Behind) -> None:
    """Neither headers nor the fields that name sessions, but for the key of OpenAI's prompt cache."""
    await send(one)
    sent = one.got
    assert not [name for name in sent.headers if name.startswith(("x-codex", "originator", "session-id", "thread-id"))]
    assert "x-codex-turn-metadata" not in json.dumps(sent.body)
    if isinstance(one.server, StrictMessages):
        assert "prompt_cache_key" not in sent.body
    else:
        assert sent.body["prompt_cache_key"]


async def test_the_tools_of_a_namespace_are_told_apart(one: Behind) -> None:
    """By every API: as they are, or by names that begin with the namespace's."""
    await send(one)
    tools = json.dumps(one.got.body["tools"])
    assert "close_agent" in tools and "multi_agent_v1" in tools


@pytest.mark.parametrize(("status", "code"), [(400, "context_length_exceeded"), (429, "rate_limit_exceeded")])
async def test_errors_that_codex_acts_on(tmp_path: Path, servers: Any, status: int, code: str) -> None:
    """It compacts when the window is full, by the code, and waits as long as it is told where there is a limit."""
    responses, _ = servers
    responses.reset()
    backend = {"kind": "responses", "base_url": responses.url, "model": "gpt-5.4", "capabilities": ["tools"]}
    async with behind(tmp_path, responses, backend) as one:
        responses.default = error_reply(status, "no", code=code, headers={"Retry-After": "2"})
        reply = await send(one)
        assert reply.status_code == status
        assert reply.json()["error"]["code"] == code or status == 429
        assert status != 429 or float(reply.headers["retry-after"]) > 0
        responses.default = Reply()


async def test_a_stream_that_breaks_says_so(tmp_path: Path, servers: Any) -> None:
    """With `response.failed`, after which Codex asks again; a stream that just ended would be retried blindly."""
    responses, _ = servers
    responses.reset()
    backend = {"kind": "responses", "base_url": responses.url, "model": "gpt-5.4", "capabilities": ["tools"]}
    async with behind(tmp_path, responses, backend) as one:
        responses.default = Reply(text="a long answer " * 20, fault=Fault.CLOSE_MID_STREAM, fault_after=6)
        found = events(await send(one))
        assert found[-1]["type"] in ("response.failed", "error")
        responses.default = Reply()
