"""Translate every field of the published replies for clients of every dialect, to see that none is lost in silence.

Every field of the published replies (chat completions and responses by OpenAI's SDK, messages by Anthropic's), with
every value of its literals and every type of part and item, is what a backend sends: in a small whole reply of its own,
and as the stream that its API would send for it. The gateway's backends and dialects translate it in this process, with
no socket between. What the client gets is compared with what it gets without the field. Each must be one of these:

    kept      its text reaches the client
    told      the client gets another reply: it was translated, or its value is no text that could be found
    error     the client gets an error: the reply is no answer
    own       the gateway says it of itself: of the client's request, its own ids and times; see RULES
    no place  the client's API has no place for it: see RULES
    nothing   it says what is said without it: see RULES

What is none of these is `lost`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from anthropic.types import Message
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from gateway.backends.base import Backend, BackendError, BackendRequest
from gateway.backends.openai import OpenAIBackend
from gateway.dialects.reasoning import maker_of
from gateway.parts.apis.dialects.client import ClientDialect
from gateway.parts.apis.dialects.completions import CompletionsClient
from gateway.parts.apis.dialects.messages.client import MessagesClient
from gateway.parts.apis.dialects.responses.client import NOT_KEPT, ResponsesClient
from gateway.parts.apis.kinds.anthropic.backend import AnthropicBackend
from gateway.parts.apis.kinds.responses.backend import ResponsesBackend
from gateway.parts.servers.chat_forms import ServerChat
from tests.gateway.dialects.pairs import (
    USAGE,
    WORDS,
    all_pairs,
    message_item,
    text_part,
    whole_message,
    whole_response,
)
from tests.support.dialect_streams import chat_stream, message_stream, response_stream
from tests.support.field_variants import ABSENT, MARK, Json, Variant, variants_of

_TEXT: Final[Json] = {"type": "text", "text": "yes"}
_WHOLE: Final[dict[str, Json]] = {
    "openai": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": USAGE,
    },
    "responses": whole_response([message_item(text_part("yes"))]),
    "anthropic": whole_message([_TEXT]),
}
OUT: Final[dict[str, tuple[Any, Callable[[Mapping[str, Any]], bytes]]]] = {
    "openai": (ChatCompletion, chat_stream),
    "responses": (Response, response_stream),
    "anthropic": (Message, message_stream),
}
"""What backends speak: the type of its replies, and what makes a stream of one."""
INTO: Final[dict[str, Json]] = {
    "chat": {"messages": [WORDS], "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}},
    "responses": {
        "input": "hello",
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "store": False,
    },
    "messages": {
        "messages": [WORDS],
        "max_tokens": 4000,
        "thinking": {"type": "enabled", "budget_tokens": 2000},
    },
    "completions": {"prompt": "hello", "logprobs": 2, "stream_options": {"include_usage": True}},
}
"""What clients ask for, each all that it can be given."""
_VOLATILE: Final = re.compile(rb'_[0-9a-f]{24,40}|"(created|created_at|completed_at)":\d{9,}|"sequence_number":\d+')
"""Ids and times of the gateway's own, and numbers of events: where they stand for nothing that a backend has sent."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields of replies that do not reach a client of some dialect, and why, by the beginning of their paths."""

    result: str
    path: str
    """A regular expression for the beginning of the path."""
    why: str
    into: str = ".*"
    out: str = ".*"
    told: str = ".*"
    """One for the types around the field, and its value."""

    def holds(self, into: str, out: str, variant: Variant) -> bool:
        """Return whether a field is one of these."""
        return (
            re.match(rf"({self.path})(?![a-z_])", variant.path) is not None
            and re.fullmatch(self.into, into) is not None
            and re.fullmatch(self.out, out) is not None
            and re.fullmatch(self.told, variant.told) is not None
        )


