"""Anthropic's SDK as a client, before tiers of both dialects; the strict server refuses what the provider would."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.parts.servers.custom_tools import short_name
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.strict_messages import StrictMessages, redacted, text, thinking, tool_use
from tests.support.upstream import Reply, ToolCall, Upstream, error_reply

POLICY = CHAT.replace("tiers: [local, hosted]", "tiers: [local, hosted, other]")
LOOK: Any = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}}
HELLO: Any = [{"role": "user", "content": "hello"}]
ENV = {"HOSTED_KEY": StrictMessages.KEY, "TENANT_KEY": "tenant-key-0123456789"}
BUDGET: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def upstreams() -> Iterator[tuple[Upstream, StrictMessages, StrictMessages]]:
    with Upstream() as local, StrictMessages("one") as hosted, StrictMessages("two") as other:
        yield local, hosted, other


@dataclass
class Ladder:
    """A gateway in this process with three tiers: `local` of chat completions, `hosted` and `other` of messages."""

    app: InProcess
    sdk: anthropic.AsyncAnthropic
    local: Upstream
    hosted: StrictMessages
    other: StrictMessages

    async def ask(self, *, stream: bool, **body: Any) -> anthropic.types.Message:
        """One message, streamed or whole."""
        asked = {"model": "chat", "max_tokens": 4000, "messages": HELLO, **body}
        if not stream:
            return await self.sdk.messages.create(**asked)
        async with self.sdk.messages.stream(**asked) as events:
            return await events.get_final_message()


def tiers_of(upstreams: Any) -> list[dict[str, Any]]:
    """The config of the three tiers."""
    local, hosted, other = upstreams

    def backend(server: StrictMessages, model: str, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{server.port}{path}"
        able = ["tools", "json", "vision", "files", "web_search", "hosted_tools"]
        more = {"key_env": "HOSTED_KEY", "price": {"input": 1, "output": 5}, "capabilities": able}
        return {"kind": "anthropic", "base_url": url, "model": model, **more}

    small = {"base_url": local.url, "model": "small", "capabilities": ["tools", "json"]}
    return [
        {"name": "local", "backends": [small]},
        {"name": "hosted", "backends": [backend(hosted, "claude-haiku-4-5", "/v1")]},
        {"name": "other", "backends": [backend(other, "claude-opus-4-8", "")]},
    ]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, upstreams: Any) -> Iterator[Gateway]:
    settings = {"tiers": tiers_of(upstreams)}
    with serve(
        tmp_path_factory.mktemp("gateway"), upstreams[0].url, policies={"chat": POLICY}, settings=settings, env=ENV
    ) as running:
        yield running


@asynccontextmanager
async def ladder_in(folder: Path, upstreams: Any, **settings: Any) -> AsyncIterator[Ladder]:
    local, hosted, other = upstreams
    for one in upstreams:
        one.reset()
    settings = {"tiers": tiers_of(upstreams), **settings}
    async with in_process(folder, local.url, policies={"chat": POLICY}, settings=settings, env=ENV) as app:
        sdk = anthropic.AsyncAnthropic(
            base_url="http://localhost", api_key=ENV["TENANT_KEY"], http_client=app.client, max_retries=0
        )
        yield Ladder(app, sdk, local, hosted, other)


@pytest.fixture
async def ladder(tmp_path: Path, upstreams: Any) -> AsyncIterator[Ladder]:
    async with ladder_in(tmp_path, upstreams) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_of_chat_completions_answers(ladder: Ladder, stream: bool) -> None:
    call = ToolCall("look", '{"at": "sea"}', id="call_1")
    ladder.local.queue(Reply(tool_calls=(call,), finish_reason="tool_calls"))
    called = await ladder.ask(stream=stream, tools=[LOOK], system="Be brief.")
    assert [block.type for block in called.content] == ["tool_use"]
    assert (called.content[0].id, called.content[0].input) == ("call_1", {"at": "sea"})
    assert (called.stop_reason, called.model, called.usage.input_tokens > 0) == ("tool_use", "chat", True)
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "a sea"}]}
    turns = [
        *HELLO,
        {"role": "assistant", "content": [block.to_dict() for block in called.content]},
        {"role": "user", "content": [result]},
    ]
    said = await ladder.ask(stream=stream, messages=turns, tools=[LOOK])
    assert said.content[0].text == "The scripted upstream says hello."
    roles = [message["role"] for message in ladder.local.requests[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool"]


@pytest.mark.parametrize("stream", [False, True])
async def test_names_longer_than_openai_takes_are_cut_for_the_backend_alone(ladder: Ladder, stream: bool) -> None:
    """The same name each time: of the tool, of the choice, of the calls of earlier turns; the client sees its own."""
    long = "mcp__documentation__" + "look_" * 20
    tools: Any = [{**LOOK, "name": long}, LOOK]
    short = short_name(long)
    ladder.local.queue(Reply(tool_calls=(ToolCall(short, '{"at": "sea"}', id="call_1"),), finish_reason="tool_calls"))
    called = await ladder.ask(stream=stream, tools=tools, tool_choice={"type": "tool", "name": long})
    assert [block.name for block in called.content if block.type == "tool_use"] == [long]
    turns = [
        *HELLO,
        {"role": "assistant", "content": [block.to_dict() for block in called.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "a sea"}]},
    ]
    await ladder.ask(stream=stream, messages=turns, tools=tools)
    first, second = (request.body for request in ladder.local.requests)
    assert [tool["function"]["name"] for tool in first["tools"]] == [short, "look"]
    assert first["tool_choice"]["function"]["name"] == short
    assert second["messages"][1]["tool_calls"][0]["function"]["name"] == short
    assert len(short) == 64


@pytest.mark.parametrize("stream", [False, True])
async def test_a_poor_answer_escalates_to_the_messages_api(ladder: Ladder, stream: bool) -> None:
    ladder.local.default = Reply(text="I do not know at all, sorry for that.", logprob=-4.0)
    ladder.hosted.say(thinking("hm"), text("It is Paris."))
    said = await ladder.ask(stream=stream, thinking=BUDGET)
    assert [block.type for block in said.content] == ["thinking", "text"]
    assert (said.content[1].text, said.model) == ("It is Paris.", "chat")
    assert (said.usage.input_tokens, said.usage.cache_read_input_tokens) == (11, 7)
    assert len(ladder.local.requests) == len(ladder.hosted.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_claude_code_sends_is_sent_on_as_it_is(ladder: Ladder, stream: bool) -> None:
    marker = {"type": "ephemeral"}
    body: dict[str, Any] = {
        "max_tokens": 32000,
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": marker}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": marker}]}],
        "tools": [{**LOOK, "eager_input_streaming": True}, {"type": "web_search_20250305", "name": "web_search"}],
        "metadata": {"user_id": json.dumps({"device_id": "d" * 60, "session_id": "s" * 36})},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": stream,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27,x-2026-01-01"}
    ladder.other.say(thinking("hm"), text("I am "), text("here."), tool_use("look", {"at": "sea"}))
    reply = await ladder.app.client.post(
        "/v1/messages?beta=true", json={"model": "tier:other", **body}, headers=headers
    )
    assert reply.status_code == 200, reply.text
    (sent,) = ladder.other.requests
    expected = {**body, "model": "claude-opus-4-8"}
    assert {"stream": False, **sent.body} == expected
    assert sent.headers["anthropic-beta"] == headers["anthropic-beta"]
    assert "x-tierline-dropped" not in reply.headers
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    if not stream:
        assert [block["type"] for block in reply.json()["content"]] == ["thinking", "text", "text", "tool_use"]
    # A tier without the provider's own tools is not asked.
    refused = await ladder.app.client.post("/v1/messages", json={"model": "tier:local", **body}, headers=headers)
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    del body["tools"][1]
    told = await ladder.app.client.post("/v1/messages", json={"model": "tier:local", **body}, headers=headers)
    assert told.status_code == 200, told.text
    assert set(told.headers["x-tierline-dropped"].split(", ")) == {
        "cache_control", "tools[0].eager_input_streaming", "metadata", "context_management", "anthropic-beta",
    }  # fmt: skip


async def test_conversations_that_change_tiers_are_never_refused(ladder: Ladder) -> None:
    """Thinking, tools and texts over turns, each turn at another tier: foreign thinking goes, own comes back signed."""
    rng = random.Random(7)
    names = ("local", "hosted", "other")
    kept = 0
    for number in range(12):
        turns: list[Any] = []
        asks: Any = [{"type": "text", "text": f"question {number}"}]
        for _ in range(rng.randint(2, 7)):
            turns = [*turns, {"role": "user", "content": asks}]
            calls = [tool_use("look", {"at": "sea"}) for _ in range(rng.randint(0, 2))]
            thoughts = [thinking("let me see")] * rng.randint(0, 1) + [redacted("secret")] * rng.randint(0, 1)
            for server in (ladder.hosted, ladder.other):
                server._script.clear()
                server.say(*thoughts, *([text("Well.")] if rng.random() < 0.6 or not calls else []), *calls)
            ladder.local.queue(
                Reply(
                    text="" if calls else "Well.",
                    tool_calls=tuple(ToolCall("look", "{}", id=call["id"]) for call in calls),
                    finish_reason="tool_calls" if calls else "stop",
                )
            )
            wanted = rng.choice([None, BUDGET, {"type": "adaptive"}, {"type": "disabled"}])
            tier = rng.choice(names)
            more = {} if wanted is None else {"thinking": wanted}
            said = await ladder.ask(
                stream=rng.random() < 0.5, model=f"tier:{tier}", messages=turns, tools=[LOOK], **more
            )
            if tier != "local":
                ladder.local._queue.clear()
            blocks = [block.to_dict() for block in said.content]
            turns = [*turns, {"role": "assistant", "content": blocks}]
            results = [
                {"type": "tool_result", "tool_use_id": block["id"], "content": "a sea"}
                for block in blocks
                if block["type"] == "tool_use"
            ]
            asks = results or [{"type": "text", "text": "go on"}]
    assert ladder.hosted.refusals + ladder.other.refusals == []
    for request in (*ladder.hosted.requests, *ladder.other.requests):
        sent = json.dumps(request.body)
        assert "tl1." not in sent
        kept += '"signature"' in sent
    assert kept > 5  # the server's own thinking came back to it


async def test_chat_clients_may_change_tiers_too(ladder: Ladder) -> None:
    look = {"type": "function", "function": {"name": "look"}}
    ladder.hosted.say(thinking("let me see"), tool_use("look", {"at": "sea"}))
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    asked = {"tools": [look], "reasoning_effort": "low"}
    first = await ladder.app.client.post(
        "/v1/chat/completions", json={"model": "tier:hosted", "messages": messages, **asked}
    )
    message = first.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a sea"}
    messages += [message, result]
    again = await ladder.app.client.post(
        "/v1/chat/completions", json={"model": "tier:hosted", "messages": messages, **asked}
    )
    switched = await ladder.app.client.post(
        "/v1/chat/completions", json={"model": "tier:other", "messages": messages, **asked}
    )
    assert (again.status_code, switched.status_code) == (200, 200), switched.text
    assert "x-tierline-dropped" not in again.headers
    assert switched.headers["x-tierline-dropped"] == "reasoning"
    assert ladder.hosted.requests[1].body["messages"][1]["content"][0]["thinking"] == "let me see"
    assert ladder.other.requests[0].body["messages"][1]["content"][0]["type"] == "tool_use"


async def test_errors_have_the_apis_envelope_and_types(ladder: Ladder) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await ladder.ask(stream=False, model="nobody")
    assert missing.value.request_id is not None
    assert missing.value.body["request_id"] == missing.value.request_id  # type: ignore[index, call-overload]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        await ladder.ask(stream=True, max_tokens="many")
    with pytest.raises(anthropic.BadRequestError, match="unexpected `tool_use_id`"):
        result = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
        turn = {"role": "user", "content": [result]}
        await ladder.ask(stream=False, model="tier:hosted", messages=[turn], tools=[LOOK])
    ladder.local.default = error_reply(429, headers={"retry-after": "3"})
    with pytest.raises(anthropic.RateLimitError):
        await ladder.ask(stream=False, model="tier:local")
    for method, path, status, kind in (
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
    ):
        wrong = await ladder.app.client.request(method, path, headers={"x-request-id": "wrong-1"})
        told = wrong.json()
        assert (wrong.status_code, wrong.headers["x-request-id"]) == (status, "wrong-1")
        assert (told["type"], told["error"]["type"], told["request_id"]) == ("error", kind, "wrong-1")


async def test_keys_in_either_header(tmp_path: Path, upstreams: Any) -> None:
    async with ladder_in(tmp_path, upstreams, tenants={"acme": {"key_env": ["TENANT_KEY"]}}) as ladder:
        assert (await ladder.ask(stream=False)).stop_reason == "end_turn"  # a bearer token
        body = {"model": "chat", "max_tokens": 10, "messages": HELLO}
        for key, status in (("tenant-key-0123456789", 200), ("another", 401)):
            headers = {"x-api-key": key, "authorization": ""}
            reply = await ladder.app.client.post("/v1/messages", json=body, headers=headers)
            assert reply.status_code == status
        assert reply.json()["error"]["type"] == "authentication_error"
        counted = await ladder.app.client.post("/v1/messages/count_tokens", json=body, headers={"x-api-key": "another"})
        assert counted.status_code == 401


async def test_surfaces_are_listed_as_the_apis_models(ladder: Ladder) -> None:
    listed = [model async for model in ladder.sdk.models.list()]
    assert [(model.id, model.type, model.display_name) for model in listed] == [
        ("auto", "model", "auto"),
        ("chat", "model", "chat"),
        ("claude-chat", "model", "chat"),
    ]
    one = await ladder.sdk.models.retrieve("gpt-4o-mini")
    assert one.created_at == listed[0].created_at
    assert one.created_at.year >= 2026


async def test_surfaces_are_listed_in_pages(ladder: Ladder) -> None:
    """As the SDK follows them, in both directions; a cursor or a limit that is none is the client's mistake."""
    sdk = ladder.sdk.models
    page = await sdk.list(limit=1)
    assert ([one.id for one in page.data], page.has_more, page.last_id) == (["auto"], True, "auto")
    page = await page.get_next_page()
    assert ([one.id for one in page.data], page.has_more) == (["chat"], True)
    assert [one.id async for one in sdk.list(limit=1)] == ["auto", "chat", "claude-chat"]
    page = await sdk.list(before_id="chat", limit=5)
    assert ([one.id for one in page.data], page.has_more, page.first_id) == (["auto"], False, "auto")
    page = await sdk.list(before_id="auto")
    assert (page.data, page.has_more, page.first_id) == ([], False, None)
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after_id": "nope"}, {"after_id": "auto", "before_id": "chat"}):
        with pytest.raises(anthropic.BadRequestError):
            await sdk.list(**wrong)


