"""Streams with tools over a server that refuses log-probabilities of them, as llama.cpp does, in every API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import InProcess, in_process
from tests.support.gateway import config
from tests.support.store import LocalStore
from tests.support.upstream import Received, Reply, Upstream

REFUSED = json.dumps({"error": {"code": 400, "message": "logprobs is not supported with tools + stream"}}).encode()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": SCHEMA}
POLICY = """
surface: {name}
slo: {{deadline: 20s}}
holdout: 0
tiers: [local, hosted]
route: {{classifier: none, start: {{local: otherwise}}}}
escalate:
  when: {{uncalibrated_below: 0.5}}
  stream: {{hold_tokens: 4, hold_max: 250ms}}
  {more}
"""
APIS: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "messages": [{"role": "user", "content": "Rome?"}],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "responses": {"input": "Rome?", "tools": [{"type": "function", **FUNCTION}]},
    "messages": {
        "messages": [{"role": "user", "content": "Rome?"}],
        "max_tokens": 64,
        "tools": [{"name": "weather", "input_schema": SCHEMA}],
    },
}


@pytest.fixture
def watches() -> bool:
    """Whether judged drafts of whole answers are read as streams."""
    return False


@pytest.fixture
async def app(
    local_upstream: Upstream, hosted_upstream: Upstream, store: LocalStore, tmp_path: Path, watches: bool
) -> AsyncIterator[InProcess]:
    """A gateway whose first tier refuses log-probabilities of streams with tools."""
    local_upstream.on(_is_refused).reply(Reply(status=400, body=REFUSED))
    policies = {
        name: POLICY.format(name=name, more=more)
        for name, more in (
            ("sure", "no_signal: escalate"),
            ("lax", "no_signal: accept"),
            ("agreeing", "verify: [agreement]\n  agreement: {samples: 1}\n  no_signal: accept"),
        )
    }
    local, hosted = local_upstream.url, hosted_upstream.url
    tiers = config(local, hosted)["tiers"]
    tiers[0]["backends"][0]["watch_drafts"] = watches
    settings = {"default_surface": "lax", "tiers": tiers}
    async with in_process(
        tmp_path, local, hosted, store_url=store.url, policies=policies, settings=settings
    ) as running:
        yield running


def _is_refused(received: Received) -> bool:
    return all(received.body.get(name) for name in ("logprobs", "tools", "stream"))


async def asked(app: InProcess, api: str, surface: str, *, stream: bool = True) -> Any:
    """The reply to a question with a tool, over one of the APIs."""
    headers = {"x-tierline-surface": surface, "x-api-key": "any"}
    body = {"model": "m", "stream": stream, **APIS[api]}
    reply = await app.client.post(f"/v1/{api}", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("api", APIS)
async def test_a_draft_that_is_no_use_without_a_signal_is_asked_whole(
    app: InProcess, api: str, local_upstream: Upstream, hosted_upstream: Upstream
) -> None:
    """It is as sure as the same answer whole, and the refusal is met once."""
    local_upstream.default = Reply(text="Rome is sunny.", logprob=-0.2)
    whole = await asked(app, api, "sure", stream=False)
    assert whole.headers["x-tierline-confidence"] == "0.819"
    for calls in (2, 1):
        local_upstream.requests.clear()
        reply = await asked(app, api, "sure")
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-tierline-tier"] == "local"
        assert reply.headers["x-tierline-confidence"] == whole.headers["x-tierline-confidence"]
        assert "sunny" in reply.text and '"logprob"' not in reply.text
        assert "x-tierline-dropped" not in reply.headers
        assert len(local_upstream.requests) == calls
    local_upstream.default = Reply(text="Rome is sunny.", logprob=-2.0)
    assert (await asked(app, api, "sure")).headers["x-tierline-tier"] == "hosted"
    assert len(hosted_upstream.requests) == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_draft_that_goes_out_without_a_signal_stays_a_stream(
    app: InProcess, api: str, local_upstream: Upstream
) -> None:
    """It has no confidence, and its first token does not wait; what is refused is not asked for again."""
    for calls in (2, 1):
        local_upstream.requests.clear()
        reply = await asked(app, api, "lax")
        assert reply.headers["x-tierline-tier"] == "local" and "x-tierline-confidence" not in reply.headers
        assert len(local_upstream.requests) == calls and local_upstream.requests[-1].body["stream"]


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_asked_that_nobody_reads(app: InProcess, local_upstream: Upstream, stream: bool) -> None:
    """Log-probabilities, where a policy goes by agreement alone."""
    await asked(app, "chat/completions", "agreeing", stream=stream)
    assert local_upstream.requests
    assert not any({"logprobs", "top_logprobs"} & one.body.keys() for one in local_upstream.requests)


@pytest.mark.parametrize("watches", [True])
async def test_a_watched_draft_is_asked_whole_where_a_stream_has_no_signal(
    app: InProcess, local_upstream: Upstream
) -> None:
    """It would be read as a stream to be cut short early, and would have no confidence then."""
    local_upstream.default = Reply(text="Rome is sunny.", logprob=-0.2)
    for calls in (2, 1):
        local_upstream.requests.clear()
        reply = await asked(app, "chat/completions", "sure", stream=False)
        assert (reply.headers["x-tierline-tier"], reply.headers["x-tierline-confidence"]) == ("local", "0.819")
        assert len(local_upstream.requests) == calls
