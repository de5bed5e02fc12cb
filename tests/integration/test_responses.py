"""`/v1/responses` over real sockets: the SDK's calls, cascades, caches and shared answers, and kept responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import redis
from pydantic import BaseModel

from tests.support.app import in_process
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.response_events import check_response, checked, events_of
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Fault, Reply, ToolCall, Upstream
from tests.support.wait import until

Json = dict[str, Any]
LOOK: Any = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"q": {"type": "integer"}},
        "required": ["q"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def client(cached_gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cached_gateway.url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def post(gateway: Gateway, body: Json, headers: dict[str, str] | None = None, path: str = "/responses") -> Any:
    """The whole response to a POST."""
    return httpx2.post(f"{gateway.url}{path}", json={"model": "chat", **body}, headers=headers, timeout=20)


def get(gateway: Gateway, path: str) -> Any:
    return httpx2.get(f"{gateway.url}/responses/{path}", timeout=20)


def is_kept(gateway: Gateway, response_id: str) -> bool:
    return bool(get(gateway, response_id).status_code == 200)


# --- the SDK's calls --------------------------------------------------------------------------------------------------


def test_create(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """A response parses into the SDK's types, and its headers say how it came about."""
    local_upstream.default = Reply(text="one two three")
    raw = client.responses.with_raw_response.create(
        model="chat", input="hi", instructions="Be brief.", max_output_tokens=50
    )
    response = raw.parse()
    assert response.output_text == "one two three"
    assert response.status == "completed"
    assert response.usage is not None and response.usage.output_tokens == 3
    check_response(json.loads(raw.text), "completed")
    assert raw.headers["x-tierline-path"] == "direct"
    assert raw.headers["x-tierline-surface"] == "chat"
    body = local_upstream.requests[0].body
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert body["max_completion_tokens"] == 50
    assert "x_tierline_native" not in body and "input" not in body


def test_stream(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """The SDK's own accumulation agrees with the last event."""
    local_upstream.default = Reply(text="one two three four five six seven")
    with client.responses.stream(model="chat", input="hi") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == "one two three four five six seven"
    assert final.usage is not None and final.usage.output_tokens == 7


def test_parse(client: openai.OpenAI, local_upstream: Upstream) -> None:
    class City(BaseModel):
        name: str

    local_upstream.default = Reply(text='{"name": "Paris"}')
    response = client.responses.parse(model="chat", input="Where?", text_format=City)
    assert response.output_parsed == City(name="Paris")
    assert local_upstream.requests[0].body["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_and_its_answer(client: openai.OpenAI, local_upstream: Upstream, stream: bool) -> None:
    """Two turns: the call, and its output with the kept response before it."""
    local_upstream.queue(Reply(text="", tool_calls=(ToolCall("look", '{"q":1}'),)), Reply(text="It is there."))
    ask: Json = {"model": "chat", "tools": [LOOK]}
    first = _answer(client, stream, input=f"Find it, streamed: {stream}.", **ask)
    call = first.output[0]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"q": 1})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "in the drawer"}
    second = _answer(client, stream, input=[output], previous_response_id=first.id, **ask)
    assert second.output_text == "It is there."
    assert second.previous_response_id == first.id
    sent = local_upstream.requests[1].body["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool"]
    assert sent[1]["tool_calls"][0]["id"] == call.call_id == sent[2]["tool_call_id"]


def _answer(client: openai.OpenAI, stream: bool, **body: Any) -> Any:
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as events:
        return events.get_final_response()


# --- the pipeline -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_poor_draft_is_escalated_before_the_first_byte(
    cached_gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream, stream: bool
) -> None:
    """The draft's tokens never reach the client, and the reply is one response of the stronger tier."""
    local_upstream.default = Reply(text="no idea at all really", logprob=-3.0)
    hosted_upstream.default = Reply(text="forty-two it is")
    reply = post(cached_gateway, {"input": f"hard, streamed: {stream}", "stream": stream})
    assert (reply.headers["x-tierline-path"], reply.headers["x-tierline-tier"]) == ("escalated", "hosted")
    response = checked(reply.content)[-1]["response"] if stream else reply.json()
    check_response(response, "completed")
    assert response["output"][0]["content"][0]["text"] == "forty-two it is"
    assert response["model"] == "large"
    assert "idea" not in reply.text


