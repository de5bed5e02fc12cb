"""`python -m tests.bench.dialects [--only TEXT] [--rounds N] [--json]`: what translating between dialects costs.

Each row is one function on one request, one whole reply or one chunk of a stream, in us of CPU time of this thread. The
rows take turns, so that what slows the machine slows all of them. A figure is the median of the rounds with its 95%
interval (the order statistics of the rounds). The exit code is 1 where the median of a row is above its target: 60 us a
request or whole reply, 15 us a chunk. The garbage collector is set as the server sets it.

The request is a turn of an agent: a system prompt of 2 KB, five messages with one tool call and its result, six tools.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import orjson

from gateway.chat.completions import assemble, chunks_of
from gateway.dialects.native import NATIVE, Native
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.completions import CompletionsClient
from gateway.parts.apis.dialects.messages.backend import messages_request
from gateway.parts.apis.dialects.messages.backend_replies import MessageChunks, completion_of
from gateway.parts.apis.dialects.messages.client import chat_body
from gateway.parts.apis.dialects.messages.models import facts_of_model
from gateway.parts.apis.dialects.messages.writer import MessageEvents, message_of
from gateway.parts.apis.dialects.responses.backend import request_of
from gateway.parts.apis.dialects.responses.chunks import ResponseChunks
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.reading import chat_request as responses_body
from gateway.parts.apis.dialects.responses.reading import entries_of
from gateway.parts.apis.dialects.responses.reply import chat_answer as response_completion
from gateway.parts.apis.dialects.responses.response_object import ItemIds, ResponseHead, whole_response
from gateway.server.server import settle_memory
from tests.bench.command import bench_parser

REQUEST_US: Final = 60.0
CHUNK_US: Final = 15.0
_CALLS: Final = 200
"""Calls of a row in one round, at least."""
_MAKER: Final = maker_of("bench", "key")
_SCHEMA: Final = {
    "type": "object",
    "properties": {name: {"type": "string", "description": f"The {name}."} for name in ("path", "pattern", "limit")},
    "required": ["path"],
}
_NAMES: Final = ("read", "write", "edit", "search", "run", "list")
_SYSTEM: Final = "You are an agent that works on code. " * 56
_OUTPUT: Final = "line of a file\n" * 60
_TEXT: Final = tuple(f" word{number}" for number in range(200))


@dataclass(frozen=True)
class Row:
    """One function to time. `calls` are made by one call of `run`; `target_us` is for one of them."""

    name: str
    target_us: float
    run: Callable[[], object]
    calls: int = 1


@dataclass(frozen=True)
class Figure:
    """The cost of a row in us of CPU time: the median of the rounds and its interval."""

    name: str
    us: float
    low_us: float
    high_us: float
    target_us: float


def messages_rows() -> list[Row]:
    """The rows of Anthropic's Messages API."""
    given: dict[str, Any] = {
        "model": "chat",
        "max_tokens": 8000,
        "system": [{"type": "text", "text": _SYSTEM, "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Which files mention the cache?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I should look. " * 20, "signature": _MAKER.seal("c" * 400)},
                    {"type": "text", "text": "Let me look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"path": ".", "pattern": "cache"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": _OUTPUT}]},
            {"role": "assistant", "content": [{"type": "text", "text": "These three. " * 20}]},
            {"role": "user", "content": [{"type": "text", "text": "Thank you. Read the first one."}]},
        ],
        "tools": [{"name": name, "description": f"To {name}. " * 20, "input_schema": _SCHEMA} for name in _NAMES],
        "thinking": {"type": "enabled", "budget_tokens": 4000},
        "stream": True,
    }
    protocol = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    chat, own = chat_body(given, protocol)
    facts = facts_of_model("claude-haiku-4-5")
    content = [
        {"type": "thinking", "thinking": "I should read it. " * 20, "signature": "c" * 400},
        {"type": "text", "text": "".join(_TEXT)},
        {"type": "tool_use", "id": "toolu_2", "name": "read", "input": {"path": "cache.py"}},
    ]
    usage = {"input_tokens": 900, "output_tokens": 300, "cache_read_input_tokens": 5000}
    message = {"id": "msg_1", "model": "claude", "content": content, "stop_reason": "tool_use", "usage": usage}
    completion = completion_of(message, _MAKER, native=False)
    events = _text_events()
    reader = MessageChunks(_MAKER, native=False)
    chunks = [chunk for event in events for chunk in reader.add(event)]

    def read(*, native: bool) -> None:
        reader = MessageChunks(_MAKER, native=native)
        for event in events:
            reader.add(event)

    def write() -> None:
        writer = MessageEvents("req_1", thinking=True)
        for chunk in chunks:
            writer.chunk(chunk)
        writer.done()

    def sent(native: Native | None) -> Callable[[], object]:
        return lambda: messages_request(chat, "claude-haiku-4-5", facts, _MAKER, stream=True, native=native)

    streamed = list(chunks_of(completion))
    return [
        Row("messages: request -> chat", REQUEST_US, lambda: chat_body(given, protocol)),
        Row("chat -> messages: request", REQUEST_US, sent(None)),
        Row("messages -> messages: request", REQUEST_US, sent(own)),
        Row("messages -> chat: whole reply", REQUEST_US, lambda: completion_of(message, _MAKER, native=False)),
        Row("chat -> messages: whole reply", REQUEST_US, lambda: message_of(completion, thinking=True)),
        Row("messages -> chat: event", CHUNK_US, lambda: read(native=False), len(events)),
        Row("messages -> messages: event read", CHUNK_US, lambda: read(native=True), len(events)),
        Row("chat -> messages: chunk, encoded", CHUNK_US, write, len(chunks)),
        Row("chat -> messages: stored reply as events", REQUEST_US, lambda: _replayed(streamed)),
    ]


