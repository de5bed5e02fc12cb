"""A stored answer on its way out: as JSON or as the stream it would have been, whole or at its own pace, at no cost.

What goes out is what was stored, ids included. A stream `at_once` has the whole text in one chunk. A `paced` one has it
in pieces as they came from the model the first time, and never slower than SLOWEST: for applications whose screens
were made for text that is being written.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final

import orjson

from cache.entry import CacheEntry, Hit
from gateway.accounting import replayed
from gateway.chat.completions import DONE_EVENT, chunks_of, wants_usage
from gateway.request.context import RequestContext
from gateway.request.reply import Header, Reply
from gateway.telemetry import names

SLOWEST: Final = 100.0
"""Tokens a second: nobody reads faster, and a hit should not take longer than it must."""
LONGEST_WAIT_S: Final = 0.2
"""Before the first piece, however long it took the model."""
_PIECE: Final = re.compile(r"\s*\S{1,12}|\s+\Z")
_TEXTS: Final = ("reasoning_content", "reasoning", "content")
_END: Final = b": x-tierline-cost-usd=0 x-tierline-attempts=0\n" + DONE_EVENT


def replay(request: RequestContext, hit: Hit) -> Reply:
    """The reply that a hit makes; the ledger then has the path, and who gave the answer once."""
    ledger, entry = request.ledger, hit.entry
    ledger.path = f"cache-{hit.kind}"
    ledger.tier, ledger.backend, ledger.model = entry.tier, entry.backend, entry.model
    ledger.confidence = entry.confidence
    ledger.similarity = hit.similarity
    replayed(request.ledger, entry.body)
    extra: tuple[Header, ...] = ((b"age", b"%d" % hit.age_s), (b"x-tierline-cache-entry", hit.entry_id.encode()))
    if not request.features.stream:
        return Reply(body=entry.body, extra=extra)
    # Of a live stream the cost is known at its end only; of this one it is known now.
    extra += ((b"x-tierline-cost-usd", b"%.8f" % ledger.cost_usd),)
    include_usage = wants_usage(request.body)
    if request.policy.cache.replay == "at_once":
        return Reply(events=_at_once(entry.body, include_usage=include_usage), extra=extra)
    request.client.watch()
    return Reply(events=_paced(entry, include_usage=include_usage), extra=extra)


def hit_attributes(hit: Hit) -> dict[str, Any]:
    """What the hop of a hit says of it: enough for the client's feedback to find the answer and its score again."""
    said: dict[str, Any] = {
        names.CACHE_ENTRY: hit.entry_id,
        names.CACHE_AGE: round(hit.age_s, 1),
        names.CACHE_CREATED: hit.entry.created_at,
    }
    if hit.score is not None:
        said[names.CACHE_SCORE] = hit.score
    return said


async def _at_once(body: bytes, *, include_usage: bool) -> AsyncGenerator[bytes]:
    for chunk in chunks_of(orjson.loads(body)):
        if chunk["choices"] or include_usage:
            yield _event(chunk)
    yield _END


async def _paced(entry: CacheEntry, *, include_usage: bool) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    every_s = 1 / max(entry.tokens_per_s or SLOWEST, SLOWEST)
    due = loop.time() + min(entry.ttft_s or 0.0, LONGEST_WAIT_S)
    for chunk in chunks_of(orjson.loads(entry.body)):
        if not chunk["choices"] and not include_usage:
            continue
        for piece in in_pieces(chunk):
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            due += every_s
            yield _event(piece)
    yield _END


def in_pieces(chunk: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A chunk of one choice as the chunks of about a token each that come to the same; as it is when it has no text."""
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
    """The tokens of a text, each with its own log-probabilities; empty when these are not the text's own tokens."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not all(
        isinstance(one, dict) and isinstance(one.get("token"), str) for one in content
    ):
        return []
    if "".join(one["token"] for one in content) != text:
        return []
    return [(one["token"], {**logprobs, "content": [one]}) for one in content]


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
