"""Convert what items of the Responses API and messages of chat completions have in common."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dialects.native import Native

Json = dict[str, Any]

EXTRA: Final = "extra_content"
"""Member of a call with what its backend needs to see again, such as Gemini's signature; an item has it too."""
_CARRIER: Final = "tlr1."
"""Prefix of an `encrypted_content` that holds the details of a reasoning item as base64url of their JSON."""
FORMAT: Final = "openai-responses-v1"
"""Name in OpenRouter's `format` for the reasoning of this API."""


def details_of_item(item: Mapping[str, Any]) -> list[Json]:
    """Return a reasoning item as `reasoning_details`: its summaries and texts, then what is encrypted."""
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(_CARRIER):
        return _carried(encrypted)
    details = readable_details(item)
    if encrypted is not None:
        details.append({"type": "reasoning.encrypted", "data": encrypted, **_marks_of(item)})
    return details


def readable_details(item: Mapping[str, Any]) -> list[Json]:
    """Return the readable parts of a reasoning item as `reasoning_details`."""
    details: list[Json] = []
    for kind, name, parts in (
        ("reasoning.summary", "summary", item.get("summary")),
        ("reasoning.text", "text", item.get("content")),
    ):
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                details.append({"type": kind, name: part["text"], "index": index, **_marks_of(item)})
    return details


def _marks_of(item: Mapping[str, Any]) -> Json:
    """Return what each detail of a reasoning item has: the API's format, and the item's id if it has one."""
    return {"format": FORMAT} if item.get("id") is None else {"format": FORMAT, "id": item["id"]}


def reasoning_item(details: Sequence[Mapping[str, Any]], item_id: str, *, encrypted: bool) -> Json:
    """Return the reasoning item of whole details, see `joined_details`; `encrypted` adds its encrypted content.

    Signed texts, and more than one encrypted text, have no place of their own in an item. Its `encrypted_content` then
    carries the details as they are.
    """
    item: Json = {
        "id": item_id,
        "type": "reasoning",
        "summary": [
            {"type": "summary_text", "text": detail["summary"]}
            for detail in details
            if isinstance(detail.get("summary"), str)
        ],
    }
    texts = [detail["text"] for detail in details if isinstance(detail.get("text"), str)]
    if texts:
        item["content"] = [{"type": "reasoning_text", "text": text} for text in texts]
    if encrypted:
        data = [detail["data"] for detail in details if isinstance(detail.get("data"), str)]
        if len(data) > 1 or any(detail.get("signature") for detail in details):
            item["encrypted_content"] = _CARRIER + base64.urlsafe_b64encode(orjson.dumps(list(details))).decode()
        elif data:
            item["encrypted_content"] = data[0]
    return item


def without_encrypted(item: Json) -> Json:
    """Return an item without its encrypted content, which only clients get that ask for it."""
    if "encrypted_content" not in item or item.get("type") != "reasoning":
        return item
    return {name: value for name, value in item.items() if name != "encrypted_content"}


def listed_item(item: Json, item_id: str) -> Json:
    """Return an item as the API lists it, with this id if it has none: a message has a type, a status and parts."""
    item_id = item.get("id") or item_id
    if (item.get("type") or "message") != "message":
        done = {"status": "completed"} if item["type"].endswith(("_call", "_output")) and not item.get("status") else {}
        return {**item, **done, "id": item_id}
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part: Json = {"type": kind, "text": content}
        content = [{**part, "annotations": []} if kind == "output_text" else part]
    return {"status": "completed", **item, "type": "message", "id": item_id, "content": content}


def _carried(encrypted: str) -> list[Json]:
    """Return the details in a carrier; none if it is damaged, as no backend could read them either."""
    try:
        details = orjson.loads(base64.urlsafe_b64decode(encrypted[len(_CARRIER) :].encode()))
    except (binascii.Error, ValueError):
        return []
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []


def logprobs_of(entries: Any) -> list[Json]:
    """Return the log-probabilities of a text's tokens, as both APIs have them, with the members that this one needs."""
    if not isinstance(entries, list):
        return []
    return [
        {**_token(entry), "top_logprobs": [_token(top) for top in _tops(entry) if _is_token(top)]}
        for entry in entries
        if _is_token(entry)
    ]


def _tops(entry: Mapping[str, Any]) -> list[Any]:
    tops = entry.get("top_logprobs")
    return tops if isinstance(tops, list) else []


def _is_token(entry: Any) -> bool:
    return (
        isinstance(entry, dict) and isinstance(entry.get("token"), str) and type(entry.get("logprob")) in (int, float)
    )


def _token(entry: Mapping[str, Any]) -> Json:
    token, data = entry["token"], entry.get("bytes")
    if not isinstance(data, list) or not all(type(byte) is int for byte in data):
        data = list(token.encode("utf-8", "surrogatepass"))
    return {"token": token, "bytes": data, "logprob": entry["logprob"]}


