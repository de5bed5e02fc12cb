"""Translate events of OpenAI's Responses API into chunks of chat completions; `reply.py` says what becomes what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.parts.apis.dialects.responses.backend import ResponsesRequest
from gateway.parts.apis.dialects.responses.items import readable_details
from gateway.parts.apis.dialects.responses.reply import (
    CALLS,
    PARAGRAPH,
    NotAResponse,
    call_of,
    chat_annotations,
    check_status,
    encrypted_detail,
    failure_of,
    finish_reason,
    first_stop,
    head_of,
    native_event,
    number_details,
    sealed_details,
    usage_in,
)
from gateway.parts.servers.normalised import STOPPED_BY, json_text

_NO_CHOICES: Final[list[Any]] = []


class ResponseChunks:
    """Translate the events of one stream, in their order, into chunks of a chat completion.

    Texts are sent as they come. What a server says only at the end of a part, of an item or of the response, without
    deltas before, is sent then. `finished` is true once the last event has come.
    """

    def __init__(self, request: ResponsesRequest, maker: Maker, model: str) -> None:
        self._request = request
        self._maker = maker
        self._head: dict[str, Any] = {
            "id": None,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._begun = False
        self._waiting: list[dict[str, Any]] = []
        """The client's own events since the last chunk."""
        self._flows = False
        """Whether the client's own events are sent at once, each in a chunk."""
        self._lengths: dict[tuple[Any, ...], int] = {}
        """Characters sent of each part, by its item's output index, kind and place in the item."""
        self._calls: dict[Any, int] = {}
        """Index of each tool call, by its output index."""
        self._custom: set[Any] = set()
        self._messages: set[Any] = set()
        """Output indexes of the messages that have begun."""
        self._done: set[Any] = set()
        """Output indexes of the finished items."""
        self._encrypted: list[dict[str, Any]] = []
        self._thought = False
        self._thought_parts = 0
        self._chars = 0
        self._text_starts: dict[tuple[Any, Any], int] = {}
        """Characters of the whole text before each text part, by output index and content index."""
        self._stop = _StopSequences(request.stop) if request.stop else None
        self._stopped = False
        self.finished = False

    def take(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks that an event gives, if any. Raises ReplyFailed or NotAResponse."""
        kind = event.get("type")
        if self._request.native:
            self._waiting.append(native_event(event, self._request, self._maker))
        if kind == "response.output_text.delta":
            text = event.get("delta")
            if type(text) is not str:
                raise NotAResponse("a delta that is no text")
            place = (event.get("output_index"), "text", event.get("content_index"))
            lengths = self._lengths
            if place in lengths:
                lengths[place] += len(text)
            else:
                lengths[place] = len(text)
                self._text_starts[place[0], place[2]] = self._chars
            self._chars += len(text)
            chunk = self._said(text, event)
            return _NO_CHOICES if chunk is None else [chunk]
        handle = _HANDLERS.get(kind) if type(kind) is str else None
        chunks = handle(self, event) if handle is not None else _NO_CHOICES
        if self._waiting and not chunks:
            # Until the output begins, the client can still get another model's answer, so it gets nothing of this one.
            self._flows = self._flows or kind == "response.output_item.added"
            if self._flows:
                return [self._chunk({})]
        return chunks

    # --- chunks

    def _chunk(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None, obfuscation: Any = None
    ) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            delta = {"role": "assistant", "content": None if delta else "", **delta}
        if self._waiting:
            delta[NATIVE], self._waiting = self._waiting, []
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        if logprobs:
            choice["logprobs"] = {"content": logprobs, "refusal": None}
        chunk = {**self._head, "choices": [choice]}
        if obfuscation is not None:
            chunk["obfuscation"] = obfuscation
        return chunk

    def _said(self, text: str, event: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the chunk with the text that may be sent now; None if there is none."""
        if self._stop is not None:
            if self._stopped:
                return None
            text, sequence = self._stop.take(text)
            if sequence is not None:
                self.finished = self._stopped = True
                chunk = self._chunk({"content": text}, "stop", event.get("logprobs"))
                chunk["choices"][0][STOPPED_BY] = sequence
                return chunk
        if not text and not self._waiting:
            return None
        return self._chunk({"content": text}, None, event.get("logprobs"), event.get("obfuscation"))

    def _rest(self, place: tuple[Any, ...], whole: object) -> str:
        """Return what of a part's whole text was not sent yet, and note it as sent."""
        if type(whole) is not str:
            return ""
        sent = self._lengths.get(place, 0)
        if len(whole) <= sent:
            return ""
        self._lengths[place] = len(whole)
        return whole[sent:]

    # --- events

    def _created(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        response = event.get("response")
        if isinstance(response, dict) and self._head["id"] is None:
            for name, value in head_of(response).items():
                if value is not None:
                    self._head[name] = value
            if response.get("service_tier"):
                self._head["service_tier"] = response["service_tier"]
        return _NO_CHOICES

    def _item_added(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        item = event.get("item")
        if not isinstance(item, dict):
            raise NotAResponse("an output item that is none")
        kind, at = item.get("type"), event.get("output_index")
        if kind in CALLS:
            return self._begin_call(at, item)
        return self._begin_message(at, item) if kind == "message" else _NO_CHOICES

    def _begin_message(self, at: Any, item: dict[str, Any]) -> list[dict[str, Any]]:
        if at in self._messages:
            return _NO_CHOICES
        self._messages.add(at)
        delta = self._thoughts_before(None)
        if phase := item.get("phase"):
            delta["phase"] = phase
        return [self._chunk(delta)] if delta else _NO_CHOICES

    def _begin_call(self, at: Any, item: dict[str, Any]) -> list[dict[str, Any]]:
        call = call_of(item)
        index = self._calls[at] = len(self._calls)
        inner = "function"
        if call["type"] == "custom":
            self._custom.add(at)
            inner = "custom"
        arguments = call[inner]["input" if inner == "custom" else "arguments"]
        self._lengths[at, "call"] = len(arguments)
        if self._request.legacy and inner == "function":
            return [self._chunk({"function_call": call["function"]})] if index == 0 else _NO_CHOICES
        return [self._chunk({**self._thoughts_before(call["id"]), "tool_calls": [{"index": index, **call}]})]

    def _call_delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        at, text = event.get("output_index"), json_text(event.get("delta") or "")
        if at not in self._calls:
            raise NotAResponse("a piece of a call that has not begun")
        self._lengths[at, "call"] += len(text)
        return self._call_piece(at, text, event.get("obfuscation"))

    def _call_piece(self, at: Any, text: str, obfuscation: Any = None) -> list[dict[str, Any]]:
        if not text:
            return _NO_CHOICES
        index = self._calls[at]
        if at in self._custom:
            piece: dict[str, Any] = {"index": index, "custom": {"input": text}}
        elif self._request.legacy:
            delta = {"function_call": {"arguments": text}}
            return [self._chunk(delta, None, None, obfuscation)] if index == 0 else _NO_CHOICES
        else:
            piece = {"index": index, "function": {"arguments": text}}
        return [self._chunk({"tool_calls": [piece]}, None, None, obfuscation)]

    def _call_done(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        at = event.get("output_index")
        if at not in self._calls:
            return _NO_CHOICES
        whole = event.get("input") if at in self._custom else event.get("arguments")
        return self._call_piece(at, self._rest((at, "call"), json_text(whole or "")))

    def _text_done(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        part = event.get("part") if "part" in event else event
        if not isinstance(part, dict):
            return _NO_CHOICES
        at, content = event.get("output_index"), event.get("content_index")
        if isinstance(refusal := part.get("refusal"), str):
            return self._refused(self._rest((at, "refusal", content), refusal))
        if part.get("type") == "reasoning_text":
            return _NO_CHOICES  # the item's end has it
        return self._whole_text(at, content, part)

    def _whole_text(self, at: Any, content: Any, part: Mapping[str, Any]) -> list[dict[str, Any]]:
        self._text_starts.setdefault((at, content), self._chars)
        text = self._rest((at, "text", content), part.get("text"))
        if not text:
            return _NO_CHOICES
        whole = text == part.get("text")
        self._chars += len(text)
        chunk = self._said(text, {"logprobs": part.get("logprobs") if whole else None})
        return _NO_CHOICES if chunk is None else [chunk]

    def _refusal_delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        text = event.get("delta")
        place = (event.get("output_index"), "refusal", event.get("content_index"))
        if type(text) is not str:
            raise NotAResponse("a delta that is no text")
        self._lengths[place] = self._lengths.get(place, 0) + len(text)
        return self._refused(text)

    def _refused(self, text: str) -> list[dict[str, Any]]:
        return [self._chunk({"refusal": text})] if text else _NO_CHOICES

    def _thought_delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        text = event.get("delta")
        if type(text) is not str:
            raise NotAResponse("a delta that is no text")
        return self._thoughts(_thought_place(event), text)

    def _thoughts(self, place: tuple[Any, ...], text: str) -> list[dict[str, Any]]:
        if not text:
            return _NO_CHOICES
        sent = self._lengths.get(place, 0)
        self._lengths[place] = sent + len(text)
        if not sent and self._thought:
            text = PARAGRAPH + text
        self._thought = True
        return [self._chunk({"reasoning_content": text})]

    def _annotation(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        annotation = event.get("annotation")
        if not isinstance(annotation, dict):
            return _NO_CHOICES
        at = event.get("output_index")
        self._lengths[at, "annotations", event.get("content_index")] = 1
        start = self._text_starts.get((at, event.get("content_index")), 0)
        marks = chat_annotations([annotation], start)
        return [self._chunk({"annotations": marks})] if marks else _NO_CHOICES

    def _item_done(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        item = event.get("item")
        if not isinstance(item, dict):
            raise NotAResponse("an output item that is none")
        return self._whole_item(event.get("output_index"), item)

    def _whole_item(self, at: Any, item: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the chunks of what an item holds and its events did not."""
        if at in self._done:
            return _NO_CHOICES
        self._done.add(at)
        kind = item.get("type")
        chunks: list[dict[str, Any]] = []
        if kind in CALLS:
            if at not in self._calls:
                return self._begin_call(at, item)
            return self._call_done({"output_index": at, **item})
        if kind == "reasoning":
            details = readable_details(item)
            for detail in details:
                text = detail.get("summary") or detail.get("text")
                place = (at, detail["type"], detail["index"])
                if text and not self._lengths.get(place):
                    chunks += self._thoughts(place, text)
            encrypted = encrypted_detail(item)
            self._thought_parts = number_details([*details, *encrypted], self._thought_parts)
            self._encrypted += encrypted
            if details:
                chunks.append(self._chunk({DETAILS: details}))
        elif kind == "message":
            chunks += self._begin_message(at, item)
            for content, part in enumerate(item.get("content") or ()):
                if not isinstance(part, dict):
                    continue
                chunks += self._text_done({"output_index": at, "content_index": content, "part": part})
                if (at, "annotations", content) not in self._lengths and part.get("annotations"):
                    start = self._text_starts.get((at, content), 0)
                    if marks := chat_annotations(part["annotations"], start):
                        chunks.append(self._chunk({"annotations": marks}))
        return chunks

    def _thoughts_before(self, call_id: str | None) -> dict[str, Any]:
        """Return the part of a delta with the encrypted reasoning before this call, or message; empty if there is none.

        What no output follows is never sent: the API would not take it back.
        """
        details, self._encrypted = self._encrypted, []
        return {DETAILS: sealed_details(details, call_id, self._maker)} if details else {}

    def _last(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        response = event.get("response")
        if not isinstance(response, dict):
            raise NotAResponse("a last event without its response")
        check_status({"status": _STATUS[event["type"]], **response})
        self._created(event)
        chunks: list[dict[str, Any]] = []
        last, self._waiting = self._waiting[-1:], self._waiting[:-1]
        output = response.get("output")
        for at, item in enumerate(output if isinstance(output, list) else ()):
            if isinstance(item, dict) and at not in self._done:
                chunks += self._whole_item(at, item)
        self.finished = True
        if self._stopped:
            return []
        if self._stop is not None and (held := self._stop.rest()):
            chunks.append(self._chunk({"content": held}))
        self._waiting += last
        finish = finish_reason(
            {"status": _STATUS[event["type"]], **response}, calls=bool(self._calls), legacy=self._request.legacy
        )
        chunks.append(self._chunk({}, finish))
        if (usage := usage_in(response)) is not None:
            chunks.append({**self._head, "choices": [], "usage": usage})
        return chunks

    def _failed(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        response = event.get("response")
        if isinstance(response, dict):
            raise failure_of(response.get("error"))
        error = event.get("error")
        raise failure_of(error if isinstance(error, dict) else {**event, "type": None})

    def _cancelled(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        raise NotAResponse("a response that is cancelled")


def _thought_place(event: Mapping[str, Any]) -> tuple[Any, ...]:
    if "summary_index" in event:
        return event.get("output_index"), "reasoning.summary", event["summary_index"]
    return event.get("output_index"), "reasoning.text", event.get("content_index")


_STATUS: Final = {"response.completed": "completed", "response.incomplete": "incomplete"}
_HANDLERS: Final[Mapping[str, Callable[[ResponseChunks, dict[str, Any]], list[dict[str, Any]]]]] = {
    "response.created": ResponseChunks._created,
    "response.in_progress": ResponseChunks._created,
    "response.output_item.added": ResponseChunks._item_added,
    "response.output_item.done": ResponseChunks._item_done,
    "response.content_part.done": ResponseChunks._text_done,
    "response.output_text.done": ResponseChunks._text_done,
    "response.output_text.annotation.added": ResponseChunks._annotation,
    "response.refusal.delta": ResponseChunks._refusal_delta,
    "response.refusal.done": ResponseChunks._text_done,
    "response.function_call_arguments.delta": ResponseChunks._call_delta,
    "response.function_call_arguments.done": ResponseChunks._call_done,
    "response.custom_tool_call_input.delta": ResponseChunks._call_delta,
    "response.custom_tool_call_input.done": ResponseChunks._call_done,
    "response.reasoning_summary_text.delta": ResponseChunks._thought_delta,
    "response.reasoning_text.delta": ResponseChunks._thought_delta,
    "response.completed": ResponseChunks._last,
    "response.incomplete": ResponseChunks._last,
    "response.failed": ResponseChunks._failed,
    "response.cancelled": ResponseChunks._cancelled,
    "error": ResponseChunks._failed,
}


class _StopSequences:
    """Cut a streamed text at the first stop sequence, holding back what may be the beginning of one."""

    def __init__(self, sequences: tuple[str, ...]) -> None:
        self._sequences = sequences
        self._longest = max(map(len, sequences))
        self._held = ""

    def take(self, text: str) -> tuple[str, str | None]:
        """Return the text that may be sent now, and the stop sequence that has ended it; None if none has."""
        text = self._held + text
        if (stop := first_stop(text, self._sequences)) is not None:
            return text[: stop[0]], stop[1]
        start = max(0, len(text) - self._longest + 1)
        cut = next((at for at in range(start, len(text)) if self._may_begin(text[at:])), len(text))
        self._held = text[cut:]
        return text[:cut], None

    def rest(self) -> str:
        """Return what was held back when the text has ended."""
        return self._held

    def _may_begin(self, tail: str) -> bool:
        return any(sequence.startswith(tail) for sequence in self._sequences)