def responses_rows() -> list[Row]:
    """The rows of backends of OpenAI's Responses API, which send and read it."""
    sealed = {"type": "reasoning.encrypted", "data": _MAKER.seal("c" * 400), "id": "rs_1", "index": 1}
    thought = {"type": "reasoning.summary", "summary": "I should look. " * 20, "id": "rs_1", "index": 0}
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": '{"pattern": "cache"}'}}
    body: dict[str, Any] = {
        "model": "chat",
        "max_completion_tokens": 8000,
        "reasoning_effort": "high",
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": "Which files mention the cache?"},
            {
                "role": "assistant",
                "content": "Let me look.",
                "reasoning_details": [thought, sealed],
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": _OUTPUT},
            {"role": "assistant", "content": "These three. " * 20},
            {"role": "user", "content": [{"type": "text", "text": "Thank you. Read the first one."}]},
        ],
        "tools": [
            {"type": "function", "function": {"name": name, "description": f"To {name}. " * 20, "parameters": _SCHEMA}}
            for name in _NAMES
        ],
        "stream": True,
    }
    reasoned = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": _MAKER.seal("c" * 400)}
    asked = {"type": "message", "role": "user", "content": "Which files mention the cache?"}
    answered = {"type": "message", "role": "assistant", "content": "These three. " * 20}
    own = {"model": "chat", "instructions": _SYSTEM, "input": [asked, reasoned, answered, asked], "stream": True}
    native = Native("responses", own, {})

    def sent(native: Native | None) -> Callable[[], Any]:
        return lambda: request_of(body, _MAKER, model="large", stream=True, alternatives=None, native=native)

    text = {"type": "output_text", "text": "".join(_TEXT), "annotations": [], "logprobs": []}
    response = {
        "id": "resp_1",
        "created_at": 1_700_000_000,
        "model": "large",
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c" * 400},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_2", "name": "read", "arguments": '{"path": "a"}'},
        ],
        "usage": {"input_tokens": 900, "output_tokens": 300, "total_tokens": 1200},
    }
    translated, passed_on = sent(None)(), sent(native)()
    events = _response_events(response)

    def read(request: Any) -> Callable[[], object]:
        def run() -> None:
            chunks = ResponseChunks(request, _MAKER, "large")
            for event in events:
                for chunk in chunks.take(event):
                    orjson.dumps(chunk)

        return run

    def whole(request: Any) -> Callable[[], object]:
        return lambda: response_completion(response, request, _MAKER)

    return [
        Row("chat -> responses: request", REQUEST_US, sent(None)),
        Row("responses -> responses: request", REQUEST_US, sent(native)),
        Row("responses -> chat: whole reply", REQUEST_US, whole(translated)),
        Row("responses -> responses: whole reply", REQUEST_US, whole(passed_on)),
        Row("responses -> chat: event, encoded", CHUNK_US, read(translated), len(events)),
        Row("responses -> responses: event, encoded", CHUNK_US, read(passed_on), len(events)),
    ]


