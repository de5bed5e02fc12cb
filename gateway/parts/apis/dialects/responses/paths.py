"""Say where the parts of a chat-completions body stand in the Responses body that it was translated from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.dialects.native import Native

_MESSAGE: Final = re.compile(r"messages\[(\d*)\](?:\.(content|tool_calls)(?:\[(\d+)\])?)?(.*)")
_TOOL: Final = re.compile(r"tools\[(\d*)\](?:\.(?:function|custom))?(.*)")
_NAMES: Final = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format": "text.format",
    "functions": "tools",
    "function_call": "tool_choice",
}
_OF_PARTS: Final = ((".image_url.url", ".image_url"), (".image_url.detail", ".detail"), (".file", ""))
"""Members of a part: their paths in chat completions, and here."""
_LOGPROBS: Final = ("logprobs", "top_logprobs")


def responses_path(native: Native, path: str) -> str:
    """Return the client's path of a field of the translation."""
    if (match := _MESSAGE.fullmatch(path)) is not None:
        return _of_message(native.paths, *match.groups())
    if (match := _TOOL.fullmatch(path)) is not None:
        number = match[1]
        at = next(
            (at for i, at in enumerate(_all_tools(native.body)) if str(i) == number), "tools" if number else "tools[]"
        )
        return at + match[2]
    if path in _LOGPROBS:
        return "top_logprobs" if native.body.get("top_logprobs") else "include"
    path = path.replace("response_format.json_schema", "response_format", 1)
    name, dot, rest = path.partition(".")
    return f"{_NAMES.get(name, name)}{dot}{rest}"


def _of_message(origins: Sequence[Any], number: str, member: str | None, place: str | None, rest: str) -> str:
    """Return the path of a message, or of a part of it: where its own item, or a call's, stands."""
    if not number or int(number) >= len(origins):
        return "input"
    origin = origins[int(number)]
    if isinstance(origin, dict):  # a turn of the assistant, of several items
        if member == "tool_calls" and place is not None and int(place) < len(origin["tool_calls"]):
            return f"{origin['tool_calls'][int(place)]}{rest}"
        at, own = origin["content"] or origin["at"], "content"
    elif isinstance(origin, list):  # pictures and files of calls' outputs
        at, own, member, place = origin[int(place or 0)], "", None, None
    else:
        at, own = origin
    if at in ("input", "instructions"):  # a text
        return str(at)
    for chat, here in _OF_PARTS:
        if rest.startswith(chat):
            rest = here + rest.removeprefix(chat)
            break
    inner = "" if member is None else f".{own}" if member == "content" else f".{member}"
    return f"{at}{inner}{'' if place is None else f'[{place}]'}{rest}"


def _all_tools(body: Mapping[str, Any]) -> Iterable[str]:
    """Return the path of each of the client's own tools, in the order that they have in the translated body.

    Items of the input give tools too; of those with one name, the last counts, in the place of the first.
    """
    items = body.get("input")
    paths: dict[Any, str] = {}
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if item.get("type") == "additional_tools":
            paths.update(_tools(item.get("tools"), f"input[{i}].tools"))
    if paths:
        return {**paths, **dict(_tools(body.get("tools"), "tools"))}.values()
    return (path for _, path in _tools(body.get("tools"), "tools"))


def _tools(given: Any, at: str) -> Iterator[tuple[Any, str]]:
    """Yield the name and path of each of the client's own tools in the list at a path."""
    for i, tool in enumerate(given or ()):
        if tool.get("type") == "namespace":
            for j, inner in enumerate(tool.get("tools") or ()):
                if inner.get("type") in ("function", "custom"):
                    yield (tool.get("name"), inner.get("name")), f"{at}[{i}].tools[{j}]"
        elif tool.get("type") in ("function", "custom"):
            yield tool.get("name"), f"{at}[{i}]"
