"""A tool that takes a free text is a function of one text to a backend without such tools, and its calls come back."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.parts.servers.custom_tools import CustomCalls, as_functions

GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/s"}}
PATCH = {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files.", "format": GRAMMAR}}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMES = frozenset({"apply_patch"})
TEXT = '*** Begin "Patch"\n+\tcaf\u00e9 \\ \U0001f600 {"a": 1}\n*** End'


def test_a_request_has_functions_in_the_tools_the_choice_and_the_history() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": TEXT}}
    body: dict[str, Any] = {
        "tools": [LOOK, PATCH],
        "tool_choice": {"type": "custom", "custom": {"name": "apply_patch"}},
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}],
    }
    before = json.dumps(body)
    changed, names = as_functions(body)
    assert names == NAMES and json.dumps(body) == before
    function = changed["tools"][1]["function"]
    assert changed["tools"][0] is LOOK and function["parameters"]["required"] == ["input"]
    assert "Edits files." in function["description"] and "start: /.+/s" in function["description"]
    assert changed["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}
    sent = changed["messages"][1]["tool_calls"][0]
    assert sent["id"] == "c1" and json.loads(sent["function"]["arguments"]) == {"input": TEXT}
    assert as_functions({"tools": [LOOK], "messages": []}) == ({}, frozenset())


def test_a_choice_among_some_tools_is_one_of_functions() -> None:
    one = {"type": "custom", "custom": {"name": "apply_patch"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [one, LOOK]}}
    changed, _ = as_functions({"messages": [], "tools": [PATCH], "tool_choice": choice})
    assert changed["tool_choice"]["allowed_tools"]["tools"][0] == {
        "type": "function",
        "function": {"name": "apply_patch"},
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (json.dumps({"input": TEXT}), TEXT),
        ('{"input": "", "more": 1}', ""),
        (json.dumps(TEXT), TEXT),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("*** Begin Patch", "*** Begin Patch"),
        ("", ""),
    ],
)
def test_a_call_comes_back_with_its_text(arguments: str, text: str) -> None:
    """Whole, and in a stream cut anywhere; a model that gives no `input` has said what it wrote."""
    other = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    call = {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": arguments}}
    message = {"tool_calls": [call, dict(other)]}
    assert CustomCalls(NAMES).whole(message)
    custom = {"name": "apply_patch", "input": text}
    assert message["tool_calls"] == [{"id": "c1", "type": "custom", "custom": custom}, other]
    rng = random.Random(7)
    for _ in range(50):
        assert streamed(arguments, rng) == text


def streamed(arguments: str, rng: random.Random) -> str:
    cuts = sorted(rng.randrange(len(arguments) + 1) for _ in range(rng.randrange(9)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    calls, told = CustomCalls(NAMES), ""
    parts: list[dict[str, Any]] = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": ""}}
    ]
    parts += [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    choices: list[dict[str, Any]] = [{"index": 0, "delta": {"tool_calls": [part]}} for part in parts]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    for choice in choices:
        calls.chunk(choice)
        for part in choice["delta"].get("tool_calls", ()):
            assert "function" not in part
            told += part["custom"]["input"]
    return told
