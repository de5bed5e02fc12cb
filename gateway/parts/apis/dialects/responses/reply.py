"""Translate whole replies of OpenAI's Responses API into chat completions; `chunks.py` translates streams.

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
from collections.abc import Mapping
from typing import Any, Final

from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, Maker
from gateway.parts.apis.dialects.responses.backend import ResponsesRequest
from gateway.parts.apis.dialects.responses.input_items import ENCRYPTED_ITEMS, placed_before
from gateway.parts.apis.dialects.responses.items import FORMAT, readable_details
from gateway.parts.servers.chat_forms import standardise
from gateway.parts.servers.normalised import STOPPED_BY, json_text, new_call_id

PARAGRAPH: Final = "\n\n"
_CHAT_WORDS: Final[Mapping[Any, str]] = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
"""Members of a usage that chat completions call otherwise."""
CALLS: Final = frozenset({"function_call", "custom_tool_call"})


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


def chat_answer(response: Mapping[str, Any], request: ResponsesRequest, maker: Maker) -> dict[str, Any]:
    """Return the chat completion of a whole response. Raises ReplyFailed or NotAResponse."""
    output = response.get("output")
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise NotAResponse("a reply without output")
    check_status(response)
    parts = _MessageParts(maker, legacy=request.legacy)
    for item in output:
        parts.add(item)
    parts.end()
    message = parts.message()
    finish = finish_reason(response, calls=parts.calls > 0, legacy=request.legacy)
    logprobs = None if parts.logprobs is None else {"content": parts.logprobs, "refusal": None}
    stopped: dict[str, str] = {}
    if (cut := first_stop(message.get("content") or "", request.stop)) is not None:
        at, stopped[STOPPED_BY] = cut
        message["content"], finish = message["content"][:at], "stop"
    if request.native:
        message[NATIVE] = [native_event({"type": _last_event(response), "response": response}, request, maker)]
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish, **stopped}
    completion = {**head_of(response), "object": "chat.completion", "choices": [choice], "usage": usage_in(response)}
    for name in ("service_tier", "metadata"):
        if response.get(name):
            completion[name] = response[name]
    if isinstance(moderation := response.get("moderation"), dict):
        completion["moderation"] = {side: _moderation(result) for side, result in moderation.items()}
    return completion


def check_status(response: Mapping[str, Any]) -> None:
    """Raise ReplyFailed for a response that failed, NotAResponse for one that has not ended."""
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


def finish_reason(response: Mapping[str, Any], *, calls: bool, legacy: bool) -> str:
    """Return why a response ended. `calls`: whether it calls tools; `legacy`: whether the client knows them by name."""
    if response.get("status") == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    if calls:
        return "function_call" if legacy else "tool_calls"
    return "stop"


def _last_event(response: Mapping[str, Any]) -> str:
    return "response.incomplete" if response.get("status") == "incomplete" else "response.completed"


def head_of(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id, the time and the model of a response, as completions and chunks have them."""
    created = response.get("created_at")
    return {
        "id": response.get("id"),
        "created": int(created) if isinstance(created, (int, float)) else int(time.time()),
        "model": response.get("model"),
    }


def usage_in(response: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the usage of a response in the words of chat completions; None if there is none."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        return None
    told: dict[str, Any] = {_CHAT_WORDS.get(name, name): value for name, value in usage.items()}
    standardise({"usage": told})
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
        elif kind in CALLS:
            call = call_of(item)
            self._place(call["id"])
            self._calls.append(call)
        elif kind == "reasoning":
            details = readable_details(item)
            self._thoughts += [text for detail in details if (text := detail.get("summary") or detail.get("text"))]
            encrypted = encrypted_detail(item)
            self._thought_parts = number_details([*details, *encrypted], self._thought_parts)
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
            message["reasoning_content"] = PARAGRAPH.join(self._thoughts)
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
        self._details += sealed_details(self._encrypted, before, self._maker)
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
    ident = item.get("call_id") or item.get("id") or new_call_id()
    if item.get("type") == "custom_tool_call":
        return {
            "id": ident,
            "type": "custom",
            "custom": {"name": item.get("name"), "input": item.get("input") or ""},
        }
    return {
        "id": ident,
        "type": "function",
        "function": {"name": item.get("name"), "arguments": json_text(item.get("arguments") or "")},
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


def number_details(details: list[dict[str, Any]], start: int) -> int:
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
    return [{"type": "reasoning.encrypted", "data": encrypted, "id": item.get("id"), "format": FORMAT}]


def sealed_details(details: list[dict[str, Any]], before: str | None, maker: Maker) -> list[dict[str, Any]]:
    """Return encrypted details sealed, with their place: before the call with this id, or before the message."""
    for detail in details:
        detail["data"] = maker.seal(detail["data"] if before is None else placed_before(before, detail["data"]))
    return details


def first_stop(text: str, stop: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the place of the first stop sequence in a text, and the sequence; None if there is none."""
    return min(((at, sequence) for sequence in stop if (at := text.find(sequence)) >= 0), default=None)


# --- the reply's own form ---------------------------------------------------------------------------------------------


def native_event(event: dict[str, Any], request: ResponsesRequest, maker: Maker) -> dict[str, Any]:
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
