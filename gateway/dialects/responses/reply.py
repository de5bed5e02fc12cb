"""Translate replies of OpenAI's Responses API, whole or streamed, into chat completions and their chunks.

    output item           in a completion
    message               content, refusal, annotations; several are joined
    function_call         tool_calls of type function, or function_call for a client of that time
    custom_tool_call      tool_calls of type custom
    reasoning             reasoning_content, and reasoning_details: summaries, texts, and what is encrypted, sealed
    all others            left out: tools that the provider has run, whose result is in the text

A client of this dialect gets the reply's own events too, see `gateway.dialects.native`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.dialects.responses.backend import ENCRYPTED_ITEMS, ResponsesRequest, placed_before

_FORMAT: Final = "openai-responses-v1"
"""Name in OpenRouter's `format` for the reasoning of this API."""
_PARAGRAPH: Final = "\n\n"
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_NO_CHOICES: Final[list[Any]] = []


class ReplyFailed(Exception):
    """The API says that it gave no answer, by its error `code` (such as `rate_limit_exceeded`) or status."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.param = param


class NotAResponse(Exception):
    """A reply that is none of this API's."""


# --- whole replies ----------------------------------------------------------------------------------------------------


def completion_of(response: Mapping[str, Any], request: ResponsesRequest, maker: Maker) -> dict[str, Any]:
    """Return the chat completion of a whole response. Raises ReplyFailed or NotAResponse."""
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise NotAResponse("a reply without output")
    _check_status(response)
    parts = _MessageParts(maker, legacy=request.legacy)
    for item in output:
        parts.add(item)
    parts.end()
    message = parts.message()
    finish = _finish_reason(response, calls=parts.calls > 0, legacy=request.legacy)
    logprobs = None if parts.logprobs is None else {"content": parts.logprobs, "refusal": None}
    cut = _cut(message, request.stop)
    if cut is not None:
        message["content"], finish = cut, "stop"
    if request.native:
        message[NATIVE] = [_native_event({"type": _last_event(response), "response": response}, request, maker)]
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    completion = {**_head(response), "object": "chat.completion", "choices": [choice], "usage": usage_of(response)}
    for name in ("service_tier", "metadata"):
        if response.get(name):
            completion[name] = response[name]
    if isinstance(moderation := response.get("moderation"), dict):
        completion["moderation"] = {side: _moderation(result) for side, result in moderation.items()}
    return completion


def _check_status(response: Mapping[str, Any]) -> None:
    status, error = response.get("status"), response.get("error")
    if isinstance(error, dict) or status == "failed":
        raise failure_of(error)
    if status not in ("completed", "incomplete"):
        raise NotAResponse(f"a response that is {status if status in _UNFINISHED else 'in no known state'}")


_UNFINISHED: Final = frozenset({"queued", "in_progress", "cancelled"})


def failure_of(error: object) -> ReplyFailed:
    """Return the failure that an error object of this API describes."""
    told = error if isinstance(error, dict) else {}
    code = told.get("code") or told.get("type")
    message, param = told.get("message"), told.get("param")
    return ReplyFailed(
        code if isinstance(code, str) else "server_error",
        message if isinstance(message, str) else "",
        param if isinstance(param, str) else None,
    )


def _finish_reason(response: Mapping[str, Any], *, calls: bool, legacy: bool) -> str:
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    if calls:
        return "function_call" if legacy else "tool_calls"
    return "stop"


def _last_event(response: Mapping[str, Any]) -> str:
    return "response.incomplete" if response.get("status") == "incomplete" else "response.completed"


def _head(response: Mapping[str, Any]) -> dict[str, Any]:
    created = response.get("created_at")
    return {
        "id": response.get("id"),
        "created": int(created) if isinstance(created, (int, float)) else int(time.time()),
        "model": response.get("model"),
    }


