"""Conversations that are compacted (`/v1/responses/compact`), and what later requests make of it."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from gateway.parts.apis.dialects.responses.compaction import opened_summary, sealed
from tests.support.app import in_process
from tests.support.ask import record_at
from tests.support.gateway import CHAT, Gateway
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

SUMMARY = "Ada wants tea. The kettle is on."
HISTORY: Any = [
    {"role": "user", "content": "I am Ada, I want tea."},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "secret thought"}]},
    {"type": "function_call", "call_id": "c", "name": "boil", "arguments": '{"litres":1}'},
    {"type": "function_call_output", "call_id": "c", "output": "It boils."},
    {"role": "assistant", "content": [{"type": "output_text", "text": "On its way.", "annotations": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "Hurry!"}, {"type": "input_image", "image_url": "a"}]},
]
HISTORY_BEGINS = ("user", HISTORY[0]["content"])


@pytest.fixture
def client(cached_gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cached_gateway.url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def sent(upstream: Upstream) -> list[tuple[str, Any]]:
    return [(one["role"], one["content"]) for one in upstream.requests[-1].body["messages"]]


async def test_a_conversation_is_compacted_and_goes_on(
    client: openai.OpenAI, local_upstream: Upstream, store: LocalStore
) -> None:
    """The user's messages and a summary stand for it; the request is recorded, and paid, as any other."""
    local_upstream.queue(Reply(text=SUMMARY), Reply(text="Here it is."))
    raw = client.responses.with_raw_response.compact(model="chat", input=HISTORY, instructions="You are a butler.")
    made = raw.parse()
    assert made.object == "response.compaction" and made.usage.output_tokens > 3
    assert [item.type for item in made.output] == ["message", "message", "compaction"]
    (system, _), (user, asked) = sent(local_upstream)
    assert (system, user) == ("system", "user")
    for told in ("user: I am Ada", "boil] {", "] It boils.", "assistant: On its way.", "Hurry! [input_image]"):
        assert told in asked
    assert "secret thought" not in asked
    record = await record_at(store.url, raw.headers["x-request-id"])
    assert (record["ledger"]["status"], record["ledger"]["attempts"]) == (200, 1)
    # The API keeps users' messages as they were sent, with `input_text`. The SDK's type for them, that of an answer's
    # message, does not have that, so it warns when it writes them out again; what it writes is whole all the same.
    with pytest.warns(UserWarning, match="input_text"):
        kept: Any = [item.to_dict() for item in made.output]
    assert kept[1]["content"][1] == {"type": "input_image", "image_url": "a"}
    assert SUMMARY not in str(kept)
    later = client.responses.create(model="chat", input=[kept[0], kept[2], {"role": "user", "content": "Where is it?"}])
    assert sent(local_upstream) == [
        HISTORY_BEGINS,
        ("user", f"Summary of the conversation before:\n{SUMMARY}"),
        ("user", "Where is it?"),
    ]
    client.responses.create(model="chat", input="And now?", previous_response_id=later.id)
    assert any(SUMMARY in str(content) for _, content in sent(local_upstream))
    again = client.responses.compact(model="chat", previous_response_id=later.id)
    assert SUMMARY in sent(local_upstream)[-1][1] and len(again.output) > 1


def test_it_is_never_answered_from_the_cache(client: openai.OpenAI, local_upstream: Upstream) -> None:
    for _ in range(2):
        client.responses.compact(model="chat", input="Remember the milk.")
    assert len(local_upstream.requests) == 2


