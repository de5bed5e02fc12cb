"""Conversations that requests name by one id (`conversation`), over real sockets, and two gateways of one store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support.gateway import CHAT, Gateway, serve
from tests.support.response_events import check_response
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]
USER: Any = {"role": "user", "content": "I am Ada."}


@pytest.fixture
def client(cached_gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cached_gateway.url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def texts(upstream: Upstream, request: int = -1) -> list[tuple[str, str]]:
    """Role and content of the messages that a backend was sent."""
    return [(one["role"], one["content"]) for one in upstream.requests[request].body["messages"]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_has_its_items_before_and_its_turn_after(
    client: openai.OpenAI, local_upstream: Upstream, stream: bool
) -> None:
    """Each turn gets what came before, and is added once it is answered; the response says where it belongs."""
    local_upstream.queue(Reply(text=f"Hello Ada, {stream}."), Reply(text="Ada."))
    made = client.conversations.create(items=[USER], metadata={"topic": "names"})
    assert made.id.startswith("conv_") and made.metadata == {"topic": "names"}
    first = client.responses.create(model="chat", input="Greet me.", conversation=made.id)
    assert first.conversation is not None and first.conversation.id == made.id
    named: Any = {"id": made.id}
    if stream:
        with client.responses.stream(model="chat", input="Who am I?", conversation=named) as events:
            second: Any = events.get_final_response()
    else:
        second = client.responses.create(model="chat", input="Who am I?", conversation=named)
    assert second.output_text == "Ada."
    told = [("user", "I am Ada."), ("user", "Greet me."), ("assistant", f"Hello Ada, {stream}."), ("user", "Who am I?")]
    assert texts(local_upstream) == told
    assert "conversation" not in local_upstream.requests[-1].body
    check_response(second.to_dict(), "completed")
    items: list[Any] = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [(one.role, one.content[0].text) for one in items] == [*told, ("assistant", "Ada.")]
    assert len({one.id for one in items}) == 5
    assert first.output[0].id in {one.id for one in items}


def test_items_are_added_shown_and_deleted(client: openai.OpenAI, local_upstream: Upstream) -> None:
    made = client.conversations.create()
    added: Any = client.conversations.items.create(made.id, items=[{"role": "user", "content": "one"}, USER])
    assert [one.content[0].text for one in added.data] == ["one", "I am Ada."]
    first = added.data[0]
    assert client.conversations.items.retrieve(first.id, conversation_id=made.id).id == first.id
    assert client.conversations.items.delete(first.id, conversation_id=made.id).id == made.id
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(first.id, conversation_id=made.id)
    client.responses.create(model="chat", input="Hm.", conversation=made.id)
    assert texts(local_upstream) == [("user", "I am Ada."), ("user", "Hm.")]
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="chat", input="Hm?", conversation=made.id)
    assert missing.value.code == "conversation_not_found"


def test_what_a_conversation_cannot_take_is_refused_by_name(client: openai.OpenAI, cached_gateway: Gateway) -> None:
    def refused(path: str, body: Json) -> tuple[int, str, str]:
        reply = httpx2.post(f"{cached_gateway.url}{path}", json=body, timeout=20)
        error = reply.json()["error"]
        return reply.status_code, error["code"], error["param"]

    made = client.conversations.create().id
    both = {"model": "chat", "input": "a", "conversation": made, "previous_response_id": "resp_1"}
    assert refused("/responses", both) == (400, "unsupported_value", "previous_response_id")
    ask: Json = {"model": "chat", "input": "a"}
    assert refused("/responses", {**ask, "conversation": 5}) == (400, "invalid_type", "conversation")
    assert refused("/responses", {**ask, "previous_response_id": made})[1] == "previous_response_not_found"
    assert refused("/conversations", {"items": [USER] * 21}) == (400, "unsupported_value", "items")
    assert refused("/conversations", {"items": [{"role": "nobody", "content": "a"}]})[2] == "items[0].role"
    assert refused("/conversations", {"items": [{**USER, "id": {"a": 1}}]}) == (400, "invalid_type", "items[0].id")
    assert refused("/conversations", {"metadata": {"a": 1}})[0] == 400
    for more in ({"conversation": made}, {"conversation": made, "background": True}, {"background": True}):
        assert refused("/responses", {**ask, **more, "model": "none"}) == (404, "model_not_found", "model")
    assert refused(f"/conversations/{made}/items", {"items": [{"type": "function_call"}]})[2] == "items[0].name"
    assert httpx2.get(f"{cached_gateway.url}/responses/{made}").status_code == 404
    answered = client.responses.create(model="chat", input="a")
    assert httpx2.get(f"{cached_gateway.url}/conversations/{answered.id}").status_code == 404


def test_an_item_whose_type_is_null_is_a_message(client: openai.OpenAI, local_upstream: Upstream) -> None:
    made = client.conversations.create(items=[{**USER, "type": None}]).id
    answered = client.responses.create(model="chat", input=[{**USER, "type": None}], conversation=made)
    listed = [*client.conversations.items.list(made), *client.responses.input_items.list(answered.id)]
    assert {one.type for one in listed} == {"message"} and texts(local_upstream) == [("user", "I am Ada.")] * 2


def test_a_request_that_fails_adds_nothing_and_frees_the_conversation(
    client: openai.OpenAI, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    made = client.conversations.create(items=[USER]).id
    for upstream in (local_upstream, hosted_upstream):  # what one tier alone refuses goes to the next
        upstream.queue(Reply(status=400, text="no"))
    with pytest.raises(openai.APIStatusError):
        client.responses.create(model="chat", input="first", conversation=made)
    client.responses.create(model="chat", input="second", conversation=made)
    assert texts(local_upstream) == [("user", "I am Ada."), ("user", "second")]


def test_a_chain_begins_in_a_conversation(client: openai.OpenAI, local_upstream: Upstream) -> None:
    """`previous_response_id` of a conversation's turn goes on from there, whatever the conversation had later."""
    local_upstream.queue(Reply(text="one"), Reply(text="two"), Reply(text="three"), Reply(text="four"))
    made = client.conversations.create(items=[USER]).id
    first = client.responses.create(model="chat", input="a", conversation=made)
    client.responses.create(model="chat", input="b", conversation=made)
    branch = client.responses.create(model="chat", input="c", previous_response_id=first.id)
    told = [("user", "I am Ada."), ("user", "a"), ("assistant", "one"), ("user", "c")]
    assert texts(local_upstream) == told
    client.responses.create(model="chat", input="d", previous_response_id=branch.id)
    assert texts(local_upstream) == [*told, ("assistant", "three"), ("user", "d")]


