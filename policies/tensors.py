"""Map the tensors of a safetensors file: eight bytes of length, a JSON header, then the numbers.

Of large tables a process reads a few rows here and there. Mapped, only the pages with these are in its memory, and
processes share them. All packages may import this one.
"""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_TYPES: Final = {
    "F16": np.float16, "F32": np.float32, "F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32,
    "I64": np.int64, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64,
}  # fmt: skip


def map_file(path: Path) -> mmap.mmap:
    """Return the content of a file, which nobody may change in place: it is read when it is used.

    Raises OSError; ValueError for an empty file.
    """
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def release(content: mmap.mmap) -> None:
    """Give back the memory of what was read of a file once, such as to check it."""
    content.madvise(mmap.MADV_DONTNEED)


def tensors_in(content: bytes | mmap.mmap) -> dict[str, NDArray[Any]]:
    """Return the tensors of a safetensors file by name; they cannot be written to. Raises ValueError for another."""
    start = 8 + int.from_bytes(content[:8], "little")
    if start > len(content):
        raise ValueError("not a safetensors file: it ends within its header")
    tensors = {}
    try:
        for name, tensor in json.loads(content[8:start]).items():
            if name != "__metadata__":
                shape, (begin, end) = tensor["shape"], tensor["data_offsets"]
                kind = np.dtype(_TYPES[tensor["dtype"]])
                if begin < 0 or math.prod(shape) * kind.itemsize != end - begin:
                    raise ValueError(f"{name} has not the size of its shape")
                tensors[name] = np.ndarray(shape, kind, content, start + begin)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"not a safetensors file: {error!r}") from None
    return tensors
