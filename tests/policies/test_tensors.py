"""Files of tensors, as the library `safetensors` writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from policies.tensors import map_file, release, tensors_in


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_tensors_are_read_as_they_were_written(tmp_path: Path, kind: str) -> None:
    """Also after the memory of the file was given back; one without numbers, and a number alone."""
    tensors = {
        "table": np.arange(12, dtype=kind).reshape(3, 4),
        "none": np.zeros((0, 3), kind),
        "one": np.ones((), kind),
    }
    save_file(tensors, tmp_path / "tensors", {"made": "here"})
    content = map_file(tmp_path / "tensors")
    found = tensors_in(content)
    release(content)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and np.array_equal(found[name], tensor)
        assert not found[name].flags.writeable


@pytest.mark.parametrize(
    "change", [{"shape": [4, 4]}, {"dtype": "Q9"}, {"data_offsets": [48, 96]}, {"data_offsets": 3}]
)
def test_a_file_whose_header_lies_is_refused(change: dict[str, object]) -> None:
    """Nothing outside of the file is read."""
    content = save({"table": np.zeros((3, 4), np.float32)})
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["table"] |= change
    other = json.dumps(header).encode()
    with pytest.raises(ValueError, match=r"."):
        tensors_in(len(other).to_bytes(8, "little") + other + content[8 + length :])


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors", (2**40).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"[]"]
)
def test_another_file_is_refused(content: bytes) -> None:
    """In whatever way it differs."""
    with pytest.raises(ValueError, match=r"."):
        tensors_in(content)