def usage_of(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the usage of a response in the words of chat completions; None if there is none."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    told = {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }
    for name, own in (
        ("prompt_tokens_details", "input_tokens_details"),
        ("completion_tokens_details", "output_tokens_details"),
    ):
        if isinstance(details := usage.get(own), dict):
            told[name] = details
    return told


def _moderation(result: Any) -> Any:
    if isinstance(result, dict) and result.get("type") == "moderation_result":
        return {"type": "moderation_results", "model": result.get("model"), "results": [result]}
    return result


class _MessageParts:
    """Join the output items of a response to one message."""

    def __init__(self, maker: Maker, *, legacy: bool) -> None:
        self._maker = maker
        self._legacy = legacy
        self._texts: list[str] = []
        self._chars = 0
        self._refusals: list[str] = []
        self._annotations: list[Any] = []
        self._calls: list[dict[str, Any]] = []
        self._thoughts: list[str] = []
        self._details: list[dict[str, Any]] = []
        self._encrypted: list[dict[str, Any]] = []
        self._thought_parts = 0
        self._phases: list[Any] = []
        self.logprobs: list[Any] | None = None

    @property
    def calls(self) -> int:
        """Number of tool calls so far."""
        return len(self._calls)

    def add(self, item: dict[str, Any]) -> None:
        """Add the next output item."""
        kind = item.get("type")
        if kind == "message":
            self._place(None)
            self._phases.append(item.get("phase"))
            for part in item.get("content") or ():
                self._add_part(part)
        elif kind in _CALLS:
            call = call_of(item)
            self._place(call["id"])
            self._calls.append(call)
        elif kind == "reasoning":
            details = readable_details(item)
            self._thoughts += [text for one in details if (text := one.get("summary") or one.get("text"))]
            encrypted = encrypted_detail(item)
            self._thought_parts = _number([*details, *encrypted], self._thought_parts)
            self._details += details
            self._encrypted += encrypted

    def end(self) -> None:
        """Leave out encrypted reasoning that no output followed: the API would not take it back."""
        self._encrypted = []

    def message(self) -> dict[str, Any]:
        """Return the message."""
        text = "".join(self._texts)
        refusal = "".join(self._refusals)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not (self._calls or refusal) else None,
            "refusal": refusal or None,
        }
        if self._annotations:
            message["annotations"] = self._annotations
        if self._thoughts:
            message["reasoning_content"] = _PARAGRAPH.join(self._thoughts)
        if self._details:
            message[DETAILS] = self._details
        if len(self._phases) == 1 and self._phases[0]:
            message["phase"] = self._phases[0]
        if self._calls:
            if self._legacy:
                message["function_call"] = self._calls[0].get("function")
            else:
                message["tool_calls"] = self._calls
        return message

    def _place(self, before: str | None) -> None:
        """Add the encrypted reasoning that came before this output: the call with this id, or a message."""
        self._details += _sealed(self._encrypted, before, self._maker)
        self._encrypted = []

    def _add_part(self, part: object) -> None:
        if not isinstance(part, dict):
            return
        if part.get("type") == "refusal":
            self._refusals.append(str(part.get("refusal") or ""))
        elif isinstance(text := part.get("text"), str):
            self._annotations += chat_annotations(part.get("annotations"), self._chars)
            if isinstance(logprobs := part.get("logprobs"), list) and logprobs:
                self.logprobs = [*(self.logprobs or ()), *logprobs]
            self._texts.append(text)
            self._chars += len(text)


def call_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool call of a `function_call` or `custom_tool_call` item."""
    ident = item.get("call_id") or item.get("id")
    if item.get("type") == "custom_tool_call":
        return {
            "id": ident,
            "type": "custom",
            "custom": {"name": item.get("name"), "input": item.get("input") or ""},
        }
    return {
        "id": ident,
        "type": "function",
        "function": {"name": item.get("name"), "arguments": item.get("arguments") or ""},
    }


def chat_annotations(annotations: Any, offset: int) -> list[dict[str, Any]]:
    """Return the annotations of a text as chat completions have them, `offset` characters further on.

    These know citations of URLs alone, and strict clients refuse a reply with others. Citations of files name files of
    the provider's own tools, which only clients of the same dialect can ask for; they get them in its own form.
    """
    found: list[dict[str, Any]] = []
    for annotation in annotations if isinstance(annotations, list) else ():
        if not isinstance(annotation, dict) or annotation.get("type") != "url_citation":
            continue
        inner = {name: value for name, value in annotation.items() if name != "type"}
        for name in ("start_index", "end_index"):
            if offset and isinstance(inner.get(name), int):
                inner[name] += offset
        found.append({"type": "url_citation", "url_citation": inner})
    return found


def readable_details(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the readable parts of a reasoning item as reasoning details."""
    details: list[dict[str, Any]] = []
    for kind, name, members in (("reasoning.summary", "summary", "summary"), ("reasoning.text", "text", "content")):
        for index, part in enumerate(item.get(members) or ()):
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                details.append({"type": kind, name: text, "id": item.get("id"), "format": _FORMAT, "index": index})
    return details


def _number(details: list[dict[str, Any]], start: int) -> int:
    """Give each detail the next index in its reply, because clients join those of one index; return the next one."""
    for index, detail in enumerate(details, start):
        detail["index"] = index
    return start + len(details)


