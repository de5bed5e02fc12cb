"""Every field of a published request type, each in a small request of its own, with what it is to be compared with.

    for variant in variants_of(CompletionCreateParams):
        variant.path     # "messages[0].content[0].image_url.detail"
        variant.value    # the object with the field
        variant.base     # the same object without the field, or with another value where it is required

A field that is translated makes another request at the backend than its base does. One that makes the same request was
left out.
"""

from __future__ import annotations

import collections.abc
import typing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.support.sdk_types import arms_of, fields_of, is_list, is_object, plain

Json = dict[str, Any]

ABSENT: Final = object()
"""The base of a value that is compared with its absence."""
MARK: Final = "mkA1"
"""The text that stands for any text, to find it again."""
_OTHER: Final = "mkB2"
_FILE: Final = "aGVsbG8="
_TEXTS: Final = {
    "url": ("https://example.test/mkA1.png", "https://example.test/mkB2.png"),
    "image_url": ("https://example.test/mkA1.png", "https://example.test/mkB2.png"),
    "data": (_FILE, "aGVsbG8h"),
    "file_data": (f"data:application/pdf;base64,{_FILE}", "data:application/pdf;base64,aGVsbG8h"),
    "arguments": ('{"mkA1":1}', '{"mkB2":1}'),
}
"""Values of fields whose texts have a form, by name: one and another."""
_LEAST: Final = {name: one.replace(MARK, "least") for name, (one, _) in _TEXTS.items()}
"""Values of the same fields beside another: only the field that a variant is of has MARK in it."""
_TRUE_BY_DEFAULT: Final = frozenset({"store", "parallel_tool_calls", "include_obfuscation", "strict", "enabled"})


@dataclass(frozen=True)
class Variant:
    """One value of one field: its path, the value that holds it, and what that is compared with."""

    path: str
    value: Any
    base: Any
    told: str = ""
    """How the variant is told from others of its path: the value of a literal, the types of the parts around it."""
    is_text: bool = False
    """Whether its value has MARK in it."""


def variants_of(kind: Any, name: str = "", seen: tuple[Any, ...] = ()) -> Iterator[Variant]:
    """Yield the variants of a value of a type, for a field of this name."""
    kind = plain(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        values = typing.get_args(kind)
        for value in values:
            yield Variant("", value, ABSENT, f"={value}")
    elif len(arms := arms_of(kind)) > 1:
        for arm in arms:
            if arm is not type(None):
                yield from variants_of(arm, name, seen)
    elif is_list(kind):
        for one in variants_of(typing.get_args(kind)[0], name, seen):
            yield replace(one, path=f"[0]{one.path}", value=[one.value], base=_wrapped(one.base))
    elif is_object(kind):
        yield from _of_object(kind, seen)
    elif kind in (Any, object) or origin in (dict, collections.abc.Mapping):
        if not (origin and plain(typing.get_args(kind)[1]) in (int, float, bool)):
            yield Variant("", {MARK: MARK}, ABSENT, is_text=True)
        else:
            yield Variant("", {MARK: 7}, ABSENT, is_text=True)
    else:
        yield from _of_leaf(kind, name)


def least(kind: Any, name: str = "") -> Any:
    """Return the smallest value of a type: its required fields alone."""
    kind = plain(kind)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    arm = next((arm for arm in arms_of(kind) if arm is not type(None)), type(None))
    if arm is not kind:
        return least(arm, name)
    if is_list(kind):
        return [least(typing.get_args(kind)[0], name)]
    if is_object(kind):
        return {field: least(of, field) for field, (of, required) in fields_of(kind).items() if required}
    if kind is bool:
        return True
    if kind in (int, float):
        return kind(1)
    return _LEAST.get(name, "least") if kind is str else {}


def _of_object(kind: Any, seen: tuple[Any, ...]) -> Iterator[Variant]:
    if kind in seen:
        return
    whole = least(kind)
    told = f"<{whole['type']}>" if isinstance(whole.get("type"), str) else f"<{whole.get('role', '')}>"
    for name, (of, required) in fields_of(kind).items():
        for one in variants_of(of, name, (*seen, kind)):
            value = {**whole, name: one.value}
            base: Any = {**whole, name: one.base}
            if one.base is ABSENT:
                base = ABSENT if required else {key: held for key, held in whole.items() if key != name}
            path = f".{name}{one.path}"
            yield Variant(path, value, base, (told if told != "<>" else "") + one.told, one.is_text)


def _of_leaf(kind: Any, name: str) -> Iterator[Variant]:
    if kind is bool:
        yield Variant("", True, ABSENT, "=true")
        if name in _TRUE_BY_DEFAULT:
            yield Variant("", False, ABSENT, "=false")
    elif kind is str:
        one, other = _TEXTS.get(name, (MARK, _OTHER))
        yield Variant("", one, other, is_text=MARK in one)
    elif kind is int:
        yield Variant("", 7, 6)
    elif kind is float:
        yield Variant("", 0.7, 0.6)


def _wrapped(base: Any) -> Any:
    return ABSENT if base is ABSENT else [base]
