"""Parse and check request bodies: first the JSON, then the fields that the gateway itself reads.

Of two equal keys orjson keeps the last, and a backend may keep the first, so repeated keys are refused. A body that is
equal to its own re-serialisation, but for white space, has none (official SDKs and `json.dumps` send that form); any
other body is parsed again by a parser that sees every pair. That parser also finds integers of more than 64 bits, which
orjson turns into floats; they are refused too, because a rounded seed would be a different seed.

A large body is parsed in a thread. Python's global lock is held during each call into C, so each call must be short:
values are counted before they are parsed. Repeated keys are found by counting keys in the text and in the parsed value,
which has fewer if one was repeated, instead of by a second parse.

`_fields` lists the fields of chat completions that are read, with one rule each. Code that reads a field relies on its
rule here, so a field that is newly read must get one. All other fields are passed on unchecked, for the backend to
judge. As in OpenAI's API, null means absent, except for required fields. Errors name a field by its path, as OpenAI
does: `messages[0].content`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import InvalidRequest
from gateway.off_loop import off_loop

if TYPE_CHECKING:
    from gateway.config.schema import Limits

MAX_DEPTH: Final = 64
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE: Final = b" \t\r\n"
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_LEAST_INTEGER, _MOST_INTEGER = -(1 << 63), (1 << 64) - 1
_LONG_INTEGER: Final = b"0" * 19
_DIGITS_AS_ZEROS: Final = bytes(0x30 if chr(byte).isdigit() and byte < 0x80 else 0x20 for byte in range(256))
_SMALL_BYTES: Final = 256 << 10
_SURELY_SMALL_BYTES: Final = 16 << 10
_FEW_BRACKETS: Final = 4096
"""A body within 256 KiB and this many objects and arrays is parsed on the event loop. Measured: mostly 1.6 ms, at most
9 ms."""
_SLICE_BYTES: Final = 256 << 10
_LONG_BYTES: Final = 256 << 10
"""Without a quote, so many bytes are the inside of a text of a large body, which is decoded by itself."""
_ESCAPED: Final = bytes((*range(32), ord("\\")))
"""What the inside of a text has only as an escape."""
_PLACE: Final = f"text-{urandom(16).hex()}-"
"""What names the place of a text that is decoded by itself begin with."""


_TOKENS_OF_A_VALUE: Final = 20
_TOKEN_LISTS: Final = re.compile(rb'"input"\s*:\s*(\[(?:\s*\[[0-9,\s]{1,1000000}\]\s*(?:,(?=\s*\[)|(?=\])))+\])')
_IN_PLACE: Final = b"the lists of tokens are parsed by themselves"


class _RefusedKeyError(Exception):
    """Raised with a key and the fault found in it."""


def parse_json(raw: bytes) -> Any:
    """Return the JSON value in `raw`, which must be small. Raises InvalidRequest for anything but unambiguous JSON."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _unread(raw, error) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        _count_keys(value)
    again = orjson.dumps(value)
    if again != raw and again.translate(None, _WHITE_SPACE) != raw.translate(None, _WHITE_SPACE):
        _check_pairs(raw, exact=_LONG_NUMBER.search(raw) is not None)
    return value


