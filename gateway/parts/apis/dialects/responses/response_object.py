"""Make the Response object of a reply: what the request asked for, and the items of a completion."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.native import NATIVE
from gateway.dialects.reasoning import DETAILS, joined_details
from gateway.parts.apis.dialects.responses.items import (
    EXTRA,
    Json,
    annotations_of,
    logprobs_of,
    reasoning_item,
    usage_object,
)

_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "computer_call": "cu",
    "compaction": "cmp",
}
_ID_CHARS: Final = 32
Names = Mapping[str, tuple[str, str]]
"""Namespace and name of the tools that chat completions know by one name, by that name."""
_NO_NAMES: Final[Names] = {}
SEARCH: Final = "tool_search"
"""The tool by which a client looks for further ones, and the name of the function that stands for it."""
SEARCHES: Final = ("", SEARCH)
"""What names have for that function: its calls are items `tool_search_call`."""
_ECHOED: Final[Mapping[str, Any]] = {
    "background": False,
    "frequency_penalty": 0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "previous_response_id": None,
    "prompt": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, with their value where the request has none: the API's own default."""
_TOOL: Final = {"description": None, "parameters": None, "strict": None}
"""Members that each function of a Response object has, given or not."""
_SERVICE_TIERS: Final = ("auto", "default", "flex", "scale", "priority")
"""The service tiers that a Response object may name."""
_OF_CACHE: Final = "prompt_cache_diagnostics"
_OF_BACKENDS: Final = (
    "access_programs",
    "image",
    "input_transformations",
    "moderation",
    _OF_CACHE,
    "prompt_cache_options",
    "service_tier",
    "tool_usage",
)
"""Members of a Response object that a backend of this API sets."""
_FAILURES: Final = frozenset({"rate_limit_exceeded", "server_error"})
"""Codes of errors that a failed response may have, of those that the gateway knows."""
_TERMINAL: Final = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}


