"""Turn replies of Anthropic's Messages API into chat completions: whole messages, and the events of streams.

For a client of the same dialect the reply keeps its own form under NATIVE, with signed and encrypted texts sealed:

    whole    [{"type": "message", "message": {...}}]
    stream   the events that chunks cannot express: where blocks begin and end, deltas of other kinds than texts,
             thinking and tool calls, and the start and end of the message. The events of a chunk come before what else
             it holds. `content_block_stop` of a text has its length, TEXT_CHARS, so that the blocks can be made out in
             the assembled message too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from gateway.chat.usage import BEGUN, CACHE_WRITES, COST_WORDS, count_in
from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.parts.apis.dialects.messages.turns import seal
from gateway.parts.servers.chat_forms import standardise
from gateway.parts.servers.normalised import STOPPED_BY, finish_reason_of, json_text, new_call_id

TEXT_CHARS: Final = "x_tierline_chars"
FORMAT: Final = "anthropic-claude-v1"
"""Value of `format` in reasoning details, as OpenRouter names it."""
_SERVICE_TIERS: Final = {"standard": "default", "priority": "priority"}
"""Service tiers of chat completions, by those of the API."""
_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
_OBJECT: Final = "chat.completion.chunk"
_NO_BLOCK: Final = ("", 0)


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage as chat completions report it: the prompt's tokens include those of the prompt cache."""
    fresh, read, written, tokens_out = (count_in(usage.get(name)) for name in _COUNTS)
    cached = (read or 0) + (written or 0)
    made: dict[str, Any] = {
        "prompt_tokens": cached + (fresh or 0) if cached or fresh is not None else None,
        "completion_tokens": tokens_out,
        "prompt_tokens_details": {"cached_tokens": read or 0, "cache_write_tokens": written or 0},
    }
    if written and isinstance(writes := usage.get("cache_creation"), dict):
        made["prompt_tokens_details"][CACHE_WRITES] = writes
    thought = usage.get("output_tokens_details")
    if isinstance(thought, dict) and "thinking_tokens" in thought:
        made["completion_tokens_details"] = {"reasoning_tokens": thought["thinking_tokens"]}
    made.update({name: usage[name] for name in COST_WORDS if name in usage})
    standardise({"usage": made})
    return made


