"""A content of parts becomes one text, and its thinking the reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parts.servers.normalised import join_parts, normalise

THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}
SAID = {"type": "text", "text": "Rome."}


@pytest.mark.parametrize(
    ("content", "made"),
    [
        ([SAID, SAID], {"content": "Rome.Rome."}),
        ([THINKING, SAID], {"content": "Rome.", "reasoning_content": "so"}),
        ([{"type": "thinking", "thinking": "so"}], {"content": "", "reasoning_content": "so"}),
        ([], {"content": ""}),
        ([SAID, {"type": "image_url"}], None),
        ([3], None),
    ],
)
def test_parts_are_joined(content: list[Any], made: dict[str, Any] | None) -> None:
    """A list with anything else stays as it is."""
    holder: dict[str, Any] = {"content": content}
    assert join_parts(holder) is (made is not None)
    assert holder == (made or {"content": content})
    value: dict[str, Any] = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    normalise(value, "m")
    assert value["choices"][0]["message"]["content"] == (made or {"content": content})["content"]
