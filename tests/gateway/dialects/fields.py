"""Send every field of the published requests to backends of every dialect, to see that none is dropped in silence.

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
    honoured  the gateway does what it asks, and no backend is asked to: see RULES
    nothing   its value asks for what would be done without it, or it says nothing to a model: see RULES

Each value of a literal must make a request of its own: a value that makes the same one as another was changed. What is
none of these is `left_out`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
from anthropic.types.beta.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.completion_create_params import CompletionCreateParamsNonStreaming as TextParams
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from routing.features import SERVICE_TIERS
from tests.gateway.dialects.pairs import (
    PATHS,
    USAGE,
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
from tests.support.field_variants import ABSENT, MARK, Json, Variant, variants_of
from tests.support.plain_http import PlainReply

INTO: Final[dict[str, Any]] = {
    "chat": CompletionCreateParamsNonStreaming,
    "responses": ResponseCreateParamsNonStreaming,
    "messages": MessageCreateParamsNonStreaming,
    "completions": TextParams,
}
"""What clients speak: the type of its requests. Anthropic's is that of its betas, which has all fields of the other."""
_SCHEMAS: Final = "schemas of this API are always strict"
_ABLE: Final = ["tools", "json", "vision", "files", "web_search"]
_HOSTED: Final = [*_ABLE, "hosted_tools"]
OUT: Final[dict[str, Json]] = {
    "openai": {"model": "small", "capabilities": [*_ABLE, "audio", "store"], "service_tiers": [*SERVICE_TIERS]},
    "responses": {"kind": "responses", "model": "small", "capabilities": [*_HOSTED], "service_tiers": [*SERVICE_TIERS]},
    "anthropic": {"kind": "anthropic", "model": "claude-haiku-4-5", "capabilities": [*_HOSTED]},
    "anthropic-mid": {"kind": "anthropic", "model": "claude-opus-4-6", "capabilities": [*_HOSTED]},
    "anthropic-new": {"kind": "anthropic", "model": "claude-opus-4-8", "capabilities": [*_HOSTED]},
}
"""What backends speak: of Anthropic's models, one that thinks with a budget, one with fewer efforts than the newest."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Fields that are neither sent nor listed, and lose nothing by it: by path, and by value where `value` is given."""

    result: str
    """`honoured`: the gateway does it, and no backend is asked to. `nothing`: it asks for nothing else."""
    path: str
    """A regular expression for the end of the path."""
    why: str
    value: str = ""
    into: str = ""
    """A regular expression for the client's dialect; '' for any."""
    out: str = ""
    """One for the backend's."""

    def holds(self, into: str, out: str, path: str, value: str) -> bool:
        """Return whether a field at a value is one of these."""
        return (
            re.search(rf"(^|\.){self.path}$", path) is not None
            and (not self.value or value == self.value)
            and re.fullmatch(self.into or ".*", into) is not None
            and re.fullmatch(self.out or ".*", out) is not None
        )


