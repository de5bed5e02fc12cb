"""Give tools names that an API takes, and write the client's own names into the replies.

Anthropic's API takes 128 letters, digits, `_` and `-`, OpenAI's 64; servers of tools have dots and slashes in names,
too. A name always becomes the same one, in the conversation too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_LONGEST: Final = 64
"""Longest name of a tool that OpenAI's chat completions take."""

_LONGEST_OF_ANTHROPIC: Final = 128
_UNTAKEN: Final = re.compile(r"[^a-zA-Z0-9_-]")

ToolNames = dict[str, str]
"""The client's names of tools, by those that were sent instead."""


def short_name(name: str) -> str:
    """Return the name, cut to 64 characters if it is longer; the end of a cut one tells it from others."""
    return name if len(name) <= _LONGEST else _told_apart(name, name, _LONGEST)


def plain_name(name: str) -> str:
    """Return the name as Anthropic's API takes it; the end of a changed one tells it from others."""
    plain = _UNTAKEN.sub("_", name)
    if plain == name and len(name) <= _LONGEST_OF_ANTHROPIC:
        return name
    return _told_apart(name, plain, _LONGEST_OF_ANTHROPIC)


def _told_apart(name: str, plain: str, longest: int) -> str:
    told_apart = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: longest - 9]}_{told_apart}"


def with_names(body: Mapping[str, Any], fit: Callable[[str], str] = short_name) -> tuple[dict[str, Any], ToolNames]:
    """Return the members of a chat-completions body that have names of tools which `fit` changes, and these names."""
    names: ToolNames = {}
    return changed_tools(body, lambda value, _: _fitted(value, fit, names)), names


def changed_tools(body: Mapping[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Return the members of a chat-completions body whose tools, choice or calls `change` does not return as they are.

    It gets each of them, and the name of the field.
    """
    changed: dict[str, Any] = {}
    for field in ("tools", "tool_choice"):
        if (given := body.get(field)) is not None and (made := change(given, field)) is not given:
            changed[field] = made
    messages = body["messages"]
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and (made := change(calls, "tool_calls")) is not calls:
            changed.setdefault("messages", list(messages))[at] = {**message, "tool_calls": made}
    return changed


def _fitted(value: Any, fit: Callable[[str], str], names: ToolNames) -> Any:
    """Return tools, a choice of some or calls with names that fit; the value itself if all do."""
    if isinstance(value, list):
        items = [_fitted(item, fit, names) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if value.get("type") == "allowed_tools":
        allowed = value.get("allowed_tools")
        if isinstance(allowed, dict) and (made := _fitted(allowed.get("tools"), fit, names)) is not allowed.get(
            "tools"
        ):
            return {**value, "allowed_tools": {**allowed, "tools": made}}
        return value
    kind = "custom" if value.get("type") == "custom" else "function"
    named = value.get(kind)
    if not isinstance(named, dict) or not isinstance(name := named.get("name"), str) or not name:
        return value
    sent = fit(name)
    if sent == name:
        return value
    names[sent] = name
    return {**value, kind: {**named, "name": sent}}


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
