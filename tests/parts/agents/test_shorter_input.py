"""A policy's `input`: three APIs in, three dialects out, the shorter conversation is what everything goes by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.prompt_caching import SURFACES, CachingWorld, caching_world
from tests.support.ask import record_at
from tests.support.prompt_caches import bare, blocks_of
from tests.support.store import LocalStore

Json = dict[str, Any]
LONG = "what was found, line after line, " * 40
RULES = "input: {tool_results: {keep: 4}}"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
_PARAMETERS = {"type": "object", "properties": {}}


@pytest.fixture
async def world(tmp_path: Path, store: LocalStore) -> AsyncIterator[CachingWorld]:
    async with caching_world(tmp_path, store_url=store.url, more=RULES) as made:
        yield made


def conversation(api: str, turns: int = 8) -> Json:
    """A conversation of an agent, in the words of an API."""
    if api == "messages":
        messages: list[Json] = [{"role": "user", "content": "go"}]
        for i in range(turns):
            call = {"type": "tool_use", "id": f"call_{i}", "name": "look", "input": {"at": i}}
            result = {"type": "tool_result", "tool_use_id": f"call_{i}", "content": f"{i} {LONG}"}
            messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return {"messages": messages, "max_tokens": 100, "tools": [{"name": "look", "input_schema": _PARAMETERS}]}
    if api == "responses":
        items: list[Json] = [{"role": "user", "content": "go"}]
        for i in range(turns):
            items.append({"type": "function_call", "call_id": f"call_{i}", "name": "look", "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": f"call_{i}", "output": f"{i} {LONG}"})
        return {
            "input": items,
            "tools": [{"type": "function", "name": "look", "parameters": _PARAMETERS, "strict": False}],
        }
    messages = [{"role": "user", "content": "go"}]
    for i in range(turns):
        called = {"id": f"call_{i}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": f"{i} {LONG}"})
    tool = {"type": "function", "function": {"name": "look", "parameters": _PARAMETERS}}
    return {"messages": messages, "tools": [tool]}


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_older_results_are_left_out(world: CachingWorld, store: LocalStore, api: str, surface: str) -> None:
    """Whatever API the client speaks and whatever dialect the backend: the last four turns' results are whole."""
    reply = await world.app.client.post(PATHS[api], json={"model": surface, **conversation(api)})
    assert reply.status_code == 200, reply.text
    assert world.refusals() == []
    sent = str(getattr(world, surface).requests[-1].body)
    assert [f"{i} {LONG}" in sent for i in range(8)] == [False] * 4 + [True] * 4
    assert sent.count("characters was left out") == 4
    record = await record_at(store.url, reply.headers["x-request-id"])
    saved = record["ledger"]["tokens_left_out"]
    hop = next(one for one in record["hops"] if one["name"] == "input")
    assert hop["attributes"]["tierline.input.saved"] == [f"tool_results {saved}"]
    assert 4 * len(LONG) / 4 - 200 < saved < 4 * len(LONG) / 4


async def test_a_short_conversation_is_sent_as_it_came(world: CachingWorld, store: LocalStore) -> None:
    """And the trace says that nothing was left out."""
    reply = await world.app.client.post(PATHS["chat"], json={"model": "chat", **conversation("chat", 3)})
    record = await record_at(store.url, reply.headers["x-request-id"])
    assert record["ledger"]["tokens_left_out"] == 0
    assert world.chat.requests[-1].body["messages"] == conversation("chat", 3)["messages"]


async def test_results_of_calls_with_one_id_stay_whole_for_their_own_dialect(world: CachingWorld) -> None:
    """Which of them is meant is not known; a backend of another dialect gets them shorter all the same."""
    body = conversation("messages")
    for message in body["messages"][1:5]:
        for block in message["content"]:
            block["tool_use_id" if block["type"] == "tool_result" else "id"] = "call_x"
    reply = await world.app.client.post(PATHS["messages"], json={"model": "chat", **body})
    assert reply.status_code == 200 and world.refusals() == []
    assert str(world.chat.requests[-1].body).count("characters was left out") == 4


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_a_longer_conversation_begins_as_the_shorter_one_did(world: CachingWorld, api: str, surface: str) -> None:
    """Tools, texts and results in the same order and words each turn, whatever is translated: caches stay warm."""
    shown = []
    for turns in (4, 5, 6, 7):
        reply = await world.app.client.post(PATHS[api], json={"model": surface, **conversation(api, turns)})
        assert reply.status_code == 200, reply.text
        body = getattr(world, surface).requests[-1].body
        if surface == "messages":
            shown.append([bare(block) for _, block in blocks_of(body)])
        else:
            shown.append([body["tools"], body.get("instructions"), *(body.get("messages") or body["input"])])
    for shorter, longer in pairwise(shown):
        assert longer[: len(shorter)] == shorter
