"""Encode the texts of the embeddings API with the gateway's own encoder, in a thread and in batches.

It has a thread of its own, not that of `QuestionEmbedder`: a client's thousand texts must not delay the questions of
chats, which go on without a semantic cache after half a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.caching.batches import Batcher

if TYPE_CHECKING:
    from routing.embedder import PublicEncoder, Vector

_BATCH: Final = 32
"""Most texts in one call of the encoder, of all requests together."""
_IN_TURN: Final = 32
"""Most texts of one request that wait in the queue, so that a short request does not wait for all of a long one."""


class EncodedText(NamedTuple):
    """The unit vector of a text and its number of tokens; None if it is too long to be read whole."""

    vector: Vector
    tokens: int | None


class TextEncoder:
    """Encode texts for one event loop. Close it when done."""

    def __init__(self, encoder: PublicEncoder) -> None:
        self.encoder = encoder
        self._batches = Batcher(self._work, _BATCH, "tierline-encode")

    async def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the texts, encoded, in their order. Raises whatever the encoder does."""
        encoded: list[EncodedText] = []
        for start in range(0, len(texts), _IN_TURN):
            encoded += await self._batches.done(texts[start : start + _IN_TURN])
        return encoded

    def close(self) -> None:
        """Stop the thread and cancel what still waits."""
        self._batches.close()

    def _work(self, texts: list[str]) -> list[EncodedText]:
        counts = [self.encoder.count_tokens(text) for text in texts]
        vectors = self.encoder.embed(
            [text if count is not None else "" for text, count in zip(texts, counts, strict=True)]
        )
        return [EncodedText(vector, count) for vector, count in zip(vectors, counts, strict=True)]
