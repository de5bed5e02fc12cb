"""An agent's later steps at a thinking model whose server wants the reasoning of its calls back, just as it gave it."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.registry import KeyRegistry
from tests.parts.access.test_keys_of_store import made
from tests.support.app import InProcess, in_process
from tests.support.dialect_streams import chat_stream
from tests.support.plain_http import PlainReply, PlainServer
from tests.support.store import UNHURRIED, LocalStore

Json = dict[str, Any]
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
CITIES = ("Rome", "Oslo", "Bern")
POLICY = """
surface: lab
match: {models: [lab]}
slo: {deadline: 60s}
holdout: 0%
tiers: [local, other]
route: {classifier: none, start: {local: otherwise}}
state: {responses: 1h}
"""
FORMS = ("reasoning_content", "reasoning", "details", "google")


class Thinker:
    """A server of one thinking model. `refusals` says what it refused; `form` is how it gives reasoning.

    Each of its first answers calls a tool twice; the last is a text.
    """

    def __init__(self, form: str, ident: str = "functions.look:{}") -> None:
        self.form = form
        self.ident = ident
        self.refusals: list[str] = []
        self.bodies: list[Json] = []
        self._given: dict[str, Json] = {}

    def reply(self, path: str, raw: bytes) -> PlainReply:
        """What it answers."""
        body = json.loads(raw)
        self.bodies.append(body)
        if wrong := self._wrong(body):
            self.refusals.append(wrong)
            return PlainReply(
                json.dumps({"error": {"message": wrong, "type": "invalid_request_error"}}).encode(), status=400
            )
        step = sum(message["role"] == "assistant" for message in body["messages"])
        choice: Json = {
            "index": 0,
            "message": self._message(step),
            "finish_reason": "stop" if step == 2 else "tool_calls",
        }
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
        whole = {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        if body.get("stream"):
            return PlainReply(chat_stream(whole), events=True)
        return PlainReply(json.dumps(whole).encode())

    def _message(self, step: int) -> Json:
        thought = f"I should look, {step}."
        message: Json = {"role": "assistant", "content": None}
        if self.form in ("reasoning_content", "reasoning"):
            message[self.form] = thought
        elif self.form == "details":
            # Of a text without a signature, of one with it, and of one that is encrypted, as OpenRouter has them.
            common = {"id": f"rs_{step}", "format": "openai-responses-v1"}
            signed = {"signature": "c2ln"} if step % 2 else {}
            message["reasoning"] = thought
            message["reasoning_details"] = [
                {"type": "reasoning.text", "text": thought, "index": 0, **common, **signed},
                {"type": "reasoning.encrypted", "data": "Z2Vo", "index": 1, **common},
            ]
        if step == 2:
            return {**message, "content": "All are sunny."}
        message["tool_calls"] = [
            {
                "id": self.ident.format(2 * step + at),
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps({"city": CITIES[step + at]})},
            }
            for at in range(2)
        ]
        if self.form == "google":
            message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": f"c2ln{step}"}}
        return message

    def _wrong(self, body: Json) -> str:
        """What is missing of the reasoning that it gave; empty if all is there."""
        step = itertools.count()
        for at, message in enumerate(body["messages"]):
            if message["role"] != "assistant":
                continue
            given = self._message(next(step))
            if not message.get("tool_calls"):
                continue
            if self.form == "google":
                got, due = message["tool_calls"][0].get("extra_content"), given["tool_calls"][0]["extra_content"]
                if got != due:
                    return f"messages.{at}: a thought_signature is not valid: {got}"
            elif self.form == "details":
                if message.get("reasoning_details") != given["reasoning_details"]:
                    return f"messages.{at}: invalid reasoning_details: {message.get('reasoning_details')}"
            elif message.get(self.form) != given[self.form] or "reasoning_details" in message:
                return f"The `{self.form}` in the thinking mode must be passed back to the API ({at}: {message})."
        return ""


@asynccontextmanager
async def gateway(folder: Path, url: str, store_url: str | None, other: str = "") -> AsyncIterator[InProcess]:
    def tier(name: str, at: str) -> Json:
        backend = {"base_url": at, "model": f"thinker-{name}", "logprobs": False, "capabilities": ["tools"]}
        return {"name": name, "backends": [backend]}

    tiers = [tier("local", url), tier("other", other or url)]
    settings = {"tiers": tiers, "default_surface": "lab"}
    async with in_process(folder, url, store_url=store_url, policies={"lab": POLICY}, settings=settings) as app:
        app.steps.gate.stop()
        yield app


# --- clients: each asks until it gets a text, and sends back what its API keeps ---------------------------------------


async def post(app: InProcess, path: str, body: Json, stream: bool) -> tuple[int, Any]:
    headers = {"anthropic-version": "2023-06-01"} if path == "/v1/messages" else {}
    reply = await app.client.post(path, json={"model": "tier:local", **body, "stream": stream}, headers=headers)
    if reply.status_code != 200 or not stream:
        return reply.status_code, reply.json()
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    return 200, events


def message_of_chunks(events: list[Json]) -> Json:
    message: Json = {"role": "assistant", "content": None}
    calls: dict[int, Json] = {}
    for event in events:
        for choice in event["choices"]:
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for part in value:
                        call = calls.setdefault(part["index"], {})
                        function = call.setdefault("function", {"name": "", "arguments": ""})
                        for member, text in part.get("function", {}).items():
                            function[member] += text
                        call |= {key: one for key, one in part.items() if key not in ("function", "index")}
                elif name in ("content", "reasoning_content", "reasoning") and value:
                    message[name] = (message.get(name) or "") + value
                elif name == "reasoning_details":
                    message[name] = [*message.get(name, ()), *value]
                elif value is not None:
                    message[name] = value
    return {**message, "tool_calls": [calls[at] for at in sorted(calls)]} if calls else message


async def chat(app: InProcess, stream: bool, keeps: str) -> str:
    messages: list[Json] = [{"role": "user", "content": f"weather {keeps} {stream}"}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    for _ in range(3):
        status, got = await post(app, "/v1/chat/completions", {"messages": messages, "tools": tools}, stream)
        assert status == 200, got
        message = message_of_chunks(got) if stream else got["choices"][0]["message"]
        if keeps == "nothing":
            message = {name: message[name] for name in ("role", "content", "tool_calls") if name in message}
            for call in message.get("tool_calls", ()):
                call.pop("extra_content", None)
        if not message.get("tool_calls"):
            return str(message["content"])
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in message["tool_calls"]]
        messages += [message, *results]
    return ""


def content_of_events(events: list[Json]) -> list[Json]:
    blocks: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                member = {"partial_json": "json"}.get(name, name)
                if name != "type":
                    blocks[-1][member] = blocks[-1].get(member, "") + value
    for block in blocks:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return blocks


async def messages(app: InProcess, stream: bool, keeps: str) -> str:
    turns: list[Json] = [{"role": "user", "content": f"weather {keeps} {stream}"}]
    tools = [{"name": "look", "input_schema": SCHEMA}]
    more: Json = {"thinking": {"type": "adaptive"}} if keeps == "thinking" else {}
    for _ in range(3):
        body = {"messages": turns, "tools": tools, "max_tokens": 1000, **more}
        status, got = await post(app, "/v1/messages", body, stream)
        assert status == 200, got
        content = content_of_events(got) if stream else got["content"]
        if keeps == "nothing":
            kept = ("type", "id", "name", "input", "text")
            content = [{name: block[name] for name in kept if name in block} for block in content]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
            for block in content
            if block["type"] == "tool_use"
        ]
        if not results:
            return next(str(block["text"]) for block in content if block["type"] == "text")
        turns += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return ""


async def responses(app: InProcess, stream: bool, keeps: str) -> str:
    items: list[Json] = [{"role": "user", "content": f"weather {keeps} {stream}"}]
    tools = [{"type": "function", "name": "look", "parameters": SCHEMA}]
    more: Json = {"store": keeps == "kept"}
    if keeps == "encrypted":
        more["include"] = ["reasoning.encrypted_content"]
    for _ in range(3):
        status, got = await post(app, "/v1/responses", {"input": items, "tools": tools, **more}, stream)
        assert status == 200, got
        response = got[-1]["response"] if stream else got
        output = response["output"]
        results = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
            for item in output
            if item["type"] == "function_call"
        ]
        if not results:
            return next(str(item["content"][0]["text"]) for item in output if item["type"] == "message")
        if keeps == "kept":
            items, more = results, {"store": True, "previous_response_id": response["id"]}
            continue
        if keeps == "nothing":
            output = [
                {name: value for name, value in item.items() if name != "extra_content"}
                for item in output
                if item["type"] != "reasoning"
            ]
        items = [*items, *output, *results]
    return ""


Client = Callable[[InProcess, bool, str], Awaitable[str]]
CLIENTS: list[tuple[Client, str]] = [
    (chat, "all"),
    (chat, "nothing"),
    (messages, "thinking"),
    (messages, "nothing"),
    (responses, "encrypted"),
    (responses, "plain"),
    (responses, "nothing"),
    (responses, "kept"),
]


@pytest.mark.parametrize("form", FORMS)
async def test_reasoning_goes_back_under_the_name_its_server_used(form: str, store: LocalStore, tmp_path: Path) -> None:
    """Whatever the client's API keeps: three steps of each, whole and streamed, with two calls at once."""
    thinker = Thinker(form)
    with PlainServer(thinker.reply) as server:
        async with gateway(tmp_path, server.url, store.url) as app:
            for client, keeps in CLIENTS:
                for stream in (False, True):
                    told = await client(app, stream, keeps)
                    assert told == "All are sunny.", (client.__name__, keeps, stream)
                    assert thinker.refusals == [], (client.__name__, keeps, stream)


