"""Make the items of a request's `input` for OpenAI's Responses API, from chat messages or from a client's own items.

The API accepts a reasoning item only before the output that came of it, and only from the account and model that made
it. So items of this backend go back to their places, and of any other reasoning only the readable text is kept, as a
message of the assistant. Messages and calls of chat completions are sent without ids, because the API checks an id
against items that it no longer has.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.reasoning import DETAILS, Maker, joined_details
from gateway.parts.apis.dialects.responses.items import EXTRA
from gateway.parts.servers.chat_reasoning import is_name_of_field
from routing.features import url_of_file

ENCRYPTED_ITEMS: Final = frozenset({"reasoning", "compaction"})
"""Types of the items that hold `encrypted_content`."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_RESULTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_OUTPUT_ITEMS: Final = frozenset({"message", "function_call", "custom_tool_call"})
_FITTING_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MESSAGE_KEYS: Final = frozenset({"role", "content"})
_ASSISTANT_KEYS: Final = frozenset(
    {
        "role", "content", "refusal", "tool_calls", "function_call", "annotations", "phase",
        DETAILS, "reasoning_content", "reasoning", "thinking_blocks", "id",
    }
)  # fmt: skip
_RESULT_KEYS: Final = frozenset({"role", "content", "tool_call_id", "name"})
_SAID_KEYS: Final = frozenset({"type", "text", "refusal"})
_SAID_TYPES: Final = frozenset({"text", "output_text", "refusal"})
_OF_A_URL: Final = frozenset({"file_data", "file_id"})
_PART_KEYS: Final = frozenset({"type", "text", "refusal", "image_url", "file", "prompt_cache_breakpoint"})