_PROVIDERS: Final = "what the provider's own tools did: what came of it is in the text that follows"
_NO_CALL: Final = "<(?!(message|reasoning|function_call|custom_tool_call)>).*"
RULES: Final = (
    Rule(
        "own",
        "instructions|tools|tool_choice|parallel_tool_calls|temperature|top_p|background|conversation"
        "|max_output_tokens|max_tool_calls|previous_response_id|prompt|prompt_cache_(key|retention|options)|reasoning"
        "|safety_identifier|text|top_logprobs|truncation|user|metadata|access_programs",
        "the reply repeats its request: a client that expects that is told of its own request",
        out="responses",
    ),
    Rule(
        "own", "id|created(_at)?|metadata", "ids and times are the gateway's; its request's metadata", into="responses"
    ),
    Rule("own", r"(created_at|completed_at|output\[0\]\.id)", "ids and times are the gateway's", out="responses"),
    Rule("own", r"moderation\.(in|out)put\.model", "each result names it", into="responses", out="openai"),
    Rule("own", "model", "the name that was asked for: Claude Code takes out thinking of any other", into="messages"),
    Rule("own", r"usage\.total_tokens", "the sum of the others", into="responses|messages"),
    Rule("no place", "created(_at)?", "a message has no time", into="messages"),
    Rule("no place", "service_tier", "the API knows standard, priority and batch alone", into="messages"),
    Rule("no place", r"(usage\.)?service_tier", "a text completion has none", into="completions"),
    Rule("no place", "service_tier", "the API does not know it", into="responses", told=".*=fast"),
    Rule(
        "no place",
        r"usage\.service_tier",
        "OpenAI's APIs have no such tier",
        into="chat|responses",
        out="anthropic",
        told=".*=batch",
    ),
    Rule(
        "no place",
        r"output\[0\]\.content\[0\]\.annotations",
        "chat completions cite URLs alone: the files are the provider's own",
        into="chat",
        out="responses",
        told=".*<(file_citation|container_file_citation|file_path)>.*",
    ),
    Rule("no place", "metadata|moderation", "no such member", into="messages|completions"),
    Rule("no place", "system_fingerprint", "no such member", into="messages|responses"),
    Rule(
        "no place",
        r"(choices\[0\]|output\[0\]\.content\[0\])\.logprobs",
        "a message has no log-probabilities",
        into="messages",
    ),
    Rule("no place", r"choices\[0\]\.logprobs\.refusal", "for texts alone", into="responses|completions"),
    Rule(
        "no place",
        r"choices\[0\]\.message\.(audio|function_call)",
        "made where the request asks for audio or has `functions`, and these clients' cannot",
        into="responses|messages|completions",
    ),
    Rule(
        "no place",
        r"choices\[0\]\.message\.tool_calls\[0\]\.(id|type|custom)|output\[0\]",
        "made where the request has custom tools, and these clients' cannot",
        into="messages",
        told=".*<custom(_tool_call)?>.*",
    ),
    Rule(
        "no place",
        r"choices\[0\]\.finish_reason",
        "a response says what it has called by its items",
        into="responses",
        told="=(tool_calls|function_call)",
    ),
    Rule(
        "no place",
        r"choices\[0\]\.message\.annotations|output\[0\]\.content\[0\]\.annotations",
        "the API's citations need an index that only its own search encrypts",
        into="messages",
    ),
    Rule(
        "no place",
        r"usage\.(prompt|completion)_tokens_details\.(accepted_prediction|rejected_prediction|audio|image|text)_tokens"
        r"|usage\.input_tokens_details\.cache_write_tokens_details",
        "the API counts cached and thinking tokens alone",
        into="responses|messages",
    ),
    Rule(
        "no place",
        r"choices\[0\]\.(finish_reason|message\.(?!content|refusal)\w+)|output\[0\](?!\.content\[0\]\.(text|refusal)).*"
        r"|content\[0\](?!\.text).*|choices\[0\]\.logprobs\.content\[0\]\.(top_logprobs\[0\]\.)?bytes\[0\]",
        "a text completion is text alone",
        into="completions",
    ),
    Rule("no place", r"usage", "the sums alone", into="completions"),
    Rule("no place", "output", "a text completion is text alone", into="completions", told="<reasoning>.*"),
    Rule(
        "no place",
        r"output\[0\]\.(async|caller|namespace|status)",
        "given for the API's own ways to call, which these clients cannot ask for",
        into="chat|messages",
        out="responses",
    ),
    Rule(
        "no place",
        r"output\[0\]\.phase",
        "a message of several items has no one phase",
        into="chat|messages",
        out="responses",
    ),
    Rule("no place", r"output\[0\]", _PROVIDERS, into="chat|messages", out="responses", told=_NO_CALL),
    Rule(
        "no place",
        "input_transformations|prompt_cache_diagnostics|tool_usage|image|moderation|incomplete_details",
        "the provider's records of its own service",
        into="chat|messages|completions",
        out="responses",
    ),
    Rule(
        "no place",
        r"content\[0\]\.citations",
        "they cite documents of requests that ask for it, as these clients' cannot",
        into="chat|responses",
        out="anthropic",
    ),
    Rule(
        "no place",
        r"content\[0\]\.(caller|toolset_name)",
        "given for the API's own ways to call",
        into="chat|responses",
        out="anthropic",
    ),
    Rule(
        "no place",
        r"content\[0\]",
        _PROVIDERS,
        into="chat|responses",
        out="anthropic",
        told="<message><(server_tool_use|container_upload|fallback|.*_tool_result).*",
    ),
    Rule(
        "no place",
        r"container|diagnostics|stop_details\.(category|type)|usage\.(cache_creation|inference_geo|speed|server_tool_use)",
        "the provider's records of its own service; sums are given",
        into="chat|responses|completions",
        out="anthropic",
    ),
    Rule("no place", "stop_sequence|stop_reason", "an end is an end", into="responses|completions", out="anthropic"),
    Rule(
        "no place",
        "stop_reason",
        "the provider's own tools pause; a sequence is told by its name",
        into="chat",
        out="anthropic",
        told=".*=(pause_turn|stop_sequence)",
    ),
    Rule(
        "no place", "stop_details", "a text completion says content_filter alone", into="completions", out="anthropic"
    ),
)


