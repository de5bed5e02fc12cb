"""Read features off a request without a model: the inputs of the difficulty classifier and of start rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing.tokens import estimated_tokens, text_of

_JSON_FORMATS = frozenset({"json_object", "json_schema"})


@dataclass(slots=True)
class Features:
    """The features of one request. `text` is the last user message's; `approx_tokens` estimates all messages."""

    text: str
    turns: int
    approx_tokens: int
    has_tools: bool = False
    wants_json: bool = False
    has_images: bool = False
    stream: bool = False


def features_of_text(text: str) -> Features:
    """Return the features of a request that consists of this one message, as labelled prompts do."""
    return Features(text=text, turns=1, approx_tokens=int(estimated_tokens(text)) + 4)


def features_of(body: Mapping[str, Any]) -> Features:
    """Return the features of a checked chat-completions body (`messages` is a list of objects with a `role` each)."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    text, tokens, images = "", 0.0, 0
    turns = 0
    for message in messages:
        part, shown = text_of(message.get("content"))
        tokens += estimated_tokens(part)
        images += shown
        if message["role"] == "user":
            turns += 1
            text = part
    response_format = body.get("response_format")
    return Features(
        text=text,
        turns=turns,
        approx_tokens=int(tokens) + 4 * len(messages),
        has_tools=bool(body.get("tools") or body.get("functions")),
        wants_json=isinstance(response_format, dict) and response_format.get("type") in _JSON_FORMATS,
        has_images=images > 0,
        stream=bool(body.get("stream")),
    )
