"""The embed hop: batches in a thread, and what becomes of one that goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.caching.lookups import QuestionEmbedder
from tests.support.wait import eventually


class Encoder:
    """An encoder that waits for the test, and can be told to give wrong batches. `batches` is what it was given."""

    name, dimension, whole_chars = "scripted", 2, 1000

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.wrong: Exception | int | None = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.batches.append(list(texts))
        assert self.go.wait(5)
        if isinstance(self.wrong, Exception):
            raise self.wrong
        return np.full((len(texts) + (self.wrong or 0), 2), len(texts[0]), np.float32)


@contextmanager
def service(encoder: Any) -> Iterator[QuestionEmbedder]:
    embedding = QuestionEmbedder(encoder, "minilm")
    try:
        yield embedding
    finally:
        encoder.go.set()
        embedding.close()


async def test_what_waits_together_is_one_batch() -> None:
    """Requests that come while the thread is busy are embedded at once, each getting its own vector."""
    encoder = Encoder()
    with service(encoder) as embedding:
        first = asyncio.create_task(embedding.vector("a"))
        await eventually(lambda: len(encoder.batches) == 1)
        rest = [asyncio.create_task(embedding.vector(text)) for text in ("bb", "cc")]
        await asyncio.sleep(0)
        encoder.go.set()
        await asyncio.gather(first, *rest)
        assert encoder.batches == [["a"], ["bb", "cc"]]


@pytest.mark.parametrize("wrong", [RuntimeError("out of memory"), -1, 1], ids=["raises", "too few", "too many"])
async def test_a_bad_batch_costs_nobody_after_it(wrong: Exception | int) -> None:
    """All who waited for it are told, none gets what may be another's, and the next one gets its vector."""
    encoder = Encoder()
    encoder.go.set()
    with service(encoder) as embedding:
        encoder.wrong = wrong
        results = await asyncio.wait_for(
            asyncio.gather(embedding.vector("a"), embedding.vector("b"), return_exceptions=True), 5
        )
        assert all(isinstance(result, Exception) for result in results)
        encoder.wrong = None
        assert (await asyncio.wait_for(embedding.vector("ccc"), 5))[0] == 3


async def test_who_has_left_is_not_embedded() -> None:
    """A request that was cancelled while it waited takes no place in a batch."""
    encoder = Encoder()
    with service(encoder) as embedding:
        first = asyncio.create_task(embedding.vector("a"))
        await eventually(lambda: len(encoder.batches) == 1)
        left, stays = (asyncio.create_task(embedding.vector(text)) for text in ("left", "stays"))
        await asyncio.sleep(0)
        left.cancel()
        encoder.go.set()
        await asyncio.gather(first, stays)
        assert encoder.batches == [["a"], ["stays"]]


async def test_closing_leaves_nobody_waiting() -> None:
    """What is being embedded and what waits for it are both cancelled."""
    encoder = Encoder()
    with service(encoder) as embedding:
        waiting = [asyncio.create_task(embedding.vector("a"))]
        await eventually(lambda: len(encoder.batches) == 1)
        waiting.append(asyncio.create_task(embedding.vector("b")))
        await asyncio.sleep(0)
        embedding.close()
        done, _ = await asyncio.wait(waiting, timeout=5)
        assert len(done) == 2
        assert all(task.cancelled() for task in done)
