"""What replies of chat completions lack is filled in, whole and streamed, over real sockets."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.backends.base import BackendRequest
from gateway.backends.openai import OpenAIBackend
from gateway.dialects.reasoning import NOBODY
from gateway.parts.servers.chat_forms import ServerChat
from tests.gateway.backends.test_openai import BODY, LAST, STREAM, backend_at, completed, streamed, whole
from tests.support.upstream import Reply, Upstream

FORMS = ServerChat("small", NOBODY)


@pytest.fixture
async def backend(upstream: Upstream) -> AsyncIterator[OpenAIBackend]:
    made = backend_at(upstream.url, forms=FORMS)
    yield made
    await made.aclose()


@pytest.mark.parametrize("nothing", [..., None, ""], ids=["missing", "null", "empty"])
async def test_what_a_completion_may_lack(backend: OpenAIBackend, upstream: Upstream, nothing: Any) -> None:
    """An id, a model, a time and a kind are filled in; what else the reply says stays."""
    lacking = whole(id=nothing, object=nothing, model=nothing, created=... if nothing == "" else nothing, x=7)
    got = await completed(upstream, backend, json.dumps(lacking).encode())
    assert got.value["id"].startswith("chatcmpl-")
    assert (got.value["object"], got.value["model"], got.value["x"]) == ("chat.completion", "small", 7)
    assert abs(got.value["created"] - time.time()) < 60
    assert got.sound


async def test_what_a_message_may_lack(backend: OpenAIBackend, upstream: Upstream) -> None:
    """Every message has content and refusal, be they null, and every tool call an id of its own."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}} for _ in range(2)]
    choice = {"message": {"tool_calls": [*calls, calls[0] | {"id": "own"}]}, "finish_reason": "tool_calls"}
    got = await completed(upstream, backend, json.dumps(whole(choices=[choice])).encode())
    assert got.value["choices"][0]["index"] == 0
    message = got.value["choices"][0]["message"]
    assert (message["role"], message["content"], message["refusal"]) == ("assistant", None, None)
    first, second, third = [call["id"] for call in message["tool_calls"]]
    assert first.startswith("call_") and second.startswith("call_") and first != second
    assert third == "own"


async def test_what_a_json_reply_lacks_is_missing_in_no_stream_of_it(upstream: Upstream) -> None:
    """B23: the same holds where the reply has to be streamed."""
    upstream.default = Reply(body=json.dumps(whole(id=..., created=..., model=...)).encode())
    backend = backend_at(upstream.url, forms=FORMS)
    chunks = await streamed(backend)
    assert {(chunk["id"][:9], chunk["model"], type(chunk["created"])) for chunk in chunks} == {
        ("chatcmpl-", "small", int)
    }
    await backend.aclose()


def call_delta(*parts: dict[str, Any]) -> str:
    choice = {"index": 0, "delta": {"tool_calls": list(parts)}, "finish_reason": None}
    return json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})


def piece(arguments: str = "", **members: Any) -> dict[str, Any]:
    return {"function": {"arguments": arguments}} | members


def named(**members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": ""}} | members


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [[named(index=0, id="a")], [piece("{}", index=0)], [named(index=1, id="b")]],
            [[(0, "a")], [(0, ...)], [(1, "b")]],
            id="nothing-missing",
        ),
        pytest.param([[named(id="a")], [piece("{}")]], [[(0, "a")], [(0, ...)]], id="no-index"),
        pytest.param([[named(id="a")], [piece("{}", id="a")]], [[(0, "a")], [(0, ...)]], id="no-index-same-id"),
        pytest.param([[named(index=None, id="a")]], [[(0, "a")]], id="null-index"),
        pytest.param([[named(index=0)], [piece("{}", index=0)]], [[(0, "made")], [(0, ...)]], id="no-id"),
        pytest.param([[named(index=0, id="")]], [[(0, "made")]], id="empty-id"),
        pytest.param([[named()], [piece("{}")]], [[(0, "made")], [(0, ...)]], id="neither"),
        pytest.param(
            [[named(index=0), named(index=1)], [piece("{}", index=1)]],
            [[(0, "made"), (1, "made")], [(1, ...)]],
            id="two-without-ids",
        ),
        pytest.param([[named(index=0)], [piece("{}", index=0, id="late")]], [[(0, "made")], [(0, ...)]], id="late-id"),
        pytest.param(
            [[named(id="a")], [named(id="b")], [piece("{}")]], [[(0, "a")], [(1, "b")], [(1, ...)]], id="another-id"
        ),
        pytest.param([[named()], [named()]], [[(0, "made")], [(0, ...)]], id="name-again"),
        pytest.param(
            [[named(id="a"), named(id="b")], [piece("{}")]], [[(0, "a"), (1, "b")], [(1, ...)]], id="two-at-once"
        ),
        pytest.param(
            [[named(index=0, id="a")], [named(index=1, id="b")], [piece("{}")]],
            [[(0, "a")], [(1, "b")], [(1, ...)]],
            id="which-of-two",
        ),
    ],
)
async def test_b26_what_a_tool_call_lacks(
    upstream: Upstream, deltas: list[list[dict[str, Any]]], expected: list[list[tuple[Any, Any]]]
) -> None:
    """Index and id are filled in; a delta that lacks nothing passes, to the byte, as it came."""
    events = [call_delta(*parts) for parts in deltas]
    body = "".join(f"data: {one}\n\n" for one in [*events, LAST, "[DONE]"]).encode()
    upstream.default = Reply(body=body, headers={"Content-Type": "text/event-stream"})
    backend = backend_at(upstream.url, forms=FORMS)
    stream = await backend.stream(BackendRequest(STREAM, ask_logprobs=False))
    read = []
    while some := await stream.read():
        read += some
    stream.close()
    await backend.aclose()
    ids = []
    for sent, event, wanted in zip(events, read, expected, strict=False):
        parts = event.value["choices"][0]["delta"]["tool_calls"]
        made = [part["id"] for part in parts if str(part.get("id")).startswith("call_")]
        ids += made
        told = [(part.get("index", ...), "made" if part.get("id") in made else part.get("id", ...)) for part in parts]
        assert told == wanted
        assert json.loads(event.data) == event.value
        if event.value == json.loads(sent):
            assert event.data == sent.encode()
    assert len(ids) == len(set(ids))


async def test_counts_that_cannot_be(backend: OpenAIBackend, upstream: Upstream) -> None:
    """B33: a usage of negative numbers alone is none; one beside a number that can be is 0, marked as not known."""
    upstream.default = Reply(usage={"prompt_tokens": -1, "completion_tokens": -2})
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert completion.value["usage"] is None
    assert json.loads(completion.raw) == completion.value
    upstream.default = Reply(usage={"prompt_tokens": -1, "completion_tokens": 2})
    completion = await backend.complete(BackendRequest(BODY, ask_logprobs=False))
    assert completion.value["usage"] == {
        "prompt_tokens": 0,
        "completion_tokens": 2,
        "total_tokens": 2,
        "estimated": True,
    }
    assert json.loads(completion.raw) == completion.value