@pytest.mark.long
async def test_two_gateways_take_turns_and_tenants_see_their_own(
    tmp_path: Path, store: LocalStore, local_upstream: Upstream
) -> None:
    """A second request is refused by 409 while one is answered; the SDK's retries then find the whole turn."""
    settings = {"tenants": {"a": {"key_env": "KEY_A"}, "b": {"key_env": "KEY_B"}}}
    env = {"KEY_A": "key-of-a", "KEY_B": "key-of-b"}
    common: Json = {"store_url": store.url, "settings": settings, "env": env, "policies": {"chat": CHAT}}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        serve(tmp_path / "one", local_upstream.url, **common) as one,
        serve(tmp_path / "two", local_upstream.url, **common) as two,
    ):
        first = openai.AsyncOpenAI(base_url=one.url, api_key="key-of-a", max_retries=0)
        hurried = openai.AsyncOpenAI(base_url=two.url, api_key="key-of-a", max_retries=0)
        patient = openai.AsyncOpenAI(base_url=two.url, api_key="key-of-a", max_retries=5)
        other = openai.AsyncOpenAI(base_url=two.url, api_key="key-of-b", max_retries=0)
        made = (await first.conversations.create()).id
        await hurried.conversations.retrieve(made)  # what answers these paths is built at the first request
        local_upstream.queue(Reply(text="slow", before_headers_s=3.0), Reply(text="later"))
        slow = asyncio.create_task(first.responses.create(model="chat", input="a", conversation=made))
        while not local_upstream.requests:
            await asyncio.sleep(0.01)
        refused = await asyncio.gather(
            hurried.responses.create(model="chat", input="b", conversation=made),
            hurried.conversations.delete(made),
            return_exceptions=True,
        )
        assert [getattr(one, "code", one) for one in refused] == ["conversation_locked"] * 2
        answer, _ = await asyncio.gather(patient.responses.create(model="chat", input="b", conversation=made), slow)
        assert answer.output_text == "later"
        assert texts(local_upstream) == [("user", "a"), ("assistant", "slow"), ("user", "b")]
        for unknown in (
            other.conversations.retrieve(made),
            other.conversations.items.list(made),
            other.responses.create(model="chat", input="c", conversation=made),
            other.conversations.delete(made),
        ):
            with pytest.raises(openai.NotFoundError):
                await unknown
        for sdk in (first, hurried, patient, other):
            await sdk.close()


def test_without_a_store_there_are_no_conversations(gateway: Gateway) -> None:
    for path, body in (("/conversations", {}), ("/responses", {"model": "chat", "input": "a", "conversation": "x"})):
        reply = httpx2.post(f"{gateway.url}{path}", json=body, timeout=20)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "conversation")
