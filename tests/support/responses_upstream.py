"""A scripted server of OpenAI's Responses API on a real socket, as strict as the provider is.

    with ResponsesUpstream() as upstream:
        upstream.queue(Reply(tool_calls=(ToolCall("look", "{}"),), extra={"thinks": "I should look."}))
        ...                                               # talk to upstream.url
        assert upstream.refused == []                     # every request was one that the provider takes

A request is checked against the types of the openai SDK, and for what they do not say: which items may follow which,
the calls that results belong to, ids, what strict tools must hold, what a stateless request may refer to. Encrypted
reasoning is signed, and holds what followed it, so that the server knows when it comes from elsewhere or stands in
another place. A request that the provider would refuse gets its status and code, and is listed in `refused`.

Replies are those of `Upstream`; their `extra` says what only this API has:
    thinks       summary of the reasoning before the first output; with `silent`, encrypted reasoning alone
    refusal      a refusal instead of the text
    custom       (name, input) of a custom tool's call
    annotations  of the text
    error        (code, message) of a response that fails; in a stream, after its first events
    items        further output items, before all others, as they are
    phase        of the message
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_type_hints

import pydantic
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic_core import ValidationError

from tests.support.connection import Received
from tests.support.upstream import Reply, Upstream

Json = dict[str, Any]

_FIELDS = frozenset(get_type_hints(ResponseCreateParamsNonStreaming))
_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
_RESULTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_NAMES = {"function_call": "function call", "custom_tool_call": "custom tool call"}
_LONGEST_ID = 64
_LEAST_TOKENS = 16


class Refused(Exception):
    """What the provider answers a request that it does not take."""

    def __init__(self, message: str, param: str | None, code: str | None, status: int = 400) -> None:
        super().__init__(message)
        self.body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        self.status = status


class ResponsesUpstream(Upstream):
    """See the module's docstring. `secret` signs its reasoning: servers of one secret read each other's.

    `reasons` is false for a model that does not reason: it refuses to be asked for encrypted reasoning. `refuses` are
    fields that it does not take, as a reasoning model does not take `temperature`.
    """

    def __init__(self, *, secret: str = "", reasons: bool = True, refuses: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.refused: list[Json] = []
        """The error objects of the requests that were refused, in order."""
        self.reasons = reasons
        self.refuses = refuses
        self._secret = (secret or f"upstream {id(self)}").encode()
        self._serial = itertools.count(1)

    def reply_to(self, request: Received) -> Reply:
        """See `Host`."""
        if request.method != "POST" or not request.path.endswith("/responses"):
            return super().reply_to(request)
        self.requests.append(request)
        try:
            self._check(request.body)
        except Refused as refused:
            self.refused.append(refused.body)
            return Reply(status=refused.status, body=json.dumps({"error": refused.body}).encode())
        found = self._queue.popleft() if self._queue else None
        reply = found or next((rule.next() for rule in self._rules if rule.match(request)), self.default)
        return reply if reply.body is not None else self._rendered(reply, request.body)

    def _rendered(self, reply: Reply, body: Json) -> Reply:
        response = self.response(reply, body)
        if not body.get("stream"):
            return replace(reply, body=json.dumps(response).encode())
        events = list(events_of(response, reply))
        data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
        return replace(reply, body=data, headers={"content-type": "text/event-stream; charset=utf-8", **reply.headers})

    # --- what it answers

    def response(self, reply: Reply, body: Json) -> Json:
        """The whole response to a request."""
        number, extra = next(self._serial), reply.extra
        output: list[Json] = list(extra.get("items") or ())
        said: list[Json] = []
        if (not reply.tool_calls and "custom" not in extra) or "said" in extra:
            said.append(self._message(reply, body, number))
        for index, call in enumerate(reply.tool_calls):
            said.append(
                {
                    "type": "function_call",
                    "id": f"fc_{number}_{index}",
                    "call_id": call.id,
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": "completed",
                }
            )
        if "custom" in extra:
            name, text = extra["custom"]
            said.append(
                {
                    "type": "custom_tool_call",
                    "id": f"ctc_{number}",
                    "call_id": f"call_custom_{number}",
                    "name": name,
                    "input": text,
                }
            )
        if "thinks" in extra or extra.get("silent"):
            summary = [{"type": "summary_text", "text": extra["thinks"]}] if extra.get("thinks") else []
            output.append(self._reasoning(f"rs_{number}", summary, said[0] if said else {}))
        output += said
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish_reason or "")
        error = extra.get("error")
        usage = {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 12,
        }
        return {
            "id": f"resp_{number}",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "failed" if error else "incomplete" if cut else "completed",
            "error": {"code": error[0], "message": error[1]} if error else None,
            "incomplete_details": {"reason": cut} if cut else None,
            "model": body["model"],
            "output": [] if error else output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools", []),
            "metadata": body.get("metadata") or {},
            "service_tier": "default",
            "store": body.get("store"),
            "usage": usage if reply.usage == "auto" else reply.usage,
        }

    def _message(self, reply: Reply, body: Json, number: int) -> Json:
        logprobs = []
        if "message.output_text.logprobs" in (body.get("include") or ()) and not reply.no_logprobs:
            count = len(reply.pieces())
            each = reply.logprob if isinstance(reply.logprob, tuple) else (reply.logprob,) * count
            top = body.get("top_logprobs") or 0
            logprobs = [
                {
                    "token": token,
                    "bytes": list(token.encode()),
                    "logprob": logprob,
                    "top_logprobs": [{"token": token, "bytes": list(token.encode()), "logprob": logprob}][:top],
                }
                for token, logprob in zip(reply.pieces(), each, strict=True)
            ]
        text = {"type": "output_text", "text": "".join(reply.pieces()), "annotations": [], "logprobs": logprobs}
        text["annotations"] = reply.extra.get("annotations") or []
        parts = [{"type": "refusal", "refusal": reply.extra["refusal"]}] if "refusal" in reply.extra else [text]
        status = "incomplete" if reply.finish_reason == "length" else "completed"
        item = {"type": "message", "id": f"msg_{number}", "status": status, "role": "assistant", "content": parts}
        return item | ({"phase": reply.extra["phase"]} if "phase" in reply.extra else {})

    def _reasoning(self, ident: str, summary: list[Json], following: Json) -> Json:
        held = base64.urlsafe_b64encode(json.dumps(_essence(following)).encode()).decode()
        encrypted = f"gAAA{self._signature(held)}{held}"
        return {"type": "reasoning", "id": ident, "summary": summary, "encrypted_content": encrypted}

    def _signature(self, held: str) -> str:
        return hmac.new(self._secret, held.encode(), hashlib.sha256).hexdigest()

    # --- what it takes

    def refusal_of(self, body: Json) -> str | None:
        """What a request with this body is refused for; None if it is taken."""
        try:
            self._check(body)
        except Refused as refused:
            return f"{refused.body['param']}: {refused}"
        return None

    def _check(self, body: Any) -> None:
        """Raises Refused as the provider would."""
        if not isinstance(body, dict):
            raise Refused("We could not parse the JSON body of your request.", None, None)
        for name in body:
            if name not in _FIELDS and name != "stream":
                raise Refused(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
            if name in self.refuses:
                message = f"Unsupported parameter: '{name}' is not supported with this model."
                raise Refused(message, name, "unsupported_parameter")
        if not body.get("model"):
            raise Refused("Missing required parameter: 'model'.", "model", "missing_required_parameter")
        limit = body.get("max_output_tokens")
        if limit is not None and limit < _LEAST_TOKENS:
            message = (
                f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= {_LEAST_TOKENS}, "
                f"but got {limit} instead."
            )
            raise Refused(message, "max_output_tokens", "integer_below_min_value")
        if not self.reasons and "reasoning.encrypted_content" in (body.get("include") or ()):
            raise Refused("Encrypted content is not supported with this model.", "include", None)
        _check_schema(body)
        _check_tools(body)
        given = body.get("input")
        if isinstance(given, list):
            self._check_items(given, stored=body.get("store", True) is not False)
        if ((body.get("text") or {}).get("format") or {}).get("type") == "json_object" and "json" not in json.dumps(
            given
        ).lower():
            message = "Response input messages must contain the word 'json' in some form to use 'text.format'."
            raise Refused(message, "input", None)

    def _check_items(self, items: list[Json], *, stored: bool) -> None:
        calls: dict[str, set[str]] = {"function_call": set(), "custom_tool_call": set()}
        answered: set[str] = set()
        seen: set[str] = set()
        for at, item in enumerate(items):
            kind = item.get("type") or "message"
            _check_ids(item, kind, at, seen)
            if kind == "message":
                _check_parts(item, at)
            if kind in calls:
                calls[kind].add(item["call_id"])
            elif kind in _RESULTS:
                if item["call_id"] not in calls[_RESULTS[kind]]:
                    name = _NAMES[_RESULTS[kind]]
                    message = f"No tool call found for {name} output with call_id {item['call_id']}."
                    raise Refused(message, "input", None)
                if item["call_id"] in answered:
                    raise Refused(f"Duplicate output for call_id {item['call_id']}.", "input", None)
                answered.add(item["call_id"])
            elif kind == "reasoning":
                self._check_reasoning(item, items[at + 1 :], stored=stored)
        for kind, made in calls.items():
            for call_id in made - answered:
                raise Refused(f"No tool output found for {_NAMES[kind]} {call_id}.", "input", None)

    def _check_reasoning(self, item: Json, rest: list[Json], *, stored: bool) -> None:
        encrypted = item.get("encrypted_content")
        if encrypted is None:
            if stored:
                return
            message = (
                f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false. Try "
                "again with `store` set to true, or remove this item from your input."
            )
            raise Refused(message, "input", None, 404)
        signature, held = encrypted[4:68], encrypted[68:]
        if not encrypted.startswith("gAAA") or not hmac.compare_digest(signature, self._signature(held)):
            message = f"The encrypted content {encrypted[:4]}...{encrypted[-4:]} could not be verified."
            raise Refused(message, None, "invalid_encrypted_content")
        following = next((one for one in rest if one.get("type") != "reasoning"), {})
        if _essence(following) != json.loads(base64.urlsafe_b64decode(held)):
            message = f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            raise Refused(message, "input", None)


def _essence(item: Json) -> Json:
    """What tells an output item from others in any of the forms in which it may be sent back."""
    if item.get("type") in ("function_call", "custom_tool_call"):
        return {"call": item["call_id"]}
    if item.get("role") != "assistant":
        return {}
    content = item.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return {"text": "".join(part.get("text") or part.get("refusal") or "" for part in parts)}


@functools.cache
def _schema() -> pydantic.TypeAdapter[Any]:
    # A list, because the settings of a type alone are not taken.
    settings = pydantic.ConfigDict(extra="forbid")
    return pydantic.TypeAdapter(list[ResponseCreateParamsNonStreaming], config=settings)


def _without_id(item: Json) -> Json:
    if item.get("type") != "message" or item.get("role") == "assistant":
        return item
    return {name: value for name, value in item.items() if name != "id"}


def _check_schema(body: Json) -> None:
    try:
        known = {name: value for name, value in body.items() if name != "stream"}
        if isinstance(items := body.get("input"), list):  # Codex CLI gives every message an id, which the API takes
            known["input"] = [_without_id(one) if isinstance(one, dict) else one for one in items]
        checked = _schema().validate_python([known])
        _walk(checked)
    except ValidationError as error:
        found = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
        names = [part for part in found["loc"][1:] if isinstance(part, int) or part.isidentifier()]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in names).lstrip(".")
        raise Refused(f"Invalid request: {path}: {found['msg']}", path, "invalid_type") from None


def _walk(value: Any) -> None:
    """Validates what pydantic leaves for later: members that the SDK says are any iterable."""
    if isinstance(value, dict):
        for member in value.values():
            _walk(member)
    elif isinstance(value, list) or type(value).__name__ == "ValidatorIterator":
        for item in value:
            _walk(item)


def _check_tools(body: Json) -> None:
    names = set()
    for at, tool in enumerate(body.get("tools") or ()):
        names.add((tool["type"], tool.get("name")))
        if tool["type"] == "function" and tool.get("strict", True) is not False:
            schema = tool.get("parameters") or {}
            if schema.get("additionalProperties") is not False:
                message = (
                    f"Invalid schema for function '{tool['name']}': In context=(), 'additionalProperties' is required "
                    "to be supplied and to be false."
                )
                raise Refused(message, f"tools[{at}].parameters", "invalid_function_parameters")
    choice = body.get("tool_choice")
    named = isinstance(choice, dict) and choice["type"] in ("function", "custom")
    if named and (choice["type"], choice.get("name")) not in names:
        raise Refused(f"Tool choice '{choice['type']}' not found in 'tools' parameter.", "tool_choice", None)


def _check_ids(item: Json, kind: str, at: int, seen: set[str]) -> None:
    ident = item.get("id")
    if ident is not None:
        prefix = _PREFIXES.get(kind)
        if prefix is not None and not ident.startswith(prefix):
            message = f"Invalid 'input[{at}].id': '{ident}'. Expected an ID that begins with '{prefix}'."
            raise Refused(message, f"input[{at}].id", "invalid_value")
        if ident in seen:
            message = f"Duplicate item found with id {ident}. Remove duplicate items from your input and try again."
            raise Refused(message, "input", None)
        seen.add(ident)
    call_id = item.get("call_id")
    if call_id is not None and not 0 < len(call_id) <= _LONGEST_ID:
        message = (
            f"Invalid 'input[{at}].call_id': string too long. Expected a string with maximum length {_LONGEST_ID}, but "
            f"got a string with length {len(call_id)} instead."
        )
        raise Refused(message, f"input[{at}].call_id", "string_above_max_length")


def _check_parts(item: Json, at: int) -> None:
    content = item.get("content")
    takes = ("output_text", "refusal") if item.get("role") == "assistant" else (
        "input_text", "input_image", "input_file"
    )  # fmt: skip
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if part["type"] not in takes:
            supported = " and ".join(f"'{one}'" for one in takes)
            message = f"Invalid value: '{part['type']}'. Supported values are: {supported}."
            raise Refused(message, f"input[{at}].content[{index}].type", "invalid_value")


def events_of(response: Json, reply: Reply) -> Iterator[Json]:
    """The events that stream a response, as the provider sends them."""
    for number, event in enumerate(_events_of(response, reply)):
        yield {**event, "sequence_number": number}


def _events_of(response: Json, reply: Reply) -> Iterator[Json]:
    opened = {**response, "status": "in_progress", "error": None, "incomplete_details": None, "output": []}
    opened["usage"] = None
    yield {"type": "response.created", "response": opened}
    yield {"type": "response.in_progress", "response": opened}
    for at, item in enumerate(response["output"]):
        yield from _item_events(at, item, reply)
    kind = "failed" if response["error"] else "incomplete" if response["incomplete_details"] else "completed"
    yield {"type": f"response.{kind}", "response": response}


def _item_events(at: int, item: Json, reply: Reply) -> Iterator[Json]:
    kind = item["type"]
    begun: Json = {**item, "status": "in_progress"}
    place: Json = {"item_id": item["id"], "output_index": at}
    if kind == "message":
        yield {"type": "response.output_item.added", "output_index": at, "item": {**begun, "content": []}}
        for index, part in enumerate(item["content"]):
            where = {**place, "content_index": index}
            yield from _part_events(where, part, reply)
    elif kind == "reasoning":
        begun["summary"], begun["encrypted_content"] = [], item["encrypted_content"][:8]
        yield {"type": "response.output_item.added", "output_index": at, "item": begun}
        for index, part in enumerate(item["summary"]):
            where = {**place, "summary_index": index}
            yield {"type": "response.reasoning_summary_part.added", **where, "part": {**part, "text": ""}}
            for piece in _pieces(part["text"]):
                yield {"type": "response.reasoning_summary_text.delta", **where, "delta": piece, "obfuscation": "x"}
            yield {"type": "response.reasoning_summary_text.done", **where, "text": part["text"]}
            yield {"type": "response.reasoning_summary_part.done", **where, "part": part}
    elif kind in ("function_call", "custom_tool_call"):
        name = "arguments" if kind == "function_call" else "input"
        event = "function_call_arguments" if kind == "function_call" else "custom_tool_call_input"
        yield {"type": "response.output_item.added", "output_index": at, "item": {**begun, name: ""}}
        for piece in _pieces(item[name]):
            yield {"type": f"response.{event}.delta", **place, "delta": piece, "obfuscation": "abc"}
        yield {"type": f"response.{event}.done", **place, name: item[name]}
    else:
        yield {"type": "response.output_item.added", "output_index": at, "item": begun}
    yield {"type": "response.output_item.done", "output_index": at, "item": item}


def _part_events(where: Json, part: Json, reply: Reply) -> Iterator[Json]:
    if part["type"] == "refusal":
        yield {"type": "response.content_part.added", **where, "part": {**part, "refusal": ""}}
        for piece in _pieces(part["refusal"]):
            yield {"type": "response.refusal.delta", **where, "delta": piece}
        yield {"type": "response.refusal.done", **where, "refusal": part["refusal"]}
    else:
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": "", "annotations": []}}
        logprobs = part["logprobs"]
        for index, piece in enumerate(reply.pieces()):
            told = [logprobs[index]] if logprobs else []
            yield {"type": "response.output_text.delta", **where, "delta": piece, "logprobs": told, "obfuscation": "ab"}
        for index, annotation in enumerate(part["annotations"]):
            kind = "response.output_text.annotation.added"
            yield {"type": kind, **where, "annotation_index": index, "annotation": annotation}
        yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": logprobs}
    yield {"type": "response.content_part.done", **where, "part": part}


def _pieces(text: str) -> list[str]:
    return [text[at : at + 4] for at in range(0, len(text), 4)]
