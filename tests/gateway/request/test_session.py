"""Requests of one session and of one conversation share their names, and others do not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from gateway.request.context import Client
from gateway.request.options import Session, session_of, user_of
from tests.support.context import streamed_request

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Where is Quito?"}
ANSWER = {"role": "assistant", "content": "In Ecuador."}
NEXT = {"role": "user", "content": "And Lima?"}


def name(*messages: dict[str, Any], tenant: str = "acme", **body: Any) -> str:
    found = session_of(tenant, {}, {"messages": list(messages), **body})
    assert found.told or found.name == found.conversation
    return found.conversation


@pytest.mark.parametrize("before", [(), (SYSTEM,)])
def test_all_turns_share_the_name(before: tuple[dict[str, Any], ...]) -> None:
    turns = [(FIRST,), (FIRST, ANSWER, NEXT), (FIRST, ANSWER, NEXT, ANSWER, NEXT)]
    named = {name(*before, *turn) for turn in turns}
    assert len(named) == 1 and len(named.pop()) == 16


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "other"},
        {"user": "u2"},
        {"safety_identifier": "u2"},
        {"prompt_cache_key": "k2"},
        {"metadata": {"user_id": "session-2"}},
    ],
)
def test_who_asks_is_in_the_name(other: dict[str, Any]) -> None:
    assert name(FIRST) != name(FIRST, **other)
    assert name(FIRST, **other) == name(FIRST, ANSWER, NEXT, **other)


def test_what_it_begins_with_is_in_the_name() -> None:
    """Texts of parts too; what else the client sets is not, as it may change from turn to turn."""
    assert name(FIRST) != name(NEXT) != name(SYSTEM, NEXT)
    parts = [{"type": "text", "text": "Where?"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    assert name({"role": "user", "content": parts}) != name({"role": "user", "content": parts[1:]})
    assert name(FIRST) == name(FIRST, temperature=1, metadata={"turn": "2"})


def test_any_messages_have_a_name() -> None:
    """Also ones that the API does not know, and texts that are not Unicode."""
    odd: list[dict[str, Any]] = [{}, {"role": None}, {"role": "tool", "content": [1, {"text": None}]}]
    odd.append({"role": "user", "content": "\ud800"})
    assert all(len(name(message, FIRST, metadata=[1])) == 16 for message in odd)


def test_a_long_beginning_costs_no_more() -> None:
    long = {"role": "system", "content": "x" * 5_000_000}
    began = time.process_time()
    for _ in range(100):
        name(long, FIRST)
    assert time.process_time() - began < 0.1


LATER = {"role": "user", "content": "Summary of what was said: Quito is in Ecuador. Go on."}
AGENT = {"role": "system", "content": "You search files."}
ID = "0b6f6a4e-8f0e-4c7b-9f0a-0d8b5a3c1e22"


def told(
    *messages: dict[str, Any], tenant: str = "acme", headers: dict[bytes, bytes] | None = None, **body: Any
) -> Session:
    return session_of(tenant, headers or {}, {"messages": list(messages), **body})


@pytest.mark.parametrize(
    "given",
    [
        {"headers": {b"x-tierline-session": ID.encode()}},
        {"headers": {b"x-claude-code-session-id": ID.encode()}},
        {"headers": {b"session-id": ID.encode()}},
        {"headers": {b"thread-id": ID.encode()}},
        {"prompt_cache_key": ID},
    ],
)
def test_a_client_that_names_its_session_may_shorten_its_history(given: dict[str, Any]) -> None:
    """Both names stay; a sub-agent has a conversation of its own in the same session; another tenant has neither."""
    first = told(SYSTEM, FIRST, **given)
    assert first.told and first.name != first.conversation
    assert told(SYSTEM, LATER, **given) == told(SYSTEM, FIRST, ANSWER, NEXT, **given) == first
    agent = told(AGENT, NEXT, **given)
    assert agent.name == first.name
    assert (agent.conversation != first.conversation) == (b"thread-id" not in given.get("headers", {}))
    other = told(SYSTEM, FIRST, tenant="other", **given)
    assert {other.name, other.conversation}.isdisjoint(first)
    assert ID not in "".join(map(str, first))


@pytest.mark.parametrize(
    ("session", "thread"), [(b"session-id", b"thread-id"), (b"x-claude-code-session-id", b"x-claude-code-agent-id")]
)
def test_a_threads_id_tells_the_conversations_of_a_session_apart(session: bytes, thread: bytes) -> None:
    """Whatever their texts are: two sub-agents of one kind begin alike, and one may be told something else later."""
    found = [told(SYSTEM, FIRST, headers={session: b"s1", thread: thread_id}) for thread_id in (b"t1", b"t2")]
    assert found[0].name == found[1].name == told(FIRST, headers={session: b"s1"}).name
    assert found[0].conversation != found[1].conversation
    assert told(AGENT, LATER, headers={session: b"s1", thread: b"t1"}) == found[0]


def test_a_header_counts_before_the_key_of_the_prompt_cache() -> None:
    """The key may be one for all users of an application; an empty header names nothing."""
    key = {"prompt_cache_key": "app"}
    one, two = (told(FIRST, headers={b"x-tierline-session": name}, **key) for name in (b"s1", b"s2"))
    assert one.name != two.name
    assert told(FIRST, headers={b"session-id": b" "}, **key) == told(FIRST, **key)


def test_the_affinity_is_of_the_conversation() -> None:
    """So selection keeps a backend for as long as the console shows one conversation; it is never 0."""
    request = streamed_request(Client(None, 1.0))
    assert request.affinity() == 1
    named = replace(request.ledger, conversation=told(FIRST).conversation)
    assert replace(request, ledger=named).affinity() == int(told(FIRST).conversation, 16)


def test_an_end_user_is_the_tenants_own() -> None:
    """What two tenants call alike is another user for each, as are a tenant and a user that run into each other."""
    for body in ({"user": "ada"}, {"safety_identifier": "ada"}, {"metadata": {"user_id": "ada"}}):
        ours, again, theirs = (user_of(tenant, body) for tenant in ("acme", "acme", "gamma"))
        assert ours == again != theirs and "ada" not in ours
    assert user_of("a", {"user": "bc"}) != user_of("ab", {"user": "c"})
