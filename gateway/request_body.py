"""Request bytes to a checked body, once: the rules of JSON first, then those of chat completions.

orjson takes the last of two equal keys, so a request could mean one thing here and another at a backend. A body equal
to its own re-serialisation has no such pair (official SDKs send just that form); any other is read once more by a
parser that sees pairs. That one also finds the integers that orjson, which keeps 64 bits, has made floats of: they are
refused, for a seed that is nearly the client's is another seed.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.errors import InvalidRequest

MAX_DEPTH: Final = 64
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_NEEDS_CONTENT = frozenset({"system", "developer", "user", "tool", "function"})
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
_MAX_CHOICES = 128
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1
_OFF_LOOP_BYTES: Final = 256 << 10
"""Measured: a body of this size takes 1.6 ms as SDKs write it, and 4 to 9 where its pairs must be read too."""


class _RefusedKeyError(Exception):
    """A key, and what is wrong with it."""


def parse_json(raw: bytes) -> Any:
    """The JSON value in `raw`; raises InvalidRequest."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = str(error)
        if "surrogate" in reason and not raw.startswith(_UTF16_MARKS):
            raise InvalidRequest(f"The body is not valid UTF-8: {reason}", code="invalid_utf8") from None
        raise InvalidRequest(f"The body is not valid JSON: {reason}", code="invalid_json") from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    if orjson.dumps(value) != raw:
        _check_pairs(raw)
    return value


def _check_depth(value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")


def _inside(value: object) -> list[object]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _check_pairs(raw: bytes) -> None:
    try:
        json.loads(raw, object_pairs_hook=_unique_and_exact if _LONG_NUMBER.search(raw) else _unique)
    except _RefusedKeyError as error:
        key, wrong = error.args
        raise InvalidRequest(f"The key {key!r} {wrong}.", code="unsupported_value", param=key) from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _RefusedKeyError(key, "is given twice")
        seen.add(key)


def _unique_and_exact(pairs: list[tuple[str, Any]]) -> None:
    _unique(pairs)
    for key, value in pairs:
        if _holds_long_integer(value):
            raise _RefusedKeyError(key, "has an integer of more than 64 bits")


def _holds_long_integer(value: object) -> bool:
    """In the value itself or in lists of it; of objects inside, the same was asked before."""
    if isinstance(value, list):
        return any(map(_holds_long_integer, value))
    return isinstance(value, int) and not _LEAST_INTEGER <= value <= _MOST_INTEGER


async def parse_chat_body(raw: bytes) -> dict[str, Any]:
    """`parse_chat`, in a thread for a body so large that other requests would wait for it."""
    return parse_chat(raw) if len(raw) <= _OFF_LOOP_BYTES else await asyncio.to_thread(parse_chat, raw)


def parse_chat(raw: bytes) -> dict[str, Any]:
    """A checked chat-completions body. What is not listed here passes untouched, unknown fields too."""
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    _check_model(body)
    _check_messages(body)
    if type(body.get("stream")) not in (bool, type(None)):
        raise _wrong_type("stream", "a boolean")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _wrong_type("stream_options", "an object")
    _check_tools(body)
    _check_numbers(body)
    return body


def _check_model(body: Mapping[str, Any]) -> None:
    if "model" not in body:
        raise _missing("model")
    model = body["model"]
    if not isinstance(model, str):
        raise _wrong_type("model", "a string")
    if not model or len(model) > 256 or not model.isprintable():
        raise InvalidRequest("model must have 1 to 256 printable characters.", code="unsupported_value", param="model")


def _check_messages(body: Mapping[str, Any]) -> None:
    if "messages" not in body:
        raise _missing("messages")
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        raise _wrong_type("messages", "a non-empty array")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong_type(f"messages[{i}]", "an object")
        role = message.get("role")
        if not isinstance(role, str):
            raise _missing(f"messages[{i}].role") if role is None else _wrong_type(f"messages[{i}].role", "a string")
        content = message.get("content")
        if isinstance(content, str):
            continue
        if content is None:
            if role in _NEEDS_CONTENT:
                raise _missing(f"messages[{i}].content")
        else:
            _check_parts(content, f"messages[{i}].content")


def _check_parts(content: object, where: str) -> None:
    if not isinstance(content, list):
        raise _wrong_type(where, "a string or an array of parts")
    for j, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _wrong_type(f"{where}[{j}]", "an object with a type")


def _check_tools(body: Mapping[str, Any]) -> None:
    for name in ("tools", "functions"):
        if not isinstance(body.get(name), list | None):
            raise _wrong_type(name, "an array")
    response_format = body.get("response_format")
    if response_format is None:
        return
    if not isinstance(response_format, dict):
        raise _wrong_type("response_format", "an object")
    if not isinstance(response_format.get("type"), str):
        raise _wrong_type("response_format.type", "a string")


def _check_numbers(body: Mapping[str, Any]) -> None:
    for name in _TOKEN_LIMITS:
        limit = body.get(name)
        if limit is None:
            continue
        if type(limit) is not int:
            raise _wrong_type(name, "an integer")
        if limit < 1:
            raise InvalidRequest(f"{name} must be at least 1.", code="unsupported_value", param=name)
    n = body.get("n")
    if n is not None:
        if type(n) is not int:
            raise _wrong_type("n", "an integer")
        if not 1 <= n <= _MAX_CHOICES:
            raise InvalidRequest(f"n must be 1 to {_MAX_CHOICES}.", code="unsupported_value", param="n")


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: {param!r}.", code="missing_required_parameter", param=param)


def _wrong_type(param: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid type for {param!r}: expected {expected}.", code="invalid_type", param=param)
