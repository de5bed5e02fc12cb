"""Agents' sessions over the real gateway: by the headers of Claude Code and Codex, and of nobody else's ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest
import redis

from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import until

ID = "5f0c7e9e-5c2e-4b55-8b63-7d3c0a5b1f10"
MAIN, EXPLORE = "You are Claude Code.", "You search files for Claude Code."
LEDGERS = "tierline:traces"
POLICIES = {"chat": CHAT.replace("gpt-4o-mini]", "claude-sonnet-4-6, gpt-5.3-codex]")}


@pytest.fixture
def gateway(tmp_path: Path, upstream: Upstream, store: LocalStore) -> Iterator[Gateway]:
    with serve(tmp_path, upstream.url, store_url=store.url, policies=POLICIES) as running:
        yield running


def ledgers(store: LocalStore, count: int) -> list[dict[str, Any]]:
    """The records of `count` requests, oldest first, once they are written."""
    found = sorted(map(orjson.loads, records(store, count)), key=lambda one: float(one["started"]))
    return [one["ledger"] for one in found]


def records(store: LocalStore, count: int) -> list[bytes]:
    with redis.Redis.from_url(store.url) as client:
        until(lambda: client.xlen(LEDGERS) >= count, 20)
        return [value for _, fields in client.xrange(LEDGERS) for value in fields.values()]


def claude(gateway: Gateway, system: str, *texts: str, agent: str = "") -> None:
    """Send a turn as Claude Code does: its SDK, its headers, and a history of texts."""
    headers = {"X-Claude-Code-Session-Id": ID, **({"x-claude-code-agent-id": agent} if agent else {})}
    client = anthropic.Anthropic(base_url=gateway.origin, api_key="any", max_retries=0)
    turns: list[Any] = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    client.messages.create(
        model="claude-sonnet-4-6", max_tokens=100, system=system, messages=turns, extra_headers=headers
    )


def test_a_session_of_claude_code_keeps_its_name(gateway: Gateway, store: LocalStore) -> None:
    """After its history was summarised, too; its sub-agents are in it, each with a conversation of its own."""
    claude(gateway, MAIN, "fix the bug")
    claude(gateway, MAIN, "This session is continued from another: the bug is in a.py.")
    claude(gateway, EXPLORE, "find a.py")
    claude(gateway, EXPLORE, "find a.py", agent="agent-1")
    claude(gateway, EXPLORE, "find a.py", agent="agent-2")
    found = ledgers(store, 5)
    assert len({one["session"] for one in found}) == 1
    names = [one["conversation"] for one in found]
    assert names[0] == names[1] and len(set(names[1:])) == 4


def test_a_session_of_codex_keeps_its_name(gateway: Gateway, store: LocalStore) -> None:
    """Its threads are its conversations; by the key of the prompt cache, too, which it also sends."""
    client = openai.OpenAI(base_url=gateway.url, api_key="any", max_retries=0)
    for thread, text in ((ID, "fix the bug"), (ID, "Another summary."), ("thread-2", "find a.py")):
        headers = {"session-id": ID, "thread-id": thread}
        client.responses.create(
            model="gpt-5.3-codex", instructions=MAIN, input=text, extra_headers=headers, prompt_cache_key=thread
        )
    client.responses.create(model="gpt-5.3-codex", instructions=MAIN, input="Third summary.", prompt_cache_key=ID)
    found = ledgers(store, 4)
    assert len({one["session"] for one in found}) == 1
    names = [one["conversation"] for one in found]
    assert names[0] == names[1] != names[2] and len(set(names)) == 3


def test_no_id_of_a_client_is_kept(gateway: Gateway, store: LocalStore, upstream: Upstream) -> None:
    """Neither in a record nor in what a backend is sent."""
    claude(gateway, MAIN, "hello")
    openai.OpenAI(base_url=gateway.url, api_key="any").chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "hello"}],
        extra_headers={"x-tierline-session": ID, "session-id": ID, "thread-id": ID},
        prompt_cache_key=ID,
    )
    assert ID.encode() not in b"".join(records(store, 2))
    assert ID not in str([(one.headers, one.body) for one in upstream.requests])
