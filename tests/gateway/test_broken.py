"""Broken answers, as far as they can be tried without a gateway; `tests/integration/test_broken.py` has one."""

from __future__ import annotations

from collections import Counter

import pytest

from cache.write import why_not_kept
from gateway.backends.base import BackendError, BackendRequest
from gateway.backends.openai import OpenAIBackend
from tests.support.broken import Answer, broken, good

JUDGED_BY_THE_GATEWAY = {"refusal in words", "loop"}
"""What only the cascade's judge can see: it reads the text (`gateway.pipeline`)."""


class _Sent:
    """One answer, as a transport's response."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        self._answer = answer
        self._left = [answer.body]

    def header(self, name: str) -> str | None:
        return self._answer.content_type if name == "Content-Type" else None

    async def read(self) -> bytes:
        return self._answer.body

    async def chunk(self) -> bytes:
        return self._left.pop() if self._left else b""

    def close(self, *, end_is_due: bool = False) -> None:
        pass


class _Wire:
    """A transport that answers as it is told."""

    def __init__(self) -> None:
        self.answer = broken(0)

    async def send(self, headers: object, payload: bytes, traceparent: str, tracestate: str) -> _Sent:
        return _Sent(self.answer)

    async def aclose(self) -> None:
        pass


async def _kept(wire: _Wire, answer: Answer) -> bool:
    wire.answer = answer
    backend = OpenAIBackend(wire, model="m", key=None)
    try:
        completion = await backend.complete(BackendRequest({"messages": []}, ask_logprobs=False))
    except BackendError:
        return False
    return completion.sound and not why_not_kept(completion.value, answer.n)


@pytest.mark.parametrize("answers", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_no_broken_answer_is_one_to_keep(answers: int) -> None:
    """Cut off, unfinished, empty, refused, filtered, of wrong types, miscounted: none passes for whole."""
    wire = _Wire()
    kept: Counter[str] = Counter()
    for number in range(answers):
        answer = broken(number)
        if answer.kind not in JUDGED_BY_THE_GATEWAY and await _kept(wire, answer):
            kept[answer.kind] += 1
    assert not kept


async def test_a_good_answer_is() -> None:
    """The same check keeps whole answers, whether they come as JSON or as a stream, and without [DONE] too (B18)."""
    wire = _Wire()
    for number in range(20):
        assert await _kept(wire, good(number, stream=False))
        assert await _kept(wire, good(number, stream=True))
        assert await _kept(wire, good(number, stream=True, done=False))
