"""Prove that no field is dropped in silence: `python -m tests.bench.fields [--into NAME] [--out NAME] [--json]`.

Every field of the published requests (chat completions, responses and text completions by OpenAI's SDK, messages by
Anthropic's), with every value of its literals and every type of part, item and tool, is sent in a small request of its
own to a gateway whose tiers speak each dialect. The request that the backend gets is compared with that of a request
without the field, or with another value where it is required. Each field must be one of these:

    kept      its text arrives at the backend
    told      it makes another request at the backend: it was translated, or its value is no text that could be found
    refused   400, and the error names it, or what it is part of
    unfit     no tier here has the capability that it needs
    listed    `x-tierline-dropped` names it, or what it is part of; marks of the prompt cache, and reasoning that
              another backend made, are listed once for all places
    honoured  the gateway does what it asks, and no backend is asked to: see HONOURED (and stop sequences before the
              Responses API, which has none: the gateway cuts the answer)
    nothing   its value asks for what would be done without it: see NOTHING; or it says nothing to a model

What is none of these is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from tests.support.app import InProcess, in_process
from tests.support.field_variants import ABSENT, MARK, Json, Variant, variants_of
from tests.support.plain_http import PlainReply, PlainServer

INTO: Final[dict[str, tuple[str, Any]]] = {
    "chat": ("/v1/chat/completions", CompletionCreateParamsNonStreaming),
    "responses": ("/v1/responses", ResponseCreateParamsNonStreaming),
    "messages": ("/v1/messages", MessageCreateParamsNonStreaming),
    "completions": ("/v1/completions", TextParams),
}
"""What clients speak: the path and the type of its requests."""
_ALL: Final = ["tools", "json", "vision", "audio", "files", "web_search", "hosted_tools"]
OUT: Final[dict[str, Json]] = {
    "openai": {"model": "small", "capabilities": ["tools", "json", "vision", "audio", "files", "web_search"]},
    "responses": {"kind": "responses", "model": "small", "capabilities": [*_ALL]},
    "anthropic": {"kind": "anthropic", "model": "claude-haiku-4-5", "capabilities": [*_ALL]},
    "anthropic-new": {"kind": "anthropic", "model": "claude-opus-4-8", "capabilities": [*_ALL]},
}
"""What backends speak: two models of Anthropic's, since an older one thinks with a budget."""
RESULTS: Final = ("kept", "told", "refused", "unfit", "listed", "honoured", "nothing", "none")
HONOURED: Final = {
    "chat": {"stream_options.include_usage"},
    "responses": {"store", "previous_response_id"},
    "messages": set[str](),
    "completions": {"echo", "best_of", "logprobs", "stream_options.include_usage"},
}
NOTHING: Final = {
    ("truncation", "disabled"),
    ("detail", "auto"),
    ("modalities[0]", "text"),
    ("tool_choice", "auto"),
    ("function_call", "auto"),
    ("parallel_tool_calls", "true"),
    ("response_format.type", "text"),
    ("store", "false"),
    ("strict", "false"),
    ("reasoning_effort", "none"),
    ("reasoning.effort", "none"),
    ("thinking.type", "adaptive"),  # whether it thinks is left to the model
    ("text.format.type", "text"),
    ("text.format.strict", "true"),  # Anthropic's schemas are always strict
    ("include_obfuscation", "false"),
}
"""Fields, by the end of their path, with the values that ask for what is done anyway."""
_SAYS_NOTHING: Final = re.compile(
    r"input\[0\](\.id|\.status|\.type|\.name|\.content\[0\]\.(annotations|logprobs)(\[0\].*)?)"
    r"|(text\.format|response_format\.json_schema)\.name|tool_choice\.(tools\[0\]|type)"
)
"""What says nothing to a model: the Responses API's records of earlier turns (ids, status, log-probabilities, what was
cited), the type of a message, the function that an output is of, the name of a schema, and a choice of tools that names
none by its members."""
_SKIPPED: Final = frozenset({"model", "stream"})
"""Fields that every request of every other test has."""
_USAGE: Final = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
_FUNCTION: Final[Json] = {"name": "look", "parameters": {"type": "object"}}
_TOOL: Final[dict[str, Json]] = {
    "chat": {"type": "function", "function": _FUNCTION},
    "responses": {"type": "function", **_FUNCTION},
    "messages": {"name": "look", "input_schema": {"type": "object"}},
}