def test_a_repeat_comes_from_the_cache(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """Streamed and not share one entry, whatever says nothing about the answer; each reply has ids of its own."""
    local_upstream.default = Reply(text="one two three")
    first = post(cached_gateway, {"input": "again"})
    until(lambda: post(cached_gateway, {"input": "again"}).headers["x-tierline-path"] == "cache-exact")
    streamed = post(cached_gateway, {"input": "again", "stream": True, "store": False, "metadata": {"a": "b"}})
    assert streamed.headers["x-tierline-path"] == "cache-exact"
    last = checked(streamed.content)[-1]["response"]
    assert last["output"][0]["content"] == first.json()["output"][0]["content"]
    assert last["usage"] == first.json()["usage"]
    assert last["id"] != first.json()["id"]
    assert last["metadata"] == {"a": "b"}


def test_what_chat_cannot_express_is_part_of_the_key(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """A field that is lost may change another backend's answer, so it is another request; and it is listed."""
    plain = {"input": "keyed"}
    until(lambda: post(cached_gateway, plain).headers["x-tierline-path"] == "cache-exact")
    for more in ({"truncation": "auto"}, {"reasoning": {"summary": "auto"}}, {"instructions": "Shout."}):
        reply = post(cached_gateway, {**plain, **more})
        assert reply.headers["x-tierline-path"] == "direct", more
    lost = post(cached_gateway, {"input": "lost", "truncation": "auto", "reasoning": {"summary": "auto"}})
    assert lost.headers["x-tierline-dropped"] == "truncation, reasoning.summary"


async def test_equal_requests_at_once_share_one_answer(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """Of eight streams and eight whole replies at once one calls the backend; each client has a response of its own."""
    local_upstream.default = Reply(text="one two three four five six", before_first_s=0.3)
    body = {"model": "chat", "input": "crowd"}
    async with httpx2.AsyncClient(base_url=cached_gateway.url, timeout=20) as client:
        replies = await asyncio.gather(
            *(client.post("/responses", json={**body, "stream": number % 2 == 0}) for number in range(16))
        )
    responses = [
        checked(reply.content)[-1]["response"] if number % 2 == 0 else reply.json()
        for number, reply in enumerate(replies)
    ]
    assert len(local_upstream.requests) <= 2  # a whole reply and a stream are two flights
    assert {response["output"][0]["content"][0]["text"] for response in responses} == {"one two three four five six"}
    assert len({response["id"] for response in responses}) == 16
    assert any(reply.headers.get("x-tierline-coalesced") for reply in replies)


def test_the_first_byte_waits_for_the_judge(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """A good draft is committed after its first tokens, and the rest is written as it comes."""
    local_upstream.default = Reply(text="one two three four five six seven eight", between_s=0.1)
    began = time.monotonic()
    body = {"model": "chat", "input": "slow", "stream": True}
    with httpx2.stream("POST", f"{cached_gateway.url}/responses", json=body, timeout=20) as reply:
        deltas = (line for line in reply.iter_lines() if line.startswith("event: response.output_text.delta"))
        times = [time.monotonic() - began for _ in deltas]
    assert len(times) == 8
    assert times[-1] - times[3] > 0.2


# --- breaks -----------------------------------------------------------------------------------------------------------

FAULTS = [
    Fault.CLOSE_MID_STREAM,
    Fault.EOF_MID_STREAM,
    Fault.RESET_MID_STREAM,
    Fault.MALFORMED_EVENT,
    Fault.ERROR_MID_STREAM,
]


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory, _store: LocalStore) -> Iterator[tuple[Gateway, Upstream]]:
    """A gateway over a model of its own, for tests that break streams: after five in a row the model is not called.

    Gateways with a store tell each other of that, by the model's URL. So no other test may use this model.
    """
    folder = tmp_path_factory.mktemp("breaking")
    with Upstream() as upstream, serve(folder, upstream.url, store_url=_store.url) as gateway:
        yield gateway, upstream


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_breaks_says_so(breaking: tuple[Gateway, Upstream], fault: Fault) -> None:
    """After the first byte: an error event, a failed response, and nothing is kept."""
    gateway, upstream = breaking
    upstream.default = Reply(text="one two three four five six seven", fault=fault, fault_after=6, between_s=0.02)
    reply = post(gateway, {"input": f"break {fault}", "stream": True})
    events = checked(reply.content)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert isinstance(events[-2]["code"], str) and events[-2]["message"]
    assert events[-1]["response"]["error"]["message"]
    assert not is_kept(gateway, events[-1]["response"]["id"])


def test_errors_before_the_first_byte_are_in_the_envelope(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    for body, status, code, param in (
        ({"input": [{"role": "bot", "content": "a"}]}, 400, "unsupported_value", "input[0].role"),
        ({}, 400, "missing_required_parameter", "input"),
        ({"input": []}, 400, "unsupported_value", "input"),
        ({"input": "a", "model": "none"}, 404, "model_not_found", "model"),
        ({"input": "a", "background": True, "store": False}, 400, "unsupported_value", "background"),
        ({"input": "a", "tools": [{"type": "file_search"}]}, 400, "unsupported_value", "tools[0].type"),
        ({"input": "a", "store": "yes"}, 400, "invalid_type", "store"),
        ({"input": "a", "previous_response_id": 5}, 400, "invalid_type", "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_0"}]}, 400, "item_not_found", "input[0]"),
        ({"input": "a", "previous_response_id": "resp_0"}, 400, "previous_response_not_found", "previous_response_id"),
    ):
        reply = post(cached_gateway, body)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (status, code, param), body
        assert reply.headers["x-request-id"]
    assert not local_upstream.requests


def test_other_methods(cached_gateway: Gateway) -> None:
    for method, path, allow in (
        ("GET", "", "POST"),
        ("POST", "/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/input_tokens", None),
        ("GET", "/resp_1/cancel", "POST"),
        ("GET", "/compact", "POST"),
        ("POST", "/resp_1/others", None),
    ):
        reply = httpx2.request(method, f"{cached_gateway.url}/responses{path}", timeout=20)
        assert reply.status_code == (404 if allow is None else 405), path
        assert reply.headers.get("allow") == allow, path


NUMBERS = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}


