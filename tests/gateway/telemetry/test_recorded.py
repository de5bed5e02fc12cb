"""What is recorded of a request: captured texts, what sampling leaves out, and the caller's trace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry import names
from tests.support.app import InProcess, in_process
from tests.support.ask import record_of
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

POLICY = """
surface: chat
slo: {deadline: 20s, ttft: {p99: 5s}}
holdout: 0%
tiers: [local, hosted]
route:
  classifier: none
  start: {local: tokens_in < 500 and not has_tools, hosted: otherwise}
escalate:
  when: {uncalibrated_below: 0.5, refusal: true}
  stream: {hold_tokens: 4, hold_max: 5s}
cache:
  exact: {ttl: 1h}
"""
DOUBTFUL = Reply(tokens=("My", " card", " is", " 4111"), logprob=(-0.1, -0.2, -0.3, -6.0))
CALLER = {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01", "tracestate": "acme=1,other=2"}


async def recorded(app: InProcess, reply: Any) -> dict[str, Any]:
    """The record of a reply, once it is stored."""
    return await record_of(app.steps.store, reply.headers["x-request-id"])


def hops(record: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The attributes of the hops of this name."""
    return [hop["attributes"] for hop in record["hops"] if hop["name"] == name]


def app_of(folder: Path, local: Upstream, server: LocalStore, **telemetry: Any) -> Any:
    settings = {"telemetry": telemetry} if telemetry else {}
    return in_process(folder, local.url, local.url, store_url=server.url, policies={"chat": POLICY}, settings=settings)


def let_answer(upstream: Upstream) -> None:
    upstream.on(lambda request: request.body["model"] == "small").reply(DOUBTFUL)
    upstream.on(lambda request: request.body["model"] == "large").reply(Reply(text="The large model knows."))


@pytest.mark.parametrize("stream", [True, False])
async def test_every_path_has_its_answer(tmp_path: Path, upstream: Upstream, server: LocalStore, stream: bool) -> None:
    """Direct, from the cache, and shared with an identical request at the same time, which it is not asked for."""
    upstream.default = Reply(text="My card is blue.", before_headers_s=0.2)
    seen: dict[str, int] = {}
    question = f"Which card, and is it streamed: {stream}?"
    async with app_of(tmp_path, upstream, server, prompts=["chat"], redact=["blue"]) as app:
        replies = await asyncio.gather(*(app.ask(question, stream=stream) for _ in range(2)))
        replies.append(await app.ask(question, stream=stream))
        for reply in replies:
            record = await recorded(app, reply)
            path = "shared" if hops(record, "cache.follow") else record["ledger"]["path"]
            seen[path] = seen.get(path, 0) + 1
            assert hops(record, "request")[0][names.ANSWER] == "My card is [redacted].", path
    assert seen == {"direct": 1, "shared": 1, "cache-exact": 1}


async def test_texts_of_other_surfaces_are_not_recorded(tmp_path: Path, upstream: Upstream, server: LocalStore) -> None:
    """Where the config lists surfaces."""
    async with app_of(tmp_path, upstream, server, prompts=["voice"]) as app:
        record = await recorded(app, await app.ask("of chat"))
        assert names.PROMPT not in hops(record, "request")[0]


async def test_what_sampling_leaves_out(tmp_path: Path, upstream: Upstream, server: LocalStore) -> None:
    """A plain request keeps its ledger and decision without hops, a hit its lookup; an escalation keeps all."""
    async with app_of(tmp_path, upstream, server, sample="0%") as app:
        plain = await recorded(app, await app.ask("plain"))
        assert (plain["hops"], plain["ledger"]["kept"], plain["decide"]["out"][0]) == ([], "", ["local", "hosted"])
        await app.kept("plain")
        hit = await recorded(app, await app.ask("plain"))
        assert [hop["name"] for hop in hit["hops"]] == ["cache.exact"] and names.CACHE_ENTRY in hops(
            hit, "cache.exact"
        )[0]
        let_answer(upstream)
        escalated = await recorded(app, await app.ask("hard", stream=True))
        assert escalated["ledger"]["kept"] == "escalated" and len(hops(escalated, "attempt")) == 2


async def test_the_callers_trace_goes_on(tmp_path: Path, upstream: Upstream, server: LocalStore) -> None:
    """A backend gets the trace id, our span, the client's sampled flag and its tracestate as it came."""
    async with app_of(tmp_path, upstream, server, sample="0%") as app:
        await app.ask("one", headers=CALLER)
        await app.ask("two")
    first, second = (request.headers for request in upstream.requests if request.path.endswith("completions"))
    assert first["traceparent"].split("-")[1] == f"{0xABC:032x}" and first["traceparent"].endswith("-01")
    assert first["tracestate"] == "acme=1,other=2"
    assert second["traceparent"].endswith("-00") and "tracestate" not in second
