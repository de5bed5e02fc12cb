from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
import pytest

from cache.entry import CacheEntry, Hit
from gateway.caching.lookups import as_new, replay_hit
from gateway.chat.completions import DONE_EVENT
from gateway.request.context import Client, RequestContext
from tests.support.context import streamed_request

TEXT = "Rome, of course.\n\n  The Eternal City: 永遠の都 has been the capital since 1871. \n"


def completion(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A whole answer with members that only some providers send."""
    made = {"index": 0, "message": {"role": "assistant", "content": None, "refusal": None, **message}}
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 1760000000,
        "model": "small",
        "system_fingerprint": "fp_1",
        "service_tier": "default",
        "choices": [{**made, "logprobs": None, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
    }


ANSWER = completion({"content": TEXT})


async def test_a_client_that_does_not_read_is_dropped() -> None:
    """A hit ends at the stall limit, as a live stream does; a slow reader within the limit gets all of it."""

    def request() -> RequestContext:
        return streamed_request(Client(None, 0.5))

    stored = orjson.dumps(completion({"content": "Rome."}))
    entry = CacheEntry(stored, "a", "a", "m", "chat", "0", None, 0.0, 1e12, "hi", None)

    async def read(client_of: RequestContext, pause: Callable[[], Awaitable[Any]]) -> list[bytes]:
        seen = []
        async for event in replay_hit(client_of, Hit("exact", entry, "e", 0.0)).events or ():
            seen.append(event)
            await pause()
        client_of.client.unwatch()
        return seen

    slow = request()
    assert (await read(slow, partial(asyncio.sleep, 0.1)))[-1].endswith(DONE_EVENT)
    assert not slow.client.gone
    stalled = request()
    task = asyncio.create_task(read(stalled, asyncio.Event().wait))
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert stalled.client.gone


@pytest.mark.parametrize("ident", ["chatcmpl-7", 'a"b\\\\c', "\u6c38"])
def test_each_reply_of_a_stored_answer_has_its_own_id_and_time(ident: str) -> None:
    """Of an answer as it is stored now, whose id comes first, and of one that an earlier version stored."""
    value = {**ANSWER, "id": ident, "model": 'an "id":"x","created":1'}
    now = {"id": ident, "created": value["created"], **value}
    for stored in (orjson.dumps(now), orjson.dumps(value)):
        one, other = (orjson.loads(as_new(stored)) for _ in range(2))
        assert {ident, one["id"], other["id"]} == {ident} | {one["id"]} | {other["id"]} and one["id"] != other["id"]
        assert one["id"].startswith("chatcmpl-") and len(one["id"]) == 41 and one["created"] > value["created"]
        for found in (one, other):
            assert {**found, "id": ident, "created": value["created"]} == value
