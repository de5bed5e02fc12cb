from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import orjson
import pytest

from cache.entry import CacheEntry, Hit
from gateway.caching.replay import as_new, in_pieces, replay
from gateway.chat.completions import DONE_EVENT, assemble, chunks_of
from gateway.request.context import Client, RequestContext
from tests.support.context import streamed_request

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TEXT = "Rome, of course.\n\n  The Eternal City: 永遠の都 has been the capital since 1871. \n"
SPLIT = ("Rome", ", of", " course", ".")


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


def logprobs(*tokens: str) -> dict[str, Any]:
    """Log-probabilities of these tokens."""
    return {"content": [{"token": one, "logprob": -0.1, "top_logprobs": []} for one in tokens], "refusal": None}


ANSWERS = [
    completion({"content": TEXT}),
    completion({"content": TEXT, "reasoning_content": "Is it Milan? No.", "annotations": [{"type": "url_citation"}]}),
    completion({"content": "".join(SPLIT)}, logprobs=logprobs(*SPLIT)),
    completion({"content": "Rome."}, logprobs=logprobs("R", "ome")),
    completion({"content": "One moment.", "tool_calls": [CALL]}, finish_reason="tool_calls"),
    completion({"tool_calls": [CALL]}, finish_reason="tool_calls"),
    completion({"content": "   "}),
]


def parts(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of its choice in a paced stream, the last of which is the finish."""
    pieces = [piece for chunk in chunks_of(answer) for piece in in_pieces(chunk)]
    return [piece["choices"][0] for piece in pieces if piece["choices"]]


@pytest.mark.parametrize("answer", ANSWERS)
def test_pieces_come_to_the_same_as_the_whole(answer: dict[str, Any]) -> None:
    """However an answer is cut, what the chunks spell out is the answer that was stored, in every member."""
    pieces = [piece for chunk in chunks_of(answer) for piece in in_pieces(chunk)]
    assert assemble(pieces) == assemble(chunks_of(answer)) == answer
    assert {piece["id"] for piece in pieces} == {"chatcmpl-7"}
    assert [choice["finish_reason"] for piece in pieces for choice in piece["choices"]][:-1].count("stop") == 0


def test_a_text_is_cut_into_about_tokens() -> None:
    """The role comes first and alone, then the reasoning, then the text, a word or a dozen characters at a time."""
    answer = completion({"content": TEXT, "reasoning_content": "Is it Milan? No."})
    deltas = [part["delta"] for part in parts(answer)[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [next(iter(delta)) for delta in deltas[1:6]] == ["reasoning_content"] * 4 + ["content"]
    assert max(len(delta["content"].strip()) for delta in deltas[5:]) <= 12
    assert len(deltas) > 15


def test_log_probabilities_go_with_their_tokens() -> None:
    """Where they are the text's own, each token carries its own; where they are not, they go first, in one piece."""
    own, other = map(parts, ANSWERS[2:4])
    told = [(one["delta"]["content"], one["logprobs"]["content"][0]["token"]) for one in own[1:5]]
    assert told == [(token, token) for token in SPLIT]
    assert [len((one["logprobs"] or {"content": ()})["content"]) for one in other[:-1]] == [2, 0]


@pytest.mark.parametrize("pace", ["at_once", "paced"])
async def test_a_client_that_does_not_read_is_dropped(pace: str) -> None:
    """A hit ends at the stall limit, as a live stream does; a slow reader within the limit gets all of it."""

    def request() -> RequestContext:
        return streamed_request(Client(None, 0.5), cache={"replay": pace})

    stored = orjson.dumps(completion({"content": "Rome."}))
    entry = CacheEntry(stored, "a", "a", "m", "chat", "0", None, 0.0, 1e12, "hi", None)

    async def read(client_of: RequestContext, pause: Callable[[], Awaitable[Any]]) -> list[bytes]:
        seen = []
        async for event in replay(client_of, Hit("exact", entry, "e", 0.0)).events or ():
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
    value = {**ANSWERS[0], "id": ident, "model": 'an "id":"x","created":1'}
    now = {"id": ident, "created": value["created"], **value}
    for stored in (orjson.dumps(now), orjson.dumps(value)):
        one, other = (orjson.loads(as_new(stored)) for _ in range(2))
        assert {ident, one["id"], other["id"]} == {ident} | {one["id"]} | {other["id"]} and one["id"] != other["id"]
        assert one["id"].startswith("chatcmpl-") and len(one["id"]) == 41 and one["created"] > value["created"]
        for found in (one, other):
            assert {**found, "id": ident, "created": value["created"]} == value
