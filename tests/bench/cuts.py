"""Cut streams at every byte, for each dialect of clients before each of backends: `python -m tests.bench.cuts`.

A scripted model server ends a stream of reasoning, text and a tool call after so many bytes: by closing the connection,
or by a proper end of the HTTP reply, as proxies do. The client must get the whole answer with its end (only where all
of it had come), or an error: as the reply's status where nothing was sent yet, else as the stream's last event. Counted
as wrong: a stream that ends with neither, one that ends well without the whole answer, a status of 500, one after the
head was sent, a reply that is not over within ten seconds. The exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.tiers.breaker import Breaker
from tests.support.app import InProcess, in_process
from tests.support.plain_http import PlainReply, PlainServer

Json = dict[str, Any]

_ABLE: Final = ("tools", "json", "vision")
OUT: Final[dict[str, Json]] = {
    "openai": {"model": "small"},
    "responses": {"kind": "responses", "model": "small"},
    "anthropic": {"kind": "anthropic", "model": "claude-haiku-4-5"},
}
_ASKED: Final = [{"role": "user", "content": "hello"}]
INTO: Final[dict[str, tuple[str, Json]]] = {
    "chat": ("/v1/chat/completions", {"messages": _ASKED}),
    "responses": ("/v1/responses", {"input": "hello", "store": False}),
    "messages": ("/v1/messages", {"messages": _ASKED, "max_tokens": 4000}),
    "completions": ("/v1/completions", {"prompt": "hello"}),
}
TEXT: Final = "A caf\u00e9, \u4f60\u597d."
ARGUMENTS: Final = '{"at":"m\u00fcnster"}'
_USAGE: Final = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
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
        path, body = INTO[into]
        headers = {"anthropic-version": "2023-06-01"} if into == "messages" else {}
        try:
            async with asyncio.timeout(_LIMIT_S):
                asked = {**body, "model": out, "stream": True}
                answer = await self._app.client.post(path, json=asked, headers=headers)
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


def _chat_stream() -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "small"}

    def call(**function: str) -> Json:
        return {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}

    deltas: list[Json] = [
        {"role": "assistant", "reasoning_content": "Hm."},
        {"content": TEXT[:8]},
        {"content": TEXT[8:]},
        call(name="look", arguments=ARGUMENTS[:6]),
        {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS[6:]}}]},
    ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    chunks: list[Json] = [{**head, "choices": [choice]} for choice in choices]
    chunks.append({**head, "choices": [], "usage": _USAGE})
    return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks) + b"data: [DONE]\n\n"


def _message_stream() -> bytes:
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1}}
    blocks: list[tuple[Json, list[Json]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "c2ln"}],
        ),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": TEXT[:8]}, {"type": "text_delta", "text": TEXT[8:]}],
        ),
        (
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
            [
                {"type": "input_json_delta", "partial_json": ARGUMENTS[:6]},
                {"type": "input_json_delta", "partial_json": ARGUMENTS[6:]},
            ],
        ),
    ]
    events: list[Json] = [{"type": "message_start", "message": message}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ends = {"stop_reason": "tool_use", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ends, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events)


def _response_stream() -> bytes:
    part: Json = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    message: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    call: Json = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "look", "arguments": ARGUMENTS}
    call["status"] = "completed"
    usage: Json = {"input_tokens": 3, "output_tokens": 9, "total_tokens": 12}
    usage |= {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    whole: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "small", "status": "completed"}
    whole |= {"output": [message, call], "usage": usage, "error": None, "incomplete_details": None, "tools": []}
    whole |= {"tool_choice": "auto", "parallel_tool_calls": True, "instructions": None, "metadata": {}}
    begun: Json = {**whole, "status": "in_progress", "output": [], "usage": None}
    text: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    given: Json = {"item_id": "fc_1", "output_index": 1}
    said: Json = {"type": "response.output_text.delta", **text, "logprobs": []}
    typed: Json = {"type": "response.function_call_arguments.delta", **given}
    opened: Json = {**message, "status": "in_progress", "content": []}
    called: Json = {**call, "status": "in_progress", "arguments": ""}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.content_part.added", **text, "part": {**part, "text": ""}},
        {**said, "delta": TEXT[:8]},
        {**said, "delta": TEXT[8:]},
        {"type": "response.output_text.done", **text, "text": TEXT, "logprobs": []},
        {"type": "response.content_part.done", **text, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": message},
        {"type": "response.output_item.added", "output_index": 1, "item": called},
        {**typed, "delta": ARGUMENTS[:6]},
        {**typed, "delta": ARGUMENTS[6:]},
        {"type": "response.function_call_arguments.done", **given, "arguments": ARGUMENTS, "name": "look"},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**one, "sequence_number": number} for number, one in enumerate(events)]
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in numbered)


@asynccontextmanager
async def cutter(folder: Path) -> AsyncIterator[Cutter]:
    """A gateway in this process with a surface and a tier for each kind of backend, of the same name."""
    streams = {"openai": _chat_stream(), "responses": _response_stream(), "anthropic": _message_stream()}
    made: list[Cutter] = []

    def reply(path: str, raw: bytes) -> PlainReply:
        return made[0].reply(path, raw)

    with PlainServer(reply) as server:
        tiers = [
            {
                "name": out,
                "backends": [
                    {"base_url": f"http://127.0.0.1:{server.port}/{out}/v1", **backend, "capabilities": [*_ABLE]}
                ],
            }
            for out, backend in OUT.items()
        ]
        policies = {
            out: f"surface: {out}\nmatch: {{models: [{out}]}}\ntiers: [{out}]\nslo: {{deadline: 10m}}\nholdout: 0%\n"
            f"route: {{classifier: none, start: {{{out}: otherwise}}}}\n"
            for out in OUT
        }
        settings = {"tiers": tiers, "default_surface": "openai"}
        async with in_process(folder, server.url, policies=policies, settings=settings) as app:
            app.steps.gate.stop()  # on a machine that is busy otherwise, requests would be refused
            made.append(Cutter(app, streams))
            yield made[0]


async def run(folder: Path, into: Collection[str], out: Collection[str], *, every: int = 1) -> list[Pair]:
    """Return the pairs of these dialects."""
    async with cutter(folder) as cuts:

        async def column(one: str) -> list[Pair]:
            return [await cuts.pair(name, one, every=every) for name in INTO if name in into]

        return [pair for pairs in await asyncio.gather(*(column(one) for one in OUT if one in out)) for pair in pairs]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", choices=INTO, action="append", help="only clients of this dialect")
    parser.add_argument("--out", choices=OUT, action="append", help="only backends of this dialect")
    parser.add_argument("--every", type=int, default=1, help="cut at each so many'th byte only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        asked = (args.into or list(INTO), args.out or list(OUT))
        pairs = asyncio.run(run(Path(folder), *asked, every=args.every))
    if args.json:
        print(json.dumps([asdict(pair) for pair in pairs]))
    else:
        print(f"{'in':12} {'out':12} {'cuts':>7} {'whole':>7} {'error':>7} {'status':>7} {'wrong':>7}")
        for pair in pairs:
            counts = "".join(f"{pair.ends[name]:8,}" for name in ("whole", "error", "status", "wrong"))
            print(f"{pair.into:12} {pair.out:12}{pair.ends.total():8,}{counts}")
        for pair in pairs:
            for one in pair.wrong:
                print(f"{pair.into} -> {pair.out}: {one}")
    return 1 if any(pair.wrong for pair in pairs) else 0


if __name__ == "__main__":
    sys.exit(main())
