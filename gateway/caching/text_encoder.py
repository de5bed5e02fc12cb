"""Encode the texts of the embeddings API with the gateway's own encoder, in a thread and in batches.

It has a thread of its own, not that of `QuestionEmbedder`: a client's thousand texts must not delay the questions of
chats, which go on without a semantic cache after half a second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.caching.futures import fulfil

if TYPE_CHECKING:
    from routing.embedding.embedder import PublicEncoder, Vector

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
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-encode")
        self._waiting: deque[tuple[str, asyncio.Future[EncodedText]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the texts, encoded, in their order. Raises whatever the encoder does."""
        encoded: list[EncodedText] = []
        for start in range(0, len(texts), _IN_TURN):
            encoded += await self._queued(texts[start : start + _IN_TURN])
        return encoded

    def close(self) -> None:
        """Stop the thread and cancel what still waits."""
        if self._running is not None:
            self._running.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _queued(self, texts: Sequence[str]) -> list[EncodedText]:
        loop = asyncio.get_running_loop()
        wanted: list[tuple[str, asyncio.Future[EncodedText]]] = [(text, loop.create_future()) for text in texts]
        self._waiting.extend(wanted)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="tierline.encode")
        return await asyncio.gather(*(future for _, future in wanted))

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                # The future of a cancelled request is done: nobody waits for its text.
                if batch := [(text, future) for text, future in batch if not future.done()]:
                    await fulfil(batch, self._thread, self._work)
        finally:
            self._running = None

    def _work(self, texts: list[str]) -> list[EncodedText]:
        counts = [self.encoder.count_tokens(text) for text in texts]
        vectors = self.encoder.embed(
            [text if count is not None else "" for text, count in zip(texts, counts, strict=True)]
        )
        return [EncodedText(vector, count) for vector, count in zip(vectors, counts, strict=True)]
