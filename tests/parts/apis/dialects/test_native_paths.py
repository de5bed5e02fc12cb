from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects.native import client_path, client_paths
from gateway.parts.apis.dialects.messages.client import chat_body as chat_of_messages
from gateway.parts.apis.dialects.responses.reading import chat_request, entries_of

_TEXT = {"type": "input_text", "text": "look"}
_IMAGE = {"type": "input_image", "image_url": "https://example.test/a.png", "detail": "low"}
_DRAW = {"name": "draw"}
_CUSTOM = {"type": "custom", "name": "cut"}
_RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [_TEXT, _IMAGE]},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "draw", "input": "x"},
        {"type": "function_call_output", "call_id": "1", "output": [_TEXT, _IMAGE]},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [
        {"type": "web_search"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "a"}]},
        {"type": "custom", "name": "draw"},
    ],
}


def test_tools_that_an_item_gives_stand_in_that_item() -> None:
    """Of several tools with one name the last counts, in the place of the first."""
    given = [{"type": "custom", "name": "draw"}, {"type": "namespace", "name": "n", "tools": [_CUSTOM]}]
    item = {"type": "additional_tools", "role": "developer", "tools": given}
    asked = {"model": "m", "input": [item, {"role": "user", "content": "hi"}], "tools": [{"type": "custom", **_DRAW}]}
    native = chat_request(asked, entries_of(asked), hosted=True, kept=False)[1]
    assert [client_path(native, f"tools[{i}].custom") for i in range(2)] == ["tools[0]", "input[0].tools[1].tools[0]"]


@pytest.mark.parametrize(
    ("chat", "own"),
    [
        ("messages[0].content", "instructions"),
        ("messages[1].name", "input[0].name"),
        ("messages[1].content[1].image_url.detail", "input[0].content[1].detail"),
        ("messages[2]", "input[2]"),
        ("messages[2].content[0]", "input[2].content[0]"),
        ("messages[2].tool_calls[1]", "input[4]"),
        ("messages[3].content", "input[5].output"),
        ("messages[4].content[0].image_url.url", "input[5].output[1].image_url"),
        ("messages[4].content[0]", "input[5].output[1]"),
        ("messages[9].content", "input"),
        ("messages", "input"),
        ("tools[0].function.strict", "tools[1].tools[0].strict"),
        ("tools[1].custom.format", "tools[2].format"),
        ("tools[].function.strict", "tools[].strict"),
        ("tools[7]", "tools"),
        ("max_completion_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format.json_schema.description", "text.format.description"),
        ("response_format", "text.format"),
        ("logprobs", "include"),
        ("metadata.a", "metadata.a"),
        ("reasoning", "reasoning"),
    ],
)
def test_a_path_in_the_words_of_the_responses_api(chat: str, own: str) -> None:
    _, native, _ = chat_request(_RESPONSES, entries_of(_RESPONSES), hosted=True, kept=False)
    assert client_path(native, chat) == own


_BLOCK = {"type": "text", "text": "hi"}
_MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 10,
    "system": "Be brief.",
    "messages": [
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": [_BLOCK, {"type": "tool_use", "id": "1", "name": "look", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "seen"},
                _BLOCK,
                {"type": "image", "source": {"type": "url", "url": "https://example.test/a.png"}},
            ],
        },
    ],
    "tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "look", "input_schema": {"type": "object"}}],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
}


@pytest.mark.parametrize(
    ("chat", "own"),
    [
        ("messages[0].content", "system"),
        ("messages[1].name", "messages[0].name"),
        ("messages[2].tool_calls[0]", "messages[1].content[1]"),
        ("messages[2].content", "messages[1].content"),
        ("messages[3].content", "messages[2].content[0]"),
        ("messages[4].content[1].image_url.detail", "messages[2].content[2]"),
        ("messages[4].content", "messages[2].content"),
        ("messages[8]", "messages"),
        ("tools[0].function.parameters", "tools[1].input_schema"),
        ("tools[].function.strict", "tools[].strict"),
        ("stop", "stop_sequences"),
        ("user", "metadata.user_id"),
        ("reasoning_effort", "output_config.effort"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("temperature", "temperature"),
    ],
)
def test_a_path_in_the_words_of_the_messages_api(chat: str, own: str) -> None:
    assert client_path(chat_of_messages(_MESSAGES, {})[1], chat) == own


def test_a_body_that_was_not_translated_keeps_its_paths() -> None:
    assert client_paths(None, ["seed", "messages[0].name", "seed"]) == ("seed", "messages[0].name")
