"""An agent before two Claudes by the shipped policy: easy steps stay with the small one, steps it wavers at do not."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from policies.loader import SHIPPED
from tests.support.app import InProcess, in_process
from tests.support.ask import record_at
from tests.support.prompt_caches import CachingMessages
from tests.support.store import LocalStore
from tests.support.strict_messages import text, tool_use

Json = dict[str, Any]
SMALL, LARGE = "claude-haiku-5-5", "claude-sonnet-5-5"
SYSTEM = "You mend programs. " * 1500  # some 7,000 tokens, as coding agents send
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "edit")]
HARD = {2, 6}
STEPS = 9


@pytest.fixture
def claude() -> Iterator[CachingMessages]:
    """A provider whose small model would make each hard step in another way every time."""
    ways = itertools.count()

    def choose(body: Json) -> Json:
        done = sum(message["role"] == "assistant" for message in body["messages"])
        if done == STEPS - 1:
            return text("All is mended.")
        if done not in HARD:
            return tool_use("read", {"path": f"{done}.py"})
        if body["model"] == LARGE:
            return tool_use("edit", {"path": "calc.py", "old": "a - b", "new": "a + b"})
        return tool_use(*(("edit", {"path": "calc.py", "old": "def", "new": "class"}), ("read", {}))[next(ways) % 2])

    with CachingMessages() as server:
        server.say_by(choose)
        yield server


@pytest.fixture
async def app(claude: CachingMessages, store: LocalStore, tmp_path: Path) -> AsyncIterator[InProcess]:
    def tier(name: str, **backend: Any) -> Json:
        return {"name": name, "backends": [{"base_url": claude.url, "key_env": "HOSTED_KEY", **backend}]}

    def of(model: str, price: float) -> Json:
        prices = {"input": price, "output": price * 5, "cached_input": price / 10, "cache_write": price * 1.25}
        return {"kind": "anthropic", "model": model, "price": prices, "capabilities": ["tools", "vision", "json"]}

    tiers = [tier("local", model="small"), tier("hosted", **of(SMALL, 0.1)), tier("large", **of(LARGE, 2.0))]
    settings = {"tiers": tiers, "default_surface": "agent"}
    policies = {"agent": (SHIPPED / "agent.yaml").read_text().replace("holdout: 1%", "holdout: 0")}
    async with in_process(
        tmp_path, claude.url, claude.url, store_url=store.url, policies=policies, settings=settings
    ) as made:
        yield made


async def run(app: InProcess, stream: bool) -> list[Any]:
    """The replies to the steps of one session."""
    messages: list[Json] = [{"role": "user", "content": "Mend calc.py."}]
    replies = []
    for step in range(STEPS):
        body = {"model": LARGE, "system": SYSTEM, "tools": TOOLS, "max_tokens": 2000, "stream": stream}
        headers = {"x-claude-code-session-id": f"mend-{stream}", "x-api-key": "any"}
        reply = await app.client.post("/v1/messages", json={**body, "messages": messages}, headers=headers)
        assert reply.status_code == 200, reply.text
        replies.append(reply)
        content = content_of(reply.text) if stream else reply.json()["content"]
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": f"{step}: done. " * 20}
            for block in content
            if block["type"] == "tool_use"
        ]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results or "Thanks."}]
    return replies


def content_of(events: str) -> list[Json]:
    """The blocks of a streamed message."""
    blocks: list[Json] = []
    written = ""
    for line in events.splitlines():
        event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if event.get("type") == "content_block_start":
            blocks.append(event["content_block"])
            written = ""
        elif event.get("type") == "content_block_delta":
            written += event["delta"].get("partial_json") or event["delta"].get("text") or ""
        elif event.get("type") == "content_block_stop":
            blocks[-1] |= {"input": json.loads(written)} if blocks[-1]["type"] == "tool_use" else {"text": written}
    return blocks


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_s_easy_steps_stay_small_and_its_hard_ones_do_not(
    app: InProcess, claude: CachingMessages, store: LocalStore, stream: bool
) -> None:
    """Judged by a second sample, without log-probabilities; the small model's prompt cache stays warm."""
    replies = await run(app, stream)
    assert claude.refusals == []
    by = [reply.headers["x-tierline-tier"] for reply in replies]
    assert by == ["large" if step in HARD else "hosted" for step in range(STEPS)]
    called = [request.body["model"] for request in claude.requests]
    assert (called.count(SMALL), called.count(LARGE)) == (2 * STEPS, len(HARD))
    records = [await record_at(store.url, reply.headers["x-request-id"]) for reply in replies]
    for step, record in enumerate(records):
        draft = next(hop["attributes"] for hop in record["hops"] if hop["name"] == "attempt")
        assert draft["tierline.confidence.basis"] == "agreement"
        assert (draft["tierline.confidence"] < 0.5) == (step in HARD)
        if step:
            assert draft["gen_ai.usage.cache_read.input_tokens"] > 0.9 * draft["gen_ai.usage.input_tokens"]
    ledgers = [record["ledger"] for record in records]
    spent, alone = (sum(ledger[name] for ledger in ledgers) for name in ("cost_usd", "counterfactual_usd"))
    assert 0 < spent < 0.9 * alone
    assert len({ledger["conversation"] for ledger in ledgers}) == 1


@pytest.mark.parametrize(
    ("thinking", "limits"),
    [({}, [384, 2000]), ({"thinking": {"type": "adaptive"}}, [2000, 2000])],
    ids=["not", "it does"],
)
async def test_a_sample_of_a_model_that_thinks_has_room_for_its_thoughts(
    app: InProcess, claude: CachingMessages, thinking: Json, limits: list[int]
) -> None:
    """It would be cut off among them, and no step judged; of any other only so much is drawn as is held."""
    body = {"model": LARGE, "tools": TOOLS, "max_tokens": 2000, "stream": True, **thinking}
    asked = {**body, "messages": [{"role": "user", "content": "Mend calc.py."}]}
    reply = await app.client.post("/v1/messages", json=asked, headers={"x-api-key": "any"})
    assert reply.status_code == 200 and claude.refusals == []
    assert sorted(request.body["max_tokens"] for request in claude.requests) == limits