@pytest.mark.parametrize("stream", [False, True])
def test_every_member_that_the_api_requires_is_there(cached_gateway: Gateway, stream: bool) -> None:
    """Sampling as numbers, the API's own defaults; a function with all its members; what was asked, where it was."""
    tools = [{"type": "function", "name": "f"}, {"type": "function", "name": "g", "strict": True, "description": "G."}]
    reply = post(cached_gateway, {"model": "chat", "input": "hello", "tools": tools, "stream": stream})
    made = (
        [event["response"] for event in events_of(reply.content) if "response" in event] if stream else [reply.json()]
    )
    for response in made:
        assert {name: response[name] for name in NUMBERS} == NUMBERS
        assert isinstance(response["service_tier"], str)
        assert response["tools"] == [
            {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None},
            {"type": "function", "name": "g", "description": "G.", "parameters": None, "strict": True},
        ]
    asked = post(cached_gateway, {"model": "chat", "input": "hello", "temperature": 0.2, "top_p": 0.5}).json()
    assert (asked["temperature"], asked["top_p"]) == (0.2, 0.5)


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_that_no_backend_has_is_left_out_and_listed(
    cached_gateway: Gateway, local_upstream: Upstream, stream: bool
) -> None:
    """Codex offers it with every request."""
    body = {"model": "chat", "input": f"hello {stream}", "tools": [{"type": "web_search"}], "tool_choice": "auto"}
    reply = post(cached_gateway, {**body, "stream": stream})
    assert (reply.status_code, reply.headers["x-tierline-dropped"]) == (200, "tools[0]")
    assert "tools" not in local_upstream.requests[-1].body
    assert post(cached_gateway, {**body, "tool_choice": "required"}).json()["error"]["param"] == "tools[0].type"


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/chat/completions", "/v1/messages"])
def test_an_upgrade_to_a_websocket_is_refused_by_its_own_status(cached_gateway: Gateway, path: str) -> None:
    """Agents try it first, and take 426 for the word to send plain requests; any other status is tried again."""
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    reply = httpx2.get(f"{cached_gateway.origin}{path}", headers=headers, timeout=20)
    assert (reply.status_code, reply.headers["upgrade"], reply.headers["connection"]) == (426, "HTTP/1.1", "upgrade")
    assert "POST" in reply.json()["error"]["message"]


# --- kept responses ---------------------------------------------------------------------------------------------------


