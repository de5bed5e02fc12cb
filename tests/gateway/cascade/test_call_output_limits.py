"""How long may an answer be: by the client, by the policy, by the model, by what the prompt leaves of a context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.app import in_process
from tests.support.gateway import config
from tests.support.upstream import Reply, Upstream

POLICY = """
surface: chat
slo: {deadline: 20s}
holdout: 0
tiers: [local, hosted]
route: {classifier: none, start: {local: otherwise}}
escalate: {when: {finish: [length]}}
output: {max_tokens: 32000}
"""


def tiers(**of_local: Any) -> list[dict[str, Any]]:
    """The usual tiers; the local backend has these settings, too."""
    made: list[dict[str, Any]] = config("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1")["tiers"]
    made[0]["backends"][0] |= of_local
    return made


LIMITED = "x-tierline-output-limit"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("of_local", "asked", "sent"),
    [
        ({}, {"max_tokens": 200}, {"max_tokens": 200}),
        ({}, {}, {"max_completion_tokens": 32000}),
        ({}, {"max_tokens": 64000}, {"max_tokens": 32000}),
        ({"max_output": 16384}, {"max_tokens": 32000}, {"max_tokens": 16384}),
        ({"max_output": 16384}, {}, {"max_completion_tokens": 16384}),
        ({"max_output": 16384}, {"max_tokens": 200}, {"max_tokens": 200}),
    ],
)
async def test_a_limit_that_is_not_the_clients_own_is_told(
    tmp_path: Path, of_local: dict[str, Any], asked: dict[str, int], sent: dict[str, int], stream: bool
) -> None:
    """The backend is sent what the policy and the model allow, and the reply's head says so."""
    with Upstream() as local:
        settings = {
            "tiers": [
                {**tier, "backends": [{**tier["backends"][0], "base_url": local.url}]} for tier in tiers(**of_local)
            ]
        }
        async with in_process(tmp_path, local.url, local.url, policies={"chat": POLICY}, settings=settings) as app:
            reply = await app.ask("hello", stream=stream, **asked)
            assert reply.status_code == 200
            assert {key: value for key, value in local.requests[-1].body.items() if key.startswith("max")} == sent
            told = next(iter(sent.values()))
            assert reply.headers.get(LIMITED) == (None if asked == sent else str(told))


async def test_the_policys_limit_keeps_no_request_from_a_small_context(tmp_path: Path) -> None:
    """It says what an answer may not exceed: the backend is sent what the prompt leaves of its context."""
    with Upstream() as local, Upstream() as hosted:
        made = tiers(context=4096)
        for tier, one in zip(made, (local, hosted), strict=True):
            tier["backends"][0]["base_url"] = one.url
        async with in_process(
            tmp_path, local.url, hosted.url, policies={"chat": POLICY}, settings={"tiers": made}
        ) as app:
            reply = await app.ask("hello")
            assert reply.headers["x-tierline-tier"] == "local"
            limit = local.requests[-1].body["max_completion_tokens"]
            assert 3500 < limit < 4096
            assert reply.headers[LIMITED] == str(limit)
            own = await app.ask("hello again", max_tokens=8000)
            assert own.headers["x-tierline-tier"] == "hosted"
            local.default = Reply(text="cut", finish_reason="length")
            cut = await app.ask("hello, at length")
            assert cut.headers["x-tierline-path"] == "escalated"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_says_the_limit_that_counts(tmp_path: Path, stream: bool) -> None:
    """`max_output_tokens` is the policy's where that is lower, and an answer that it cut is incomplete."""
    with Upstream() as local:
        local.default = Reply(text="cut", finish_reason="length")
        policy = POLICY.replace("[local, hosted]", "[local]")
        async with in_process(tmp_path, local.url, local.url, policies={"chat": policy}) as app:
            body = {"model": "chat", "input": "hello", "max_output_tokens": 64000, "stream": stream}
            reply = await app.client.post("/v1/responses", json=body)
            assert reply.headers[LIMITED] == "32000"
            assert '"max_output_tokens":32000' in reply.text
            assert '"incomplete_details":{"reason":"max_output_tokens"}' in reply.text
