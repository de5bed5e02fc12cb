"""Requests of one conversation share its name, and others do not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.rollout.assignment import conversation_of

SYSTEM = {"role": "system", "content": "Be brief."}
FIRST = {"role": "user", "content": "Where is Quito?"}
ANSWER = {"role": "assistant", "content": "In Ecuador."}
NEXT = {"role": "user", "content": "And Lima?"}


def name(*messages: dict[str, Any], tenant: str = "acme", **body: Any) -> str:
    return conversation_of(tenant, {"messages": list(messages), **body})


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
