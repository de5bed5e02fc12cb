"""Cut streams at every byte, for each dialect of clients before each of backends.

A scripted model server ends a stream of reasoning, text and a tool call after so many bytes: by closing the connection,
or by a proper end of the HTTP reply, as proxies do. The client must get the whole answer with its end (only where all
of it had come), or an error: as the reply's status where nothing was sent yet, else as the stream's last event. Counted
as wrong: a stream that ends with neither, one that ends well without the whole answer, a status of 500, one after the
head was sent, a reply that is not over within ten seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.tiers.breaker import Breaker
from tests.gateway.dialects.pairs import (
    PATHS,
    USAGE,
    WORDS,
    all_pairs,
    gateway_of,
    headers_of,
    message_item,
    text_part,
    whole_message,
    whole_response,
)
from tests.support.app import InProcess
from tests.support.dialect_streams import chat_stream, message_stream, response_stream
from tests.support.plain_http import PlainReply

Json = dict[str, Any]

_ABLE: Final = ("tools", "json", "vision")
OUT: Final[dict[str, Json]] = {
    "openai": {"model": "small", "capabilities": [*_ABLE]},
    "responses": {"kind": "responses", "model": "small", "capabilities": [*_ABLE]},
    "anthropic": {"kind": "anthropic", "model": "claude-haiku-4-5", "capabilities": [*_ABLE]},
}
INTO: Final[dict[str, Json]] = {
    "chat": {"messages": [WORDS]},
    "responses": {"input": "hello", "store": False},
    "messages": {"messages": [WORDS], "max_tokens": 4000},
    "completions": {"prompt": "hello"},
}
TEXT: Final = "A caf\u00e9, \u4f60\u597d."
ARGUMENTS: Final = '{"at":"m\u00fcnster"}'
_LIMIT_S: Final = 10.0


@dataclass
class Pair:
    """The cuts of one dialect before another: how the replies ended, and what was wrong, by the number of bytes."""

    into: str
    out: str
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Cutter:
    """Send requests whose streams are cut, one at a time to each kind of backend."""

    def __init__(self, app: InProcess, streams: dict[str, bytes]) -> None:
        self._app = app
        self._streams = streams
        self._cuts: dict[str, tuple[int, bool]] = {}

    def reply(self, path: str, raw: bytes) -> PlainReply:
        """Return the cut stream for a backend of the kind that the path begins with."""
        out = path.split("/")[1]
        at, closed = self._cuts[out]
        return PlainReply(self._streams[out][:at], events=True, cut=closed)

    async def pair(self, into: str, out: str, *, every: int = 1) -> Pair:
        """Cut the streams at each byte, or at each so many'th, in both ways."""
        pair = Pair(into, out)
        for at in [*range(0, len(self._streams[out]), every), len(self._streams[out])]:
            for closed in (True, False):
                self._cuts[out] = (at, closed)
                end = await self._end(into, out)
                pair.ends[end.partition(":")[0]] += 1
                if end.startswith("wrong") or (at == len(self._streams[out]) and end != "whole"):
                    pair.wrong.append(f"{at} bytes, {'closed' if closed else 'ended'}: {end}")
        return pair

    async def _end(self, into: str, out: str) -> str:
        """Return how a reply ended: `whole`, `error` in the stream, `status` of an error, or `wrong: ...`."""
        for tier in self._app.steps.tiers.values():
            for endpoint in tier.endpoints:
                endpoint.breaker = Breaker()  # what is cut is no reason to call no more
        asked = {**INTO[into], "model": out, "stream": True}
        try:
            async with asyncio.timeout(_LIMIT_S):
                answer = await self._app.client.post(PATHS[into], json=asked, headers=headers_of(into))
        except TimeoutError:
            return "wrong: no end within ten seconds"
        if answer.status_code != 200:
            sound = answer.status_code in (502, 503, 504) and "error" in answer.json()
            return "status" if sound else f"wrong: {answer.status_code} {answer.text[:300]}"
        events = [orjson.loads(data) for data in _data_of(answer.content) if data != b"[DONE]"]
        done = b"data: [DONE]\n\n" in answer.content
        ended, failed, got = _READ[into](events, done)
        if failed:
            return "error" if not ended else "wrong: an error and a good end"
        if not ended:
            return f"wrong: neither error nor end, {answer.content[-200:]!r}"
        wanted = TEXT if into == "completions" else TEXT + ARGUMENTS
        return "whole" if got == wanted else f"wrong: ended well with {got!r}"


