"""A turn that a Claude server has paused is passed on as such, is no whole answer to anybody else, and is not kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.store import LocalStore
from tests.support.strict_messages import StrictMessages, text
from tests.support.upstream import Upstream

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100},
    "/v1/responses": {"input": "hello"},
    "/v1/completions": {"prompt": "hello"},
}
STRICT = CHAT.replace("invalid: [json, tool_args]}", "invalid: [json, tool_args], finish: [length]}")


@pytest.fixture
def claude() -> Iterator[StrictMessages]:
    with StrictMessages() as server:
        yield server


def _tiers(claude: StrictMessages, hosted: Upstream) -> dict[str, Any]:
    paused = {"kind": "anthropic", "base_url": claude.url, "model": "claude-sonnet-4-5", "key_env": "HOSTED_KEY"}
    return {
        "tiers": [
            {"name": "local", "backends": [paused]},
            {"name": "hosted", "backends": [{"base_url": hosted.url, "model": "large"}]},
        ]
    }


async def _ends(app: InProcess, path: str, *, stream: bool) -> tuple[str, Any]:
    """The path of the answer to one request, and what it says of its end."""
    reply = await app.client.post(path, json={"model": "chat", "stream": stream, **ASKED[path]})
    assert reply.status_code == 200, reply.text
    values = (
        [reply.json()]
        if not stream
        else [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
    )
    ends: list[Any] = []
    for value in values:
        whole, delta = value.get("response", value), value.get("delta")
        ends += [choice["finish_reason"] for choice in value.get("choices") or ()]
        ends += [part.get("stop_reason") for part in (value, delta) if isinstance(part, dict)]
        if details := whole.get("incomplete_details"):
            ends.append((whole["status"], details["reason"]))
    ends = [end for end in ends if end]
    assert len(ends) == 1, values
    return reply.headers["x-tierline-path"], ends[0]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_paused_turn_is_no_whole_answer(
    claude: StrictMessages, hosted_upstream: Upstream, store: LocalStore, tmp_path: Path, stream: bool
) -> None:
    """Clients of Anthropic's API get the pause, to go on with it; for others it was cut off. Nobody gets it again."""
    claude.say(text("Let me look that up."), stop_reason="pause_turn")
    told = {
        "/v1/chat/completions": "length",
        "/v1/messages": "pause_turn",
        "/v1/responses": ("incomplete", "max_output_tokens"),
        "/v1/completions": "length",
    }
    settings = _tiers(claude, hosted_upstream)
    async with in_process(tmp_path, claude.url, hosted_upstream.url, store_url=store.url, settings=settings) as app:
        for path, end in told.items():
            assert await _ends(app, path, stream=stream) == ("direct", end)
        claude.reset()
        # A later answer that is kept shows that the writes of the earlier ones have been decided.
        assert (await app.ask("goodbye")).headers["x-tierline-path"] == "direct"
        await app.kept("goodbye")
        only = {"x-tierline-cache": "only-if-cached"}
        for path in told:
            kept = await app.client.post(path, json={"model": "chat", **ASKED[path]}, headers=only)
            assert kept.status_code == 504, path


async def test_the_next_tier_answers_for_a_turn_that_its_client_cannot_go_on_with(
    claude: StrictMessages, hosted_upstream: Upstream, tmp_path: Path
) -> None:
    """As for every answer that is cut off, if the policy says so; never for the client that can."""
    claude.say(text("Let me look that up."), stop_reason="pause_turn")
    settings = _tiers(claude, hosted_upstream)
    async with in_process(
        tmp_path, claude.url, hosted_upstream.url, settings=settings, policies={"chat": STRICT}
    ) as app:
        assert await _ends(app, "/v1/messages", stream=False) == ("direct", "pause_turn")
        assert not hosted_upstream.requests
        assert await _ends(app, "/v1/chat/completions", stream=False) == ("escalated", "stop")
