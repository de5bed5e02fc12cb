"""What providers' prompt caches are asked for by themselves, in each API, and what that saved."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.prompt_caching import SURFACES, SYSTEM, CachingWorld, agent, caching_world, measure
from tests.support.ask import record_at
from tests.support.store import LocalStore

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
OWN = {"type": "ephemeral"}


@pytest.fixture
async def world(tmp_path: Path, store: LocalStore) -> AsyncIterator[CachingWorld]:
    async with caching_world(tmp_path, store_url=store.url) as made:
        yield made


def sent_to(world: CachingWorld, surface: str) -> Json:
    """The body of the last request to the provider of a surface."""
    return copy.deepcopy(getattr(world, surface).requests[-1].body)


def markers_in(value: Any) -> list[Json]:
    """All markers of a body."""
    if isinstance(value, list):
        return [found for one in value for found in markers_in(one)]
    if isinstance(value, dict):
        own = [value["cache_control"]] if "cache_control" in value else []
        return own + [found for name, one in value.items() if name != "cache_control" for found in markers_in(one)]
    return []


async def post(world: CachingWorld, surface: str, *messages: Json, path: str = CHAT, **more: Any) -> Any:
    """The reply to these messages."""
    reply = await world.app.client.post(path, json={"model": surface, "messages": list(messages), **more})
    assert reply.status_code == 200, reply.text
    assert world.refusals() == []
    return reply


def user(text: Any) -> Json:
    """A message of the user."""
    return {"role": "user", "content": text}


async def test_a_growing_conversation_is_read_from_the_cache(tmp_path: Path) -> None:
    """Of an agent's prompt tokens most are read, with each API; unasked, Anthropic's reads none, OpenAI's fewer."""
    off, auto = await measure(tmp_path, "off"), await measure(tmp_path, "auto")
    assert off["messages"] == 0.0
    assert all(auto[surface] > 0.8 for surface in SURFACES)
    assert all(auto[surface] > off[surface] + 0.1 for surface in ("chat", "responses"))


async def test_a_trace_says_what_was_added_and_saved(world: CachingWorld, store: LocalStore) -> None:
    """The attempt names the markers; it, the ledger and the metric say what reading saved less what writing cost."""
    first, *_, last = await agent(world.app, "messages", "one", turns=3)
    told = [await record_at(store.url, reply.headers["x-request-id"]) for reply in (first, last)]
    saved = [record["ledger"]["prompt_cache_usd"] for record in told]
    attempts = [next(hop for hop in record["hops"] if hop["name"] == "attempt")["attributes"] for record in told]
    assert attempts[0]["tierline.prompt_cache"] == ["tools", "system", "messages[0]"]
    assert attempts[1]["tierline.prompt_cache"] == ["tools", "system", "messages[2]", "messages[4]"]
    assert [one["tierline.prompt_cache.saved_usd"] for one in attempts] == pytest.approx(saved)
    read, written = (attempts[1][f"gen_ai.usage.cache_{what}.input_tokens"] for what in ("read", "write"))
    assert saved[1] == pytest.approx((read * 0.9 - written * 0.25) * 1e-6)
    assert saved[0] < 0 < saved[1]
    text = (await world.app.get("/metrics")).text
    assert 'tierline_prompt_cache_usd_total{outcome="saved",surface="messages"}' in text
    assert 'tierline_prompt_cache_usd_total{outcome="lost",surface="messages"}' in text


async def test_a_clients_own_markers_are_kept_and_no_others_added(world: CachingWorld) -> None:
    """Wherever the client has one: in the request, the system text, a tool, a turn, within a tool's result."""
    system = [{"type": "text", "text": SYSTEM}]
    marked = [{**system[0], "cache_control": OWN}]
    plain = {"path": "/v1/messages", "max_tokens": 100, "system": system}
    turns = [user("hello"), {"role": "assistant", "content": "Hello."}]
    for more, last in (
        ({"cache_control": OWN}, "go on"),
        ({"system": marked}, "go on"),
        ({}, [{"type": "text", "text": "go on", "cache_control": OWN}]),
        ({"tools": [{"name": "look", "input_schema": {"type": "object"}, "cache_control": OWN}]}, "go on"),
    ):
        await post(world, "messages", *turns, user(last), **{**plain, **more})
        assert len(markers_in(sent_to(world, "messages"))) == 1


