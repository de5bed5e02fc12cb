"""Check the fields of a chat-completions request that the gateway itself reads.

`_fields` lists them all with one rule each. Code that reads a field relies on its rule here, so a field that is newly
read must get one. All other fields are passed on unchecked, for the backend to judge. As in OpenAI's API, null means
absent, except for required fields. Errors name a field by its path, as OpenAI does: `messages[0].content`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from gateway.config.schema import Limits

Check = Callable[[Any], None]
"""Check one value; raises _WrongError if it breaks the rule."""

_NEEDS_CONTENT: Final = frozenset({"system", "developer", "user", "tool", "function"})
_MAX_CHOICES: Final = 128
_MAX_MODEL_CHARS: Final = 256


class _WrongError(Exception):
    """Raised with what is wrong and where: `path` leads from the checked value to the wrong one."""

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
        if type(value) not in types:  # not isinstance: a bool is an int to it
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


def _array(each: Check, most: int, limit: str) -> Check:
    """Return the rule for an array of at most `most` entries, the config's `limits.{limit}`; it may be empty."""

    def check(value: Any) -> None:
        if type(value) is not list:
            raise _wrong_type("an array")
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
    _STRING(value)
    if not value or len(value) > _MAX_MODEL_CHARS or not value.isprintable():
        raise _WrongError("unsupported_value", f"must have 1 to {_MAX_MODEL_CHARS} printable characters")


def _string_or(check: Check, expected: str) -> Check:
    def either(value: Any) -> None:
        if type(value) is list:
            check(value)
        elif type(value) is not str:
            raise _wrong_type(expected)

    return either


def _not_empty(check: Check) -> Check:
    def checked(value: Any) -> None:
        if not value or type(value) is not list:
            raise _wrong_type("a non-empty array")
        check(value)

    return checked


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
        "messages": _not_empty(_array(_message, limits.messages, "messages")),
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
        # A schema may be any JSON: `routing.confidence.schemas` reports what it cannot check.
        "response_format": _object({"type": _STRING, "json_schema": _object({})}, required=("type",)),
        "tools": _array(_object({"function": _FUNCTION}), limits.tools, "tools"),
        "functions": _array(_FUNCTION, limits.tools, "tools"),
        "prompt_cache_key": _STRING,
    }