def test_a_kept_response_is_read_listed_and_deleted(client: openai.OpenAI, local_upstream: Upstream) -> None:
    local_upstream.default = Reply(text="one two three")
    made = client.responses.create(model="chat", input="keep me")
    later = client.responses.create(model="chat", input="and me", previous_response_id=made.id)
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    items = client.responses.input_items.list(later.id, order="asc").data
    assert [(item.type, item.content[0].text) for item in items] == [  # type: ignore[union-attr]
        ("message", "keep me"),
        ("message", "one two three"),
        ("message", "and me"),
    ]
    page = client.responses.input_items.list(later.id, limit=2)
    assert [item.id for item in page.data] == [items[2].id, items[1].id]
    assert page.has_more
    assert [item.id for item in page.get_next_page().data] == [items[0].id]
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError) as missing:
            call(made.id)
        assert missing.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as broken:  # a conversation without its beginning cannot go on
        client.responses.create(model="chat", input="more", previous_response_id=later.id)
    assert (broken.value.code, broken.value.param) == ("previous_response_not_found", "previous_response_id")
    with pytest.raises(openai.BadRequestError) as synchronous:
        client.responses.cancel(later.id)
    assert "synchronous" in synchronous.value.message


def test_a_long_conversation(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """Every turn sees all before it, in order; instructions are of their own turn only."""
    previous = None
    for turn in range(6):
        local_upstream.default = Reply(text=f"answer {turn}")
        made = client.responses.create(
            model="chat", input=f"question {turn}", instructions=f"rule {turn}",
            **({} if previous is None else {"previous_response_id": previous}),
        )  # fmt: skip
        previous = made.id
    sent = local_upstream.requests[-1].body["messages"]
    expected = [f"{what} {turn}" for turn in range(6) for what in ("question", "answer")][:-1]
    assert [one["content"] for one in sent] == ["rule 5", *expected]


def test_references_to_items(cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """As the Vercel AI SDK sends earlier items: by their ids alone, without `previous_response_id`."""
    local_upstream.default = Reply(text="one two three")
    item = post(cached_gateway, {"input": "first", "stream": True, "store": True})
    reference = checked(item.content)[-1]["response"]["output"][0]["id"]
    entries = [{"role": "user", "content": "first"}, {"type": "item_reference", "id": reference}, {"id": reference}]
    post(cached_gateway, {"input": [*entries, {"role": "user", "content": "second"}]})
    sent = local_upstream.requests[-1].body["messages"]
    assert [one["content"] for one in sent] == ["first", "one two three", "one two three", "second"]


def test_what_is_not_to_be_kept_leaves_nothing(
    cached_gateway: Gateway, store: LocalStore, local_upstream: Upstream
) -> None:
    body = {"input": "the canary sings", "store": False, "stream": True}
    last = checked(post(cached_gateway, body, {"x-tierline-cache": "no-store"}).content)[-1]["response"]
    assert last["store"] is False
    assert not is_kept(cached_gateway, last["id"])
    with redis.Redis.from_url(store.url) as values:
        assert list(values.scan_iter("tierline:r3:*:x:*")) == []


def test_tenants_do_not_see_each_others_responses(tmp_path: Path, store: LocalStore, local_upstream: Upstream) -> None:
    """Nor by reference, nor do they delete them; and a kept response lives as long as its policy says."""
    settings = {"tenants": {"a": {"key_env": "KEY_A"}, "b": {"key_env": "KEY_B"}}}
    policies = {
        "chat": CHAT + "state: {responses: 90s}\n",
        "none": CHAT.replace("chat", "none").replace("gpt-4o-mini", "x") + "state: {responses: 0s}\n",
    }
    env = {"KEY_A": "key-of-a", "KEY_B": "key-of-b"}
    with serve(
        tmp_path, local_upstream.url, store_url=store.url, settings=settings, policies=policies, env=env
    ) as gateway:
        mine, yours = ({"authorization": f"Bearer key-of-{name}"} for name in "ab")
        made = post(gateway, {"input": "secret"}, mine).json()
        url = f"{gateway.url}/responses/{made['id']}"
        assert httpx2.get(url, headers=mine).status_code == 200
        assert httpx2.get(url).status_code == 401
        assert httpx2.get(url, headers=yours).status_code == 404
        assert httpx2.delete(url, headers=yours).status_code == 404
        for body in (
            {"input": "tell", "previous_response_id": made["id"]},
            {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]},
        ):
            assert post(gateway, body, yours).status_code == 400
        assert httpx2.get(url, headers=mine).json() == made
        with redis.Redis.from_url(store.url) as values:
            (key,) = values.scan_iter("tierline:r3:*:x:*")
            assert b"secret" not in key and made["id"].encode() not in key
            ((_, end),) = values.zrange(key.partition(b":x:")[0] + b":ages", 0, -1, withscores=True)
            assert 0 < end / 1e6 - time.time() <= 90
        refused = post(gateway, {"input": "a", "model": "none", "store": True}, mine)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "store")
        assert post(gateway, {"input": "a", "model": "none"}, mine).json()["store"] is False


