"""The stream of a compaction has one item, or fails where there is no summary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import UpstreamFailed
from gateway.parts.apis.dialects.responses.compaction import CompactionEvents
from gateway.parts.apis.dialects.responses.events import ResponseEvents
from gateway.parts.apis.dialects.responses.response_object import ItemIds, ResponseHead


def item_of(summary: str) -> dict[str, Any]:
    if not summary:
        raise UpstreamFailed("no summary")
    return {"type": "compaction", "encrypted_content": summary}


@pytest.mark.parametrize(("pieces", "last"), [(["Ada ", "wants tea."], "response.completed"), ([], "response.failed")])
def test_one_item_or_an_error(pieces: list[str], last: str) -> None:
    kept: list[Any] = []
    writer = CompactionEvents(
        ResponseEvents(ResponseHead({"model": "m"}, ItemIds(), store=False), kept.append), item_of
    )
    deltas: list[dict[str, Any]] = [{"role": "assistant"}, *({"content": one} for one in pieces)]
    out = b"".join(writer.chunk({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas)
    out += writer.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}) + writer.done()
    events = [json.loads(line[6:]) for line in out.decode().splitlines() if line.startswith("data: ")]
    assert events[-1]["type"] == last and len(kept) == 1
    found = [item.get("encrypted_content") for item in events[-1]["response"]["output"]]
    assert found == (["Ada wants tea."] if pieces else [])