def encrypted_detail(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the encrypted part of a reasoning item as a reasoning detail, not sealed yet; none if there is none.

    A server that shows its reasoning and encrypts nothing gets an empty text: it marks the readable parts as its own.
    """
    encrypted = item.get("encrypted_content")
    if not isinstance(encrypted, str):
        if not item.get("content"):
            return []
        encrypted = ""
    return [{"type": "reasoning.encrypted", "data": encrypted, "id": item.get("id"), "format": _FORMAT}]


def _sealed(details: list[dict[str, Any]], before: str | None, maker: Maker) -> list[dict[str, Any]]:
    """Return encrypted details sealed, with their place: before the call with this id, or before the message."""
    for detail in details:
        detail["data"] = maker.seal(detail["data"] if before is None else placed_before(before, detail["data"]))
    return details


def _cut(message: Mapping[str, Any], stop: tuple[str, ...]) -> str | None:
    """Return the text before the first stop sequence in it; None if there is none."""
    text = message.get("content")
    if not stop or not text:
        return None
    found = [at for sequence in stop if (at := text.find(sequence)) >= 0]
    return text[: min(found)] if found else None


# --- the reply's own form ---------------------------------------------------------------------------------------------


def _native_event(event: dict[str, Any], request: ResponsesRequest, maker: Maker) -> dict[str, Any]:
    """Return an event for a client of this dialect: what is encrypted sealed, and no log-probabilities it did not ask
    for.
    """
    changed: dict[str, Any] = {}
    if isinstance(item := event.get("item"), dict):
        changed["item"] = _native_item(item, request, maker)
    elif isinstance(response := event.get("response"), dict):
        output = response.get("output")
        if isinstance(output, list) and output:
            items = [_native_item(item, request, maker) if isinstance(item, dict) else item for item in output]
            changed["response"] = {**response, "output": items}
    elif request.hides_logprobs:
        if event.get("logprobs"):
            changed["logprobs"] = []
        elif isinstance(part := event.get("part"), dict) and part.get("logprobs"):
            changed["part"] = {**part, "logprobs": []}
    return {**event, **changed} if changed else event


def _native_item(item: dict[str, Any], request: ResponsesRequest, maker: Maker) -> dict[str, Any]:
    kind = item.get("type")
    if kind == "message" and request.hides_logprobs:
        parts = [
            {**part, "logprobs": []} if isinstance(part, dict) and part.get("logprobs") else part
            for part in item.get("content") or ()
        ]
        return {**item, "content": parts}
    if kind in ENCRYPTED_ITEMS:
        encrypted = item.get("encrypted_content")
        if isinstance(encrypted, str) or item.get("content"):
            return {**item, "encrypted_content": maker.seal(encrypted or "")}
    return item


# --- streams ----------------------------------------------------------------------------------------------------------


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
            self._waiting.append(_native_event(event, self._request, self._maker))
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
            text, self._stopped = self._stop.take(text)
            if self._stopped:
                self.finished = True
                return self._chunk({"content": text}, "stop", event.get("logprobs"))
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
            for name, value in _head(response).items():
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
        if kind in _CALLS:
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
        said = call[inner]["input" if inner == "custom" else "arguments"]
        self._lengths[at, "call"] = len(said)
        if self._request.legacy and inner == "function":
            return [self._chunk({"function_call": call["function"]})] if index == 0 else _NO_CHOICES
        return [self._chunk({**self._thoughts_before(call["id"]), "tool_calls": [{"index": index, **call}]})]

    def _call_delta(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        at, text = event.get("output_index"), event.get("delta")
        if at not in self._calls or type(text) is not str:
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
        return self._call_piece(at, self._rest((at, "call"), whole))

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
            text = _PARAGRAPH + text
        self._thought = True
        return [self._chunk({"reasoning_content": text})]

    def _annotation(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        annotation = event.get("annotation")
        if not isinstance(annotation, dict):
            return _NO_CHOICES
        at = event.get("output_index")
        self._lengths[at, "annotations", event.get("content_index")] = 1
        start = self._text_starts.get((at, event.get("content_index")), 0)
        told = chat_annotations([annotation], start)
        return [self._chunk({"annotations": told})] if told else _NO_CHOICES

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
        if kind in _CALLS:
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
            self._thought_parts = _number([*details, *encrypted], self._thought_parts)
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
                    if told := chat_annotations(part["annotations"], start):
                        chunks.append(self._chunk({"annotations": told}))
        return chunks

    def _thoughts_before(self, call_id: str | None) -> dict[str, Any]:
        """Return the part of a delta with the encrypted reasoning before this call, or message; empty if there is none.

        What no output follows is never sent: the API would not take it back.
        """
        details, self._encrypted = self._encrypted, []
        return {DETAILS: _sealed(details, call_id, self._maker)} if details else {}

    def _last(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        response = event.get("response")
        if not isinstance(response, dict):
            raise NotAResponse("a last event without its response")
        _check_status({"status": _STATUS[event["type"]], **response})
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
        finish = _finish_reason(
            {"status": _STATUS[event["type"]], **response}, calls=bool(self._calls), legacy=self._request.legacy
        )
        chunks.append(self._chunk({}, finish))
        if (usage := usage_of(response)) is not None:
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

    def take(self, text: str) -> tuple[str, bool]:
        """Return the text that may be sent now, and whether a stop sequence has ended it."""
        text = self._held + text
        found = [at for sequence in self._sequences if (at := text.find(sequence)) >= 0]
        if found:
            return text[: min(found)], True
        start = max(0, len(text) - self._longest + 1)
        cut = next((at for at in range(start, len(text)) if self._may_begin(text[at:])), len(text))
        self._held = text[cut:]
        return text[:cut], False

    def rest(self) -> str:
        """Return what was held back when the text has ended."""
        return self._held

    def _may_begin(self, tail: str) -> bool:
        return any(sequence.startswith(tail) for sequence in self._sequences)
