"""Request bytes to a checked body, once: the rules of JSON here, those of chat completions in `gateway.chat_fields`.

orjson takes the last of two equal keys, so a request could mean one thing here and another at a backend. A body equal
to its own re-serialisation has no such pair (official SDKs send just that form); any other is read once more by a
parser that sees pairs. That one also finds the integers that orjson, which keeps 64 bits, has made floats of: they are
refused, for a seed that is nearly the client's is another seed.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, Final

import orjson

from gateway.chat_fields import check_chat
from gateway.errors import InvalidRequest

MAX_DEPTH: Final = 64
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
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
    """A checked chat-completions body (see `gateway.chat_fields`); raises InvalidRequest."""
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    check_chat(body)
    return body