def completion_of(message: Mapping[str, Any], maker: Maker, *, native: bool) -> dict[str, Any]:
    """Return the completion for a whole message; `native`: keep its own form for a client of the same dialect.

    The message must have a list of blocks as its content, and a stop reason.
    """
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    blocks = [seal(block, maker) for block in message["content"]]
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            text = block.get("text") or ""
            annotations += _annotations(block.get("citations"), sum(map(len, texts)), len(text))
            texts.append(text)
        elif kind == "tool_use":
            calls.append(_call(block, json_text(block.get("input") or None)))
        elif kind in ("thinking", "redacted_thinking"):
            details.append(_detail(block, len(details)))
    chat: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    if calls:
        chat["tool_calls"] = calls
    if annotations:
        chat["annotations"] = annotations
    if details:
        thought = "".join(detail.get("text") or "" for detail in details)
        if thought:
            chat["reasoning_content"] = thought
        chat[DETAILS] = details
    stopped = message["stop_reason"]
    if stopped == "refusal":
        chat["refusal"] = _explanation(message)
    if native:
        chat[NATIVE] = [{"type": "message", "message": {**message, "content": blocks}}]
    choice = {"index": 0, "message": chat, "logprobs": None, "finish_reason": finish_reason_of(stopped, "stop")}
    choice |= _stopped_by(message)
    made: dict[str, Any] = {
        "id": message.get("id"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": message.get("model"),
        "choices": [choice],
    }
    usage = message.get("usage")
    if isinstance(usage, dict):
        made["usage"] = chat_usage(usage)
        if isinstance(tier := usage.get("service_tier"), str) and tier in _SERVICE_TIERS:
            made["service_tier"] = _SERVICE_TIERS[tier]
    return made


def _call(block: Mapping[str, Any], arguments: str) -> dict[str, Any]:
    return {
        "id": block.get("id") or new_call_id(),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": arguments},
    }


def _detail(block: Mapping[str, Any], index: int) -> dict[str, Any]:
    if block["type"] == "redacted_thinking":
        return {"type": "reasoning.encrypted", "data": block.get("data"), "format": FORMAT, "index": index}
    detail = {"type": "reasoning.text", "text": block.get("thinking") or "", "format": FORMAT, "index": index}
    if block.get("signature"):
        detail["signature"] = block["signature"]
    return detail


def _annotations(citations: Any, start: int, length: int) -> list[dict[str, Any]]:
    """Return citations of web pages as annotations of a chat completion. Others cite the client's own documents.

    They are of a whole block of text: that which begins at character `start` of the message.
    """
    at = {"start_index": start, "end_index": start + length}
    return [
        {"type": "url_citation", "url_citation": {"url": cite["url"], "title": cite.get("title") or cite["url"], **at}}
        for cite in citations or ()
        if isinstance(cite, dict) and isinstance(cite.get("url"), str)
    ]


def _stopped_by(ended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the member of a choice that names the stop sequence that ended it; none if none did."""
    return {STOPPED_BY: ended["stop_sequence"]} if ended.get("stop_sequence") else {}


def _explanation(message: Mapping[str, Any]) -> str | None:
    details = message.get("stop_details")
    explanation = details.get("explanation") if isinstance(details, dict) else None
    return explanation if isinstance(explanation, str) else None


class MessageChunks:
    """Turn the events of one stream into chunks, in order."""

    __slots__ = (
        "_before",
        "_block",
        "_calls",
        "_chars",
        "_citations",
        "_created",
        "_details",
        "_id",
        "_maker",
        "_model",
        "_native",
        "_pending",
        "_tier",
        "_usage",
        "finished",
    )

    def __init__(self, maker: Maker, *, native: bool) -> None:
        self._maker = maker
        self._native = native
        self._id: Any = None
        self._model: Any = None
        self._created = int(time.time())
        self._usage: dict[str, Any] = {}
        self._tier: str | None = None
        """The service tier, as chat completions name it."""
        self._block: tuple[str, int] = _NO_BLOCK
        """Type of the open block, and its number among the calls or the thinking."""
        self._calls = 0
        self._details = 0
        self._chars = 0
        """Characters of the open block's text."""
        self._before = 0
        """Characters of the blocks of text before it."""
        self._citations: list[Any] = []
        """What the open block cites."""
        self._pending: list[dict[str, Any]] = []
        """Events for a client of the same dialect, to go out with the next chunk."""
        self.finished = False
        """Whether the last event has come."""

    def add(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks for one event. Raises KeyError, TypeError or AttributeError if it is not as documented."""
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._delta(event)
        if kind == "content_block_start":
            return self._start(event)
        if kind == "content_block_stop":
            if self._native:
                if self._block[0] == "text":
                    event = {**event, TEXT_CHARS: self._chars}
                self._pending.append(event)
            return self._end_block()
        if kind == "message_start":
            message = event["message"]
            self._id, self._model = message.get("id"), message.get("model")
            self._usage = dict(message.get("usage") or {})
            if self._native:
                self._pending.append(event)
            self._tier = _SERVICE_TIERS.get(self._usage.get("service_tier") or "")
            begun = self._chunk({"role": "assistant", "content": ""})
            if self._usage:
                begun["usage"] = {**chat_usage(self._usage), BEGUN: True, "estimated": True}
            return [begun]
        if kind == "message_delta":
            return self._end(event)
        if kind == "message_stop":
            self.finished = True
        return []  # also for pings, and for events of later versions

    def _start(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        block = event["content_block"]
        kind = block["type"]
        self._chars = 0
        if self._native:
            self._pending.append({**event, "content_block": _begun(seal(block, self._maker), kind)})
        if kind == "text":
            self._block = (kind, 0)
            self._citations = list(block.get("citations") or ())
            text = block.get("text")
            return self._text(text) if text else []
        if kind == "tool_use":
            self._block = (kind, self._calls)
            self._calls += 1
            given = block.get("input")
            call = {"index": self._block[1], **_call(block, json_text(given or ""))}
            return [self._chunk({"tool_calls": [call]})]
        if kind == "thinking":
            self._block = (kind, self._details)
            self._details += 1
            chunks = self._thinking(block["thinking"]) if block.get("thinking") else []
            return chunks + (self._signature(block["signature"]) if block.get("signature") else [])
        self._block = (kind, 0)
        if kind == "redacted_thinking":
            detail = _detail(seal(block, self._maker), self._details)
            self._details += 1
            return [self._chunk({DETAILS: [detail]})]
        # A block of a server's tool, which only a client of the same dialect gets.
        return [self._chunk({})] if self._native else []

    def _delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        delta = event["delta"]
        kind = delta["type"]
        if kind == "text_delta":
            return self._text(delta["text"])
        block, number = self._block
        if kind == "input_json_delta" and block == "tool_use":
            call = {"index": number, "function": {"arguments": json_text(delta["partial_json"] or "")}}
            return [self._chunk({"tool_calls": [call]})]
        if kind == "thinking_delta":
            return self._thinking(delta["thinking"])
        if kind == "signature_delta":
            return self._signature(delta["signature"])
        if self._native:
            self._pending.append(_sealed_delta(event, self._maker))
            return [self._chunk({})]
        if kind == "citations_delta":
            self._citations.append(delta.get("citation"))
        return []

    def _end_block(self) -> list[dict[str, Any]]:
        """Return the chunk with what the block cites, whose end is known now."""
        cited = _annotations(self._citations, self._before, self._chars)
        if self._block[0] == "text":
            self._before += self._chars
        self._block = _NO_BLOCK
        self._citations = []
        return [self._chunk({"annotations": cited})] if cited else []

    def _text(self, text: str) -> list[dict[str, Any]]:
        self._chars += len(text)
        return [self._chunk({"content": text})]

    def _thinking(self, text: str) -> list[dict[str, Any]]:
        detail = {"type": "reasoning.text", "text": text, "format": FORMAT, "index": self._block[1]}
        return [self._chunk({"reasoning_content": text, DETAILS: [detail]})]

    def _signature(self, signature: str) -> list[dict[str, Any]]:
        signed = self._maker.seal(signature)
        detail = {"type": "reasoning.text", "signature": signed, "format": FORMAT, "index": self._block[1]}
        return [self._chunk({DETAILS: [detail]})]

    def _end(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        delta = event["delta"]
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage.update({name: value for name, value in usage.items() if value is not None})
        stopped = delta.get("stop_reason")
        if self._native:
            self._pending.append({**event, "usage": self._usage})
        said: dict[str, Any] = {}
        if stopped == "refusal" and (explanation := _explanation(delta)):
            said["refusal"] = explanation
        end = self._chunk(said)
        finish = finish_reason_of(stopped, "stop")
        if finish in ("stop", "tool_calls"):  # servers say so beside calls, and the other without one
            finish = "tool_calls" if self._calls else "stop"
        end["choices"][0]["finish_reason"] = finish
        end["choices"][0] |= _stopped_by(delta)
        return [end, {**end, "choices": [], "usage": chat_usage(self._usage)}] if self._usage else [end]

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        if self._pending:
            delta[NATIVE] = self._pending
            self._pending = []
        chunk = {
            "id": self._id,
            "object": _OBJECT,
            "created": self._created,
            "model": self._model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
        if self._tier is not None:
            chunk["service_tier"] = self._tier
        return chunk


def _begun(block: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a block as it begins: what the chunks hold themselves is left out."""
    if kind == "text":
        return {**block, "text": ""}
    if kind == "tool_use":
        return {**block, "input": {}}
    return {**block, "thinking": "", "signature": ""} if kind == "thinking" else block


def _sealed_delta(event: dict[str, Any], maker: Maker) -> dict[str, Any]:
    delta: dict[str, Any] = seal(event["delta"], maker)
    return {**event, "delta": delta}