def test_a_store_that_is_down_fails_only_what_needs_it(tmp_path: Path, local_upstream: Upstream) -> None:
    with local_store() as own, serve(tmp_path, local_upstream.url, store_url=own.url) as gateway:
        made = post(gateway, {"input": "first"}).json()
        assert is_kept(gateway, made["id"])
        own.stop()
        assert post(gateway, {"input": "second", "store": True}).status_code == 200
        assert post(gateway, {"input": "third", "stream": True}).status_code == 200
        for reply in (post(gateway, {"input": "more", "previous_response_id": made["id"]}), get(gateway, made["id"])):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "state_unavailable")
            assert reply.headers["retry-after"] == "1"


def test_without_a_store_nothing_is_kept(gateway: Gateway) -> None:
    """Answers come as always; what would need a store is refused by name."""
    made = post(gateway, {"input": "first"}).json()
    assert made["store"] is False
    for body, param in (
        ({"previous_response_id": made["id"]}, "previous_response_id"),
        ({"store": True}, "store"),
    ):
        reply = post(gateway, {"input": "a", **body})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert get(gateway, made["id"]).status_code == 400


def test_counting_tokens(client: openai.OpenAI, cached_gateway: Gateway, local_upstream: Upstream) -> None:
    """An estimate, which says so; no model is called, and the whole conversation counts."""
    few = client.responses.input_tokens.count(model="chat", input="hello there")
    many = client.responses.input_tokens.count(model="chat", input="hello there " * 200, tools=[LOOK])
    assert few.object == "response.input_tokens"
    assert 2 <= few.input_tokens < 20 < 600 < many.input_tokens < 1200
    assert not local_upstream.requests
    made = client.responses.create(model="chat", input="hello there " * 100)
    later = client.responses.input_tokens.count(model="chat", input="a", previous_response_id=made.id)
    assert later.input_tokens > 300
    raw = post(cached_gateway, {"input": "a"}, path="/responses/input_tokens")
    assert raw.headers["x-tierline-estimated"] == "1"
    assert post(cached_gateway, {"input": 5}, path="/responses/input_tokens").json()["error"]["param"] == "input"


# --- a backend that speaks the API itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_backend_of_this_api_gets_the_request_as_it_is(
    cached_gateway: Gateway, store: LocalStore, local_upstream: Upstream, tmp_path: Path, stream: bool
) -> None:
    """A gateway in front of this one: two turns with a call, kept by the first, of items under its own ids."""
    local_upstream.queue(Reply(text="", tool_calls=(ToolCall("look", '{"q":1}'),)), Reply(text="It is there."))
    backend = {
        "kind": "responses",
        "base_url": cached_gateway.url,
        "model": "chat",
        "capabilities": ["tools", "json", "hosted_tools"],
    }
    settings = {"tiers": [{"name": "local", "backends": [backend]}]}
    policies = {"chat": CHAT.replace("tiers: [local, hosted]", "tiers: [local]")}
    async with in_process(tmp_path, "", store_url=store.url, settings=settings, policies=policies) as front:

        async def asked(**body: Any) -> Json:
            reply = await front.client.post(
                "/v1/responses", json={"model": "chat", "tools": [LOOK], "stream": stream, "truncation": "auto", **body}
            )
            assert reply.status_code == 200, reply.text
            assert "x-tierline-dropped" not in reply.headers
            last: Json = checked(reply.content)[-1]["response"] if stream else reply.json()
            check_response(last, "completed")
            return last

        question = f"Find it, passed on, streamed: {stream}."
        first = await asked(input=question)
        (call,) = first["output"]
        assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"q": 1})
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "in the drawer"}
        second = await asked(input=[output], previous_response_id=first["id"])
        assert second["output"][0]["content"][0]["text"] == "It is there."
        assert second["previous_response_id"] == first["id"]
        roles = [one["role"] for one in local_upstream.requests[-1].body["messages"]]
        assert roles == ["user", "assistant", "tool"]
        hosted = await front.client.post(
            "/v1/responses", json={"model": "chat", "input": "a", "tools": [{"type": "mcp"}]}
        )
        error = hosted.json()["error"]  # refused by the gateway behind, as the first one passes it on
        assert (hosted.status_code, error["param"]) == (400, "tools[0].type")
        again = await asked(input=question, metadata={"a": "b"})
        assert again["id"] != first["id"]
