"""The texts of the embeddings API are encoded in a thread, in batches of all requests together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gateway.parts.services.text_encoder import TextEncoder


class _Scripted:
    """Gives each text its length, and notes its batches; texts of more than nine characters are too long."""

    name, dimension, whole_chars, lengths = "scripted", 1, 9, (1,)

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: set[int] = set()
        self.go = threading.Event()

    def count_tokens(self, text: str) -> int | None:
        return len(text) if len(text) <= 9 else None

    def embed(self, texts: Sequence[str]) -> Any:
        self.batches.append(list(texts))
        self.threads.add(threading.get_ident())
        assert self.go.wait(10)
        if "bad" in texts:
            raise ValueError("bad")
        return np.array([[len(text)] for text in texts], np.float32)


async def test_requests_that_come_meanwhile_are_one_batch() -> None:
    scripted = _Scripted()
    encoder = TextEncoder(scripted)
    first = asyncio.create_task(encoder.encode(["a"]))
    while not scripted.batches:
        await asyncio.sleep(0.001)
    others = [asyncio.create_task(encoder.encode(["bb"] * count)) for count in (1, 2)]
    await asyncio.sleep(0)
    scripted.go.set()
    assert [one.tokens for one in await first] == [1]
    assert [[float(one.vector[0]) for one in await other] for other in others] == [[2.0], [2.0, 2.0]]
    assert scripted.batches == [["a"], ["bb"] * 3]
    assert threading.get_ident() not in scripted.threads
    encoder.close()


async def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    scripted = _Scripted()
    encoder = TextEncoder(scripted)
    long = asyncio.create_task(encoder.encode(["long"] * 100))
    while not scripted.batches:
        await asyncio.sleep(0.001)
    short = asyncio.create_task(encoder.encode(["s"]))
    await asyncio.sleep(0)
    scripted.go.set()
    await short
    assert not long.done() and len(await long) == 100
    encoder.close()


async def test_a_text_that_is_too_long_is_told_and_spoils_nothing() -> None:
    scripted = _Scripted()
    scripted.go.set()
    encoder = TextEncoder(scripted)
    encoded = await encoder.encode(["fine", "much too long"])
    assert [one.tokens for one in encoded] == [4, None]
    assert scripted.batches == [["fine", ""]], "it is not read at all"
    encoder.close()


async def test_an_error_is_its_batchs_and_a_cancelled_request_nobodys() -> None:
    scripted = _Scripted()
    scripted.go.set()
    encoder = TextEncoder(scripted)
    with pytest.raises(ValueError, match="bad"):
        await encoder.encode(["bad"])
    scripted.go.clear()
    task = asyncio.create_task(encoder.encode(["a"]))
    await asyncio.sleep(0.01)
    task.cancel()
    scripted.go.set()
    assert [one.tokens for one in await encoder.encode(["ok"])] == [2]
    encoder.close()