@pytest.mark.parametrize("surface", ["chat", "responses"])
async def test_a_clients_own_key_is_kept(world: CachingWorld, surface: str) -> None:
    """And nothing is added to it, nor to other options of the cache that the client sets."""
    own: Json
    for own in ({"prompt_cache_key": "mine"}, {"prompt_cache_options": {"mode": "explicit"}}):
        await post(world, surface, user(SYSTEM), **own)
        sent = sent_to(world, surface)
        assert {name for name in sent if name.startswith("prompt_cache")} == set(own)


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_short_prompt_gets_nothing(world: CachingWorld, surface: str) -> None:
    """No provider caches it."""
    await post(world, surface, user("hello"), {"role": "assistant", "content": "Hello."}, user("go on"))
    assert "cache" not in str(sent_to(world, surface))


async def test_a_key_names_nobody_and_no_tenant_has_anothers(world: CachingWorld) -> None:
    """Requests of a session share a key, those of no session that of their surface; no key holds an id."""
    keys = []
    for name in ("alice@example.com", "alice@example.com", "bob", ""):
        body = {"model": "chat", "messages": [{"role": "system", "content": SYSTEM}, user("hello")]}
        reply = await world.app.client.post(CHAT, json=body, headers={"x-tierline-session": name} if name else {})
        assert reply.status_code == 200
        keys.append(sent_to(world, "chat")["prompt_cache_key"])
    assert keys[0] == keys[1] and len(set(keys)) == 3
    assert "alice" not in str(keys) and "bob" not in str(keys)
    await post(world, "chat", {"role": "system", "content": SYSTEM}, user("another question"))
    assert sent_to(world, "chat")["prompt_cache_key"] == keys[3]


async def test_a_question_that_stands_alone_writes_what_others_share(world: CachingWorld) -> None:
    """Its system text, once that has come before; never the question, which nobody asks again."""
    for times in range(3):
        await post(world, "messages", {"role": "system", "content": SYSTEM}, user(f"question {times}"))
    bodies = [request.body for request in world.messages.requests]
    assert [len(markers_in(body)) for body in bodies] == [0, 1, 1]
    assert markers_in(bodies[1]["system"]) == [OWN]
    assert world.messages.read > 0


async def test_long_asks_for_the_longest_lifetime_that_is_known(tmp_path: Path) -> None:
    """Anthropic's of an hour, OpenAI's of a day where the model has it; `auto` leaves the provider's own."""
    async with caching_world(tmp_path, prompt_cache="long") as world:
        turns = (user(SYSTEM), {"role": "assistant", "content": "Yes."}, user("go on"))
        for surface in SURFACES:
            await post(world, surface, *turns)
        assert {str(one) for one in markers_in(sent_to(world, "messages"))} == {str({**OWN, "ttl": "1h"})}
        assert sent_to(world, "chat")["prompt_cache_retention"] == "24h"  # gpt-5.4
        assert "prompt_cache_retention" not in sent_to(world, "responses")  # gpt-6-luna has no choice


async def test_fields_that_a_server_refuses_are_left_out_unseen_by_the_client(tmp_path: Path) -> None:
    """The call goes out again without, and later ones too; the client asked for none, so is told of none."""
    async with caching_world(tmp_path, refuses=("prompt_cache_key",)) as world:
        for _ in range(2):
            body = {"model": "chat", "messages": [user(SYSTEM)]}
            reply = await world.app.client.post(CHAT, json=body)
            assert reply.status_code == 200
            assert "x-tierline-dropped" not in reply.headers
        assert ["prompt_cache_key" in request.body for request in world.chat.requests] == [True, False, False]
