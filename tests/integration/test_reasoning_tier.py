"""A conversation can stay with the tier that made its reasoning, as the policy prices it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.support.app import in_process
from tests.support.upstream import Reply, Upstream

POLICY = """surface: chat
match: {models: [chat]}
slo: {deadline: 10s}
tiers: [local, hosted]
route:
  classifier: none
  start: {local: "not reasoning_above", hosted: otherwise}
"""


async def test_a_conversation_stays_where_its_reasoning_was_made(upstream: Upstream, tmp_path: Path) -> None:
    """The first turn starts at the cheapest tier; once the stronger one has signed reasoning, the next starts there."""
    details = [{"type": "reasoning.text", "text": "hm", "signature": "c2ln"}]
    message = {"role": "assistant", "content": "4", "reasoning_details": details}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    upstream.default = Reply(body=orjson.dumps(completion))
    question: dict[str, Any] = {"role": "user", "content": "2 + 2?"}
    async with in_process(tmp_path, upstream.url, upstream.url, policies={"chat.yaml": POLICY}) as app:
        first = await app.ask(messages=[question])
        assert first.headers["x-tierline-tier"] == "local"
        pinned = await app.ask(model="tier:hosted", messages=[question])
        answer = pinned.json()["choices"][0]["message"]
        assert answer["reasoning_details"][0]["signature"].startswith("tl1.")
        turns = [question, answer, {"role": "user", "content": "and 3 + 3?"}]
        second = await app.ask(messages=turns)
        assert second.headers["x-tierline-tier"] == "hosted" and "x-tierline-dropped" not in second.headers
        assert upstream.requests[-1].body["messages"][1]["reasoning_details"] == details
        lost = await app.ask(model="tier:local", messages=turns)
        assert (lost.headers["x-tierline-tier"], lost.headers["x-tierline-dropped"]) == ("local", "reasoning")
        assert "reasoning_details" not in upstream.requests[-1].body["messages"][1]
