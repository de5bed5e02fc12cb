"""Decide which answers may be cached, by rules on the answer itself; the gateway judges how it was produced.

An answer may be cached if a client that asks the same would not prefer a new one: every requested choice is there and
ended by `stop`, has text, is no refusal, was not cut by a content filter, and calls no tool (unless the policy stores
tool calls). It must also conform to the clients' types, because a replay cannot be retried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final

import orjson

MAX_BODY_BYTES: Final = 1 << 20
_TEXTS: Final = ("id", "model", "system_fingerprint", "service_tier")
_REASONING: Final = ("reasoning_content", "reasoning")


def why_not_kept(completion: Mapping[str, Any], choices_asked: int = 1, *, tool_calls: bool = False) -> str:
    """Return why an answer must not be cached, or ''. With `tool_calls`, complete tool calls may be cached too."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        return "no_choices"
    if completion.get("error"):
        return "error"
    if len(choices) != choices_asked:
        return "choices"
    if not _is_plain(completion):
        return "malformed"
    if _filtered(completion.get("prompt_filter_results")):
        return "content_filter"
    reasons = (_why_not_this(choice, place, tool_calls) for place, choice in enumerate(choices))
    return next(filter(None, reasons), "")


def _is_plain(completion: Mapping[str, Any]) -> bool:
    """Return whether the fields around the choices, where present, have the types that clients expect."""
    return (
        completion.get("object") in (None, "chat.completion")
        and all(isinstance(completion.get(name), str | NoneType) for name in _TEXTS)
        and _is_count(completion.get("created"))
        and _is_usage(completion.get("usage"))
    )


def _is_usage(usage: Any) -> bool:
    if usage is None:
        return True
    return isinstance(usage, Mapping) and all(
        type(usage.get(name)) is int and usage[name] >= 0 for name in ("prompt_tokens", "completion_tokens")
    )


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _why_not_this(choice: Any, place: int, tool_calls: bool) -> str:
    if not isinstance(choice, Mapping) or not isinstance(message := choice.get("message") or {}, Mapping):
        return "malformed"
    if choice.get("index", place) != place or message.get("role", "assistant") != "assistant":
        return "malformed"
    finish = choice.get("finish_reason")
    if finish != "stop" and not (tool_calls and finish == "tool_calls"):
        return f"finish: {finish}" if isinstance(finish, str | NoneType) else "malformed"
    if message.get("refusal"):
        return "refusal"
    if _filtered(choice.get("content_filter_results")):
        return "content_filter"
    if not isinstance(choice.get("logprobs"), Mapping | NoneType):
        return "malformed"
    if not all(isinstance(message.get(name), str | NoneType) for name in ("content", *_REASONING)):
        return "malformed"
    if message.get("function_call"):
        return "tool_calls"
    if message.get("tool_calls"):
        return _why_not_these(message["tool_calls"]) if tool_calls else "tool_calls"
    content = message.get("content")
    return "" if finish == "stop" and content and content.strip() else "empty"


def _why_not_these(calls: Any) -> str:
    """Return why tool calls must not be cached, or '': each needs an id, a name and a JSON object as arguments."""
    return "" if isinstance(calls, list) and all(map(_is_call, calls)) else "malformed"


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not _is_text(call.get("id")) or not _is_text(function.get("name")):
        return False
    try:
        return isinstance(orjson.loads(function.get("arguments") or ""), dict)
    except (orjson.JSONDecodeError, TypeError):
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _filtered(results: Any) -> bool:
    """Return whether a provider's filter removed something (Azure's `content_filter_results`, of choice or prompt)."""
    if isinstance(results, list):
        return any(_filtered(one.get("content_filter_results")) for one in results if isinstance(one, Mapping))
    if not isinstance(results, Mapping):
        return False
    return any(isinstance(one, Mapping) and one.get("filtered") is True for one in results.values())