class ItemIds:
    """Make the ids of one response and its items. An item's id holds its response's, by which it is found again."""

    __slots__ = ("_count", "_hex", "response")

    def __init__(self) -> None:
        self._hex = secrets.token_hex(_ID_CHARS // 2)
        self.response = f"resp_{self._hex}"
        self._count = 0

    def new(self, kind: str) -> str:
        """Return an id for the next item of this type."""
        self._count += 1
        return f"{_PREFIXES.get(kind, 'item')}_{self._hex}{self._count:04x}"


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that an item's id names; None if the gateway did not make it."""
    prefix, _, rest = item_id.rpartition("_")
    return f"resp_{rest[:_ID_CHARS]}" if prefix and len(rest) == _ID_CHARS + 4 else None


class ResponseHead:
    """Make the Response objects of one reply: `of` gives one, at any stage of it."""

    __slots__ = ("_fields", "_hides_cache", "created_at", "ids", "model", "names")

    def __init__(
        self,
        body: Mapping[str, Any],
        ids: ItemIds,
        *,
        store: bool,
        names: Names = _NO_NAMES,
        hides_cache: bool = False,
    ) -> None:
        """Take the client's body. `store`: whether the gateway keeps the response. `names`: of tools in namespaces.

        `hides_cache`: the client is not told of the backend's prompt cache.
        """
        self._hides_cache = hides_cache
        self.ids = ids
        self.names = names
        self.created_at = int(time.time())
        self.model: str = body.get("model") or ""
        """The model that answers, once it is known; until then, what the client asked for."""
        fields: Json = {**_ECHOED}
        for name, value in body.items():
            if value is not None and name in _ECHOED:
                fields[name] = value
        if fields["service_tier"] not in _SERVICE_TIERS:
            fields["service_tier"] = "default"
        fields["tools"] = [
            {**_TOOL, **tool} if isinstance(tool, dict) and tool.get("type") == "function" else tool
            for tool in fields["tools"]
        ]
        text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
        fields["text"] = {**text, "format": text.get("format") or {"type": "text"}}
        fields["reasoning"] = {"effort": None, "summary": None, **reasoning}
        fields["store"] = store
        self._fields = fields

    def belongs_to(self, conversation_id: str) -> None:
        """Name the conversation that the response belongs to in its Response object."""
        self._fields["conversation"] = {"id": conversation_id}

    def limit(self, tokens: int) -> None:
        """Take the limit of output tokens that counts."""
        self._fields["max_output_tokens"] = tokens

    def note(self, value: Mapping[str, Any]) -> None:
        """Take the model, the service tier and the moderation of what answers, from a completion or a chunk."""
        self.model = value.get("model") or self.model
        if value.get("service_tier") in _SERVICE_TIERS:
            self._fields["service_tier"] = value["service_tier"]
        if isinstance(moderation := value.get("moderation"), dict):
            self._fields["moderation"] = {side: _moderation(result) for side, result in moderation.items()}

    def note_native(self, response: Mapping[str, Any]) -> None:
        """Take what the Response object of a backend says that completions have no place for."""
        for name in _OF_BACKENDS:
            if response.get(name) is not None and not (self._hides_cache and name == _OF_CACHE):
                self._fields[name] = response[name]

    def own_usage(self, response: Mapping[str, Any]) -> Json | None:
        """Return the usage in the Response object of a backend, if the client may see it."""
        return None if self._hides_cache else response.get("usage")

    def of(
        self,
        status: str,
        output: Sequence[Json] = (),
        usage: Json | None = None,
        *,
        reason: str | None = None,
        error: Json | None = None,
    ) -> Json:
        """Return the Response object. `reason` is why it is incomplete, `error` why it failed."""
        return {
            "id": self.ids.response,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": self.model,
            "output": list(output),
            "usage": usage,
            **self._fields,
        }


def outcome_of(finish_reason: Any) -> tuple[str, str | None]:
    """Return the status of a response whose answer has this finish reason, and why it is incomplete, if it is."""
    if finish_reason == "length":
        return "incomplete", "max_output_tokens"
    if finish_reason == "content_filter":
        return "incomplete", "content_filter"
    return "completed", None


def _moderation(result: Any) -> Any:
    """Return a moderation as this API has it: chat completions put its one result into a list."""
    results = result.get("results") if isinstance(result, dict) else None
    return results[0] if isinstance(results, list) and results else result


def response_error(error: Mapping[str, Any]) -> Json:
    """Return the error of a failed response; the codes that it may have are few."""
    code = error.get("code")
    return {
        "code": code if code in _FAILURES else "server_error",
        "message": str(error.get("message") or "The answer broke off."),
    }


def whole_response(completion: Mapping[str, Any], head: ResponseHead, *, logprobs: bool) -> Json:
    """Return the Response object of a whole completion, with everything encrypted in its reasoning."""
    choice = completion["choices"][0]
    message = choice["message"]
    head.note(completion)
    status, reason = outcome_of(choice.get("finish_reason"))
    native, usage = message.get(NATIVE), usage_object(completion.get("usage"))
    if isinstance(native, list) and native:
        ended = native_end(native)
        if ended is not None:
            head.note_native(ended)
            usage = head.own_usage(ended) or usage
            status, reason = ended["status"], reason_of(ended)
        output = [renamed(item, head.ids) for item in native_output(native)]
    else:
        output = list(items_of(message, choice.get("logprobs") if logprobs else None, head, status))
    return head.of(status, output, usage, reason=reason)


def items_of(message: Mapping[str, Any], logprobs: Any, head: ResponseHead, status: str) -> Iterator[Json]:
    """Yield the items of a whole message: reasoning, text and refusal, calls."""
    ids = head.ids
    if details := details_of_message(message):
        item = reasoning_item(details, ids.new("reasoning"), encrypted=True)
        yield {**item, "status": "completed"}
    parts: list[Json] = []
    if isinstance(text := message.get("content"), str) and text:
        parts.append(
            text_part(text, logprobs.get("content") if isinstance(logprobs, dict) else None, message.get("annotations"))
        )
    if isinstance(refusal := message.get("refusal"), str) and refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    calls = message.get("tool_calls")
    made = [call for call_in in calls if (call := call_item(call_in, head, status))] if isinstance(calls, list) else []
    if parts or not made:
        yield message_item(ids.new("message"), status, parts or [text_part("", None, None)])
    yield from made


def details_of_message(message: Mapping[str, Any]) -> list[Json]:
    """Return the reasoning of a whole message as details; a text in the older fields is one more, unless they hold it.

    Backends that give details mostly repeat their texts in `reasoning_content` or `reasoning`.
    """
    given = message.get(DETAILS)
    details = joined_details(given) if isinstance(given, list) else []
    text = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(text, str) and text and not any(detail.get("text") or detail.get("summary") for detail in details):
        details.insert(0, {"type": "reasoning.text", "text": text})
    return details


def text_part(text: str, logprobs: Any, annotations: Any) -> Json:
    """Return the part of a message that holds its text."""
    return {
        "type": "output_text",
        "annotations": annotations_of(annotations),
        "logprobs": logprobs_of(logprobs),
        "text": text,
    }


def message_item(item_id: str, status: str, parts: list[Json]) -> Json:
    """Return the item of an assistant's message."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": parts}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def in_namespace(item: Json, names: Names) -> Json:
    """Return a call's item with the name that the client gave its tool, and the namespace if it has one."""
    if not names or item["name"] not in names:
        return item
    if names[item["name"]] is SEARCHES:
        return _search_item(item)
    item["namespace"], item["name"] = names[item["name"]]
    return item


def _search_item(item: Json) -> Json:
    """Return the item of a call that looks for tools: its arguments are an object there."""
    try:
        arguments = orjson.loads(item.get("arguments") or "{}")
    except orjson.JSONDecodeError:
        arguments = {"query": item["arguments"]}
    kept = {name: item[name] for name in ("id", "status", "call_id")}
    return {**kept, "type": "tool_search_call", "execution": "client", "arguments": arguments}


def call_item(call: Any, head: ResponseHead, status: str) -> Json | None:
    """Return the item of one whole tool call; None if it is not one."""
    if not isinstance(call, dict):
        return None
    if isinstance(custom := call.get("custom"), dict):
        item = {
            "id": head.ids.new("custom_tool_call"),
            "type": "custom_tool_call",
            "call_id": _string(call.get("id")),
            "name": _string(custom.get("name")),
            "input": _string(custom.get("input")),
            "status": status,
        }
        return in_namespace(item, head.names)
    if isinstance(function := call.get("function"), dict):
        item = {
            "id": head.ids.new("function_call"),
            "type": "function_call",
            "status": status,
            "arguments": _string(function.get("arguments")),
            "call_id": _string(call.get("id")),
            "name": _string(function.get("name")),
        }
        if call.get(EXTRA) is not None:
            item[EXTRA] = call[EXTRA]
        return in_namespace(item, head.names)
    return None


# --- replies of a backend that speaks this API ------------------------------------------------------------------------


def native_end(events: Sequence[Any]) -> Json | None:
    """Return the Response object of the event that ended a backend's reply; None if there is none."""
    for event in reversed(events):
        status = _TERMINAL.get(str(event.get("type"))) if isinstance(event, dict) else None
        if status is not None and isinstance(event.get("response"), dict):
            return {**event["response"], "status": status}
    return None


def reason_of(ended: Mapping[str, Any]) -> str | None:
    """Return why a backend's response is incomplete; None if it does not say."""
    details = ended.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else None


def native_output(events: Sequence[Any]) -> list[Json]:
    """Return the items of a backend's reply: those of its last Response object, or else those that were done."""
    ended = native_end(events)
    if ended is not None and isinstance(ended.get("output"), list):
        return [item for item in ended["output"] if isinstance(item, dict)]
    return [
        event["item"]
        for event in events
        if isinstance(event, dict)
        and event.get("type") == "response.output_item.done"
        and isinstance(event.get("item"), dict)
    ]


def renamed(item: Mapping[str, Any], ids: ItemIds) -> Json:
    """Return a backend's item under an id of the gateway's."""
    return {**item, "id": ids.new(str(item.get("type")))}