@pytest.fixture
def thinker() -> Iterator[tuple[Thinker, str]]:
    made = Thinker("reasoning_content")
    with PlainServer(made.reply) as server:
        yield made, server.url


TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
ASKED: Json = {"role": "user", "content": "weather"}


async def second(app: InProcess, first: Any, question: Json = ASKED, headers: Json | None = None, **more: Any) -> Any:
    """The reply to a second step whose client keeps nothing of the `first` reply but its calls."""
    calls = first.json()["choices"][0]["message"]["tool_calls"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in calls]
    said = [question, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    body = {"model": "tier:local", "messages": said, "tools": TOOLS, **more}
    return await app.client.post("/v1/chat/completions", json=body, headers=headers)


async def first(app: InProcess, question: Json = ASKED, headers: Json | None = None, **more: Any) -> Any:
    body = {"model": "tier:local", "messages": [question], "tools": TOOLS, **more}
    return await app.client.post("/v1/chat/completions", json=body, headers=headers)


def reasoning_sent(thinker: Thinker) -> list[Any]:
    return [one.get("reasoning_content") for one in thinker.bodies[-1]["messages"] if one["role"] == "assistant"]


async def test_another_worker_finds_the_reasoning_in_the_store(
    thinker: tuple[Thinker, str], store: LocalStore, tmp_path: Path
) -> None:
    server, url = thinker
    async with gateway(tmp_path / "a", url, store.url) as one:
        began = await first(one)
    async with gateway(tmp_path / "b", url, store.url) as other:
        assert (await second(other, began)).status_code == 200
    assert reasoning_sent(server) == ["I should look, 0."] and server.refusals == []


@pytest.mark.parametrize("what", ["conversation", "user"])
async def test_a_call_of_the_same_id_elsewhere_gets_none_of_it(
    what: str, thinker: tuple[Thinker, str], store: LocalStore, tmp_path: Path
) -> None:
    """Ids that servers count from 0 are in every conversation: each has its own reasoning, or none."""
    server, url = thinker
    async with gateway(tmp_path, url, store.url) as app:
        began = await first(app)
        if what == "conversation":
            await second(app, began, {"role": "user", "content": "weather elsewhere"})
        else:
            await second(app, began, user="somebody else")
    assert reasoning_sent(server) == [" "], "a text that says nothing, once the server has asked for it"
    assert len(server.refusals) == 2  # this thinker takes no other text than its own


async def test_another_team_of_the_tenant_gets_none_of_it(
    thinker: tuple[Thinker, str], store: LocalStore, tmp_path: Path
) -> None:
    """A conversation that begins alike has the same name in both; keys of one team go on with each other's."""
    server, url = thinker
    client = RedisStore.from_url(store.url, slack=UNHURRIED)
    own, again, other = [(await made(KeyRegistry(client), team=team))[0] for team in ("hr", "hr", "sales")]
    async with gateway(tmp_path, url, store.url) as app:
        began = await first(app, headers=own)
        assert (await second(app, began, headers=again)).status_code == 200
        assert reasoning_sent(server) == ["I should look, 0."]
        await second(app, began, headers=other)
    await client.aclose()
    assert reasoning_sent(server) == [" "]


async def test_nothing_is_kept_where_the_client_forbids_it(
    thinker: tuple[Thinker, str], store: LocalStore, tmp_path: Path
) -> None:
    server, url = thinker
    async with gateway(tmp_path, url, store.url) as app:
        began = await first(app, headers={"x-tierline-cache": "no-store"})
        await second(app, began)
    assert reasoning_sent(server) == [" "]


async def test_a_request_without_results_of_tools_asks_the_store_nothing(
    thinker: tuple[Thinker, str], store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = thinker
    async with gateway(tmp_path, url, store.url) as app:
        asked: list[int] = []
        find = app.steps.kept_calls.find

        async def counted(space: str, ids: Any) -> Any:
            asked.append(len(ids))
            return await find(space, ids)

        monkeypatch.setattr(app.steps.kept_calls, "find", counted)
        began = await first(app)
        assert asked == []
        await second(app, began)
        assert asked


async def test_a_server_that_wants_reasoning_gets_some_text_for_another_model_s_calls(tmp_path: Path) -> None:
    """As when a conversation moves to it from a tier that does not think; it is asked once, and then not again."""
    refusals: list[str] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        for message in json.loads(raw)["messages"]:
            if message.get("tool_calls") and not message.get("reasoning_content"):
                refusals.append(path)
                wrong = "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
                return PlainReply(
                    json.dumps({"error": {"message": wrong, "type": "invalid_request_error"}}).encode(), status=400
                )
        choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
        return PlainReply(json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode())

    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said += [{"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
    with PlainServer(reply) as server:
        async with gateway(tmp_path, server.url, None) as app:
            for _ in range(2):
                body = {"model": "tier:local", "messages": said, "tools": TOOLS}
                got = await app.client.post("/v1/chat/completions", json=body)
                assert got.status_code == 200, got.text
    assert len(refusals) == 1
