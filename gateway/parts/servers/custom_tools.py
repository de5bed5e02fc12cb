"""Offer tools that take a free text as functions of one text, to backends that know no other tools.

Codex edits files by such a tool (`type: custom`). Hardly any server but OpenAI's own knows them. A function with the
one argument `input` stands for each; the model's calls come back as calls of the custom tool, in a stream piece by
piece.

Tools also get names that an API takes, and replies the client's own. Anthropic's API takes 128 letters, digits, `_` and
`-`, OpenAI's 64; servers of tools have dots and slashes in names, too. A name always becomes the same one, in the
conversation too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

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


Json = dict[str, Any]
_INPUT: Final = "input"
_PARAMETERS: Final = {
    "type": "object",
    "properties": {_INPUT: {"type": "string", "description": "The whole text, as the tool is to get it."}},
    "required": [_INPUT],
    "additionalProperties": False,
}
_BEGINNING: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECE: Final = re.compile(
    r'(?:[^"\\]|\\(?:[^u]|u(?![dD][89abAB])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}))*'
)
"""Characters of a JSON text that are whole: no escape is cut, and no pair of surrogates."""


def has_custom(tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether there is a custom tool among those of a checked chat-completions body."""
    return any(tool.get("type") == "custom" for tool in tools)


def as_functions(body: Mapping[str, Any]) -> tuple[Json, frozenset[str]]:
    """Return the members of a chat-completions body that have custom tools, with functions, and the tools' names."""
    names: set[str] = set()
    changed = changed_tools(body, lambda value, field: _function(value, names, is_tool=field == "tools"))
    return changed, frozenset(names)


def _function(value: Any, names: set[str], *, is_tool: bool = False) -> Any:
    """Return tools, a choice of some or calls with functions for custom ones; the value itself if there are none."""
    if isinstance(value, list):
        items = [_function(item, names, is_tool=is_tool) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    if value.get("type") == "allowed_tools" and isinstance(allowed := value.get("allowed_tools"), dict):
        made = _function(allowed.get("tools"), names)
        return value if made is allowed.get("tools") else {**value, "allowed_tools": {**allowed, "tools": made}}
    custom = value.get("custom")
    if value.get("type") != "custom" or not isinstance(custom, dict) or not isinstance(name := custom.get("name"), str):
        return value
    rest = {key: member for key, member in value.items() if key not in ("type", "custom")}
    if "id" in value:  # a call
        arguments = orjson.dumps({_INPUT: custom.get(_INPUT) or ""}).decode()
        return {**rest, "type": "function", "function": {"name": name, "arguments": arguments}}
    names.add(name)
    function: Json = {"name": name}
    if is_tool:
        function |= {"description": _described(custom), "parameters": _PARAMETERS}
    return {**rest, "type": "function", "function": function}


def _described(custom: Mapping[str, Any]) -> str:
    """Return a tool's description, with the grammar of its text if it has one: a function's schema cannot hold it."""
    told = [text] if isinstance(text := custom.get("description"), str) and text else []
    given = custom.get("format")
    grammar = given.get("grammar") if isinstance(given, dict) else None
    if isinstance(grammar, dict) and isinstance(definition := grammar.get("definition"), str):
        told.append(f"`{_INPUT}` must follow this grammar ({grammar.get('syntax')}):\n{definition}")
    return "\n\n".join(told)


class CustomCalls:
    """Turn calls of the functions that stand for custom tools back, in one reply."""

    __slots__ = ("_begun", "_names")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._begun: dict[tuple[Any, Any], _StreamedText] = {}

    def whole(self, message: Mapping[str, Any]) -> bool:
        """Turn the calls of a whole message back, in place; return whether there were any."""
        changed = False
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and function.get("name") in self._names:
                del call["function"]
                call |= {
                    "type": "custom",
                    "custom": {"name": function["name"], _INPUT: _text_of(function.get("arguments"))},
                }
                changed = True
        return changed

    def chunk(self, choice: dict[str, Any]) -> bool:
        """Turn the pieces of calls in a choice of a chunk back, in place; return whether there were any."""
        changed = False
        delta = choice.get("delta") or {}
        for part in delta.get("tool_calls") or ():
            function = part.get("function") if isinstance(part, dict) else None
            if not isinstance(function, dict):
                continue
            key = choice.get("index"), part.get("index")
            if function.get("name") in self._names:
                self._begun[key] = _StreamedText()
                part |= {"type": "custom", "custom": {"name": function["name"]}}
            elif key not in self._begun:
                continue
            del part["function"]
            part.setdefault("custom", {})[_INPUT] = self._begun[key].add(function.get("arguments") or "")
            changed = True
        if choice.get("finish_reason") and self._begun:
            for (index, at), text in self._begun.items():
                if index == choice.get("index") and (rest := text.rest()):
                    choice["delta"] = delta = choice.get("delta") or {}
                    part = {"index": at, "custom": {_INPUT: rest}}
                    delta["tool_calls"] = [*(delta.get("tool_calls") or ()), part]
                    changed = True
        return changed


def _text_of(arguments: Any) -> str:
    """Return the text in a call's arguments; where they have none, what the model wrote."""
    if not isinstance(arguments, str):
        return ""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = given.get(_INPUT) if isinstance(given, dict) else given
    return text if isinstance(text, str) else arguments


class _StreamedText:
    """Read the text of a custom tool's input from the JSON arguments of a call, as they come in pieces."""

    __slots__ = ("_begun", "_given", "_pending", "_whole")

    def __init__(self) -> None:
        self._pending = ""
        self._whole: list[str] = []
        self._begun = False
        self._given = False

    def add(self, piece: str) -> str:
        """Return the text that this piece of the arguments adds; '' if none is complete yet."""
        self._whole.append(piece)
        self._pending += piece
        if not self._begun:
            match = _BEGINNING.match(self._pending)
            if match is None:
                return ""
            self._begun, self._pending = True, self._pending[match.end() :]
        found = _PIECE.match(self._pending)
        raw = found[0] if found else ""
        self._pending = self._pending[len(raw) :]
        if not raw:
            return ""
        try:
            text: str = orjson.loads(f'"{raw}"'.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r"))
        except orjson.JSONDecodeError:
            text = raw
        self._given = self._given or bool(text)
        return text

    def rest(self) -> str:
        """Return the text at the end of a call whose pieces gave none."""
        if self._given:
            return ""
        self._given = True
        return _text_of("".join(self._whole))
