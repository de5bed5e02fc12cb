"""Say the same in another form where a server refuses one: values that say nothing are left out, a pinned tool is the
only one of a required call, and texts of a message that come as parts are one text.

LM Studio, for one, takes no `response_format: {"type": "text"}`, and no `tool_choice` that is an object. Servers that
read their requests into fixed types take a message's content as a string alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

SAYS_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}},),
    "tools": ([],),
    "tool_choice": ("auto",),
    "functions": ([],),
    "function_call": ("auto",),
    "stop": ([],),
    "stop_sequences": ([],),
    "n": (1,),
    "best_of": (1,),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
}
"""Values that mean the same as no value, by field."""
PINNED: Final = b"{}"
"""The refused value of a RefusedField for `tool_choice` that stands for any object."""
_NAMED: Final = {name: re.compile(rf"['\"`]{name}(?:\.\w+)*['\"`]|\b{name} (?:type|param)") for name in SAYS_NOTHING}
PARTS: Final = b"[]"
"""The refused value of a RefusedField for `messages[].content` that stands for any list of texts."""
_STRING: Final = re.compile(
    r"content\b.{0,60}?(?:must be (?:a )?(?:str|string)\b|(?:should be|expected) (?:a )?(?:valid )?str)"
    r"|content\b.{0,20}? (?:is|was) not (?:a |of type )?['\"`]?string"
    r"|cannot unmarshal array into Go (?:struct field \S{0,80}content\b|value).{0,40}\bstring"
    r"|invalid type: sequence, expected a string",
    re.DOTALL | re.IGNORECASE,
)
_OBJECT: Final = re.compile(
    r"tool_choice.{0,40}(?:'object'|\bobject\b|must be a string|expected (?:a )?str)", re.DOTALL
)


def nothing_said(body: Mapping[str, Any], words: str) -> list[tuple[str, bytes]]:
    """Return the fields that an error's words name and whose values in this body say nothing, with those as JSON."""
    return [
        (name, orjson.dumps(body[name]))
        for name, values in SAYS_NOTHING.items()
        if name in body and name in words and body[name] in values and _NAMED[name].search(words)
    ]


def refuses_pinned_tool(body: Mapping[str, Any], words: str) -> bool:
    """Return whether an error refuses that the body's `tool_choice` is an object which names a tool."""
    return pinned_tool(body) is not None and _OBJECT.search(words) is not None


def refuses_parts(body: Mapping[str, Any], words: str) -> bool:
    """Return whether an error refuses that a message's content is a list, and a text would say the same."""
    return _STRING.search(words) is not None and with_joined_texts(body) is not None


def with_joined_texts(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the body with one text in place of each content of texts alone; None if there is none."""
    messages = [_with_joined_text(message) for message in body.get("messages") or ()]
    same = all(made is given for made, given in zip(messages, body.get("messages") or (), strict=True))
    return None if same else {**body, "messages": messages}


def _with_joined_text(message: Any) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or not parts:
        return message
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    strings = [text for text in texts if isinstance(text, str)]
    return {**message, "content": "\n".join(strings)} if len(strings) == len(parts) else message


def pinned_tool(body: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that a chat-completions body says must be called."""
    choice = body.get("tool_choice")
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def with_required_tool(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with a pinned tool as the only one, and a call required; the body itself if none is pinned."""
    name = pinned_tool(body)
    if name is None:
        return body
    tools = [tool for tool in body.get("tools") or () if _name_of(tool) == name]
    return {**body, "tools": tools, "tool_choice": "required"} if tools else body


def _name_of(tool: object) -> object:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
