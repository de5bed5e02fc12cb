"""Check a stream of the Responses API: every event by the SDK's types, and all of them by the order they must have."""

from __future__ import annotations

import json
from typing import Any, get_args

from openai.types.responses import Response, ResponseStreamEvent

Json = dict[str, Any]

_UNION = get_args(ResponseStreamEvent)[0]
CLASSES = {get_args(one.model_fields["type"].annotation)[0]: one for one in get_args(_UNION)}
"""The SDK's class of each type of event."""
ENDS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
_TEXTS = {
    "response.output_text": ("text", "content_index"),
    "response.refusal": ("refusal", "content_index"),
    "response.reasoning_text": ("text", "content_index"),
    "response.reasoning_summary_text": ("text", "summary_index"),
    "response.function_call_arguments": ("arguments", None),
    "response.custom_tool_call_input": ("input", None),
}


def events_of(data: bytes) -> list[Json]:
    """The events of a stream, comments left out; each has its `event:` line, and its data is JSON."""
    events = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert len(lines) == 2, block
        assert lines[0].startswith("event: ") and lines[1].startswith("data: "), block
        event = json.loads(lines[1][6:])
        assert event["type"] == lines[0][7:]
        events.append(event)
    return events


def checked(data: bytes) -> list[Json]:
    """The events of a whole stream, which keep to the protocol from `created` to the terminal event."""
    events = events_of(data)
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        CLASSES[event["type"]].model_validate(event)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["type"] in ENDS for event in events] == [False] * (len(events) - 1) + [True], events[-1]
    check_response(events[-1]["response"], ENDS[events[-1]["type"]])
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    items = _items(events)
    if events[-1]["type"] != "response.failed":
        assert items == events[-1]["response"]["output"]
    return events


def check_response(response: Json, status: str) -> None:
    """Check a Response object by the SDK's type, and the members that the schema requires whatever their value."""
    Response.model_validate(response)
    assert response["status"] == status
    assert response["object"] == "response"
    for name in ("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p", "usage"):
        assert name in response
    ids = [item["id"] for item in response["output"]]
    assert len(set(ids)) == len(ids)
    assert (response["error"] is not None) == (status == "failed")
    assert (response["incomplete_details"] is not None) == (status == "incomplete")


def _items(events: list[Json]) -> list[Json]:
    """The items as their done events have them; each was added before, and its deltas make what it says at the end."""
    ids: dict[int, str] = {}
    done: dict[int, Json] = {}
    parts: dict[tuple[Any, ...], str] = {}
    finished: set[tuple[Any, ...]] = set()
    for event in events:
        kind = event["type"]
        index = event.get("output_index")
        if kind == "response.output_item.added":
            assert index == len(ids)
            ids[index] = event["item"]["id"]
            assert event["item"].get("status", "in_progress") == "in_progress"
            continue
        if index is None:
            continue
        assert index in ids and index not in done, event
        if "item_id" in event:
            assert event["item_id"] == ids[index]
        if kind == "response.output_item.done":
            assert event["item"]["id"] == ids[index]
            done[index] = event["item"]
        elif kind.endswith("_part.added"):
            key = (index, event.get("content_index"), event.get("summary_index"))
            assert key not in parts
            parts[key] = ""
        elif (name := kind.rpartition(".")[0]) in _TEXTS:
            member, _ = _TEXTS[name]
            key = (index, event.get("content_index"), event.get("summary_index"))
            if key[1:] != (None, None):
                assert key in parts, "a part must be added before its text"
            assert key not in finished
            if kind.endswith(".delta"):
                parts[key] = parts.get(key, "") + event["delta"]
            else:
                assert event[member] == parts.get(key, "")
                finished.add(key)
    return [done[index] for index in sorted(done)]
