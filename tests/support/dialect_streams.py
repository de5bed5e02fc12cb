"""Turn whole replies of the three dialects into the streams that their APIs would send: each text in two pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

Json = dict[str, Any]

_OF_CALLS: Final = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_OF_THOUGHTS: Final = (
    ("summary", "summary_index", "response.reasoning_summary_part", "response.reasoning_summary_text"),
    ("content", "content_index", "response.content_part", "response.reasoning_text"),
)
_WITH_INPUT: Final = ("tool_use", "server_tool_use", "mcp_tool_use")


def events_of(values: Iterable[Json]) -> bytes:
    """Return server-sent events that are named by their `type`."""
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["type"].encode(), orjson.dumps(one)) for one in values)


def _halves(text: str) -> tuple[str, str]:
    half = (len(text) + 1) // 2
    return text[:half], text[half:]


# --- chat completions -------------------------------------------------------------------------------------------------


def chat_stream(completion: Mapping[str, Any]) -> bytes:
    """Return the stream of a whole chat completion, its usage in a chunk of its own."""
    chunks = chat_chunks(completion)
    return b"".join(b"data: %b\n\n" % orjson.dumps(one) for one in chunks) + b"data: [DONE]\n\n"


def chat_chunks(completion: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the chunks of a whole chat completion."""
    head = {name: value for name, value in completion.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    for choice in completion["choices"]:
        chunk = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
        logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
        for delta in _deltas(choice["message"]):
            more = logprobs if "content" in delta or "refusal" in delta else {}
            logprobs = {} if more else logprobs
            yield {**head, "choices": [{**chunk, "finish_reason": None, "delta": delta, **more}]}
        yield {**head, "choices": [{**chunk, "delta": {}}]}
    if completion.get("usage") is not None:
        yield {**head, "choices": [], "usage": completion["usage"]}


def _deltas(message: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the deltas of a message: its reasoning, its texts, its calls, and all else in one."""
    texts = ("content", "refusal", "reasoning_content")
    yield {"role": message["role"]}
    for name in ("reasoning_content", "content", "refusal"):
        if isinstance(message.get(name), str):
            yield from ({name: piece} for piece in _halves(message[name]) if piece)
    for index, call in enumerate(message.get("tool_calls") or ()):
        inner, name = ("custom", "input") if call["type"] == "custom" else ("function", "arguments")
        first, second = _halves(call[inner][name])
        yield {"tool_calls": [{**call, "index": index, inner: {**call[inner], name: first}}]}
        yield {"tool_calls": [{"index": index, inner: {name: second}}]}
    rest = {name: value for name, value in message.items() if name not in ("role", "tool_calls", *texts)}
    if rest:
        yield rest


# --- messages ---------------------------------------------------------------------------------------------------------


def message_stream(message: Mapping[str, Any]) -> bytes:
    """Return the stream of a whole message of Anthropic's API."""
    return events_of(_message_events(message))


def _message_events(message: Mapping[str, Any]) -> Iterator[Json]:
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(message["content"]):
        first, deltas = _block_events(block)
        yield {"type": "content_block_start", "index": index, "content_block": first}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    at_end = ("stop_reason", "stop_sequence", "stop_details", "container")
    ends = {name: message[name] for name in at_end if name in message}
    yield {"type": "message_delta", "delta": ends, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _block_events(block: Mapping[str, Any]) -> tuple[Json, list[Json]]:
    """Return a block as it begins, and its deltas."""
    kind = block["type"]
    if kind == "text":
        deltas: list[Json] = [{"type": "text_delta", "text": piece} for piece in _halves(block["text"]) if piece]
        cited = block.get("citations") or ()
        deltas += [{"type": "citations_delta", "citation": one} for one in cited]
        return {**block, "text": "", **({"citations": []} if "citations" in block else {})}, deltas
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _halves(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if kind in _WITH_INPUT:
        pieces = _halves(orjson.dumps(block["input"]).decode())
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return dict(block), []


# --- responses --------------------------------------------------------------------------------------------------------


def response_stream(response: Mapping[str, Any]) -> bytes:
    """Return the stream of a whole Response object of OpenAI's API."""
    numbered = ({**one, "sequence_number": number} for number, one in enumerate(response_events(response)))
    return events_of(numbered)


def response_events(response: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the events of a whole Response object, without their numbers."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        at = {"item_id": item.get("id"), "output_index": index}
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        yield from _item_events(item, at)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    ended = "incomplete" if response["status"] == "incomplete" else "completed"
    yield {"type": f"response.{ended}", "response": response}


def _begun(item: Mapping[str, Any]) -> Json:
    """Return an item as it begins: without what its events bring."""
    begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
    if item["type"] in _OF_CALLS:
        begun[_OF_CALLS[item["type"]][0]] = ""
    elif item["type"] == "message":
        begun["content"] = []
    elif item["type"] == "reasoning":
        begun = {name: value for name, value in begun.items() if name != "content"} | {"summary": []}
    return begun


def _item_events(item: Mapping[str, Any], at: Json) -> Iterator[Json]:
    kind = item["type"]
    if kind in _OF_CALLS:
        name, event = _OF_CALLS[kind]
        yield from ({"type": f"{event}.delta", **at, "delta": piece} for piece in _halves(item[name]))
        yield {"type": f"{event}.done", **at, name: item[name]}
    elif kind == "message":
        for index, part in enumerate(item["content"]):
            yield from _part_events(part, {**at, "content_index": index})
    elif kind == "reasoning":
        for member, number, part_event, event in _OF_THOUGHTS:
            for index, part in enumerate(item.get(member) or ()):
                here = {**at, number: index}
                yield {"type": f"{part_event}.added", **here, "part": {**part, "text": ""}}
                yield from ({"type": f"{event}.delta", **here, "delta": piece} for piece in _halves(part["text"]))
                yield {"type": f"{event}.done", **here, "text": part["text"]}
                yield {"type": f"{part_event}.done", **here, "part": part}


def _part_events(part: Mapping[str, Any], at: Json) -> Iterator[Json]:
    if part["type"] == "refusal":
        yield {"type": "response.content_part.added", **at, "part": {**part, "refusal": ""}}
        for piece in _halves(part["refusal"]):
            yield {"type": "response.refusal.delta", **at, "delta": piece}
        yield {"type": "response.refusal.done", **at, "refusal": part["refusal"]}
    else:
        logprobs = part.get("logprobs") or []
        empty = {**part, "text": "", "annotations": [], "logprobs": []}
        yield {"type": "response.content_part.added", **at, "part": empty}
        for number, piece in enumerate(_halves(part["text"])):
            mine = [] if number else logprobs
            yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": mine}
        for index, annotation in enumerate(part.get("annotations") or ()):
            event = {**at, "annotation_index": index, "annotation": annotation}
            yield {"type": "response.output_text.annotation.added", **event}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": logprobs}
    yield {"type": "response.content_part.done", **at, "part": part}