@pytest.mark.parametrize("stream", [False, True])
async def test_over_a_socket(gateway: Gateway, upstreams: Any, stream: bool) -> None:
    """The process that a user starts, with the SDK's own HTTP client."""
    local, hosted, other = upstreams
    for one in upstreams:
        one.reset()
    hosted.say(thinking("let me see"), text("Here."), tool_use("look", {"at": "sea"}))
    async with anthropic.AsyncAnthropic(base_url=gateway.origin, api_key="any", max_retries=0) as sdk:
        ladder = Ladder(None, sdk, local, hosted, other)  # type: ignore[arg-type]
        said = await ladder.ask(stream=stream, model="tier:hosted", thinking=BUDGET, tools=[LOOK])
        assert [block.type for block in said.content] == ["thinking", "text", "tool_use"]
        hello = await ladder.ask(stream=stream)
        assert hello.content[0].text == "The scripted upstream says hello."


async def test_tokens_are_counted_by_a_first_tier_that_can(ladder: Ladder) -> None:
    """With what the API counts alone; where it refuses or is slow, the gateway's own estimate is told as such."""
    body = {"model": "tier:hosted", "messages": HELLO, "tools": [LOOK], "thinking": BUDGET, "system": "Be brief."}
    counts = ladder.sdk.messages.with_raw_response.count_tokens
    raw = await counts(**body)  # type: ignore[arg-type]
    [asked] = ladder.hosted.requests
    assert ladder.hosted.refusals == []
    assert "x-tierline-estimated" not in raw.headers
    assert (await raw.parse()).input_tokens == len(asked.raw) // 4
    assert asked.path.partition("?")[0] == "/v1/messages/count_tokens"
    assert asked.body.keys() == {"model", "messages", "tools", "thinking", "system"}
    assert asked.body["model"] == "claude-haiku-4-5"
    for reply in (Reply(status=500), Reply(before_headers_s=3.0)):
        ladder.hosted.queue(reply)
        raw = await counts(**body)  # type: ignore[arg-type]
        assert raw.headers["x-tierline-estimated"] == "1" and (await raw.parse()).input_tokens > 10


async def test_counting_tokens_is_an_estimate(ladder: Ladder) -> None:
    few = await ladder.sdk.messages.count_tokens(model="chat", messages=HELLO)
    raw = await ladder.sdk.messages.with_raw_response.count_tokens(
        model="chat", messages=[{"role": "user", "content": "hello " * 100}], tools=[LOOK], system="Be brief."
    )
    assert raw.headers["x-tierline-estimated"] == "1"
    many = await raw.parse()
    assert few.input_tokens < 20 < 150 < many.input_tokens < 250
    with pytest.raises(anthropic.BadRequestError):
        await ladder.sdk.messages.count_tokens(model="chat", messages=[])
    assert ladder.local.requests == []