RULES: Final = (
    Rule("honoured", r"stream_options\.include_usage", "every stream is asked for its usage; the client gets its own"),
    Rule(
        "honoured",
        r"stop(_sequences)?(\[0\])?",
        "the Responses API has none: the gateway cuts the answer",
        out="responses",
    ),
    Rule("honoured", "store", "the gateway keeps responses itself", into="responses"),
    Rule("honoured", r"include\[0\]", "given if there is any", "reasoning.encrypted_content", into="responses"),
    Rule("honoured", "echo", "the gateway puts the prompt before the answer", into="completions"),
    Rule("nothing", "truncation", "the default, and what all other APIs do", "disabled"),
    Rule("nothing", "detail", "the default", "auto"),
    Rule("nothing", "role", "this API, or the server's chat template, has one role for both", "developer"),
    Rule("nothing", r"modalities\[0\]", "the default", "text"),
    Rule("nothing", "(tool_choice|function_call|mode)", "the default where there are tools", "auto"),
    Rule("nothing", "parallel_tool_calls", "the default", "true"),
    Rule("nothing", r"(response_format|text\.format)\.type", "the default", "text"),
    Rule("nothing", "store", "the default of chat completions", "false", into="chat"),
    Rule("nothing", "strict", "the default", "false"),
    Rule("nothing", r"text\.format\.strict", _SCHEMAS, "true", out="anthropic.*"),
    Rule("nothing", r"tools\[0\]\.type", "the default", "custom", into="messages"),
    Rule("nothing", r"caller\.type", "the model itself calls: the default", "direct", into="messages"),
    Rule("nothing", r"reasoning[._]effort", "the model thinks only when asked to", "none", out="anthropic(-mid)?"),
    Rule("nothing", "include_obfuscation", "no other API pads its events", "false"),
    Rule("nothing", r"input\[0\]\.type", "an item without a type is a message", "message", into="responses"),
    Rule(
        "nothing",
        r"input\[0\]\.(id|status)",
        "the API's records of earlier items: no model is shown them, and nothing in a request refers to them",
        into="responses",
    ),
)

_REASONING: Final = re.compile(r"thinking|reasoning|signature|data$|encrypted_content")
_SKIPPED: Final = frozenset({"model", "stream"})
"""Fields that every request of every other test has."""
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
        self._values: dict[tuple[str, str, str, str, bytes], str] = {}
        """The value of a literal for which this request was sent: another value that makes the same one is lost."""

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
        """Return what became of a variant, and what was seen where that is `none`."""
        body, base = (_body(into, out, variant, value) for value in (variant.value, variant.base))
        seen = await self._sent(into, out, body)
        path = variant.path
        if seen.status != 200:
            if _says_unfit(seen):
                return "unfit", ""
            if seen.status < 500 and _names(seen.error, path):
                return "refused", ""
            return "none", f": {seen.status} {seen.error}"
        if variant.is_text and MARK.encode() in seen.sent:
            return "kept", ""
        if (
            _lists(seen.dropped, path)
            or f"{path}.{MARK}" in seen.dropped
            or ("cache_control" in seen.dropped and ".cache_control." in path)
        ):
            return "listed", ""
        if "reasoning" in seen.dropped and _REASONING.search(path + variant.told):
            return "listed", ""
        value = variant.told.rpartition("=")[2]
        without, found = await self._without(into, out, base), f" (dropped: {', '.join(seen.dropped)})"
        if without.status == 200 and without.sent != seen.sent:
            same = self._values.setdefault((into, out, path, variant.told.partition("=")[0], seen.sent), value)
            if same == value:
                return "told", ""
            found = f": the same request as for {same}"
        for rule in RULES:
            if rule.holds(into, out, path, value):
                return rule.result, ""
        return "none", found

    async def _without(self, into: str, out: str, base: Json) -> _Seen:
        """Return what became of the request that a variant is compared with, sent once."""
        key = (f"{into} {out}", orjson.dumps(base))
        if key not in self._bases:
            self._bases[key] = await self._sent(into, out, base)
        return self._bases[key]

    async def _sent(self, into: str, out: str, body: Json) -> _Seen:
        self._received.pop(out, None)
        answer = await self._app.client.post(PATHS[into], json=body, headers=headers_of(into))
        if answer.status_code in (503, 504):  # a machine that is busy otherwise
            answer = await self._app.client.post(PATHS[into], json=body, headers=headers_of(into))
        dropped = answer.headers.get("x-tierline-dropped", "")
        error = {} if answer.status_code == 200 else answer.json().get("error", {})
        listed = tuple(dropped.split(", ")) if dropped else ()
        return _Seen(answer.status_code, self._received.get(out, b""), listed, error)