def _data_of(content: bytes) -> Iterator[bytes]:
    for line in content.split(b"\n"):
        if line.startswith(b"data: "):
            yield line[len(b"data: ") :]


def _chat(events: list[Json], done: bool) -> tuple[bool, bool, str]:
    """Return whether a stream ended well, whether it ended in an error, and its text with its calls' arguments."""
    text = arguments = ""
    finished = False
    for event in events:
        for choice in event.get("choices") or ():
            delta = choice["delta"]
            text += delta.get("content") or ""
            arguments += "".join(call["function"].get("arguments") or "" for call in delta.get("tool_calls") or ())
            finished = finished or choice["finish_reason"] is not None
    return done and finished, any(event.get("error") for event in events), text + arguments


def _completions(events: list[Json], done: bool) -> tuple[bool, bool, str]:
    """See `_chat`."""
    choices = [choice for event in events for choice in event.get("choices") or ()]
    finished = any(choice["finish_reason"] is not None for choice in choices)
    return done and finished, any(event.get("error") for event in events), "".join(one["text"] for one in choices)


def _messages(events: list[Json], done: bool) -> tuple[bool, bool, str]:
    """See `_chat`."""
    text = arguments = ""
    for event in events:
        delta = event.get("delta") or {}
        text += delta.get("text") or ""
        arguments += delta.get("partial_json") or ""
    kinds = [event["type"] for event in events]
    return "message_stop" in kinds, "error" in kinds, text + arguments


def _responses(events: list[Json], done: bool) -> tuple[bool, bool, str]:
    """See `_chat`."""
    of = {"response.output_text.delta": "", "response.function_call_arguments.delta": ""}
    for event in events:
        if event["type"] in of:
            of[event["type"]] += event["delta"]
    kinds = [event["type"] for event in events]
    failed = "error" in kinds or "response.failed" in kinds
    return "response.completed" in kinds, failed, "".join(of.values())


_READ: Final = {"chat": _chat, "completions": _completions, "messages": _messages, "responses": _responses}


def _streams() -> dict[str, bytes]:
    """Return the stream of each kind of backend: reasoning, text and a tool call."""
    function = {"name": "look", "arguments": ARGUMENTS}
    call: Json = {"id": "call_1", "type": "function", "function": function}
    said: Json = {"role": "assistant", "reasoning_content": "Hm.", "content": TEXT, "tool_calls": [call]}
    choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
    completion: Json = {"id": "chatcmpl-1", "created": 1, "model": "small", "choices": [choice], "usage": USAGE}
    blocks: list[Json] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": TEXT},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": orjson.loads(ARGUMENTS)},
    ]
    items: list[Json] = [
        {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        message_item(text_part(TEXT)),
        {"id": "fc_1", "type": "function_call", "call_id": "call_1", **function, "status": "completed"},
    ]
    return {
        "openai": chat_stream(completion),
        "responses": response_stream(whole_response(items)),
        "anthropic": message_stream(whole_message(blocks, stop_reason="tool_use")),
    }


@asynccontextmanager
async def cutter(folder: Path) -> AsyncIterator[Cutter]:
    """A gateway in this process, see `gateway_of`, whose backends' streams are cut."""
    made: list[Cutter] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        return made[0].reply(path, raw)

    async with gateway_of(folder, OUT, reply) as app:
        made.append(Cutter(app, _streams()))
        yield made[0]


async def run(folder: Path, into: Collection[str], out: Collection[str], *, every: int = 1) -> list[Pair]:
    """Return the pairs of these dialects."""
    async with cutter(folder) as cuts:

        async def pair(one: str, other: str) -> Pair:
            return await cuts.pair(one, other, every=every)

        return await all_pairs(pair, [*into], [*out])
