"""A policy's `input.history`: what is old of a long conversation is summarised after a reply, for the next ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.agents.admission import AgentAdmission
from gateway.parts.agents.history import HistorySummaries
from gateway.parts.local.kinds.scripted.script import ToolCall
from tests.integration.prompt_caching import SURFACES, TOOLS, CachingWorld, caching_world
from tests.parts.agents.test_shorter_input import LONG, PATHS, conversation
from tests.support.app import InProcess
from tests.support.ask import record_at
from tests.support.store import LocalStore
from tests.support.strict_chat import Say

Json = dict[str, Any]
RULES = "input: {keep: 3, history: {window: 4000, at: 50%}}"
SAID = "Summary of what came before"


@pytest.fixture
async def world(tmp_path: Path, store: LocalStore) -> AsyncIterator[CachingWorld]:
    async with caching_world(tmp_path, store_url=store.url, more=RULES) as made:
        yield made


async def turn(world: CachingWorld, api: str, surface: str, turns: int) -> Any:
    """The reply to a conversation of so many turns, once what is done after it is done."""
    reply = await world.app.client.post(PATHS[api], json={"model": surface, **conversation(api, turns)})
    assert reply.status_code == 200, reply.text
    assert world.refusals() == []
    await made(world)
    return reply


def summaries_of(app: InProcess) -> HistorySummaries:
    """The worker's summaries."""
    return next(layer.histories for layer in app.steps.admissions if isinstance(layer, AgentAdmission))


async def made(world: CachingWorld) -> None:
    """Returns once no summary is being made."""
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(0.02)
            if not summaries_of(world.app)._making:
                break


def sent_for_agent(world: CachingWorld, surface: str) -> list[str]:
    """The agent's requests that the provider got, as text; the gateway's own have no tools."""
    return [str(one.body) for one in getattr(world, surface).requests if one.body.get("tools")]


async def paid(world: CachingWorld, surface: str) -> float:
    """What summaries cost so far, in US dollars."""
    series = f'tierline_learn_usd_total{{part="summary",surface="{surface}"}} '
    lines = (await world.app.get("/metrics")).text.splitlines()
    return next(float(line.removeprefix(series)) for line in lines if line.startswith(series))


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("surface", SURFACES)
async def test_the_next_turns_are_sent_a_summary(
    world: CachingWorld, store: LocalStore, api: str, surface: str
) -> None:
    """In place of the same messages each time, until what is sent is long again. No request pays for it."""
    replies = [await turn(world, api, surface, turns) for turns in (8, 9, 10, 16, 17)]
    sent = sent_for_agent(world, surface)
    assert [SAID in one for one in sent] == [False, True, True, True, True]
    first = [int(re.findall(r"(\d+) what was found", one)[0]) for one in sent]
    assert first == [0, 4, 4, 4, 12], "a second summary is made of the first and of what came since"
    assert all("go" in one for one in sent)
    ledgers = [(await record_at(store.url, reply.headers["x-request-id"]))["ledger"] for reply in replies]
    assert [one["tokens_left_out"] > 1000 for one in ledgers] == [False, True, True, True, True]
    for one in ledgers:
        assert one["cost_usd"] == pytest.approx(sum(call["cost_usd"] for call in one["calls"]))
    assert await paid(world, surface) > 0


async def test_a_summary_that_fails_is_paid_once(world: CachingWorld) -> None:
    """Its cost is counted, and it is not tried again in each turn: only once the cut has moved on."""
    world.chat.say = lambda body: Say(calls=(ToolCall(TOOLS[0], '{"path":"a"}'),)) if body.get("tools") else Say("")
    for turns in (8, 9, 10):
        await turn(world, "chat", "chat", turns)
    once = await paid(world, "chat")
    assert len(world.chat.requests) == 4 and once > 0
    await turn(world, "chat", "chat", 16)
    assert len(world.chat.requests) == 6 and await paid(world, "chat") > once


async def test_a_summary_stays_in_use_where_the_next_one_fails(world: CachingWorld) -> None:
    """What is sent is longer then, and no more than that."""
    await turn(world, "chat", "chat", 8)
    say = world.chat.say
    world.chat.say = lambda body: say(body) if body.get("tools") else Say("")
    for turns in (16, 17):
        await turn(world, "chat", "chat", turns)
    assert [SAID in one for one in sent_for_agent(world, "chat")] == [False, True, True]
    assert len(world.chat.requests) == 3 + 2


async def test_conversations_of_one_name_have_summaries_of_their_own(world: CachingWorld) -> None:
    """An application that sends one `prompt_cache_key` for all of its users does not pay for one in each turn."""
    for turns in (8, 9, 10):
        for user in ("one", "two"):
            body = {"model": "chat", "prompt_cache_key": "everybody", **conversation("chat", turns)}
            at = next(i for i, message in enumerate(body["messages"]) if message["role"] == "user")
            body["messages"][at] = {"role": "user", "content": f"I am {user}. Go on."}
            assert (await world.app.client.post(PATHS["chat"], json=body)).status_code == 200
            await made(world)
    assert len(world.chat.requests) == 6 + 2
    assert [SAID in one for one in sent_for_agent(world, "chat")] == [False, False, True, True, True, True]


async def test_another_worker_finds_it_and_another_conversation_does_not(world: CachingWorld) -> None:
    """It is in the store, by the conversation's name and a hash of what it stands for."""
    await turn(world, "chat", "chat", 8)
    histories = summaries_of(world.app)
    histories._seen = type(histories._seen)(8)
    await turn(world, "chat", "chat", 9)
    assert SAID in sent_for_agent(world, "chat")[-1]
    body = conversation("chat", 9)
    body["messages"][2] = {**body["messages"][2], "content": f"another {LONG}"}
    reply = await world.app.client.post(PATHS["chat"], json={"model": "chat", **body})
    assert reply.status_code == 200 and SAID not in sent_for_agent(world, "chat")[-1]


async def test_a_short_conversation_is_not_summarised(world: CachingWorld) -> None:
    """Below `at` of the window nothing is asked for."""
    await turn(world, "chat", "chat", 5)
    assert len(world.chat.requests) == 1


async def test_no_summary_is_made_for_a_request_that_called_nothing(world: CachingWorld) -> None:
    """The operator pays for it, so a key without money left, or whoever asks for a hit alone, causes none."""
    body = {"model": "chat", **conversation("chat", 8)}
    headers = {"x-tierline-cache": "only-if-cached"}
    reply = await world.app.client.post(PATHS["chat"], json=body, headers=headers)
    assert reply.status_code >= 400
    await made(world)
    assert world.chat.requests == []