def _loads(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _unread(raw, error) from None


def _unread(raw: bytes, error: orjson.JSONDecodeError) -> InvalidRequest:
    reason = str(error)
    if "surrogate" in reason and not raw.startswith(_UTF16_MARKS):
        return InvalidRequest(f"The body is not valid UTF-8: {reason}", code="invalid_utf8")
    return InvalidRequest(f"The body is not valid JSON: {reason}", code="invalid_json")


def _parse_large(raw: bytes, most_values: int) -> Any:
    """Parse like `parse_json`, for any size, without long calls into C.

    Raises InvalidRequest also for more than `most_values` values.
    """
    outside = b"".join(_outside_strings(raw))
    if outside.count(b",") + outside.count(b"{") + outside.count(b"[") > most_values:
        message = f"The body has more than {most_values} values; send fewer (limits.values)."
        raise InvalidRequest(message, code="unsupported_value")
    value = _parse_apart(raw) or _loads(raw)
    exact = _LONG_INTEGER in outside.translate(_DIGITS_AS_ZEROS)
    if exact or outside.count(b":") != _count_keys(value):
        _check_pairs(raw, exact=exact)
    return value


def _parse_apart(raw: bytes) -> Any:
    """Parse a JSON text whose long plain texts are decoded by themselves; None where that cannot be done.

    In one call, a text of 30 MB holds Python's lock for 30 ms, and is copied once more. A long text stands between two
    quotes, without an escape; where that is not a whole value of the rest, what stands there was something else.
    """
    rest: list[bytes] = []
    texts: dict[str, str] = {}
    begin = at = 0
    while at < len(raw):
        if raw.find(b'"', at, at + _LONG_BYTES) >= 0:
            at += _LONG_BYTES
            continue
        start, end = raw.rfind(b'"', begin, at) + 1, raw.find(b'"', at + _LONG_BYTES)
        if not start or end < 0:
            break
        at = end
        if all(_is_plain(raw[here : min(here + _SLICE_BYTES, end)]) for here in range(start, end, _SLICE_BYTES)):
            try:
                texts[name := f"{_PLACE}{len(texts)}"] = str(memoryview(raw)[start:end], "utf-8")
            except UnicodeDecodeError:
                return None
            rest += raw[begin:start], name.encode()
            begin = end
    if not texts:
        return None
    try:
        value = orjson.loads(b"".join((*rest, raw[begin:])))
    except orjson.JSONDecodeError:
        return None
    level = [value]
    while texts and level:
        level = [inner for outer in level for inner in _put_back(outer, texts)]
    return None if texts else value


def _is_plain(part: bytes) -> bool:
    return len(part.translate(None, _ESCAPED)) == len(part)


def _put_back(value: object, texts: dict[str, str]) -> list[object]:
    """Put texts in the places of their names in an object or array, and return the objects and arrays inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, text in [(place, item) for place, item in items if type(item) is str and item in texts]:
        value[place] = texts.pop(text)  # type: ignore[index]
    return _inside(value)


def _parse_tokens(raw: bytes, most_values: int) -> Any:
    """Parse a body whose `input` may be lists of tokens, of which twenty count as one of `most_values`.

    A thousand lists of a thousand tokens would hold Python's lock for 50 ms if they were parsed at once: each list is
    parsed by itself, and the rest of the body as any other. Tokens need neither keys nor objects, and are small.
    """
    # Looking for the lists takes 300 bytes for each: a body of more brackets has too many values, or texts with them.
    match = _TOKEN_LISTS.search(raw) if raw.count(b"[") <= most_values else None
    if match is None:
        return _parse_large(raw, most_values)
    start, end = match.span(1)
    if raw.count(b",", start, end) > _TOKENS_OF_A_VALUE * most_values:
        message = f"`input` has more than {_TOKENS_OF_A_VALUE * most_values} tokens; send fewer (20 x limits.values)."
        raise InvalidRequest(message, code="unsupported_value", param="input")
    value = _parse_large(b'%b"%b"%b' % (raw[:start], _IN_PLACE, raw[end:]), most_values)
    if not isinstance(value, dict) or value.get("input") != _IN_PLACE.decode():
        return _parse_large(raw, most_values)  # what was found is inside a text or an object
    lists = raw[start + 1 : end - 1].split(b"]")
    value["input"] = [_loads(list_.lstrip(b", \t\r\n") + b"]") for list_ in lists[:-1]]
    return value


def _outside_strings(raw: bytes) -> Iterator[bytes]:
    """Yield the parts of a JSON text outside its strings, slice by slice; arbitrary from the first syntax error on."""
    start, inside = 0, 0
    while start < len(raw):
        part = raw[start : start + _SLICE_BYTES]
        # If a slice ends in an odd number of backslashes, the last begins an escape that continues in the next slice.
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = part[:-1] or raw[start : start + 2]
        start += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(pieces[inside::2])
        inside = (inside + len(pieces) - 1) % 2


def _count_keys(value: object) -> int:
    """Return the number of keys of all objects in a value. Raises InvalidRequest if it is nested too deep."""
    count, level = 0, [value]
    for _ in range(MAX_DEPTH):
        count += sum(len(each) for each in level if type(each) is dict)
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return count
    raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")


def _inside(value: object) -> list[object]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict | list)]


def _check_pairs(raw: bytes, *, exact: bool) -> None:
    """Raise InvalidRequest if an object has a key twice or, with `exact`, an integer of more than 64 bits."""
    decoder = _EXACT_DECODER if exact else _DECODER
    try:
        # The text is known to be valid, so its one value begins at the first character that is not a space.
        decoder.raw_decode(raw.decode().lstrip())
    except _RefusedKeyError as error:
        key, wrong = error.args
        raise InvalidRequest(f"The key {key!r} {wrong}.", code="unsupported_value", param=key) from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
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
    """Return whether the value, or a list in it, holds one; objects inside were checked before."""
    if isinstance(value, list):
        return any(map(_holds_long_integer, value))
    return isinstance(value, int) and not _LEAST_INTEGER <= value <= _MOST_INTEGER


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique)
_EXACT_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_and_exact)


class ChatBodies:
    """Parse the bodies of chat completions within the limits of one deployment."""

    def __init__(self, limits: Limits) -> None:
        self._fields = ChatFields(limits)
        self._parse_large = partial(_parse_large, most_values=limits.values)
        self._parse_tokens = partial(_parse_tokens, most_values=limits.values)
        # A value takes at least one byte, so a body of at most `values` bytes has at most that many values.
        self._small = min(_SMALL_BYTES, limits.values)
        self._surely_small = min(_SURELY_SMALL_BYTES, limits.values)

    async def read(self, raw: bytes) -> tuple[dict[str, Any], bool]:
        """Return the checked body, and whether it is large. Raises InvalidRequest.

        A large body is parsed in a thread, and other work on it should be done in one too.
        """
        if len(raw) > self._surely_small and self._is_large(raw):
            return await off_loop(partial(self._checked, self._parse_large, raw)), True
        body = parse_json(raw)
        if type(body) is not dict:
            raise _no_object()
        self._fields.check(body)
        return body, False

    async def read_object(self, raw: bytes, *, tokens: bool = False) -> tuple[dict[str, Any], bool]:
        """Return a body in another dialect, a JSON object, and whether it is large. Raises InvalidRequest.

        Its translation into a chat completion must pass `check`. `tokens`: its `input` may be lists of tokens.
        """
        if len(raw) > self._surely_small and self._is_large(raw):
            return await off_loop(partial(_object_of, self._parse_tokens if tokens else self._parse_large, raw)), True
        return _object_of(parse_json, raw), False

    async def check(self, body: Mapping[str, Any], *, large: bool) -> None:
        """Check the fields of a translated body. Raises InvalidRequest."""
        if large:
            await off_loop(partial(self._fields.check, body))
        else:
            self._fields.check(body)

    def _is_large(self, raw: bytes) -> bool:
        return len(raw) > self._small or raw.count(b"{") + raw.count(b"[") > _FEW_BRACKETS

    def parse(self, raw: bytes) -> dict[str, Any]:
        """Return the checked body, parsed in the calling thread whatever its size. Raises InvalidRequest."""
        return self._checked(parse_json if len(raw) <= self._small else self._parse_large, raw)

    def _checked(self, parse: Callable[[bytes], Any], raw: bytes) -> dict[str, Any]:
        body = _object_of(parse, raw)
        self._fields.check(body)
        return body


def _object_of(parse: Callable[[bytes], Any], raw: bytes) -> dict[str, Any]:
    body = parse(raw)
    if not isinstance(body, dict):
        raise _no_object()
    return body


def _no_object() -> InvalidRequest:
    return InvalidRequest("The body must be a JSON object.", code="invalid_type")


Check = Callable[[Any], None]
"""Check one value; raises _WrongError if it breaks the rule."""

_NEEDS_CONTENT: Final = frozenset({"system", "developer", "user", "tool"})
_MAX_CHOICES: Final = 128
_MAX_MODEL_CHARS: Final = 256


class _WrongError(Exception):
    """Raised with a fault and its place: `path` leads from the checked value to the faulty one."""

    def __init__(self, code: str, reason: str, path: str = "") -> None:
        super().__init__(code, reason, path)
        self.code, self.reason, self.path = code, reason, path

    def at(self, step: str) -> _WrongError:
        """Prefix the path by `step`, one level further up, and return the error."""
        self.path = step + self.path
        return self


class ChatFields:
    """Check bodies by the rules of one deployment: `limits` caps messages, tools and stop strings."""

    def __init__(self, limits: Limits) -> None:
        self._check = _object(_fields(limits))

    def check(self, body: Mapping[str, Any]) -> None:
        """Check each field of `body` that the gateway reads. Raises InvalidRequest; its `param` is the field's path."""
        try:
            for name in ("model", "messages"):
                if name not in body:
                    raise _missing(f".{name}")
            self._check(body)
        except _WrongError as wrong:
            param = wrong.path.removeprefix(".")
            message = _MESSAGES[wrong.code].format(param, wrong.reason)
            raise InvalidRequest(message, code=wrong.code, param=param) from None


_MESSAGES: Final = {
    "invalid_type": "Invalid type for {0!r}: expected {1}.",
    "missing_required_parameter": "Missing required parameter: {0!r}.",
    "unsupported_value": "{0} {1}.",
}


def _wrong_type(expected: str, path: str = "") -> _WrongError:
    return _WrongError("invalid_type", expected, path)


def _missing(path: str) -> _WrongError:
    return _WrongError("missing_required_parameter", "", path)


def _any_of(expected: str, *types: type) -> Check:
    def check(value: Any) -> None:
        if type(value) not in types:  # not isinstance, for which a bool is an int
            raise _wrong_type(expected)

    return check


def _whole(least: int, most: int | None = None) -> Check:
    wanted = f"must be at least {least}" if most is None else f"must be {least} to {most}"

    def check(value: Any) -> None:
        _INTEGER(value)
        if value < least or (most is not None and value > most):
            raise _WrongError("unsupported_value", wanted)

    return check


def _object(members: Mapping[str, Check], required: Collection[str] = ()) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong_type("an object")
        for name in required:
            if value.get(name) is None:
                raise _missing(f".{name}")
        for name, member in value.items():
            rule = members.get(name)
            if rule is not None and (member is not None or name in _NEVER_NULL):
                try:
                    rule(member)
                except _WrongError as wrong:
                    raise wrong.at(f".{name}") from None

    return check


def _array(each: Check, most: int, limit: str, *, least: int = 0) -> Check:
    """Return the rule for an array of `least` (0 or 1) to `most` entries, the config's `limits.{limit}`."""
    expected = "a non-empty array" if least else "an array"

    def check(value: Any) -> None:
        if type(value) is not list or len(value) < least:
            raise _wrong_type(expected)
        if len(value) > most:
            raise _WrongError(
                "unsupported_value", f"has {len(value)} entries; at most {most} are taken (limits.{limit})"
            )
        for i, item in enumerate(value):
            try:
                each(item)
            except _WrongError as wrong:
                raise wrong.at(f"[{i}]") from None

    return check


_NEVER_NULL: Final = frozenset({"model", "messages"})
_STRING: Final = _any_of("a string", str)
_BOOLEAN: Final = _any_of("a boolean", bool)
_INTEGER: Final = _any_of("an integer", int)
_NUMBER: Final = _any_of("a number", int, float)
_FUNCTION: Final = _object({"name": _STRING})
_PART: Final = _object({"text": _STRING})


def _model(value: Any) -> None:
    if type(value) is not str:
        raise _wrong_type("a string")
    if not value or len(value) > _MAX_MODEL_CHARS or not value.isprintable():
        raise _WrongError("unsupported_value", f"must have 1 to {_MAX_MODEL_CHARS} printable characters")


def _string_or(check: Check, expected: str) -> Check:
    def either(value: Any) -> None:
        if type(value) is list:
            check(value)
        elif type(value) is not str:
            raise _wrong_type(expected)

    return either


def _message(message: Any) -> None:
    if type(message) is not dict:
        raise _wrong_type("an object")
    role = message.get("role")
    if type(role) is not str:
        raise _missing(".role") if role is None else _wrong_type("a string", ".role")
    content = message.get("content")
    if content is None:
        if role in _NEEDS_CONTENT:
            raise _missing(".content")
    elif type(content) is list:
        for j, part in enumerate(content):
            if type(part) is not dict or type(part.get("type")) is not str:
                raise _wrong_type("an object with a type", f".content[{j}]")
            try:
                _PART(part)
            except _WrongError as wrong:
                raise wrong.at(f".content[{j}]") from None
    elif type(content) is not str:
        raise _wrong_type("a string or an array of parts", ".content")


def _fields(limits: Limits) -> Mapping[str, Check]:
    return {
        "model": _model,
        "messages": _array(_message, limits.messages, "messages", least=1),
        "stream": _BOOLEAN,
        "stream_options": _object({"include_usage": _BOOLEAN}),
        "temperature": _NUMBER,
        "top_p": _NUMBER,
        "n": _whole(1, _MAX_CHOICES),
        "seed": _INTEGER,
        "logprobs": _BOOLEAN,
        "max_tokens": _whole(0),  # OpenAI's own clients send 0; backends decide what it means
        "max_completion_tokens": _whole(0),
        "stop": _string_or(_array(_STRING, limits.stop, "stop"), "a string or an array of strings"),
        # A schema may be any JSON: what checks answers by it reports what it cannot check.
        "response_format": _object({"type": _STRING, "json_schema": _object({})}, required=("type",)),
        "tools": _array(_object({"function": _FUNCTION}), limits.tools, "tools"),
        "functions": _array(_FUNCTION, limits.tools, "tools"),
        "prompt_cache_key": _STRING,
    }
