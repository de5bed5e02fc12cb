"""Readable reasoning goes to a server under the server's own name for it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.servers.readable_reasoning import ReasoningName, name_asked_for, name_of_reasoning, under_name

CALLS: list[Any] = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
TEXT = {"type": "reasoning.text", "text": "so"}


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("The `reasoning_content` in the thinking mode must be passed back to the API.", "reasoning_content"),
        ("Missing `reasoning_content` field in the assistant message at message index 1.", "reasoning_content"),
        ("thinking is enabled but reasoning_content is missing in assistant tool call message", "reasoning_content"),
        ("messages[2]: 'reasoning' is required for tool calls", "reasoning"),
        ("property 'reasoning_content' is unsupported", ""),
        ("reasoning_effort is missing", ""),
        ("Missing tool function", ""),
    ],
)
def test_a_refusal_says_which_reasoning_is_missing(message: str, name: str) -> None:
    assert name_asked_for({"message": message}) == name


def test_the_name_is_learnt_from_a_reply_unless_it_has_details() -> None:
    """A server of details wants these back, and repeats their texts under another name."""
    known = ReasoningName()
    known.see({"reasoning": "so", "reasoning_details": [TEXT]})
    assert known.name == ""
    known.see({"reasoning": "so", "content": None})
    known.see({"reasoning_content": "later"})
    assert known.name == "reasoning"


def test_a_server_that_wants_reasoning_is_asked_again_once() -> None:
    known, refusal = ReasoningName(), {"message": "reasoning_content is missing"}
    said: list[Any] = [
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "assistant", "content": "a"},
    ]
    assert known.learn(refusal) and not known.learn(refusal)
    assert known.sent(said) == [{**said[0], "reasoning_content": " "}, said[1]]


def test_reasoning_goes_under_one_name_and_what_is_signed_stays() -> None:
    signed = {"role": "assistant", "content": "b", "reasoning_details": [{**TEXT, "signature": "c2ln"}]}
    said: list[Any] = [
        {"role": "user", "content": "a", "reasoning_content": "of a user"},
        {"role": "assistant", "content": "b", "reasoning_content": "so"},
        {"role": "assistant", "content": "b", "reasoning_details": [TEXT, TEXT]},
        signed,
    ]
    made = under_name(said, "reasoning")
    assert made == [
        said[0],
        {"role": "assistant", "content": "b", "reasoning": "so"},
        {"role": "assistant", "content": "b", "reasoning": "soso"},
        signed,
    ]
    assert under_name(made, "reasoning") is None


def test_only_a_text_is_reasoning() -> None:
    assert name_of_reasoning({"reasoning_content": "", "reasoning": "so"}) == "reasoning"
    assert name_of_reasoning({"reasoning_content": {"a": 1}, "reasoning": None}) == ""