def test_what_cannot_be_compacted_is_refused(
    cached_gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    def asked(**body: Any) -> tuple[int, Any, Any]:
        reply = httpx2.post(f"{cached_gateway.url}/responses/compact", json={"model": "chat", **body}, timeout=20)
        error = reply.json().get("error") or {}
        return reply.status_code, error.get("code"), error.get("param")

    assert asked() == (400, "missing_required_parameter", "input")
    assert asked(input="a", previous_response_id="resp_0")[1] == "previous_response_not_found"
    assert asked(input="a", model="none")[0] == 404
    assert asked(input=[5]) == (400, "invalid_type", "input[0]")
    assert asked(input=[{"role": "user", "content": 5}]) == (400, "invalid_type", "input[0].content")
    local_upstream.default = hosted_upstream.default = Reply(text="")
    assert asked(input="say nothing")[0] == 502
    local_upstream.default = Reply(text="something")
    assert asked(input="a", stream=True, tools=[{"type": "file_search"}], background=True) == (200, None, None)


async def test_a_compaction_is_its_tenants_own(tmp_path: Path, local_upstream: Upstream) -> None:
    """Another tenant's, and one that was changed, is refused by its path."""
    settings = {"tenants": {"a": {"key_env": "KEY_A"}, "b": {"key_env": "KEY_B"}}}
    env = {"KEY_A": "key-of-a", "KEY_B": "key-of-b", "TIERLINE_CACHE_SECRET": "s" * 100}
    async with in_process(tmp_path, local_upstream.url, settings=settings, env=env, policies={"chat": CHAT}) as app:

        async def asked(path: str, key: str, items: Any) -> Any:
            headers = {"authorization": f"Bearer {key}"}
            return await app.client.post(f"/v1/{path}", json={"model": "chat", "input": items}, headers=headers)

        made = (await asked("responses/compact", "key-of-a", "hello")).json()["output"]
        assert (await asked("responses", "key-of-a", made)).status_code == 200
        content = made[-1]["encrypted_content"]
        middle = len(content) // 2
        other = "b" if content[middle] == "a" else "a"
        changed = {**made[-1], "encrypted_content": content[:middle] + other + content[middle + 1 :]}
        cut = {**made[-1], "encrypted_content": content[:20]}
        for key, item in (("key-of-b", made[-1]), ("key-of-a", changed), ("key-of-a", cut)):
            reply = await asked("responses", key, [item])
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input[0].encrypted_content")


@pytest.mark.parametrize("text", ["", "a", "日本語 \ud800", "long " * 10_000])
def test_a_summary_is_read_by_who_made_it(text: str) -> None:
    item = {"encrypted_content": sealed(b"secret", "t", text)}
    read = opened_summary(b"secret", "t", item)
    assert read is not None and read["content"].endswith(text)
    assert opened_summary(b"other", "t", item) is opened_summary(b"secret", "u", item) is None
    assert sealed(b"secret", "t", text) != sealed(b"secret", "t", text)


@pytest.mark.parametrize("hidden", [b"n" * 16 + b"not what a summary is: \xff", b""])
async def test_what_is_signed_without_a_secret_is_read_or_refused(
    tmp_path: Path, local_upstream: Upstream, hidden: bytes
) -> None:
    """Where there is no secret, anybody can sign anything; that fails by its path, too, or is read as it is."""
    key = hashlib.blake2b(b"compaction:default", digest_size=32).digest()
    tag = hashlib.blake2b(hidden, key=key, digest_size=16).digest()
    item = {"type": "compaction", "encrypted_content": "tlc1." + urlsafe_b64encode(tag + hidden).decode()}
    async with in_process(tmp_path, local_upstream.url, policies={"chat": CHAT}) as app:
        reply = await app.client.post("/v1/responses", json={"model": "chat", "input": [item]})
    assert reply.status_code == (400 if hidden else 200), reply.text
    assert not hidden or reply.json()["error"]["param"] == "input[0].encrypted_content"


def test_a_summary_is_never_longer_than_what_was_sent() -> None:
    """A few kilobytes that unpack to gigabytes would end the process."""
    assert len(sealed(b"", "", "0" * 1_000_000)) > 1_000_000


@pytest.mark.parametrize("stream", [False, True])
async def test_an_item_in_the_input_asks_for_a_compaction(
    client: openai.OpenAI, local_upstream: Upstream, stream: bool
) -> None:
    """One item is the whole answer, and stands for the conversation; tools and formats are no part of the summary."""
    local_upstream.queue(Reply(text=SUMMARY), Reply(text="Here it is."))
    tools: Any = [{"type": "function", "name": "boil", "parameters": {"type": "object"}, "strict": False}]
    body: Any = {"input": [*HISTORY, {"type": "compaction_trigger"}], "tools": tools, "store": False}
    made = client.responses.create(model="chat", stream=stream, **body)
    events = [one.model_dump() for one in made] if stream else []  # type: ignore[union-attr, attr-defined]
    response: Any = events[-1]["response"] if stream else made.model_dump()  # type: ignore[union-attr]
    assert response["status"] == "completed" and [item["type"] for item in response["output"]] == ["compaction"]
    if stream:
        kinds = [one["type"].removeprefix("response.") for one in events]
        assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
        assert [one["sequence_number"] for one in events] == list(range(5))
    assert "tools" not in local_upstream.requests[-1].body and "assistant: On its way." in sent(local_upstream)[-1][1]
    where = f"Where, {stream}?"  # a stored answer would call no model
    client.responses.create(model="chat", input=[*response["output"], {"role": "user", "content": where}])
    assert SUMMARY in sent(local_upstream)[0][1] and sent(local_upstream)[-1] == ("user", where)


def test_a_trigger_must_come_last(client: openai.OpenAI) -> None:
    body: Any = {"input": [{"type": "compaction_trigger"}, *HISTORY]}
    with pytest.raises(openai.BadRequestError, match="compaction_trigger"):
        client.responses.create(model="chat", **body)
