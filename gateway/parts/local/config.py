"""Define the config of the model that `tierline up` starts.

Read the names of a GGUF file's metadata, to tell a model without a chat template before it is served.

A GGUF file begins with the magic "GGUF", its version (u32), the number of tensors and of metadata pairs (u64 each);
then come the pairs: a name, a type (u32) and a value. Texts have their length in bytes (u64) before them, lists the
type and number of their items. All numbers are little-endian. Source: ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

from pydantic import Field, model_validator

from gateway.config.notations import Count, OptionalPath
from gateway.config.resolver import Resolver
from gateway.config.schema import Deployment
from gateway.config.sections import Sections
from policies.errors import Finding
from policies.validation import Section, Whole, raise_findings

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

UNTOLD: Final = (
    "llama.cpp tells no log-probability of a token that was proposed and taken: an answer of which that is more than "
    "half has no confidence by them (with a drafter nearly all, with ngram few), so escalate.no_signal of a policy, or "
    "another verifier, decides; leave it out where log-probabilities decide what is served"
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


KvCache = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class LocalModel(Section):
    """Model that `tierline up` serves with llama.cpp for a backend without a URL. `tierline serve` ignores this."""

    gguf: OptionalPath = None
    """Path of a GGUF file; None for the model that ships with Tierline."""
    context: Annotated[Whole, Field(ge=256)] = 4096
    """Context length in tokens, per slot."""
    slots: Annotated[Whole, Field(ge=1, le=64)] = 4
    """Requests served at the same time."""
    threads: Count | None = None
    """CPU threads; None for llama.cpp's default."""
    gpu_layers: Annotated[Whole, Field(ge=0)] | None = None
    """Layers that a GPU holds; None for as many as fit. It does not start with more than 0 where llama.cpp has none."""
    kv_cache: KvCache = "f16"
    """Type of the key-value cache's numbers."""
    flash_attention: Literal["auto", "enabled", "disabled"] = "auto"
    speculate: Literal["none", "ngram"] = "none"
    """Whether tokens are proposed, of which the model then reads several at a time: `ngram` proposes what followed the
    same three tokens before. Answers at temperature 0 stay the same."""
    draft: OptionalPath = None
    """Path of a smaller GGUF model with the same tokens that proposes them, too."""

    @model_validator(mode="after")
    def _small_cache_needs_flash_attention(self) -> LocalModel:
        if self.flash_attention == "disabled" and self.kv_cache not in ("f32", "f16", "bf16"):
            message = f"llama.cpp keeps {self.kv_cache} only with flash attention; write auto, or kv_cache: f16"
            raise_findings([Finding(("flash_attention",), message)])
        return self

    @property
    def engine_options(self) -> tuple[str, ...]:
        """The arguments of `parts.local.local_tier` that say how llama.cpp runs it, where they are not its defaults."""
        said = {
            "--threads": self.threads, "--gpu-layers": self.gpu_layers, "--kv-cache": self.kv_cache,
            "--flash-attention": self.flash_attention, "--speculate": self.speculate, "--draft": self.draft,
        }  # fmt: skip
        defaults = (None, "f16", "auto", "none")
        return tuple(part for name, value in said.items() if value not in defaults for part in (name, str(value)))


class LocalSections(Sections):
    """The config's section `local_model`."""

    local_model: LocalModel = LocalModel()

    @classmethod
    def resolve(cls, deployment: Deployment, resolver: Resolver) -> Mapping[str, object]:
        """Return the section with absolute paths."""
        model = deployment.of(cls).local_model
        files = {"gguf": model.gguf, "draft": model.draft}
        found = {name: resolver.existing(("local_model", name), file) for name, file in files.items()}
        return {"local_model": model.model_copy(update=found)}

    @classmethod
    def doubts(cls, deployment: Deployment) -> Iterator[Finding]:
        """Warn about a model that has no chat template, and of one that speculates where its answers are judged."""
        model = deployment.of(cls).local_model
        gguf = model.gguf
        if gguf is not None and lacks_chat_template(gguf):
            yield Finding(("local_model", "gguf"), f"{gguf.name} {NO_TEMPLATE}")
        key = "draft" if model.draft is not None else "speculate" if model.speculate != "none" else ""
        if key and any(backend.wants_local_model and backend.logprobs for backend in deployment.backends):
            yield Finding(("local_model", key), UNTOLD)

    @classmethod
    def summary(cls, deployment: Deployment) -> Iterator[str]:
        """Yield how llama.cpp runs the model, where that is not its default, for each tier that it serves."""
        options = " ".join(deployment.of(cls).local_model.engine_options).replace("--", "")
        for tier in deployment.tiers:
            if options and any(backend.wants_local_model for backend in tier.backends):
                yield f"engine   {tier.name:<14} {options}"


SECTIONS: Final = LocalSections
