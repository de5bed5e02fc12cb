"""Bring the system's texts of a Responses body into the one form that some servers know: its `instructions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.parts.servers.chat_forms import MARKED, SYSTEM


def with_one_instruction(body: dict[str, Any]) -> None:
    """Join the system's texts of a Responses body to its `instructions`, in place; later ones become the user's."""
    items = body.get("input")
    if not isinstance(items, list) or not any(_is_systems(item) for item in items):
        return
    first = next((i for i, item in enumerate(items) if not _is_systems(item)), len(items))
    texts = [_text_in(item) for item in items[:first]]
    if None in texts or first == len(items):
        return  # a picture has no place in a text, and a request needs an input
    if texts:
        body["instructions"] = "\n\n".join(text for text in (body.get("instructions"), *texts) if text)
    body["input"] = [
        {**item, "role": "user", "content": MARKED.format(text)}
        if _is_systems(item) and (text := _text_in(item)) is not None
        else item
        for item in items[first:]
    ]


def _is_systems(item: Any) -> bool:
    return isinstance(item, dict) and item.get("role") in SYSTEM and (item.get("type") or "message") == "message"


def _text_in(item: Mapping[str, Any]) -> str | None:
    """Return the text of an item of a Responses body; None if it holds more than texts."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return "\n\n".join(text for text in texts if isinstance(text, str)) if None not in texts else None
