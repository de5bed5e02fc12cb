"""Serialise large JSON in pieces, so that no call holds Python's lock for long, and no text is copied twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

_PIECE_CHARS: Final = 256 << 10
_MARK: Final = b"\0"
"""Stands for a long text in JSON, which has no such byte."""
_MARKED: Final = orjson.Fragment(b'"%b"' % _MARK)


def json_pieces(value: Mapping[str, Any], option: int = 0) -> list[bytes]:
    """Return the JSON of an object, as `orjson.dumps(value, option=option)` has it, its long texts slice by slice.

    In a single call, a text with two million line breaks would hold Python's lock for 20 ms.
    """
    texts: list[str] = []
    between = orjson.dumps(_without_texts(value, texts, in_order=bool(option)), option=option).split(_MARK)
    pieces = between[:1]
    for text, after in zip(texts, between[1:], strict=True):
        starts = range(0, len(text), _PIECE_CHARS)
        pieces += (orjson.dumps(text[start : start + _PIECE_CHARS])[1:-1] for start in starts)
        pieces.append(after)
    return pieces


def _without_texts(value: Any, texts: list[str], *, in_order: bool) -> Any:
    """Return the value with a mark in the place of each long text, and add these to `texts` as they come in its JSON.

    `in_order`: the keys of objects are sorted there.
    """
    if isinstance(value, dict):
        items = sorted(value.items()) if in_order else value.items()
        return {name: _without_texts(member, texts, in_order=in_order) for name, member in items}
    if isinstance(value, list):
        return [_without_texts(item, texts, in_order=in_order) for item in value]
    if not isinstance(value, str) or len(value) <= _PIECE_CHARS:
        return value
    texts.append(value)
    return _MARKED