def _variants(into: str) -> Iterator[Variant]:
    """Yield the variants of a dialect's requests; those without anything to compare with show in their own members."""
    for variant in variants_of(INTO[into]):
        path = variant.path.removeprefix(".")
        if path not in _SKIPPED and variant.base is not ABSENT:
            if variant.path.endswith("tools[0]") and path.startswith("tool_choice."):
                one, other = (_allowed(into, name) for name in ("other", "look"))
                yield Variant(path, one, other, variant.told, is_text=False)
            else:
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
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        chosen = choice if into == "responses" else choice["allowed_tools"]
        if not all(tool.get("type") == "function" for tool in chosen["tools"]):
            body["tool_choice"] = _allowed(into, "look", chosen["mode"])["tool_choice"]
    if into == "messages" and top != "max_tokens":
        body["max_tokens"] = 4000
    if top in ("tool_choice", "parallel_tool_calls", "max_tool_calls"):
        body.setdefault("tools", [_TOOL[into]] if into == "messages" else [_TOOL[into], _named_tool(into, "other")])
    if top == "function_call":
        body["functions"] = [_FUNCTION]
    if top == "stream_options":
        body["stream"] = True
    if top == "top_logprobs" and into == "chat":
        body["logprobs"] = True
    return body


def _allowed(into: str, name: str, mode: str = "auto") -> Json:
    """Return a choice of one tool among those allowed, whose type says nothing of its members."""
    tools = [_named_tool(into, name)] if into == "responses" else [{"type": "function", "function": {"name": name}}]
    tools = [{key: tool[key] for key in ("type", "name", "function") if key in tool} for tool in tools]
    choice: Json = {"mode": mode, "tools": tools}
    whole = choice if into == "responses" else {"allowed_tools": choice}
    return {"tool_choice": {"type": "allowed_tools", **whole}}


def _named_tool(into: str, name: str) -> Json:
    tool = _TOOL[into]
    return {**tool, "name": name} if into == "responses" else {**tool, "function": {**_FUNCTION, "name": name}}


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


def _lists(listed: Collection[str], path: str) -> bool:
    """Return whether a path is listed: itself, or what it is part of. `[]` stands for any index."""
    return any(
        where == one or where.startswith((f"{one}.", f"{one}["))
        for one in listed
        for where in (path, re.sub(r"\[\d+\]", "[]", path))
    )


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
    asked = orjson.loads(raw)
    streamed = bool(asked.get("stream"))
    if path.endswith("/chat/completions"):
        value, as_stream = _completion(asked), chat_stream
    elif path.endswith("/messages"):
        value, as_stream = whole_message([{"type": "text", "text": "yes"}]), message_stream
    else:
        value, as_stream = whole_response([message_item(text_part("yes"))]), response_stream
    return PlainReply(as_stream(value) if streamed else orjson.dumps(value), events=streamed)


def _completion(asked: Json) -> Json:
    choice: Json = {"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    if asked.get("logprobs"):
        choice["logprobs"] = {"content": [{"token": "yes", "logprob": -0.1, "bytes": None, "top_logprobs": []}]}
    choices = [{"index": index, **choice} for index in range(asked.get("n") or 1)]
    head: Json = {"id": "chatcmpl-1", "created": 1, "model": "small", "object": "chat.completion"}
    return {**head, "choices": choices, "usage": USAGE}


@asynccontextmanager
async def matrix(folder: Path) -> AsyncIterator[Matrix]:
    """A gateway in this process, see `gateway_of`, and what its backends get."""
    received: dict[str, bytes] = {}
    async with gateway_of(folder, OUT, lambda path, raw: _reply(path, raw, received)) as app:
        yield Matrix(app, received)


async def run(folder: Path, into: Collection[str], out: Collection[str], *, every: int = 1) -> list[Cell]:
    """Return the cells of these dialects, all that were asked for."""
    async with matrix(folder) as sender:

        async def pair(one: str, other: str) -> Cell:
            return await sender.cell(one, other, every=every)

        return await all_pairs(pair, [*into], [*out])
