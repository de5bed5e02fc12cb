"""Step 6: compute the vector of a question, once per request, without holding the event loop for long.

A static embedding of a short prompt takes less time than a thread's wake-up, so it is made in place; everything else
goes to one worker thread, where requests that came while it was busy are embedded as one batch.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cache.store.deadline import Deadline
from gateway.telemetry import names
from routing.embedding.embedder import Embedder, EmbedderKind, Vector

if TYPE_CHECKING:
    from cache.planning.plan import CachePlan
    from gateway.request.context import RequestContext

log = logging.getLogger("tierline.embedding")

_Waiting = tuple[str, asyncio.Future[Vector]]

# Measured: the static embedding reads 1,000 characters in about 0.1 ms; a hop to a thread and back costs as much.
_IN_PLACE_CHARS = {"static": 2000, "minilm": 0}
_MAX_BATCH = 32
PATIENCE_S = 0.5
"""Seconds an embedding may take. After that the request goes on without: no semantic hit, no classifier."""


class QuestionEmbedder:
    """Compute the vectors of questions for one event loop. Close it when done."""

    def __init__(self, embedder: Embedder, kind: EmbedderKind) -> None:
        self.embedder = embedder
        self._in_place = _IN_PLACE_CHARS[kind]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tierline-embed")
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None

    async def vector_for(self, request: RequestContext, plan: CachePlan) -> Vector | None:
        """Return the request's vector, as a hop of its trace; None where nothing needs it, or there is none in time.

        Without a vector, exact caching and the policy's default tier still work.
        """
        if plan.why_not_semantic() and not request.is_classified():
            return None
        hop = request.trace.begin(names.EMBED, {names.GEN_AI_OPERATION: "embeddings"})
        hop.attributes[names.GEN_AI_REQUEST_MODEL] = self.embedder.name
        try:
            vector = await self.vector(request.features.text, request.budget_s())
        except TimeoutError:
            hop.end("timeout")
            return None
        except Exception:  # an encoder may fail in any way; the request must not
            log.exception("the embedding of request %s failed", request.request_id)
            hop.end("embedding_failed")
            return None
        hop.end()
        return vector

    async def vector(self, text: str, limit_s: float = PATIENCE_S) -> Vector:
        """Return the vector of `text`, shape (dimension,), of length 1 (or 0 for a text without a token).

        Raises TimeoutError when it is not there within `limit_s`, or PATIENCE_S if that is less.
        """
        if len(text) <= self._in_place:
            vector: Vector = self.embedder.embed((text,))[0]
            return vector
        future: asyncio.Future[Vector] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        with Deadline(min(limit_s, PATIENCE_S)):
            return await future

    def cosine(self, one: str, other: str) -> float | None:
        """Return the cosine of two texts, -1 to 1; None where it takes longer than the event loop can wait."""
        if max(len(one), len(other)) > self._in_place:
            return None
        vectors = self.embedder.embed((one, other))
        return float(vectors[0] @ vectors[1])

    def close(self) -> None:
        """Stop the thread and cancel what still waits."""
        if self._running is not None:
            self._running.cancel()
        for _, future in self._waiting:
            future.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                wanted = [(text, future) for text, future in self._waiting if not future.done()]  # the others have left
                batch, self._waiting = wanted[:_MAX_BATCH], wanted[_MAX_BATCH:]
                if batch:
                    await self._embed(batch)
        finally:
            self._running = None

    async def _embed(self, batch: list[_Waiting]) -> None:
        texts = [text for text, _ in batch]
        try:
            vectors = await asyncio.get_running_loop().run_in_executor(self._thread, self.embedder.embed, texts)
            # All or none: of a wrong number of vectors nobody can say whose is whose.
            for (_, future), vector in list(zip(batch, vectors, strict=True)):
                if not future.done():
                    future.set_result(vector)
        except Exception as error:  # noqa: BLE001  (whatever the encoder did wrong is the waiting requests' to hear)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            for _, future in batch:  # only when this was cancelled is one still open
                future.cancel()
