"""Write replies for clients of Anthropic's Messages API, from chat completions and their chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Required, TypedDict, Unpack

import orjson

from gateway.chat.completions import Assembler, new_completion_id
from gateway.chat.usage import CACHE_WRITES, HOUR_WRITES, SHORT_WRITES, count_in, portion
from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, joined_details
from gateway.parts.apis.dialects.messages.backend_replies import TEXT_CHARS
from gateway.parts.apis.dialects.messages.paths import in_anthropics_words
from gateway.parts.apis.dialects.messages.turns import CallIds
from gateway.parts.servers.normalised import STOPPED_BY

_STOP: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CALLS: Final = "tool_use"
"""The type of a call's block, and the end of those of a provider's tools; and the stop reason for calls."""
_SPENT: Final = "insufficient_quota"
_TOO_LONG: Final = "context_length_exceeded"
_TYPE_OF_CODE: Final = {
    "upstream_timeout": "timeout_error",
    "deadline_exceeded": "timeout_error",
    "server_is_overloaded": "overloaded_error",
    "draining": "overloaded_error",
    "rate_limit_exceeded": "rate_limit_error",
    "budget_in_use": "rate_limit_error",
    _SPENT: "billing_error",
    _TOO_LONG: "invalid_request_error",
}
_SERVICE_TIERS: Final = {"default": "standard", "priority": "priority"}
"""The API's service tiers, by those of OpenAI's."""
DIRECT: Final = {"type": "direct"}
"""Who calls a tool: the model itself, and no code of the provider's."""
_UNENDED: Final[Mapping[str, None]] = dict.fromkeys(("stop_reason", "stop_sequence", "stop_details", "container"))
"""The members of a message that are known at its end."""
_TORN: Final = "upstream_invalid_response"
"""Code of the error of a tool call that cannot be written."""
_MESSAGE_ID: Final = "msg_"
_OF_CHAT: Final = "chatcmpl-"
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_PROMPT_COUNTS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
"""Counts whose sum is the length of the prompt."""
_LIFETIMES: Final = (HOUR_WRITES, SHORT_WRITES)
_OF_ANSWER: Final = frozenset(
    {"output_tokens", "output_tokens_details", "server_tool_use", "service_tier", "inference_geo"}
)
"""Members of a usage that say nothing of the prompt cache."""
_WRITTEN: Final = frozenset({DETAILS, "reasoning_content", "reasoning", "content", "refusal"})
"""Members of a delta that are written, its tool calls apart."""


def error_body(error: Mapping[str, Any], status: int | None, request_id: str) -> dict[str, Any]:
    """Return an error in the API's envelope, from the error object of OpenAI's.

    Its type follows from the HTTP status, or from the code for an error within a stream, which has no status. `param`
    and `code` are kept beside the message, for they name the field at fault. What is too long is told in the API's own
    words, by which agents act.
    """
    code = error.get("code")
    if status is None or code == _SPENT:
        kind = _TYPE_OF_CODE.get(code or "", "api_error")
    else:
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error.get("message") or "No further details are known."
    if code == _TOO_LONG:
        message = in_anthropics_words(message)
    told: dict[str, Any] = {"type": kind, "message": message}
    told.update({name: error[name] for name in ("param", "code") if error.get(name) is not None})
    return {"type": "error", "error": told, "request_id": request_id}