def responses_client_rows() -> list[Row]:
    """The rows of clients of OpenAI's Responses API, whose requests are read and replies written."""
    call = {"type": "function_call", "call_id": "call_1", "name": "search", "arguments": '{"pattern": "cache"}'}
    summary = [{"type": "summary_text", "text": "I should look. " * 20}]
    body: dict[str, Any] = {
        "model": "chat",
        "instructions": _SYSTEM,
        "input": [
            {"role": "user", "content": "Which files mention the cache?"},
            {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": _MAKER.seal("c" * 400)},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}]},
            call,
            {"type": "function_call_output", "call_id": "call_1", "output": _OUTPUT},
            {"role": "assistant", "content": [{"type": "output_text", "text": "These three. " * 20}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Thank you. Read the first one."}]},
        ],
        "tools": [
            {
                "type": "function",
                "name": name,
                "description": f"To {name}. " * 20,
                "parameters": _SCHEMA,
                "strict": True,
            }
            for name in _NAMES
        ],
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    }

    def head() -> ResponseHead:
        return ResponseHead(body, ItemIds(), store=True)

    def read() -> None:
        responses_body(body, entries_of(body), hosted=False, kept=True)
        head()

    tool = {"index": 0, "id": "call_2", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    sealed = {"type": "reasoning.encrypted", "data": _MAKER.seal("c" * 400), "index": 0}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "reasoning_details": [sealed]},
        *({"content": text} for text in _TEXT),
        {"tool_calls": [tool]},
    ]
    chunks: list[dict[str, Any]] = [
        {"id": "x", "model": "large", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in deltas
    ]
    chunks.append({"id": "x", "model": "large", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    completion = assemble(chunks)
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "m", "type": "message"}},
        {"type": "response.content_part.added", "output_index": 0, "item_id": "m", "part": {"type": "output_text"}},
        *({"type": "response.output_text.delta", "output_index": 0, "item_id": "m", "delta": text} for text in _TEXT),
    ]
    passed_on = [
        {"id": "x", "model": "large", "choices": [{"index": 0, "delta": {NATIVE: [event]}, "finish_reason": None}]}
        for event in events
    ]

    def write(chunks: list[dict[str, Any]]) -> Callable[[], object]:
        def run() -> None:
            writer = ResponseEvents(head(), lambda _: None, encrypted=True)
            for chunk in chunks:
                writer.chunk(chunk)
            writer.done()

        return run

    return [
        Row("responses: request -> chat", REQUEST_US, read),
        Row("chat -> responses: whole reply", REQUEST_US, lambda: whole_response(completion, head(), logprobs=False)),
        Row("chat -> responses: chunk, encoded", CHUNK_US, write(chunks), len(chunks)),
        Row("responses -> responses: event written", CHUNK_US, write(passed_on), len(passed_on)),
    ]


def _response_events(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a reply of 200 pieces of text."""
    opened = {**response, "status": "in_progress", "output": []}
    item = response["output"][1]
    where = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    piece = {"type": "response.output_text.delta", **where, "logprobs": [], "obfuscation": "abcdef"}
    events = [
        {"type": "response.created", "response": opened},
        {"type": "response.in_progress", "response": opened},
        {"type": "response.output_item.done", "output_index": 0, "item": response["output"][0]},
        {"type": "response.output_item.added", "output_index": 1, "item": {**item, "content": []}},
        *({**piece, "delta": text} for text in _TEXT),
        {"type": "response.output_text.done", **where, "text": "".join(_TEXT)},
        {"type": "response.output_item.done", "output_index": 1, "item": item},
        {"type": "response.output_item.done", "output_index": 2, "item": response["output"][2]},
        {"type": "response.completed", "response": response},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _text_events() -> list[dict[str, Any]]:
    """The events of a reply of 200 pieces of text."""
    deltas = [{"type": "text_delta", "text": piece} for piece in _TEXT]
    message = {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 9}}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 200}},
        {"type": "message_stop"},
    ]


def _replayed(chunks: Sequence[dict[str, Any]]) -> None:
    writer = MessageEvents("req_1", thinking=True)
    for chunk in chunks:
        writer.chunk(chunk)
    writer.done()


ROWS: Final[tuple[Callable[[], list[Row]], ...]] = (messages_rows, responses_rows, responses_client_rows)


def completions_rows() -> list[Row]:
    """The rows of OpenAI's legacy text completions, which only clients speak."""
    given = {"model": "chat", "prompt": _SYSTEM, "logprobs": 2, "stream": True, "stop": ["."], "temperature": 0.5}
    content = [
        {"token": text, "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": text, "logprob": -0.1}] * 2}
        for text in _TEXT
    ]
    choice = {
        "index": 0, "message": {"role": "assistant", "content": "".join(_TEXT), "refusal": None},
        "logprobs": {"content": content[:20], "refusal": None}, "finish_reason": "stop",
    }  # fmt: skip
    completion = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": {"content": text}, "logprobs": {"content": [one]}}]}
        for text, one in zip(_TEXT, content, strict=True)
    ]
    client = CompletionsClient()
    client.chat_of(given)

    def write() -> None:
        writer = client.stream()
        for chunk in chunks:
            writer.chunk(chunk)

    return [
        Row("completions: request -> chat", REQUEST_US, lambda: CompletionsClient().chat_of(given)),
        Row("chat -> completions: whole reply", REQUEST_US, lambda: client.whole(completion)),
        Row("chat -> completions: chunk, encoded", CHUNK_US, write, len(chunks)),
    ]


