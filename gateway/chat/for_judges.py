"""Show a conversation to a model that judges an answer to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from routing.features import text_of

READ_CHARS: Final = 6_000
"""Characters of each answer, and of the end of the conversation, that a judge reads."""


def conversation_shown(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the end of a conversation, in as many characters as the judge reads."""
    shown: list[dict[str, str]] = []
    left = READ_CHARS
    for message in reversed(messages):
        text, _ = text_of(message.get("content"))
        if left <= 0:
            break
        shown.append({"role": str(message.get("role")), "content": text[-left:] if len(text) > left else text})
        left -= len(text)
    return shown[::-1]
