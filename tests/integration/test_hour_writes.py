"""What a provider writes to its prompt cache for an hour is charged at its own price, in each API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.prompt_caching import PRICE, SYSTEM, CachingWorld, caching_world
from tests.support.ask import record_at
from tests.support.store import LocalStore
from tests.support.upstream import Reply

Json = dict[str, Any]
HOUR = {"type": "ephemeral", "ttl": "1h"}
MARKED = [{"type": "text", "text": SYSTEM, "cache_control": HOUR}]
HELLO = {"role": "user", "content": "hello"}
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
ASKS: dict[str, Json] = {
    MESSAGES: {"system": MARKED, "messages": [HELLO], "max_tokens": 100},
    CHAT: {"messages": [{"role": "system", "content": MARKED}, HELLO]},
}
IN, FIVE_MINUTES, AN_HOUR, OUT = PRICE["input"], PRICE["cache_write"], 2 * PRICE["input"], PRICE["output"]


@pytest.fixture
async def world(tmp_path: Path, store: LocalStore) -> AsyncIterator[CachingWorld]:
    async with caching_world(tmp_path, store_url=store.url) as made:
        yield made


async def charged(world: CachingWorld, store: LocalStore, path: str, **more: Any) -> tuple[float, Json]:
    """What a request cost in millionths of a dollar, and the account of its call."""
    reply = await world.app.client.post(path, json={"model": "messages", **ASKS[path], **more})
    assert reply.status_code == 200, reply.text
    assert world.refusals() == []
    ledger = (await record_at(store.url, reply.headers["x-request-id"]))["ledger"]
    return ledger["cost_usd"] * 1e6, ledger["calls"][0]


@pytest.mark.parametrize("divides", [True, False], ids=["divided", "not divided"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_what_is_kept_for_an_hour_costs_twice_the_prompt(
    world: CachingWorld, store: LocalStore, path: str, *, stream: bool, divides: bool
) -> None:
    """Also where the provider does not say how much of it that is, and the request asks for it."""
    world.messages.divides = divides
    usd, call = await charged(world, store, path, stream=stream)
    written = world.messages.hour_written
    assert written > 1000 and call["tokens_hour_write"] == call["tokens_cache_write"] == written
    rest = call["tokens_in"] - written
    assert usd == pytest.approx(written * AN_HOUR + rest * IN + call["tokens_out"] * OUT)


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
async def test_what_is_kept_for_five_minutes_costs_what_it_did(
    world: CachingWorld, store: LocalStore, path: str
) -> None:
    """A division that says so counts more than what a request asks for: some models keep nothing longer."""
    five = {"ephemeral_5m_input_tokens": 4000, "ephemeral_1h_input_tokens": 0}
    told = {"input_tokens": 10, "cache_creation_input_tokens": 4000, "cache_creation": five, "output_tokens": 2}
    world.messages._message = lambda body: {  # type: ignore[method-assign]
        "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hello."}], "stop_sequence": None, "usage": told,
    }  # fmt: skip
    usd, call = await charged(world, store, path)
    assert call["tokens_hour_write"] == 0 and usd == pytest.approx(4000 * FIVE_MINUTES + 10 * IN + 2 * OUT)


@pytest.mark.parametrize(
    "details",
    [
        {"prompt_tokens_details": {"cached_tokens": 0, "cache_creation_token_details": {
            "ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 3000}}},
        {"cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 3000}},
    ],
    ids=["LiteLLM", "Anthropic's words"],
)  # fmt: skip
async def test_servers_of_chat_completions_divide_it_too(world: CachingWorld, store: LocalStore, details: Json) -> None:
    """In LiteLLM's words or Anthropic's own; a client of the Messages API is told the division."""
    usage = {
        "prompt_tokens": 4010, "completion_tokens": 2, "total_tokens": 4012, "cache_creation_input_tokens": 4000,
        "cache_read_input_tokens": 0, **details,
    }  # fmt: skip
    world.chat.default = Reply(text="Hello.", usage=usage)
    world.chat._usage = lambda *_: usage  # type: ignore[method-assign]
    body = {"model": "chat", "messages": [HELLO], "max_tokens": 100}
    reply = await world.app.client.post(MESSAGES, json=body)
    assert reply.status_code == 200, reply.text
    ledger = (await record_at(store.url, reply.headers["x-request-id"]))["ledger"]
    assert ledger["cost_usd"] * 1e6 == pytest.approx(3000 * AN_HOUR + 1000 * FIVE_MINUTES + 10 * IN + 2 * OUT)
    assert reply.json()["usage"]["cache_creation"] == {
        "ephemeral_1h_input_tokens": 3000, "ephemeral_5m_input_tokens": 1000,
    }  # fmt: skip


async def test_a_policy_that_keeps_prompts_long_is_charged_for_it(tmp_path: Path, store: LocalStore) -> None:
    """The markers that the gateway adds itself ask for an hour there, and this provider does not divide its usage."""
    async with caching_world(tmp_path, store_url=store.url, prompt_cache="long") as world:
        world.messages.divides = False
        turns = [HELLO, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "go on"}]
        usd, call = await charged(world, store, MESSAGES, system=SYSTEM, messages=turns)
        written = world.messages.hour_written
        assert written > 1000 and call["tokens_hour_write"] == written
        assert usd == pytest.approx(written * AN_HOUR + (call["tokens_in"] - written) * IN + call["tokens_out"] * OUT)