def annotations_of(annotations: Any) -> list[Json]:
    """Return the citations of a message; those in another form than chat completions define are left out."""
    if not isinstance(annotations, list):
        return []
    found: list[Json] = []
    for annotation in annotations:
        cited = annotation.get("url_citation") if isinstance(annotation, dict) else None
        if isinstance(cited, dict) and isinstance(cited.get("url"), str):
            found.append(
                {
                    "type": "url_citation",
                    "start_index": _whole_number(cited.get("start_index")),
                    "end_index": _whole_number(cited.get("end_index")),
                    "title": title if isinstance(title := cited.get("title"), str) else "",
                    "url": cited["url"],
                }
            )
    return found


def _whole_number(value: Any) -> int:
    return value if type(value) is int else 0


def usage_object(usage: Any) -> Json | None:
    """Return the usage of a completion in this API's words; None if there is none."""
    if not isinstance(usage, dict):
        return None
    tokens_in, tokens_out = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(tokens_in) is not int or type(tokens_out) is not int:
        return None
    read, wrote = _details(usage, "prompt_tokens_details"), _details(usage, "completion_tokens_details")
    return {
        "input_tokens": tokens_in,
        "input_tokens_details": {
            "cached_tokens": _whole_number(read.get("cached_tokens")),
            "cache_write_tokens": _whole_number(read.get("cache_write_tokens")),
        },
        "output_tokens": tokens_out,
        "output_tokens_details": {"reasoning_tokens": _whole_number(wrote.get("reasoning_tokens"))},
        "total_tokens": tokens_in + tokens_out,
    }


def _details(usage: Json, name: str) -> Json:
    details = usage.get(name)
    return details if isinstance(details, dict) else {}


_MESSAGE: Final = re.compile(r"messages\[(\d*)\](?:\.(content|tool_calls)(?:\[(\d+)\])?)?(.*)")
_TOOL: Final = re.compile(r"tools\[(\d*)\](?:\.(?:function|custom))?(.*)")
_NAMES: Final = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format": "text.format",
    "functions": "tools",
    "function_call": "tool_choice",
}
_OF_PARTS: Final = ((".image_url.url", ".image_url"), (".image_url.detail", ".detail"), (".file", ""))
"""Members of a part: their paths in chat completions, and here."""
_LOGPROBS: Final = ("logprobs", "top_logprobs")


def responses_path(native: Native, path: str) -> str:
    """Return the client's path of a field of the translation."""
    if (match := _MESSAGE.fullmatch(path)) is not None:
        return _of_message(native.paths, *match.groups())
    if (match := _TOOL.fullmatch(path)) is not None:
        number = match[1]
        at = next(
            (at for i, at in enumerate(_all_tools(native.body)) if str(i) == number), "tools" if number else "tools[]"
        )
        return at + match[2]
    if path in _LOGPROBS:
        return "top_logprobs" if native.body.get("top_logprobs") else "include"
    path = path.replace("response_format.json_schema", "response_format", 1)
    name, dot, rest = path.partition(".")
    return f"{_NAMES.get(name, name)}{dot}{rest}"


def _of_message(origins: Sequence[Any], number: str, member: str | None, place: str | None, rest: str) -> str:
    """Return the path of a message, or of a part of it: where its own item, or a call's, stands."""
    if not number or int(number) >= len(origins):
        return "input"
    origin = origins[int(number)]
    if isinstance(origin, dict):  # a turn of the assistant, of several items
        if member == "tool_calls" and place is not None and int(place) < len(origin["tool_calls"]):
            return f"{origin['tool_calls'][int(place)]}{rest}"
        at, own = origin["content"] or origin["at"], "content"
    elif isinstance(origin, list):  # pictures and files of calls' outputs
        at, own, member, place = origin[int(place or 0)], "", None, None
    else:
        at, own = origin
    if at in ("input", "instructions"):  # a text
        return str(at)
    for chat, here in _OF_PARTS:
        if rest.startswith(chat):
            rest = here + rest.removeprefix(chat)
            break
    inner = "" if member is None else f".{own}" if member == "content" else f".{member}"
    return f"{at}{inner}{'' if place is None else f'[{place}]'}{rest}"


def _all_tools(body: Mapping[str, Any]) -> Iterable[str]:
    """Return the path of each of the client's own tools, in the order that they have in the translated body.

    Items of the input give tools too; of those with one name, the last counts, in the place of the first.
    """
    items = body.get("input")
    paths: dict[Any, str] = {}
    for i, item in enumerate(items if isinstance(items, list) else ()):
        if item.get("type") == "additional_tools":
            paths.update(_tools(item.get("tools"), f"input[{i}].tools"))
    if paths:
        return {**paths, **dict(_tools(body.get("tools"), "tools"))}.values()
    return (path for _, path in _tools(body.get("tools"), "tools"))


def _tools(given: Any, at: str) -> Iterator[tuple[Any, str]]:
    """Yield the name and path of each of the client's own tools in the list at a path."""
    for i, tool in enumerate(given or ()):
        if tool.get("type") == "namespace":
            for j, inner in enumerate(tool.get("tools") or ()):
                if inner.get("type") in ("function", "custom"):
                    yield (tool.get("name"), inner.get("name")), f"{at}[{i}].tools[{j}]"
        elif tool.get("type") in ("function", "custom"):
            yield tool.get("name"), f"{at}[{i}]"