ROWS: Final[tuple[Callable[[], list[Row]], ...]] = (
    messages_rows,
    responses_rows,
    responses_client_rows,
    completions_rows,
)
"""Make the rows of one dialect each."""


def measured(rows: Sequence[Row], rounds: int) -> list[Figure]:
    """The figures of these rows, after one round that does not count."""
    took: list[list[float]] = [[] for _ in rows]
    for number in range(rounds + 1):
        for row, times in zip(rows, took, strict=True):
            runs = max(1, _CALLS // row.calls)
            began = time.thread_time()
            for _ in range(runs):
                row.run()
            if number:
                times.append((time.thread_time() - began) / (runs * row.calls) * 1e6)
    return [_figure(row, sorted(times)) for row, times in zip(rows, took, strict=True)]


def _figure(row: Row, times: list[float]) -> Figure:
    """A row's median, and the order statistics that hold the true median with 95% probability."""
    half = 1.96 * math.sqrt(len(times)) / 2
    low, high = math.floor(len(times) / 2 - half), math.ceil(len(times) / 2 + half)
    return Figure(row.name, median(times), times[max(0, low)], times[min(len(times) - 1, high)], row.target_us)


def main(arguments: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = bench_parser("dialects", __doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name contains it")
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args(arguments)
    rows = [row for make in ROWS for row in make() if options.only in row.name]
    settle_memory()
    figures = measured(rows, options.rounds)
    for figure in figures:
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(
                f"{figure.name:42s} {figure.us:6.1f} us  [{figure.low_us:.1f}, {figure.high_us:.1f}]"
                f"  target {figure.target_us:.0f}{'' if figure.us <= figure.target_us else '  MISSED'}"
            )
    return 1 if any(figure.us > figure.target_us for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