@dataclass
class Cell:
    """The fields of one dialect before backends of another: how many fared how, and those that were left out."""

    into: str
    out: str
    counts: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What became of one request."""

    status: int
    sent: bytes
    """What the backend got; b'' if it was not called."""
    dropped: tuple[str, ...]
    error: Json


class Matrix:
    """Send requests to the gateway, one at a time to each kind of backend."""

    def __init__(self, app: InProcess, received: dict[str, bytes]) -> None:
        self._app = app
        self.client = app.client
        self._received = received
        self._bases: dict[tuple[str, bytes], _Seen] = {}

    async def cell(self, into: str, out: str, *, every: int = 1) -> Cell:
        """Send every field of one dialect to backends of another, or only each so many'th variant."""
        cell = Cell(into, out)
        for variant in list(_variants(into))[::every]:
            result, why = await self._result(into, out, variant)
            cell.counts[result] += 1
            if result == "none":
                cell.left_out.append(f"{variant.path}{variant.told}{why}")
        return cell

    async def _result(self, into: str, out: str, variant: Variant) -> tuple[str, str]:
        body, base = (_body(into, out, variant, value) for value in (variant.value, variant.base))
        seen = await self._ask(into, out, body)
        path = variant.path
        if seen.status >= 500:
            return ("unfit", "") if _says_unfit(seen) else ("none", f": {seen.status} {seen.error}")
        if seen.status != 200:
            if _says_unfit(seen):
                return "unfit", ""
            return ("refused", "") if _names(seen.error, path) else ("none", f": {seen.status} {seen.error}")
        if variant.is_text and MARK.encode() in seen.sent:
            return "kept", ""
        if _lists(seen.dropped, path) or ("cache_control" in seen.dropped and ".cache_control." in path):
            return "listed", ""
        if path.startswith("input[0]") and any(one.startswith("messages[") for one in seen.dropped):
            return "listed", ""  # by the path that the item has as a chat completion's message
        if "reasoning" in seen.dropped and path.startswith(("messages[0].content", "input[0]")):
            return "listed", ""
        key = (f"{into} {out}", orjson.dumps(base))
        without = self._bases.get(key)
        if without is None:
            without = self._bases[key] = await self._ask(into, out, base)
        if without.status == 200 and without.sent != seen.sent:
            return "told", ""
        if set(seen.dropped) - set(without.dropped):
            return "listed", ""
        if path in HONOURED[into] or (out == "responses" and path.partition("[")[0] in ("stop", "stop_sequences")):
            return "honoured", ""
        value = variant.told.rpartition("=")[2]
        if _SAYS_NOTHING.fullmatch(path):
            return "nothing", ""
        if any((path == end or path.endswith(f".{end}")) and value == asked for end, asked in NOTHING):
            return "nothing", ""
        return "none", f" (dropped: {', '.join(seen.dropped)})"

    async def _ask(self, into: str, out: str, body: Json) -> _Seen:
        self._received.pop(out, None)
        headers = {"anthropic-version": "2023-06-01"} if into == "messages" else {}
        answer = await self._app.client.post(INTO[into][0], json=body, headers=headers)
        if answer.status_code in (503, 504):  # a machine that is busy otherwise
            answer = await self._app.client.post(INTO[into][0], json=body, headers=headers)
        dropped = answer.headers.get("x-tierline-dropped", "")
        error = {} if answer.status_code == 200 else answer.json().get("error", {})
        listed = tuple(dropped.split(", ")) if dropped else ()
        return _Seen(answer.status_code, self._received.get(out, b""), listed, error)


def _variants(into: str) -> Iterator[Variant]:
    """Yield the variants of a dialect's requests; those without anything to compare with show in their own members."""
    for variant in variants_of(INTO[into][1]):
        path = variant.path.removeprefix(".")
        if path not in _SKIPPED and variant.base is not ABSENT:
            yield Variant(path, variant.value, variant.base, variant.told, variant.is_text)


def _body(into: str, out: str, variant: Variant, value: Json) -> Json:
    """Return a request that is whole but for the variant: a question at its end, tools where some are to be chosen."""
    body: Json = {**value, "model": out}
    top = variant.path.partition(".")[0].partition("[")[0]
    if into == "responses":
        given = [_completed(one) for one in body["input"]] if isinstance(body.get("input"), list) else body.get("input")
        body["input"] = [*given, _user()] if isinstance(given, list) else given or "hello"
    elif into == "completions":
        body.setdefault("prompt", "hello")
    else:
        whole = top == "messages"
        body["messages"] = [*(body.get("messages", []) if whole else []), _user()]
    choice = body.get("tool_choice")
    if into == "responses" and isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = [{"type": "function", "name": "look", **tool} for tool in choice["tools"]]
        body["tool_choice"] = {**choice, "tools": allowed}
    if into == "messages" and top != "max_tokens":
        body["max_tokens"] = 4000
    if top in ("tool_choice", "parallel_tool_calls", "max_tool_calls"):
        body.setdefault("tools", [_TOOL[into]])
    if top == "function_call":
        body["functions"] = [_FUNCTION]
    if top == "stream_options":
        body["stream"] = True
    if top == "top_logprobs" and into == "chat":
        body["logprobs"] = True
    return body


def _completed(item: Json) -> Json:
    """Return an item with what it needs though its type does not say so: a file's data, the call of an output."""
    if item.get("type") in ("function_call_output", "custom_tool_call_output"):
        item = {"call_id": "call_1", **item}
    for name in ("content", "output"):
        if isinstance(item.get(name), list):
            item = {**item, name: [_with_file(part) if isinstance(part, dict) else part for part in item[name]]}
    return item


def _with_file(part: Json) -> Json:
    if part.get("type") == "input_image" and not part.keys() & {"image_url", "file_id"}:
        return {**part, "image_url": "https://example.test/a.png"}
    if part.get("type") == "input_file" and not part.keys() & {"file_data", "file_id", "file_url"}:
        return {**part, "file_data": "data:application/pdf;base64,aGVsbG8="}
    return part


