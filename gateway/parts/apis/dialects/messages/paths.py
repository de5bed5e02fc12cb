"""Say where the parts of a chat-completions body stand in the Messages body that it was translated from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.backends.server_forms import lengths_in
from gateway.dialects.native import Native

_MESSAGE: Final = re.compile(r"messages\[(\d*)\](?:\.(content|tool_calls)(?:\[(\d+)\])?)?(.*)")
_TOOL: Final = re.compile(r"tools\[(\d*)\](?:\.function)?(?:\.(\w+))?(.*)")
_NAMES: Final = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "functions": "tools",
    "function_call": "tool_choice",
}
_FORMAT: Final = "response_format"


def messages_path(native: Native, path: str) -> str:
    """Return the client's path of a field of the translation."""
    body = native.body
    if (match := _MESSAGE.fullmatch(path)) is not None:
        return _of_message(body, native.paths, *match.groups())
    if (match := _TOOL.fullmatch(path)) is not None:
        own = [i for i, tool in enumerate(body.get("tools") or ()) if tool.get("type") in (None, "custom")]
        number = match[1]
        at = "tools[]" if not number else f"tools[{own[int(number)]}]" if int(number) < len(own) else "tools"
        member = "" if match[2] is None else f".{'input_schema' if match[2] == 'parameters' else match[2]}"
        return f"{at}{member}{match[3]}"
    if path == "reasoning_effort":
        return "output_config.effort" if (body.get("output_config") or {}).get("effort") else "thinking"
    if path.startswith(_FORMAT):
        given = "output_config.format" if (body.get("output_config") or {}).get("format") else "output_format"
        return given + path.removeprefix(_FORMAT).removeprefix(".json_schema")
    name, dot, rest = path.partition(".")
    return f"{_NAMES.get(name, name)}{dot}{rest}"


def _of_message(
    body: Mapping[str, Any], origins: Sequence[Any], number: str, member: str | None, place: str | None, rest: str
) -> str:
    """Return the path of a message or a part of it: that of the client's message, or of its block.

    An origin is the client's message by number, -1 for `system`, or a pair: its number, and that of its block or those
    of each part's block.
    """
    if not number or int(number) >= len(origins):
        return "messages"
    origin = origins[int(number)]
    if origin == -1:
        return "system"
    if type(origin) is int:
        blocks = body["messages"][origin]["content"]
        if member == "tool_calls" and place is not None and isinstance(blocks, list):
            calls = [j for j, block in enumerate(blocks) if block["type"] == "tool_use"]
            return f"messages[{origin}].content[{calls[int(place)]}]{rest}"
        return f"messages[{origin}]{'' if member is None else f'.{member}'}{rest}"
    at, block = origin
    if type(block) is not int:
        block = block[int(place)] if place is not None else None
    return f"messages[{at}].content" if block is None else f"messages[{at}].content[{block}]"


_TOO_LONG: Final = "prompt is too long"
_BOTH: Final = "input length and `max_tokens` exceed context limit"
_ANTHROPICS: Final = (_TOO_LONG, _BOTH)


def in_anthropics_words(message: str) -> str:
    """Return the message of an error that means "too long" as Anthropic's API says it, with the figures it names."""
    if message.startswith(_ANTHROPICS):
        return message
    prompt, reply, context, _, at_least = lengths_in(message.encode())
    if prompt is not None and context is not None and prompt >= context:
        return f"{_TOO_LONG}: {prompt} tokens > {context} maximum"
    if prompt is not None and reply is not None and context is not None and not at_least:
        return f"{_BOTH}: {prompt} + {reply} > {context}, decrease input length or `max_tokens` and try again"
    return f"{_TOO_LONG} ({message.rstrip('.')})" if message else _TOO_LONG
