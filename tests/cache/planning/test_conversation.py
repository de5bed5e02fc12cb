from __future__ import annotations

from typing import Any

import pytest

from cache.planning.plan import Fingerprint, conversation_of, fingerprint
from cache.scopes.scope import scope_of
from tests.cache.samples import body

SCOPE = scope_of("t", "chat", "v1", b"s")
SYSTEM = {"role": "system", "content": "Be brief."}


def talk(*texts: str, system: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return messages of user and assistant in turn, the user first."""
    said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return said if system is None else [system, *said]


def keys(messages: list[dict[str, Any]], by_turns: int = 1_000, **fields: Any) -> Fingerprint:
    return fingerprint({**body("", **fields), "messages": messages}, SCOPE, b"s", None, "e", by_turns)


WAR = talk("Tell me about the war.", "It lasted thirty years.", "Who won it?")


def test_other_words_in_any_turn_share_a_partition_and_no_key() -> None:
    """The exact key still hashes every word."""
    other = keys(talk("Explain the war to me.", "It took thirty years.", "Who was the winner?"))
    assert other.partition == keys(WAR).partition
    assert other.key != keys(WAR).key
    assert other.question != keys(WAR).question
    assert keys(WAR).user_turns == "Tell me about the war.\nWho won it?"


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        (talk("Tell me about the war.", "It lasted thirty years.", "Who won it?", system=SYSTEM), {}),
        (talk("Hello.", "Hello!", "Tell me about the war.", "It lasted thirty years.", "Who won it?"), {}),
        ([*WAR[:2], {**WAR[2], "name": "ann"}], {}),
        ([WAR[0], {**WAR[1], "reasoning_content": "Hm."}, WAR[2]], {}),
        (WAR, {"temperature": 0.2}),
        (WAR, {"response_format": {"type": "json_object"}}),
    ],
    ids=["system", "more turns", "name", "reasoning", "temperature", "format"],
)
def test_what_stands_around_the_texts_must_be_equal(messages: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    """Another system prompt, number of turns, field of a message or parameter is another partition."""
    assert keys(messages, **fields).partition != keys(WAR).partition


def test_without_turns_the_history_must_be_equal() -> None:
    """As for a single question: everything but the last user text counts."""
    other = talk("Explain the war to me.", "It lasted thirty years.", "Who won it?")
    assert keys(other, by_turns=0).partition != keys(WAR, by_turns=0).partition
    assert keys(WAR, by_turns=0).partition != keys(WAR).partition
    assert keys(WAR, by_turns=0).key == keys(WAR).key
    assert keys(WAR, by_turns=0).user_turns == ""


@pytest.mark.parametrize(
    "messages",
    [
        talk("Who won the war?"),
        talk("Who won the war?", system=SYSTEM),
        [*WAR[:2], SYSTEM, WAR[2]],
        [WAR[0], {**WAR[1], "tool_calls": [{"id": "a"}]}, WAR[2]],
        [WAR[0], {"role": "tool", "tool_call_id": "a", "content": "1648"}, WAR[2]],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}, *WAR[1:]],
        talk("Tell me \x1ea:about the war.", "It lasted thirty years.", "Who won it?"),
        talk("Tell me about the war.", "word " * 1_600, "Who won it?"),
        talk("word " * 300, "It lasted thirty years.", "Who won it?"),
        talk(*["Why?"] * 13),
        WAR[:2],
    ],
    ids=[
        "single",
        "single with system",
        "system later",
        "calls",
        "tool",
        "image",
        "separator",
        "answer",
        "long",
        "turns",
        "last",
    ],
)
def test_some_conversations_are_not_taken_apart(messages: list[dict[str, Any]]) -> None:
    """Their history must be equal then."""
    assert conversation_of(messages, 2_000, 1_000) is None
