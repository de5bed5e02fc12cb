"""What can be read off a request without a model: the inputs of the difficulty classifier and of routing rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CHARS_PER_TOKEN = 4
_JSON_FORMATS = frozenset({"json_object", "json_schema"})


@dataclass(frozen=True, slots=True)
class Features:
    """One request, seen from outside. `text` is the last user message's text; `approx_tokens` counts all messages."""

    text: str
    turns: int
    approx_tokens: int
    has_tools: bool = False
    wants_json: bool = False
    has_images: bool = False
    stream: bool = False


def features_of_text(text: str) -> Features:
    """The features of a request with this one message, as a prompt of labelled data is taken."""
    return Features(text=text, turns=1, approx_tokens=len(text) // _CHARS_PER_TOKEN + 4)


def features_of(body: Mapping[str, Any]) -> Features:
    """The features of a checked chat-completions body (`messages` is a list of objects, each with a `role`)."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    text, chars, images = "", 0, False
    turns = 0
    for message in messages:
        part, has_image = _text_of(message.get("content"))
        chars += len(part)
        images = images or has_image
        if message["role"] == "user":
            turns += 1
            text = part
    response_format = body.get("response_format")
    return Features(
        text=text,
        turns=turns,
        approx_tokens=chars // _CHARS_PER_TOKEN + 4 * len(messages),
        has_tools=bool(body.get("tools") or body.get("functions")),
        wants_json=isinstance(response_format, dict) and response_format.get("type") in _JSON_FORMATS,
        has_images=images,
        stream=bool(body.get("stream")),
    )


def _text_of(content: object) -> tuple[str, bool]:
    """A message's text, and whether it carries an image. Content is a string, a list of typed parts, or null."""
    if isinstance(content, str):
        return content, False
    if not isinstance(content, list):
        return "", False
    texts: list[str] = []
    has_image = False
    for part in content:
        if isinstance(part, dict):
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
            has_image = has_image or part.get("type") in ("image_url", "input_image", "image")
    return "\n".join(texts), has_image