def _user() -> Json:
    return {"role": "user", "content": "and now?"}


def _lists(dropped: Collection[str], path: str) -> bool:
    """Return whether a path is listed: itself, what it is part of, or a part of it. `[]` stands for any index."""
    return any(_is_of(path, one) or _is_of(re.sub(r"\[\d+\]", "[]", path), one) for one in dropped)


def _is_of(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}[")) or other.startswith((f"{path}.", f"{path}["))


def _names(error: Json, path: str) -> bool:
    """Return whether an error names a path, what it is part of, or a part of it."""
    param = error.get("param")
    named = (
        [param] if isinstance(param, str) else re.findall(r"[a-z_]+(?:\[\d+\]|\.[a-z_]+)*", error.get("message", ""))
    )
    return _lists(named, path)


def _says_unfit(seen: _Seen) -> bool:
    return "no tier of this surface can do" in seen.error.get("message", "").lower()


def _reply(path: str, raw: bytes, received: dict[str, bytes]) -> PlainReply:
    received[path.split("/")[1]] = raw
    streamed = bool(orjson.loads(raw).get("stream"))
    if path.endswith("/chat/completions"):
        value = _chat_reply(orjson.loads(raw), streamed=streamed)
    elif path.endswith("/messages"):
        value = _message_reply(streamed=streamed)
    else:
        value = _response_reply(streamed=streamed)
    return PlainReply(value, events=streamed)


def _chat_reply(asked: Json, *, streamed: bool) -> bytes:
    head: Json = {"id": "chatcmpl-1", "created": 1, "model": "small", "object": "chat.completion"}
    if not streamed:
        choice: Json = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
        if asked.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "yes", "logprob": -0.1, "bytes": None, "top_logprobs": []}]}
        choices = [{"index": index, **choice} for index in range(asked.get("n") or 1)]
        return orjson.dumps({**head, "choices": choices, "usage": _USAGE})
    head["object"] = "chat.completion.chunk"
    chunks: list[Json] = [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {**head, "choices": [], "usage": _USAGE},
    ]
    return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks) + b"data: [DONE]\n\n"


def _message_reply(*, streamed: bool) -> bytes:
    usage = {"input_tokens": 3, "output_tokens": 2}
    text = {"type": "text", "text": "yes"}
    whole: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [text]}
    whole |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
    if not streamed:
        return orjson.dumps(whole)
    ends = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}}
    events: list[Json] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "yes"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", **ends},
        {"type": "message_stop"},
    ]
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in events)


def _response_reply(*, streamed: bool) -> bytes:
    part: Json = {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}
    item: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    details: Json = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **details}
    whole: Json = {"id": "resp_1", "object": "response", "created_at": 1, "model": "small", "status": "completed"}
    whole |= {"output": [item], "usage": usage, "error": None, "incomplete_details": None, "instructions": None}
    whole |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "metadata": {}}
    if not streamed:
        return orjson.dumps(whole)
    begun: Json = {**whole, "status": "in_progress", "output": [], "usage": None}
    place: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": "yes", "logprobs": []},
        {"type": "response.output_text.done", **place, "text": "yes", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**one, "sequence_number": number} for number, one in enumerate(events)]
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in numbered)


@asynccontextmanager
async def matrix(folder: Path) -> AsyncIterator[Matrix]:
    """A gateway in this process with a surface and a tier for each kind of backend, of the same name."""
    received: dict[str, bytes] = {}
    with PlainServer(lambda path, raw: _reply(path, raw, received)) as server:
        tiers = [
            {"name": out, "backends": [{"base_url": f"http://127.0.0.1:{server.port}/{out}/v1", **backend}]}
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
            yield Matrix(app, received)


async def run(folder: Path, into: Collection[str], out: Collection[str], *, every: int = 1) -> list[Cell]:
    """Return the cells of these dialects, all that were asked for."""
    async with matrix(folder) as sender:

        async def column(one: str) -> list[Cell]:
            return [await sender.cell(name, one, every=every) for name in INTO if name in into]

        return [cell for cells in await asyncio.gather(*(column(one) for one in OUT if one in out)) for cell in cells]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", choices=INTO, action="append", help="only clients of this dialect")
    parser.add_argument("--out", choices=OUT, action="append", help="only backends of this dialect")
    parser.add_argument("--every", type=int, default=1, help="send each so many'th variant only")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        asked = (args.into or list(INTO), args.out or list(OUT))
        cells = asyncio.run(run(Path(folder), *asked, every=args.every))
    if args.json:
        print(json.dumps([asdict(cell) for cell in cells]))
    else:
        print(f"{'in':12} {'out':14}" + "".join(f"{name:>9}" for name in RESULTS))
        for cell in cells:
            print(f"{cell.into:12} {cell.out:14}" + "".join(f"{cell.counts[name]:9,}" for name in RESULTS))
        for cell in cells:
            for one in cell.left_out:
                print(f"{cell.into} -> {cell.out}: {one}")
    return 1 if any(cell.left_out for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
