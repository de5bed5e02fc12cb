"""A GGUF file without a chat template is told, by `check` and in the banner of `up`."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gateway.config.backends import BackendConfig, TierConfig
from gateway.parts.local.config import lacks_chat_template
from gateway.parts.local.local_model import find_gguf
from gateway.parts.local.plan import _tier_state
from gateway.parts.local.state import StateFolder, Up

LIST_OF_TEXTS = struct.pack("<IQ", 8, 2) + b"".join(struct.pack("<Q", 1) + text for text in (b"a", b"b"))


def gguf(file: Path, *names: str) -> Path:
    """Write the head of a model file with texts of these names among its metadata."""
    pairs = [("general.alignment", 4, struct.pack("<I", 32)), ("tokenizer.ggml.tokens", 9, LIST_OF_TEXTS)]
    pairs += [("tokenizer.ggml.scores", 9, struct.pack("<IQff", 6, 2, 0.0, 1.0))]
    pairs += [(name, 8, struct.pack("<Q", 2) + b"{}") for name in names]
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(pairs))
    body = b"".join(
        struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value for name, kind, value in pairs
    )
    file.write_bytes(head + body)
    return file


@pytest.mark.parametrize(
    ("names", "lacks"),
    [
        ((), True),
        (("general.name",), True),
        (("tokenizer.chat_template",), False),
        (("general.name", "tokenizer.chat_template.tool_use"), False),
    ],
)
def test_whether_a_file_has_a_chat_template(tmp_path: Path, names: tuple[str, ...], lacks: bool) -> None:
    """Its metadata names one, or does not."""
    assert lacks_chat_template(gguf(tmp_path / "model.gguf", *names)) is lacks


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 60, b"not a model at all, but some long text"])
def test_a_file_that_cannot_be_read_is_no_doubt(tmp_path: Path, content: bytes) -> None:
    """Whoever serves it says what is wrong with it."""
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert not lacks_chat_template(file)
    assert not lacks_chat_template(tmp_path / "missing.gguf")


def test_the_shipped_model_has_one() -> None:
    """It is a model for chats."""
    assert not lacks_chat_template(find_gguf(None)[0])


@pytest.mark.parametrize("names", [(), ("tokenizer.chat_template",)])
def test_the_banner_tells(tmp_path: Path, names: tuple[str, ...]) -> None:
    """The tier is ready, and its answers will be of no use."""
    url = "http://127.0.0.1:9/v1"
    tier = TierConfig(name="local", backends=[BackendConfig(base_url=url, model="m", name="local")])
    up = Up(url="", store_url="", local_base_url=url, pid=1)
    state = StateFolder(tmp_path)
    told = _tier_state(tier, up, {"local tier": True}, state, gguf(tmp_path / "model.gguf", *names))
    assert told.startswith("ready: m, on this machine")
    assert ("no chat template" in told) is (not names)
