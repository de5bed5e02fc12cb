"""The embed hop: batches in a thread, and what becomes of one that goes wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache import shipped_cross_encoder
from cache.planning.plan import Planner
from gateway.caching.lookups import QuestionEmbedder
from gateway.encoders import load_embedder
from gateway.parts.encoders.cross_encoder import CrossEncoder
from policies.loader import made_policy
from routing.features import features_of
from tests.support.context import streamed_request
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


RENEW, ANSWER, LATER = "How do I renew a passport?", "Fill in the form and pay.", "How long does it take?"
LONG = "Which documents does somebody who lives abroad need for a new passport?"


@pytest.mark.parametrize(
    ("semantic", "turns", "embedded"),
    [
        (False, (RENEW,), [RENEW]),
        (False, (RENEW, ANSWER, LATER), [RENEW]),
        (True, (RENEW,), [RENEW]),
        (True, (RENEW, ANSWER, LATER), [RENEW, f"{RENEW}\n{LATER}"]),
        (True, (RENEW, ANSWER, LONG), [LONG, f"{RENEW}\n{LONG}"]),
    ],
    ids=["first", "follow-up", "first, semantic", "follow-up, semantic", "long, semantic"],
)
async def test_the_vectors_of_a_request(semantic: bool, turns: tuple[str, ...], embedded: list[str]) -> None:
    """A follow-up takes one encoding, as ever; the semantic cache has its own of conversations, as it was."""
    encoder = Encoder()
    encoder.go.set()
    cache = {"semantic": {"ttl": "6h"}} if semantic else {"exact": {"ttl": "1h"}}
    policy = made_policy(
        {"surface": "chat", "slo": {"deadline": "10s"}, "tiers": ["a", "b"], "cache": cache,
         "route": {"start": {"a": "easiest 40% of its kind", "b": "otherwise"}}}, Path("chat.yaml"), {},
    )  # fmt: skip
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
    body = {"model": "chat", "messages": messages}
    features = features_of(body)
    planner = Planner(b"", "scripted", 1000, {}, lambda owner, surface: 0, by_turns=True)
    plan = planner.plan(body, policy, "t", features, model="chat")
    with service(encoder) as embedding:
        vector = await embedding.vector_for(
            replace(streamed_request(None), policy=policy, body=body, features=features), plan
        )
    assert [text for batch in encoder.batches for text in batch] == embedded
    assert vector is not None
    own = plan.vector_of(vector)
    assert own is not None and own[0] == len(embedded[-1])


async def test_a_question_in_another_language_is_searched_by_the_vectors_of_its_tokens(tmp_path: Path) -> None:
    """The classifier keeps the vector that it was fitted to, and English its own."""
    vectors = CrossEncoder.load(shipped_cross_encoder()).vectors
    assert vectors is not None
    policy = made_policy(
        {"surface": "chat", "slo": {"deadline": "10s"}, "tiers": ["a", "b"], "cache": {"semantic": {"ttl": "6h"}},
         "route": {"start": {"a": "easiest 40% of its kind", "b": "otherwise"}}}, Path("chat.yaml"), {},
    )  # fmt: skip
    planner = Planner(b"", "scripted", 1000, {}, lambda owner, surface: 0)
    static = load_embedder("static", tmp_path)
    embedding = QuestionEmbedder(static, "static", vectors)
    for question, own in (("怎么取消我的订阅？", True), ("How do I cancel my plan?", False)):
        body = {"model": "chat", "messages": [{"role": "user", "content": question}]}
        features = features_of(body)
        plan = planner.plan(body, policy, "t", features, model="chat")
        request = replace(streamed_request(None), policy=policy, body=body, features=features)
        vector = await embedding.vector_for(request, plan)
        assert vector is not None
        assert np.array_equal(vector, static.embed([question])[0])
        used = plan.vector_of(vector)
        assert used is not None
        assert np.array_equal(used, vectors.embed(question, 256)) is own
        assert np.array_equal(used, vector) is not own
    embedding.close()
