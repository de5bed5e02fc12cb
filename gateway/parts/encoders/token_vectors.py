"""Embed questions in other languages than English for the search: one vector for each token of the cross-encoder.

The vectors that English is searched by hardly tell questions in most other languages apart: of rewordings in a scope of
20,000 they find 2% in Arabic and 45% in Spanish. Here a text's vector is the sum of its tokens' vectors, scaled to norm
1, as it is there; the tokens are those that the cross-encoder was trained to read. `tools.train_token_vectors` fits
them. Beside the cross-encoder stand two files:

    vectors.json   the data sheet; `sha256` and `tokenizer` of the files it describes, `scale`, `share`, `languages`
    vectors.npy    int8, (tokens, dimension); a number is `scale` times it. The file is mapped, so processes share it
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gateway.parts.encoders.unigram import UnigramTokenizer

SHEET: Final = "vectors.json"
TABLE: Final = "vectors.npy"
_READ: Final = 300
"""Characters of a text that are read: a Chinese one of so many takes half a millisecond."""


class TokenVectorsError(ValueError):
    """The files cannot be used; the message gives the file, the reason and the remedy."""


class TokenVectors:
    """The vectors. Safe to use from several threads at once."""

    def __init__(
        self,
        tokenizer: UnigramTokenizer,
        table: NDArray[np.int8],
        share: float,
        languages: Collection[str],
        digests: Mapping[Path, str],
    ) -> None:
        """Hold a row for each token. `share` is added to all cosines, and the rest scaled to the room that is left, so
        that a policy's `min_similarity` means what it does in English. `digests` are the SHA-256 that the files have by
        the data sheet.
        """
        self._digests = digests
        self.languages = languages
        self._tokenizer = tokenizer
        self._table = table
        self._constant = math.sqrt(share)
        self._rest = math.sqrt(1 - share)

    @classmethod
    def load(cls, folder: Path, tokenizer: UnigramTokenizer) -> TokenVectors | None:
        """Read the files in the folder of the cross-encoder with this tokenizer; None where there are none.

        `check` says whether they belong together. Raises TokenVectorsError.
        """
        sheet_path, table_path = folder / SHEET, folder / TABLE
        if not sheet_path.is_file():
            return None
        try:
            sheet: dict[str, Any] = json.loads(sheet_path.read_bytes())
            digests = {table_path: sheet["sha256"], folder / "tokenizer.json": sheet["tokenizer"]}
            table = np.load(table_path, mmap_mode="r").view(np.ndarray)  # whose calls pass no Python
            return cls(tokenizer, table, float(sheet["share"]), frozenset(sheet["languages"]), digests)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise TokenVectorsError(
                f"{folder}: {error!r}; `python -m tools.train_token_vectors` makes them again"
            ) from None

    def check(self) -> None:
        """Raise TokenVectorsError where a file is another than the data sheet describes."""
        for path, stated in self._digests.items():
            if sha256_of(path) != stated:
                raise TokenVectorsError(f"{path}: it is not the file that {SHEET} describes (sha256)")

    def embed(self, text: str, dimension: int) -> NDArray[np.float32]:
        """Return the vector of a text, shape (dimension,), of norm 1; zeros for one without a token.

        Raises ValueError where the vectors have more dimensions.
        """
        vector = np.zeros(dimension, np.float32)
        pieces = self._tokenizer.pieces_of(text[:_READ])
        if not pieces:
            return vector
        total = np.add.reduce(self._table.take(pieces, axis=0), axis=0, dtype=np.float32)
        norm = math.sqrt(float(total @ total))
        if norm:
            vector[0] = self._constant
            vector[1 : len(total) + 1] = total * (self._rest / norm)
        return vector


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
