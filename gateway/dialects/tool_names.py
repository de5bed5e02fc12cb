"""Cut names of tools that are longer than OpenAI's APIs take, and write the client's own names into the replies.

Anthropic's API takes 128 characters, OpenAI's 64. A name is always cut to the same one, in the conversation too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

_LONGEST: Final = 64
"""Longest name of a tool that OpenAI's chat completions take."""

ToolNames = dict[str, str]
"""The client's names of tools, by those that were cut."""


def short_name(name: str) -> str:
    """Return the name, cut to 64 characters if it is longer; the end of a cut one tells it from others."""
    if len(name) <= _LONGEST:
        return name
    told_apart = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST - 9]}_{told_apart}"


def with_short_names(body: Mapping[str, Any]) -> tuple[dict[str, Any], ToolNames]:
    """Return the members of a chat-completions body that have long names of tools, with short ones, and those cut."""
    names: ToolNames = {}
    changed: dict[str, Any] = {}
    for field in ("tools", "tool_choice"):
        if (given := body.get(field)) is not None and (cut := _cut(given, names)) is not given:
            changed[field] = cut
    messages = body["messages"]
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and (cut := _cut(calls, names)) is not calls:
            changed.setdefault("messages", list(messages))[at] = {**message, "tool_calls": cut}
    return changed, names


def _cut(value: Any, names: ToolNames) -> Any:
    """Return tools, a choice of some or calls with short names; the value itself if none was long."""
    if isinstance(value, list):
        items = [_cut(item, names) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if value.get("type") == "allowed_tools":
        allowed = value.get("allowed_tools")
        if isinstance(allowed, dict) and (cut := _cut(allowed.get("tools"), names)) is not allowed.get("tools"):
            return {**value, "allowed_tools": {**allowed, "tools": cut}}
        return value
    kind = "custom" if value.get("type") == "custom" else "function"
    named = value.get(kind)
    if not isinstance(named, dict) or not isinstance(name := named.get("name"), str) or len(name) <= _LONGEST:
        return value
    short = short_name(name)
    names[short] = name
    return {**value, kind: {**named, "name": short}}


def restore_names(turn: Mapping[str, Any], names: ToolNames) -> bool:
    """Write the client's names into the tool calls of a message or a delta; return whether one was cut."""
    changed = False
    for call in (turn.get("tool_calls") or ()) if names else ():
        if not isinstance(call, dict):
            continue
        for kind in ("function", "custom"):
            named = call.get(kind)
            if isinstance(named, dict) and isinstance(name := named.get("name"), str) and name in names:
                named["name"] = names[name]
                changed = True
    return changed
