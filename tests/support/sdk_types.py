"""Random JSON values of the types that the OpenAI and Anthropic SDKs publish: request TypedDicts and reply models.

    maker = RandomValues(random.Random(1))
    body = maker.of(CompletionCreateParamsNonStreaming)

The SDKs are generated from the providers' OpenAPI documents, so their types are those documents' schemas. They do not
say which numbers or lengths are allowed; `named` gives values for fields whose type says too little.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import random
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import typing_extensions
from pydantic import BaseModel

_TEXTS: Final = (
    *("", "a", "hello there", "line\nbreak\r\n\ttab", '"quoted" \\ back', "data: [DONE]\n\n", "</script>", "A" * 300),
    "\u00e9\u00e8\u00fc \u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
    "\U0001f469\u200d\U0001f680 \U0001f1ea\U0001f1fa",
    "\u2028\u2029\ufeff",
    "\u0000\u0001\u001f\u007f",
)
_INTEGERS: Final = (0, 1, 2, 7, 100, 65536, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS: Final = (0.0, 1.0, -1.5, 0.1, 1e-7, 5e-324, 1.7976931348623157e308, 3.141592653589793, 1e16, -0.0)
_LEAVES: Final = (str, int, float, bool, type(None))
_DEPTH: Final = 7


class RandomValues:
    """Make random values of types. `named` maps the name of a field to what makes its values."""

    def __init__(
        self, rng: random.Random, *, named: Mapping[str, Callable[[random.Random], Any]] | None = None
    ) -> None:
        self._rng = rng
        self._named = dict(named or {})

    def of(self, kind: Any, depth: int = _DEPTH) -> Any:
        """Return a value of a type; near the end of `depth`, one with its required fields alone."""
        kind, rng = plain(kind), self._rng
        if kind in (Any, object):
            return self.json(min(depth, 3))
        if kind is str:
            return self.text()
        if kind is bool:
            return rng.random() < 0.5
        if kind is int:
            return rng.choice(_INTEGERS) if rng.random() < 0.5 else rng.randrange(1, 1000)
        if kind is float:
            return rng.choice(_FLOATS) if rng.random() < 0.5 else rng.uniform(-2, 2)
        if kind in (None, type(None)):
            return None
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal:
            return rng.choice(arguments)
        if origin in (typing.Union, types.UnionType):
            arms = arms_of(kind)
            if depth <= 1:
                arms = [arm for arm in arms if plain(arm) in _LEAVES or _is_literal(arm)] or arms
            return self.of(rng.choice(arms), depth)
        if origin in (dict, collections.abc.Mapping):
            return {
                self.text()[:20] or "k": self.of(arguments[1], depth - 1) for _ in range(rng.randrange(3) * (depth > 1))
            }
        if is_list(kind):
            count = rng.randrange(4) if depth > 1 else 0
            return [self.of(arguments[0], depth - 1) for _ in range(count)]
        return self.object_of(kind, depth)

    def object_of(self, kind: Any, depth: int = _DEPTH) -> dict[str, Any]:
        """Return an object of a TypedDict or a model: its required fields, and each other one by chance."""
        value: dict[str, Any] = {}
        chance = 0.35 if depth > 2 else 0.0
        for name, (field, required) in fields_of(kind).items():
            if required or self._rng.random() < chance:
                make = self._named.get(name)
                value[name] = make(self._rng) if make is not None else self.of(field, depth - 1)
        return value

    def text(self) -> str:
        """Return a text, sometimes of random characters of all planes."""
        rng = self._rng
        if rng.random() < 0.7:
            return rng.choice(_TEXTS)
        characters = (rng.randrange(0x20, 0x110000) for _ in range(rng.randrange(1, 30)))
        return "".join(chr(one) for one in characters if not 0xD800 <= one <= 0xDFFF)

    def json(self, depth: int = 3) -> Any:
        """Return any JSON value."""
        rng = self._rng
        kind = rng.randrange(7 if depth > 0 else 5)
        if kind == 5:
            return [self.json(depth - 1) for _ in range(rng.randrange(4))]
        if kind == 6:
            return {f"{self.text()[:12]}{i}": self.json(depth - 1) for i in range(rng.randrange(4))}
        return self.of((str, int, float, bool, type(None))[kind])


def plain(kind: Any) -> Any:
    """Return a type without what annotates it: Required, Annotated, and the names of aliases."""
    while True:
        origin = typing.get_origin(kind)
        if (
            origin in (typing_extensions.Required, typing_extensions.NotRequired, typing.Required, typing.NotRequired)
            or origin is typing.Annotated
        ):
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing_extensions.TypeAliasType):
            kind = kind.__value__
        else:
            return kind


def arms_of(kind: Any) -> list[Any]:
    """Return the members of a union that JSON can hold, those of unions inside it too; of another type, itself."""
    kind = plain(kind)
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [kind]
    arms = [inner for arm in typing.get_args(kind) for inner in arms_of(arm)]
    return [arm for arm in arms if _of_json(arm)]


def is_list(kind: Any) -> bool:
    """Return whether a type is of lists."""
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and not issubclass(origin, collections.abc.Mapping) and (
        issubclass(origin, collections.abc.Iterable) or origin.__name__ == "SequenceNotStr"
    )  # fmt: skip


def is_object(kind: Any) -> bool:
    """Return whether a type is a TypedDict or a model, with fields of its own."""
    return typing_extensions.is_typeddict(kind) or (inspect.isclass(kind) and issubclass(kind, BaseModel))


@functools.cache
def fields_of(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a TypedDict or a model: the type of each, and whether it is required."""
    if typing_extensions.is_typeddict(kind):
        hints = typing_extensions.get_type_hints(kind, include_extras=True)
        required = kind.__required_keys__
        return {name: (hint, name in required or _is_required(hint)) for name, hint in hints.items()}
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        return {
            field.alias or name: (field.annotation, field.is_required()) for name, field in kind.model_fields.items()
        }
    raise TypeError(f"no fields: {kind!r}")


def discriminators(kind: Any) -> Sequence[str]:
    """Return the names of an object's fields that can have but one value."""
    return [name for name, (field, _) in fields_of(kind).items() if _is_literal(field) and len(_values(field)) == 1]


def _values(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(plain(kind))


def _is_literal(kind: Any) -> bool:
    return typing.get_origin(plain(kind)) is typing.Literal


def _is_required(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing_extensions.Required, typing.Required)


def _of_json(kind: Any) -> bool:
    """Return whether JSON can hold a type's values: no files, bytes or paths."""
    kind = plain(kind)
    if kind in (Any, object, None, *_LEAVES) or typing.get_origin(kind) is not None:
        return True
    return is_object(kind)
