"""Reply with a stored answer: as JSON or as the stream it would have been, whole or at its own pace, at no cost.

The stored answer is sent unchanged, but for its id and its time, which are each reply's own: what counts answers by
their ids takes equal ones for one request. An `at_once` stream has the whole text in one chunk. A `paced` one
has it in pieces at the model's original pace, and never slower than SLOWEST: for applications that are designed to show
text as it is generated.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import partial
from os import urandom
from typing import TYPE_CHECKING, Any, Final

import orjson

from cache.planning.plan import DENIED
from gateway.accounting import replayed
from gateway.chat.completions import DONE_EVENT, chunks_of, text_of, wants_usage
from gateway.request.reply import Header, Reply
from gateway.telemetry import names

if TYPE_CHECKING:
    from cache.entry import CacheEntry, Hit
    from gateway.request.context import Client, RequestContext

SLOWEST: Final = 100.0
"""Slowest pace of a paced replay in tokens per second: faster than reading speed, so a hit is not needlessly slow."""
LONGEST_WAIT_S: Final = 0.2
"""Longest wait in seconds before the first piece, however long the model took."""
_LOOK_AGAIN_S: Final = 0.01
_HEAD: Final = re.compile(rb'\{"id":"(?:[^"\\]|\\.)*+","created":\d++')
"""What stored answers begin with."""
_PIECE: Final = re.compile(r"\s*\S{1,12}|\s+\Z")
_TEXTS: Final = ("reasoning_content", "reasoning", "content")
_END: Final = b": x-tierline-cost-usd=0 x-tierline-attempts=0\n" + DONE_EVENT


def replay(request: RequestContext, hit: Hit) -> Reply:
    """Return the reply of a hit; record in the ledger the hit and the model that gave the answer."""
    ledger, entry = request.ledger, hit.entry
    ledger.path = f"cache-{hit.kind}"
    ledger.tier, ledger.backend, ledger.model = entry.tier, entry.backend, entry.model
    ledger.confidence = entry.confidence
    if request.trace.captures:
        request.trace.answer = partial(_text_of, entry)
    if entry.dropped:  # fields that are not part of an answer's key may have been another request's alone
        ledger.dropped = tuple([name for name in entry.dropped if name not in DENIED or name in request.body])
    ledger.similarity = hit.similarity
    replayed(request.ledger, entry.body)
    extra: tuple[Header, ...] = ((b"age", b"%d" % hit.age_s), (b"x-tierline-cache-entry", hit.entry_id.encode()))
    if not request.features.stream:
        return Reply(body=as_new(entry.body), extra=extra)
    # A live stream's cost is known only at its end; a replay's is known now.
    extra += ((b"x-tierline-cost-usd", ledger.cost_shown.encode()),)
    include_usage = wants_usage(request.body)
    request.client.watch()
    paced = request.policy.cache.replay == "paced"
    return Reply(events=_events(entry, request.client, paced=paced, include_usage=include_usage), extra=extra)


def as_new(body: bytes) -> bytes:
    """Return a stored completion with a new id and the time of now; only its beginning is read, where both are."""
    head = b'{"id":"chatcmpl-%b","created":%d' % (urandom(16).hex().encode(), time.time())
    if (found := _HEAD.match(body)) is not None:
        return head + body[found.end() :]
    value = orjson.loads(body)  # stored by an earlier version
    return orjson.dumps({**value, **orjson.loads(head + b"}")})


def _text_of(entry: CacheEntry) -> str:
    return text_of(orjson.loads(entry.body))


def hit_attributes(hit: Hit) -> dict[str, Any]:
    """Return the attributes of a hit's hop, by which a client's feedback finds the answer and its score again."""
    attributes: dict[str, Any] = {
        names.CACHE_ENTRY: hit.entry_id,
        names.CACHE_AGE: round(hit.age_s, 1),
        names.CACHE_CREATED: hit.entry.created_at,
    }
    if hit.score is not None:
        attributes[names.CACHE_SCORE] = hit.score
    return attributes


async def _events(entry: CacheEntry, client: Client, *, paced: bool, include_usage: bool) -> AsyncGenerator[bytes]:
    """Yield the events of a stored answer: at once, or `paced` as they came from the model."""
    loop = asyncio.get_running_loop()
    every_s = 1 / max(entry.tokens_per_s or SLOWEST, SLOWEST)
    due = loop.time() + min(entry.ttft_s or 0.0, LONGEST_WAIT_S)
    stall = StallWatch(client)
    try:
        for chunk in chunks_of(orjson.loads(as_new(entry.body))):
            if not chunk["choices"] and not include_usage:
                continue
            for piece in in_pieces(chunk) if paced else (chunk,):
                if paced:
                    if (wait_s := due - loop.time()) > 0:
                        await asyncio.sleep(wait_s)
                    due += every_s
                stall.since = time.monotonic()
                yield b"data: " + orjson.dumps(piece) + b"\n\n"
                stall.since = 0.0
        stall.since = time.monotonic()
        yield _END
    finally:
        stall.stop()


class StallWatch:
    """Drop a client that leaves sent data unread for `client.stall_s` seconds.

    The stream sets `since` itself: to `time.monotonic()` before each event that it yields, and to 0 after it.
    """

    __slots__ = ("_client", "_overdue", "_timer", "since")

    def __init__(self, client: Client) -> None:
        self.since = 0.0
        self._client = client
        self._overdue = 0.0
        self._timer = asyncio.get_running_loop().call_later(client.stall_s, self._check)

    def stop(self) -> None:
        """End the watch; safe to call twice."""
        self._timer.cancel()

    def _check(self) -> None:
        client = self._client
        left_s = client.stall_s - (time.monotonic() - self.since if self.since else 0.0)
        if left_s <= 0:
            if self._overdue == self.since:
                client.drop()
                return
            # An event loop that was itself held up may not have seen yet that the client has read: look once more.
            self._overdue, left_s = self.since, _LOOK_AGAIN_S
        self._timer = asyncio.get_running_loop().call_later(left_s, self._check)


def in_pieces(chunk: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a chunk of one choice as chunks of about a token each; yield a chunk without text unchanged."""
    choice = chunk["choices"][0] if chunk["choices"] else {}
    delta = choice.get("delta") or {}
    texts = {name: text for name in _TEXTS if isinstance(text := delta.get(name), str) and text}
    if not texts:
        yield chunk
        return

    def piece(delta: Mapping[str, Any], logprobs: Any = None) -> Mapping[str, Any]:
        part = {"index": choice["index"], "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return {**chunk, "choices": [part]}

    opening = {name: value for name, value in delta.items() if name not in texts and name != "tool_calls"}
    if "content" in texts:
        opening["content"] = ""
    told = _with_logprobs(texts.get("content", ""), choice.get("logprobs"))
    rest = {name: value for name, value in choice.items() if name not in ("index", "delta", "logprobs")}
    first = piece(opening, None if told else choice.get("logprobs"))
    first["choices"][0].update(rest)
    yield first
    for name, text in texts.items():
        if name == "content" and told:
            yield from (piece({name: token}, logprobs) for token, logprobs in told)
        else:
            yield from (piece({name: found}) for found in _PIECE.findall(text))
    if "tool_calls" in delta:
        yield piece({"tool_calls": delta["tool_calls"]})


def _with_logprobs(text: str, logprobs: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tokens of a text, each with its own log-probabilities; empty when these are of another text."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(
        isinstance(one, dict) and isinstance(one.get("token"), str) for one in content
    ):
        return []
    if "".join(one["token"] for one in content) != text:
        return []
    return [(one["token"], {**logprobs, "content": [one]}) for one in content]