@dataclass
class Cell:
    """The fields of a backend's replies before clients of a dialect: how many fared how, and those that were lost."""

    into: str
    out: str
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


class _Sent:
    """A reply that needs no socket; see `gateway.backends.base.Response`. It is its own transport."""

    status = 200

    def __init__(self, body: bytes, kind: str) -> None:
        self._body = body
        self._kind = kind

    async def send(self, headers: Mapping[str, str], body: bytes, traceparent: str = "", tracestate: str = "") -> _Sent:
        return self

    async def aclose(self) -> None:
        pass

    def header(self, name: str) -> str | None:
        return self._kind if name.lower() == "content-type" else None

    async def read(self) -> bytes:
        return self._body

    async def chunk(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def close(self, *, end_is_due: bool = False) -> None:
        pass


def _backend(out: str, sent: _Sent) -> Backend:
    maker = maker_of("bench", None)
    if out == "openai":
        return OpenAIBackend(sent, model="small", key=None, maker=maker, forms=ServerChat("small", maker))
    if out == "responses":
        return ResponsesBackend(sent, model="small", key=None, maker=maker)
    return AnthropicBackend(sent, model="claude-opus-4-8", key=None, maker=maker)


def _client(into: str) -> ClientDialect | None:
    if into == "responses":
        return ResponsesClient(None, lambda model: NOT_KEPT, messages=100, hosted=True, unshared=("",))  # type: ignore[arg-type]
    if into == "messages":
        return MessagesClient({}, "req_1", {"hosted_tools"}, unshared=("",))
    return CompletionsClient() if into == "completions" else None


async def _reply(into: str, out: str, value: Mapping[str, Any], *, stream: bool) -> bytes:
    """Return what a client gets for a backend's reply. Raises BackendError."""
    client, body = _client(into), {**INTO[into], "model": "m", "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    native = None
    if client is not None:
        body, native, _ = await client.read(body, "", large=False)
    request = BackendRequest(body, ask_logprobs=False, native=native)
    if not stream:
        completion = await _backend(out, _Sent(orjson.dumps(value), "application/json")).complete(request)
        return completion.raw if client is None else client.whole(completion.value)
    events = await _backend(out, _Sent(OUT[out][1](value), "text/event-stream")).stream(request)
    writer, written = None if client is None else client.stream(), b""
    while read := await events.read():
        for event in read:
            written += event.data if writer is None else writer.chunk(event.value)
    return written if writer is None else written + writer.done()


async def cell_of(into: str, out: str, *, every: int = 1) -> Cell:
    """Translate every field of a backend's replies for clients of a dialect, or each so many'th variant."""
    cell = Cell(into, out)
    bases: dict[bytes, bytes | None] = {}
    for variant in list(variants_for(out))[::every]:
        for stream in (False, True):
            result = await _result(into, out, variant, bases, stream=stream)
            cell.counts[result] += 1
            if result == "none":
                cell.lost.append(f"{'stream' if stream else 'whole'} {variant.path}{variant.told}")
    return cell


async def _result(into: str, out: str, variant: Variant, bases: dict[bytes, bytes | None], *, stream: bool) -> str:
    """Return what became of a field."""
    try:
        got = await _reply(into, out, variant.value, stream=stream)
    except BackendError:
        return "error"
    if variant.is_text and MARK.encode() in got:
        return "kept"
    key = b"%d%b" % (stream, orjson.dumps(variant.base))
    if key not in bases:
        try:
            bases[key] = _VOLATILE.sub(b"", await _reply(into, out, variant.base, stream=stream))
        except BackendError:
            bases[key] = None
    if _VOLATILE.sub(b"", got) != bases[key]:
        return "told"
    for rule in RULES:
        if rule.holds(into, out, variant):
            return rule.result
    return "none"


def variants_for(out: str) -> Iterator[Variant]:
    """Yield the fields of a dialect's replies, each in a whole reply, with the reply that it is compared with."""
    for variant in variants_of(OUT[out][0]):
        top = variant.path[1:].partition(".")[0].partition("[")[0]
        value = _whole(out, top, variant.value)
        base = _whole(out, top, {} if variant.base is ABSENT else variant.base)
        if value != base:
            yield Variant(variant.path[1:], value, base, variant.told, variant.is_text)


def _whole(out: str, top: str, value: Mapping[str, Any]) -> Json:
    """Return a reply that is whole but for one member at its top."""
    reply = dict(_WHOLE[out])
    if top == "stop_details":  # given with refusals only
        reply["stop_reason"] = "refusal"
    elif top == "incomplete_details":
        reply["status"] = "incomplete"
    if top not in value:
        return reply
    given = value[top]
    if out == "openai" and top == "choices":
        choice = given[0]
        message = {"role": "assistant", "content": "yes", **choice["message"]}
        if message.get("tool_calls") or message.get("function_call"):
            choice = {**choice, "finish_reason": "tool_calls"}
        given = [{**choice, "index": 0, "message": message}]
    elif out == "responses" and top == "output":
        given = [*given, *reply["output"]]
    elif out == "anthropic" and top == "content":
        given = [*given, _TEXT]
    elif top == "usage" and isinstance(given, dict):
        given = {**reply["usage"], **given}
    return {**reply, top: given}


async def run(folder: Path, into: Collection[str], out: Collection[str], *, every: int = 1) -> list[Cell]:
    """Return the cells of these dialects."""

    async def pair(one: str, other: str) -> Cell:
        return await cell_of(one, other, every=every)

    return await all_pairs(pair, [*into], [*out])
