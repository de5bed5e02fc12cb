"""Read the names of a GGUF file's metadata, to tell a model without a chat template before it is served.

A GGUF file begins with the magic "GGUF", its version (u32), the number of tensors and of metadata pairs (u64 each);
then come the pairs: a name, a type (u32) and a value. Texts have their length in bytes (u64) before them, lists the
type and number of their items. All numbers are little-endian. Source: ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its type; texts and lists have others."""
_TEXT: Final = 8
_LIST: Final = 9
_MOST_PAIRS: Final = 4096
_LONGEST_NAME: Final = 1 << 16
_TEMPLATE: Final = "tokenizer.chat_template"

NO_TEMPLATE: Final = (
    "has no chat template: llama.cpp serves it as ChatML without saying so, and a model that does not know ChatML "
    "writes until its limit; take a file of the model for chats (its name often ends in -instruct or -it)"
)


def lacks_chat_template(file: Path) -> bool:
    """Return whether a GGUF file says nothing of how a conversation is written; False for one that cannot be read."""
    try:
        with file.open("rb") as model:
            return not any(name == _TEMPLATE or name.startswith(f"{_TEMPLATE}.") for name in _names(model))
    except (OSError, ValueError, KeyError, OverflowError, RecursionError, struct.error):
        return False


def _names(model: BinaryIO) -> Iterator[str]:
    """Yield the names of the metadata. Raises ValueError or struct.error for what is no GGUF file of version 2 or 3."""
    magic, version, _, pairs = struct.unpack("<4sIQQ", model.read(24))
    if magic != b"GGUF" or version not in (2, 3) or pairs > _MOST_PAIRS:
        raise ValueError("no GGUF file that is known here")
    for _ in range(pairs):
        length = _number(model, "<Q")
        if length > _LONGEST_NAME:
            raise ValueError("a name too long")
        yield model.read(length).decode()
        _skip(model, _number(model, "<I"))


def _skip(model: BinaryIO, kind: int) -> None:
    if kind == _TEXT:
        model.seek(_number(model, "<Q"), 1)
    elif kind == _LIST:
        item, count = _number(model, "<I"), _number(model, "<Q")
        if (size := _SIZES.get(item)) is not None:
            model.seek(size * count, 1)
        else:
            for _ in range(count):
                _skip(model, item)
    else:
        model.seek(_SIZES[kind], 1)


def _number(model: BinaryIO, form: str) -> int:
    value: int = struct.unpack(form, model.read(struct.calcsize(form)))[0]
    return value