def messages_usage(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the usage as the end of a stream reports it: input tokens without those of the prompt cache.

    Counts that are not known are zeros, and details None.
    """
    usage = usage or {}
    tokens_in, tokens_out = count_in(usage.get("prompt_tokens")) or 0, count_in(usage.get("completion_tokens")) or 0
    details = usage.get("prompt_tokens_details")
    read = portion(details, "cached_tokens", tokens_in)
    written = portion(details, "cache_write_tokens", tokens_in - read)
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    return {
        "input_tokens": tokens_in - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": tokens_out,
        "output_tokens_details": None if thought is None else {"thinking_tokens": thought},
        "server_tool_use": None,
    }


def _usage_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of a message, from a completion or a chunk."""
    tier = value.get("service_tier")
    named = _SERVICE_TIERS.get(tier) if isinstance(tier, str) else None
    usage = value.get("usage")
    writes = ((usage or {}).get("prompt_tokens_details") or {}).get(CACHE_WRITES)
    divided = {name: portion(writes, name, usage["prompt_tokens"]) for name in _LIFETIMES} if usage and writes else None
    return {**messages_usage(usage), "cache_creation": divided, "inference_geo": None, "service_tier": named}


def _without_cache(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a backend's own message or event without what depends on its prompt cache."""
    members = {name: value for name, value in event.items() if name != "diagnostics"}
    if isinstance(message := event.get("message"), dict):
        members["message"] = _without_cache(message)
    if isinstance(usage := event.get("usage"), dict):
        tokens_in = sum(count_in(usage.get(name)) or 0 for name in _PROMPT_COUNTS)
        kept = {name: value for name, value in usage.items() if name in _OF_ANSWER}
        members["usage"] = {**dict.fromkeys(_PROMPT_COUNTS, 0), "input_tokens": tokens_in, **kept}
    return members


def message_id(ident: Any) -> str:
    """Return the id of a completion as the id of a message."""
    text = ident if isinstance(ident, str) else ""
    return text if text.startswith(_MESSAGE_ID) else _MESSAGE_ID + text.removeprefix(_OF_CHAT)


class Shown(TypedDict, total=False):
    """How a client is shown a reply.

    `thinking`: whether it asked for thinking. `model` is the name that the message gives, by default the completion's.
    `ids` gives ids to its tool calls, if the conversation has some already. `hides_cache`: the client is not told of
    the backend's prompt cache.
    """

    thinking: Required[bool]
    model: str | None
    ids: CallIds | None
    hides_cache: bool


def message_of(completion: Mapping[str, Any], **shown: Unpack[Shown]) -> dict[str, Any]:
    """Return the message for a whole completion.

    The reply of a backend of the same dialect keeps its own form; thinking in it is always kept.
    """
    choice = completion["choices"][0]
    chat = choice["message"]
    native = chat.get(NATIVE)
    made = _native_message(native, chat) if native else None
    if made is None:
        stopped, sequence = _stop(choice, calls_tools=bool(chat.get("tool_calls")), refused=bool(chat.get("refusal")))
        made = {
            "content": _content(chat, shown.get("ids") or CallIds(), thinking=shown["thinking"]),
            "stop_reason": stopped,
            "stop_sequence": sequence,
            "stop_details": _stop_details(stopped, chat.get("refusal")),
            "container": None,
            "usage": _usage_of(completion),
        }
    elif not made.get("usage"):
        made["usage"] = _usage_of(completion)
    if shown.get("hides_cache"):
        made = _without_cache(made)
    model = shown.get("model") or completion.get("model")
    made.update(id=message_id(completion.get("id")), type="message", role="assistant", model=model)
    return made


def _stop(choice: Mapping[str, Any], *, calls_tools: bool, refused: bool) -> tuple[str, str | None]:
    """Return the stop reason, and the stop sequence if the backend names it: vLLM does, and SGLang by another name.

    OpenAI's API does not name it, nor say that there was one: then the turn ended.
    """
    finish = choice.get("finish_reason")
    if finish == "stop" and calls_tools:
        return "tool_use", None
    if finish == "stop" and refused:
        return "refusal", None
    sequence = choice.get(STOPPED_BY) or choice.get("matched_stop")
    if finish == "stop" and isinstance(sequence, str):
        return "stop_sequence", sequence
    return _STOP.get(finish or "", "end_turn"), None


def _stop_details(stopped: str, refusal: str | None) -> dict[str, Any] | None:
    return {"type": "refusal", "category": None, "explanation": refusal} if stopped == "refusal" else None


def _content(chat: Mapping[str, Any], ids: CallIds, *, thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thinking:
        blocks += thinking_blocks(chat)
    for text in (_text_of(chat.get("content")), chat.get("refusal")):
        if text:
            blocks.append({"type": "text", "text": text})
    for call in chat.get("tool_calls") or ():
        function = call.get("function")
        if function is None:
            continue  # a call of a custom tool, for which the API's clients cannot ask
        blocks.append(
            {
                "type": "tool_use",
                "id": ids.of_call(call.get("id")),
                "name": function.get("name"),
                "input": _input(function),
                "caller": DIRECT,
            }
        )
    return blocks


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if isinstance(part, dict))


def _input(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        given = orjson.loads(function.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        given = None
    return given if isinstance(given, dict) else {"arguments": function.get("arguments")}


def thinking_blocks(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reasoning of a chat message as blocks; readable reasoning without a signature has an empty one."""
    details = chat.get(DETAILS)
    if isinstance(details, list) and details:
        return [block for detail in joined_details(details) if (block := _thinking_block(detail)) is not None]
    thought = chat.get("reasoning_content") or chat.get("reasoning")
    return [{"type": "thinking", "thinking": thought, "signature": ""}] if isinstance(thought, str) and thought else []


def _thinking_block(detail: Mapping[str, Any]) -> dict[str, Any] | None:
    if detail.get("type") == "reasoning.encrypted":
        return {"type": "redacted_thinking", "data": detail.get("data") or ""}
    text = detail.get("text") or detail.get("summary") or ""
    signature = detail.get("signature") or ""
    return {"type": "thinking", "thinking": text, "signature": signature} if text or signature else None


def _is_complete(events: list[Any]) -> bool:
    """Return whether a stream's own events are all there at once, as in a stored answer."""
    return len(events) > 1 and events[0].get("type") == "message_start" and events[-1].get("type") == "message_delta"


def _native_message(events: list[Any], chat: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the message in its own form; None if the events do not fit the rest, as after a continued stream."""
    if events[0].get("type") == "message":
        return _with_calls(dict(events[0]["message"]))
    made: dict[str, Any] | None = None
    ended = False
    blocks = _Blocks(chat)
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            made = dict(event["message"])
        elif kind == "message_delta" and made is not None:
            ended = True
            made.update(event["delta"])
            made["usage"] = {**(made.get("usage") or {}), **(event.get("usage") or {})}
        else:
            blocks.add(event)
    if made is None or not ended or not blocks.whole:
        return None
    made["content"] = blocks.listed()
    return _with_calls(made)


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message that ends its turn where it says that it calls a tool and has no call: agents would wait."""
    if message.get("stop_reason") == _CALLS and not any(_is_call(block) for block in message.get("content") or ()):
        message["stop_reason"] = "end_turn"
    return message


def _is_call(block: Mapping[str, Any]) -> bool:
    return str(block.get("type")).endswith(_CALLS)


class _Blocks:
    """Put the blocks of a message together, from its events and what the assembled chat message holds of them."""

    def __init__(self, chat: Mapping[str, Any]) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self._text, self._at = _text_of(chat.get("content")), 0
        self._calls = {call.get("id"): call for call in chat.get("tool_calls") or ()}
        self._thoughts = [block for block in thinking_blocks(chat) if block["type"] == "thinking"]

    def add(self, event: Mapping[str, Any]) -> None:
        """Add the next event."""
        kind, index = event.get("type"), event.get("index", 0)
        if kind == "content_block_start":
            self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta":
            _join(self._blocks.get(index), event["delta"], self._pieces.setdefault(index, []))
        elif kind == "content_block_stop" and index in self._blocks:
            self._fill(index, self._blocks[index], event.get(TEXT_CHARS, 0))

    def _fill(self, index: int, block: dict[str, Any], chars: int) -> None:
        if block["type"] == "text":
            block["text"] = self._text[self._at : self._at + chars]
            self._at += chars
        elif block["type"] == "tool_use" and block.get("id") in self._calls:
            block["input"] = _input(self._calls[block["id"]].get("function") or {})
        elif block["type"] == "thinking" and self._thoughts:
            block.update(self._thoughts.pop(0))
        elif self._pieces.get(index):
            block["input"] = _input({"arguments": "".join(self._pieces[index])})

    @property
    def whole(self) -> bool:
        """Whether the blocks hold all of the chat message's text."""
        return self._at == len(self._text)

    def listed(self) -> list[dict[str, Any]]:
        """Return the blocks in their order."""
        return [self._blocks[index] for index in sorted(self._blocks)]


def _join(block: dict[str, Any] | None, delta: Mapping[str, Any], pieces: list[str]) -> None:
    """Add a delta that chunks cannot express to its block."""
    if block is None:
        return
    if delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
    elif delta.get("type") == "input_json_delta":
        pieces.append(delta.get("partial_json") or "")
    else:
        # A delta of a later version: its members continue or replace the block's.
        for name, value in delta.items():
            if name != "type":
                have = block.get(name)
                block[name] = have + value if isinstance(have, str) and isinstance(value, str) else value


def encoded(event: Mapping[str, Any]) -> bytes:
    """Return one server-sent event, named by its type."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


class _StreamedCall:
    """A tool call of a stream, as far as it has come."""

    __slots__ = ("braces", "ended", "id", "index", "name", "pieces", "written")

    def __init__(self) -> None:
        self.id: Any = None
        self.name = ""
        self.pieces: list[str] = []
        """Pieces of its arguments."""
        self.written = 0
        """Number of pieces that were sent."""
        self.index: int | None = None
        """Index of its block, once that has begun."""
        self.braces = 0
        """Opening braces in the arguments less closing ones."""
        self.ended = False
        """Whether its block was closed."""

    def add(self, call: Mapping[str, Any]) -> None:
        """Add a piece of the call."""
        function = call.get("function") or {}
        self.id = self.id or call.get("id")
        self.name = self.name or function.get("name") or ""
        if arguments := function.get("arguments"):
            self.pieces.append(arguments)
            self.braces += arguments.count("{") - arguments.count("}")

    def is_whole(self) -> bool:
        """Return whether the arguments are a whole JSON value; may be False for one with lone braces in a string."""
        if self.braces or not self.pieces:
            return False
        try:
            orjson.loads("".join(self.pieces))
        except orjson.JSONDecodeError:
            return False
        return True


class MessageEvents:
    """Write one stream's events in the API's order; see `StreamWriter`.

    The API sends one block after the other. So while a tool call is under way, whatever else comes (another call, as
    backends may send several in turns, or text) waits until the call's arguments are whole, or the stream ends.
    """

    __slots__ = (
        "_begun_usage",
        "_calls",
        "_delta",
        "_detailed",
        "_ended",
        "_hides_cache",
        "_ids",
        "_model",
        "_native_calls",
        "_native_open",
        "_next",
        "_open",
        "_queue",
        "_refused",
        "_request_id",
        "_started",
        "_stop",
        "_stored",
        "_thinking",
        "_torn",
        "_usage",
    )

    def __init__(self, request_id: str, **shown: Unpack[Shown]) -> None:
        """Prepare the writer."""
        self._ids = shown.get("ids") or CallIds()
        self._hides_cache = shown.get("hides_cache", False)
        self._request_id = request_id
        self._model = shown.get("model")
        self._thinking = shown["thinking"]
        self._started = False
        self._begun_usage: Mapping[str, Any] = {}
        """Usage in the backend's own beginning, where the stream had been begun without it."""
        self._open: tuple[str, int] | None = None
        """Type and index of the open block."""
        self._native_calls = False
        """Whether a block of the backend's own was a call."""
        self._native_open = False
        """Whether the open block was begun by the backend's own event, whose end will come too."""
        self._next = 0
        self._calls: dict[int, _StreamedCall] = {}
        """Tool calls by their own indexes."""
        self._queue: deque[_StreamedCall | Mapping[str, Any]] = deque()
        """The tool call under way, and the calls and deltas that wait for its end."""
        self._stored: Assembler | None = None
        """The chunks of a stored answer whose own form came at once, before what its chunks hold of it."""
        self._detailed = False
        """Whether reasoning came as details, so that the plain text of it says the same."""
        self._delta: dict[str, Any] | None = None
        """The backend's own `message_delta`."""
        self._stop: tuple[str, str | None] | None = None
        self._refused: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._ended = False
        """Whether a whole message was written at once."""
        self._torn: str | None = None
        """Tool of a call that went on after its block was closed: what was written of it is wrong."""

    def begin(self) -> bytes:
        """See `StreamWriter.begin`."""
        out: list[bytes] = []
        self._begin({"id": new_completion_id()}, None, out)
        return out[0]

    def alive(self) -> bytes:
        """See `StreamWriter.alive`."""
        return _PING

    def chunk(self, value: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.chunk`."""
        if self._torn is not None:
            return b""
        out: list[bytes] = []
        if value.get("usage") is not None:
            self._usage = value["usage"]
        for choice in value["choices"]:
            if choice.get("index"):
                continue  # the API has one answer only
            delta = choice.get("delta") or {}
            native = delta.get(NATIVE)
            if native and self._stored is None and _is_complete(native):
                self._stored = Assembler()
            if self._stored is not None:
                self._stored.add({**value, "choices": [choice]})
                continue
            for event in native or ():
                self._add_native(_without_cache(event) if self._hides_cache else event, value, out)
            if not self._started:
                self._begin(value, None, out)
            if not self._ended:
                self._add_delta(delta, out)
            if choice.get("finish_reason"):
                self._stop = _stop(choice, calls_tools=bool(self._calls), refused=bool(self._refused))
        if self._torn is not None:
            message = (
                f"The model went on with its call of {self._torn!r} after the call was whole and another had begun."
            )
            out.append(encoded(error_body({"message": message, "code": _TORN}, None, self._request_id)))
        return b"".join(out)

    def _add_delta(self, delta: Mapping[str, Any], out: list[bytes]) -> None:
        if self._queue:
            beside = {name: value for name, value in delta.items() if value and name in _WRITTEN}
            if beside:
                self._queue.append(beside)
        else:
            self._add_content(delta, out)
        if calls := delta.get("tool_calls"):
            for call in calls:
                self._queue_call(call)
        if self._queue:
            self._advance(out)

    def _add_content(self, delta: Mapping[str, Any], out: list[bytes]) -> None:
        if DETAILS in delta or "reasoning_content" in delta or "reasoning" in delta:
            self._add_reasoning(delta, out)
        if content := delta.get("content"):
            self._add_text(_text_of(content), out)
        if refusal := delta.get("refusal"):
            self._refused = (self._refused or "") + refusal
            if self._delta is None:
                self._add_text(refusal, out)

    def done(self) -> bytes:
        """See `StreamWriter.done`."""
        if self._torn is not None:
            return b""
        out: list[bytes] = []
        if self._stored is not None:
            stored = self._stored.completion()
            self._add_whole(
                message_of(stored, thinking=self._thinking, ids=self._ids, hides_cache=self._hides_cache), stored, out
            )
        if not self._started:
            self._begin({}, None, out)
        self._end_calls(out)
        self._close(out)
        if self._delta is not None:
            usage = {**self._begun_usage, **(self._delta.get("usage") or {})}
            out.append(encoded({**self._delta, "usage": usage} if self._begun_usage else self._delta))
        else:
            stopped, sequence = self._stop or ("end_turn", None)
            details = _stop_details(stopped, self._refused)
            delta = {**_UNENDED, "stop_reason": stopped, "stop_sequence": sequence, "stop_details": details}
            out.append(encoded({"type": "message_delta", "delta": delta, "usage": messages_usage(self._usage)}))
        out.append(encoded({"type": "message_stop"}))
        return b"".join(out)

    def error(self, error: Mapping[str, Any]) -> bytes:
        """See `StreamWriter.error`."""
        return b"" if self._torn is not None else encoded(error_body(error, None, self._request_id))

    def _begin(self, chunk: Mapping[str, Any], own: Mapping[str, Any] | None, out: list[bytes]) -> None:
        self._started = True
        message = {
            **_UNENDED,
            "usage": _usage_of({**chunk, "usage": None}),
            **(own or {}),
            "id": message_id(chunk.get("id")),
            "type": "message",
            "role": "assistant",
            "model": self._model or chunk.get("model"),
            "content": [],
        }
        out.append(encoded({"type": "message_start", "message": message}))

    def _add_native(self, event: Mapping[str, Any], chunk: Mapping[str, Any], out: list[bytes]) -> None:
        kind = event.get("type")
        if kind == "message":
            self._add_whole(event["message"], chunk, out)
        elif kind == "message_start":
            if not self._started:
                self._begin(chunk, event["message"], out)
            else:
                self._begun_usage = event["message"].get("usage") or {}
        elif kind == "content_block_start":
            self._end_calls(out)
            self._close(out)
            block = event["content_block"]
            self._start(block, out)
            self._native_open = True
            self._native_calls = self._native_calls or _is_call(block)
        elif kind == "content_block_stop":
            self._end_calls(out)
            self._close(out)
        elif kind == "message_delta":
            self._delta = {**event}
            if not self._native_calls and event["delta"].get("stop_reason") == _CALLS:
                self._delta["delta"] = {**event["delta"], "stop_reason": "end_turn"}
        elif kind == "content_block_delta" and self._open is not None:
            out.append(encoded({**event, "index": self._open[1]}))

    def _add_whole(self, message: Mapping[str, Any], chunk: Mapping[str, Any], out: list[bytes]) -> None:
        """Write a whole message as a stream: the rest of its chunk says the same again, and is not written."""
        if not self._started:
            self._begin(chunk, {**message, **_UNENDED}, out)
        for block in message["content"]:
            kind = block.get("type")
            if kind == "text":
                self._start({**block, "text": ""}, out)
                self._block_delta({"type": "text_delta", "text": block.get("text") or ""}, out)
            elif kind == "thinking":
                self._start({**block, "thinking": "", "signature": ""}, out)
                self._block_delta({"type": "thinking_delta", "thinking": block.get("thinking") or ""}, out)
                self._block_delta({"type": "signature_delta", "signature": block.get("signature") or ""}, out)
            elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
                self._start({**block, "input": {}}, out)
                given = orjson.dumps(block.get("input") or {}).decode()
                self._block_delta({"type": "input_json_delta", "partial_json": given}, out)
            else:
                self._start(block, out)
            self._close(out)
        delta = {name: message.get(name) for name in _UNENDED}
        self._delta = {"type": "message_delta", "delta": delta, "usage": message.get("usage")}
        self._ended = True

    def _add_reasoning(self, delta: Mapping[str, Any], out: list[bytes]) -> None:
        if not (self._thinking or self._native_open):
            return
        details = delta.get(DETAILS)
        if isinstance(details, list) and details:
            self._detailed = True
        else:
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if self._detailed or not isinstance(thought, str) or not thought:
                return
            details = [{"type": "reasoning.text", "text": thought}]
        for detail in details:
            kind = detail.get("type")
            if kind == "reasoning.encrypted":
                if not self._native_open:
                    self._start({"type": "redacted_thinking", "data": detail.get("data") or ""}, out)
                    self._close(out)
                continue
            if self._open is None or self._open[0] != "thinking":
                self._start({"type": "thinking", "thinking": "", "signature": ""}, out)
            if text := detail.get("text") or detail.get("summary"):
                self._block_delta({"type": "thinking_delta", "thinking": text}, out)
            if signature := detail.get("signature"):
                self._block_delta({"type": "signature_delta", "signature": signature}, out)
                if not self._native_open:
                    self._close(out)  # what comes after a signature is the next block

    def _add_text(self, text: str, out: list[bytes]) -> None:
        if self._open is None or self._open[0] != "text":
            self._start({"type": "text", "text": ""}, out)
        self._block_delta({"type": "text_delta", "text": text}, out)

    def _queue_call(self, call: Mapping[str, Any]) -> None:
        """Add a piece of a tool call to it; a new call waits for its turn.

        One whose arguments were whole and whose block was closed for the next cannot go on: then the stream fails.
        """
        number = call.get("index") or 0
        streamed = self._calls.get(number)
        if streamed is None:
            streamed = self._calls[number] = _StreamedCall()
            self._queue.append(streamed)
        if not streamed.ended:
            streamed.add(call)
        elif ((call.get("function") or {}).get("arguments") or "").strip():
            self._torn = streamed.name

    def _advance(self, out: list[bytes]) -> None:
        """Write what may be written of the queue: up to a call that is not whole, or the last, which may go on."""
        while self._queue:
            first = self._queue[0]
            if isinstance(first, _StreamedCall):
                self._write_call(first, out)
                if len(self._queue) == 1 or not first.is_whole():
                    return
                first.ended = True
            else:
                self._add_content(first, out)
            self._queue.popleft()

    def _end_calls(self, out: list[bytes]) -> None:
        """Write all that waits, as no call goes on; a call whose name never came is left out."""
        while self._queue:
            first = self._queue.popleft()
            if isinstance(first, _StreamedCall):
                self._write_call(first, out)
                first.ended = True
            else:
                self._add_content(first, out)

    def _write_call(self, call: _StreamedCall, out: list[bytes]) -> None:
        """Begin the call's block once its name is known, and write what has come of its arguments."""
        if not call.name:
            return
        if call.index is None:
            if self._native_open and self._open is not None and self._open[0] == "tool_use":
                call.index = self._open[1]  # the backend's own event has begun the block
            else:
                ident = self._ids.of_call(call.id)
                block = {"type": "tool_use", "id": ident, "name": call.name, "input": {}, "caller": DIRECT}
                call.index = self._start(block, out)
        if arguments := "".join(call.pieces[call.written :]):
            call.written = len(call.pieces)
            delta = {"type": "input_json_delta", "partial_json": arguments}
            out.append(encoded({"type": "content_block_delta", "index": call.index, "delta": delta}))

    def _start(self, block: Mapping[str, Any], out: list[bytes]) -> int:
        self._close(out)
        index = self._next
        self._next += 1
        self._open = (block["type"], index)
        out.append(encoded({"type": "content_block_start", "index": index, "content_block": block}))
        return index

    def _block_delta(self, delta: Mapping[str, Any], out: list[bytes]) -> None:
        index = self._next - 1  # that of the block begun last
        out.append(encoded({"type": "content_block_delta", "index": index, "delta": delta}))

    def _close(self, out: list[bytes]) -> None:
        if self._open is not None:
            out.append(encoded({"type": "content_block_stop", "index": self._open[1]}))
            self._open = None
            self._native_open = False