class Unsupported(Exception):
    """The API has no way to say a part of the request, and an answer without it would be an answer to another.

    `param` is the part's path in the chat-completions body.
    """

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class InputItems:
    """Make the items of `input` from messages, in their order."""

    def __init__(self, maker: Maker, lost: dict[str, None]) -> None:
        self._maker = maker
        self._lost = lost
        self._items: list[dict[str, Any]] = []
        self._calls: dict[Any, str] = {}
        """The id sent for each tool call's own id."""
        self._used: set[str] = set()
        """The ids sent for all calls."""
        self._custom: set[str] = set()
        """Ids, as sent, of calls of custom tools."""
        self._called: dict[Any, str] = {}
        """Id, as sent, of the last call without an id of each function: messages of role `function` answer by name."""

    def of(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the items. Raises Unsupported."""
        for i, message in enumerate(messages):
            role = message["role"]
            if role == "assistant":
                self._add_assistant(message, i)
            elif role == "tool":
                self._add_result(message, i)
            elif role == "function":
                self._add_function_result(message, i)
            else:
                self._items.append({"type": "message", "role": role, "content": self._content(message, i)})
                if len(message) > 2:
                    self._lose(message, _MESSAGE_KEYS)
        return self._items

    def _lose(self, holder: Mapping[str, Any], known: frozenset[str], path: str = "messages[]") -> None:
        for name in holder.keys() - known:
            if holder[name] not in (None, [], {}):
                self._lost[f"{path}.{name}"] = None

    def _content(self, message: Mapping[str, Any], i: int) -> Any:
        content = message.get("content")
        if isinstance(content, list):
            return [self._part(part, f"messages[{i}].content[{j}]") for j, part in enumerate(content)]
        return "" if content is None else content

    def _part(self, part: dict[str, Any], path: str) -> dict[str, Any]:
        kind = part["type"]
        if kind == "text":
            made = {"type": "input_text", "text": part.get("text")}
        elif kind == "image_url":
            image = part.get("image_url")
            image = image if isinstance(image, dict) else {"url": image}
            made = {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
        elif kind == "file":
            made = {"type": "input_file", **(file := part.get("file") or {})}
            if (url := url_of_file(file)) is not None:  # with which the API takes no name
                made = {"type": "input_file", "file_url": url}
                self._lose(file, _OF_A_URL, "messages[].content[].file")
        elif kind == "input_audio":
            raise Unsupported(path, "The model's API takes no audio.")
        else:
            return part  # a part in this API's own form, or one that the backend refuses by its name
        if len(part) > 2:
            if (breakpoint_ := part.get("prompt_cache_breakpoint")) is not None:
                made["prompt_cache_breakpoint"] = breakpoint_
            self._lose(part, _PART_KEYS, "messages[].content[]")
        return made

    def _add_assistant(self, message: Mapping[str, Any], i: int) -> None:
        calls = message.get("tool_calls") or ()
        legacy = message.get("function_call")
        item = self._message_item(message)
        placed: dict[Any, list[dict[str, Any]]] = {}
        if DETAILS in message or "reasoning_content" in message or "reasoning" in message:
            placed, readable = self._reasoning(message, {call.get("id") for call in calls}, item is not None)
            if readable:
                self._items.append(_readable_message(readable))
        if item is not None:
            self._items += placed.get(None, ())
            self._items.append(item)
        elif not (calls or legacy):
            self._items.append({"type": "message", "role": "assistant", "content": ""})
        for call in calls:
            self._items += placed.get(call.get("id"), ())
            self._add_call(call)
        if legacy:
            sent = self._called[legacy.get("name")] = self._new_id(f"call_{i}")
            self._items.append(_function_call(sent, legacy))
        if "thinking_blocks" in message:
            self._lost["reasoning"] = None  # another provider's, in the words of LiteLLM's proxy
        if not message.keys() <= _ASSISTANT_KEYS:
            self._lose(message, _ASSISTANT_KEYS)

    def _message_item(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the item of what a message of the assistant says; None if that is nothing."""
        content, refusal = message.get("content"), message.get("refusal")
        texts = [content] if isinstance(content, str) else []
        for part in content if isinstance(content, list) else ():
            if part["type"] == "refusal":
                refusal = f"{refusal or ''}{part.get('refusal') or ''}"
            elif isinstance(part.get("text"), str):
                texts.append(part["text"])
            if len(part) > 2 or part["type"] not in _SAID_TYPES:
                self._lose(part, _SAID_KEYS, "messages[].content[]")
        text, annotations = "".join(texts), message.get("annotations")
        if not text and not refusal:
            return None
        item: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
        if refusal or annotations:
            # Only the API's own items have such parts, and these have an id.
            item["content"] = [_output_text(text, annotations)] if text else []
            if refusal:
                item["content"].append({"type": "refusal", "refusal": refusal})
            place = str(len(self._items)).encode()
            item["id"] = f"msg_{hashlib.sha256(place + orjson.dumps(item)).hexdigest()[:40]}"
            item["status"] = "completed"
        if (phase := message.get("phase")) is not None:
            item["phase"] = phase
        return item

    def _add_call(self, call: Mapping[str, Any]) -> None:
        if EXTRA in call:
            self._lost["reasoning"] = None  # Gemini's signature of the call
        sent = self._calls[call.get("id")] = self._new_id(call.get("id"))
        custom = call.get("custom")
        if isinstance(custom, dict):
            self._custom.add(sent)
            self._items.append(
                {
                    "type": "custom_tool_call",
                    "call_id": sent,
                    "name": custom.get("name"),
                    "input": custom.get("input") or "",
                }
            )
        else:
            self._items.append(_function_call(sent, call.get("function") or {}))

    def _new_id(self, given: object) -> str:
        """Return an id that the API accepts for a call with this one, which some models use for more than one call."""
        return _unused(_call_id(given), self._used)

    def _add_result(self, message: Mapping[str, Any], i: int) -> None:
        given = message.get("tool_call_id")
        sent = self._calls.get(given) or _call_id(given)
        kind = "custom_tool_call_output" if sent in self._custom else "function_call_output"
        self._items.append({"type": kind, "call_id": sent, "output": self._content(message, i)})
        if len(message) > 3:
            self._lose(message, _RESULT_KEYS)

    def _add_function_result(self, message: Mapping[str, Any], i: int) -> None:
        name = message.get("name")
        sent = self._called.pop(name, None)
        if sent is None:
            # Chat completions accepts such a message alone; this API accepts a result only after its call.
            sent = self._new_id(f"call_{i}")
            self._items.append(_function_call(sent, {"name": name}))
        self._items.append({"type": "function_call_output", "call_id": sent, "output": self._content(message, i)})

    def _reasoning(
        self, message: Mapping[str, Any], calls: set[Any], has_text: bool
    ) -> tuple[dict[Any, list[dict[str, Any]]], str]:
        """Return this backend's reasoning items by the id of the call that each precedes, None for the message; and the
        readable text of all other reasoning.
        """
        sealed: dict[Any, tuple[str, Any]] = {}
        readable: dict[Any, list[dict[str, Any]]] = {}
        foreign = False
        details = message.get(DETAILS)
        for detail in joined_details(details) if isinstance(details, list) else ():
            ident = detail.get("id")
            if detail.get("type") == "reasoning.encrypted":
                data = detail.get("data")
                text = self._maker.unseal(data) if isinstance(data, str) else None
                before, text = (None, None) if text is None else opened(text)
                if text is None or not (before in calls if before else has_text):
                    foreign = True
                    continue
                if not isinstance(ident, str):
                    # Other dialects have no ids: the texts just before belong to it.
                    ident = f"rs_{hashlib.sha256(text.encode()).hexdigest()[:40]}"
                    if None in readable:
                        readable[ident] = [_summary_of(detail) for detail in readable.pop(None)]
                sealed[ident] = (text, before)
            else:
                signature = detail.get("signature")  # the text goes on: only a signature is lost
                foreign = foreign or (bool(signature) and not is_name_of_field(signature))
                readable.setdefault(ident if isinstance(ident, str) else None, []).append(detail)
        placed: dict[Any, list[dict[str, Any]]] = {}
        for ident, (text, before) in sealed.items():
            placed.setdefault(before, []).append(_reasoning_item(ident, text, readable.pop(ident, ())))
        if foreign:
            self._lost["reasoning"] = None
        texts = [text for rest in readable.values() for one in rest if (text := one.get("summary") or one.get("text"))]
        if not texts and not sealed:
            text = message.get("reasoning_content") or message.get("reasoning")
            return placed, text if isinstance(text, str) else ""
        return placed, "\n\n".join(texts)


def _unused(call_id: str, used: set[str]) -> str:
    """Return an id that is not in `used`, this one if possible, and add it: some models count theirs from 0 each time.

    The API takes a second result for an id as an error.
    """
    made, again = call_id, 1
    while made in used:
        again += 1
        made = f"{call_id[:56]}_{again}"
    used.add(made)
    return made


def _call_id(given: object) -> str:
    if isinstance(given, str) and _FITTING_ID.fullmatch(given):
        return given
    return f"call_{hashlib.sha256(str(given).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _function_call(call_id: str, function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else orjson.dumps(arguments).decode()
    return {"type": "function_call", "call_id": call_id, "name": function.get("name"), "arguments": arguments}


def placed_before(call_id: str, encrypted: str) -> str:
    """Return what to seal for encrypted reasoning before a tool call, so that it finds its place again; see `opened`.

    The call's id is sealed too, because clients return no other member of the detail for certain.
    """
    return f"{call_id}\n{encrypted}"


def opened(text: str) -> tuple[str | None, str]:
    """Split unsealed reasoning into the id of the call that it stands before, None for a message, and the reasoning."""
    before, found, encrypted = text.partition("\n")
    return (before, encrypted) if found else (None, text)


def _summary_of(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "reasoning.summary", "summary": detail.get("summary") or detail.get("text") or ""}


def _readable_message(text: str) -> dict[str, Any]:
    """Return the item that keeps the readable part of another model's reasoning."""
    return {"type": "message", "role": "assistant", "content": f"<reasoning>\n{text}\n</reasoning>"}


def _output_text(text: str, annotations: object) -> dict[str, Any]:
    flat = []
    for annotation in annotations if isinstance(annotations, list) else ():
        if isinstance(annotation, dict):
            inner = annotation.get("url_citation")
            flat.append({"type": "url_citation", **inner} if isinstance(inner, dict) else annotation)
    return {"type": "output_text", "text": text, "annotations": flat}


def _reasoning_item(ident: str, encrypted: str, details: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summary = [
        {"type": "summary_text", "text": part["summary"]} for part in details if part.get("type") == "reasoning.summary"
    ]
    item: dict[str, Any] = {"type": "reasoning", "id": ident, "summary": summary}
    content = [
        {"type": "reasoning_text", "text": part["text"]} for part in details if part.get("type") == "reasoning.text"
    ]
    if content:
        item["content"] = content
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


def own_items(items: Sequence[Any], maker: Maker, lost: dict[str, None]) -> list[Any]:
    """Return the items with this backend's encrypted ones unsealed, and with the others' readable text only.

    After a removed item, those of the same turn get other ids, because the API knows which ones belong together.
    """
    kept: list[Any] = []
    used: set[str] = set()
    calls: dict[Any, str] = {}
    other_ids = False
    for given in items:
        item = given
        kind = item.get("type") if isinstance(item, dict) else None
        if kind in ENCRYPTED_ITEMS:
            sealed = item.get("encrypted_content")
            text = maker.unseal(sealed) if isinstance(sealed, str) else None
            if text is None:
                readable = _readable(item)
                if sealed is not None or not readable:
                    lost["reasoning"] = None
                other_ids = True
                if readable:
                    kept.append(_readable_message(readable))
                continue
            item = {**item, "encrypted_content": opened(text)[1]}
            if not item["encrypted_content"]:
                del item["encrypted_content"]
        elif other_ids and isinstance(item, dict):
            if item.get("role") == "user":
                other_ids = False
            elif item.get("id") and kind in _OUTPUT_ITEMS:
                prefix = str(item["id"]).partition("_")[0]
                item = {**item, "id": f"{prefix}_{hashlib.sha256(str(item['id']).encode()).hexdigest()[:40]}"}
        if kind in _CALLS:
            call_id = str(item.get("call_id"))
            sent = calls[call_id] = _unused(call_id, used)
            item = _own_call(item, sent, lost)
        elif kind in _RESULTS and calls.get(item.get("call_id"), item.get("call_id")) != item.get("call_id"):
            item = {**item, "call_id": calls[item["call_id"]]}
        kept.append(item)
    return kept


def _own_call(item: dict[str, Any], call_id: str, lost: dict[str, None]) -> dict[str, Any]:
    """Return a call with this id, without Gemini's signature."""
    if EXTRA in item:
        lost["reasoning"] = None
        item = {name: value for name, value in item.items() if name != EXTRA}
    return item if item.get("call_id") == call_id else {**item, "call_id": call_id}


def _readable(item: Mapping[str, Any]) -> str:
    parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return "\n\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
