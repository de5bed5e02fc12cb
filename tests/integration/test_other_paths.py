"""Further paths that a policy passes on (`endpoints.other`), over real sockets and by the SDKs' own calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx2
import openai
import pytest

from tests.integration.endpoints import EndpointsSetup
from tests.support.account import Account
from tests.support.app import in_process
from tests.support.gateway import CHAT
from tests.support.wait import until

SURFACE = {"x-tierline-surface": "remote"}


@pytest.fixture
def claude(running: EndpointsSetup) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=running.gateway.origin, api_key="any", max_retries=0, timeout=30, default_headers=SURFACE
    ) as client:
        yield client


def test_decisions_are_answered_by_the_service(running: EndpointsSetup) -> None:
    """What the SDK sends arrives as it was, with our key, and is counted like any request."""
    running.judge.reset()
    with openai.OpenAI(
        base_url=running.gateway.url, api_key="theirs", max_retries=0, timeout=30, default_headers=SURFACE
    ) as client:
        raw = client.decisions.with_raw_response.create(
            model="gpt-6-luna",
            input="The parcel has come.",
            questions=[{"type": "predicate", "name": "good", "question": "Is that good news?"}],
            extra_headers={"x-request-id": "decided-1"},
        )
    assert running.judge.refused == []
    (answer,) = raw.parse().answers
    assert (answer.type, answer.name, getattr(answer, "probability", None)) == ("predicate", "good", 0.9)
    (call,) = running.judge.requests
    assert call.headers["authorization"] == "Bearer sk-scripted"
    assert (raw.headers["x-tierline-tier"], raw.headers["x-tierline-path"]) == ("judge", "passthrough")
    ledger = running.record("decided-1")["ledger"]
    assert (ledger["surface"], ledger["status"], ledger["attempts"]) == ("remote/decisions", 200, 1)
    metrics = httpx2.get(f"{running.gateway.origin}/metrics", timeout=30).text
    assert 'surface="remote/decisions"' in metrics


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/rerank/", "/v1/v1/rerank", "/v1/rerank/models/m?top=1"])
def test_a_path_stands_for_all_below_it(running: EndpointsSetup, path: str) -> None:
    reply = httpx2.post(running.gateway.origin + path, json={"query": "q"}, headers=SURFACE, timeout=30)
    assert reply.status_code == 200, reply.text
    (call,) = running.account.calls
    assert (call.path, call.value) == (path.replace("/v1/v1", "/v1").rstrip("/"), {"query": "q"})
    assert reply.headers["x-tierline-surface"] == "remote"


def test_the_longer_of_two_paths_counts(running: EndpointsSetup) -> None:
    """And only whole segments do: `/v1/reranker` is not below `/v1/rerank`."""
    headers = SURFACE | {"x-request-id": "longer-1"}
    reply = httpx2.post(f"{running.gateway.url}/rerank/secret/x", json={}, headers=headers, timeout=30)
    assert reply.status_code == 502 and "NO_SUCH is not set" in reply.json()["error"]["message"]
    assert running.record("longer-1")["ledger"]["surface"] == "remote/rerank/secret"
    reply = httpx2.post(f"{running.gateway.url}/reranker", json={}, headers=SURFACE, timeout=30)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "unknown_url")
    assert running.account.calls == []


def test_bodies_are_streamed_both_ways(running: EndpointsSetup) -> None:
    """The upload goes on before it is whole, and the reply's first part comes before the rest is sent."""

    def parts() -> Iterator[bytes]:
        yield b"a" * 1000
        until(lambda: bool(running.account.calls) and running.account.calls[0].size == 1000, 5, "the first part")
        yield b"b" * 500

    url = f"{running.gateway.url}/rerank/live"
    with httpx2.stream("POST", url, content=parts(), headers=SURFACE, timeout=30) as reply:
        got = reply.iter_raw()
        assert next(got) == b"\xff\xfb first"
        running.account.release.set()
        assert b"".join(got) == b" second"
    assert running.account.calls[0].size == 1500


def test_a_surface_that_does_not_list_the_path_says_so(running: EndpointsSetup) -> None:
    """The error is in the envelope of the path's clients."""
    reply = httpx2.post(f"{running.gateway.url}/rerank", json={}, timeout=30)
    assert reply.status_code == 404 and "endpoints.other" in reply.json()["error"]["message"]
    reply = httpx2.post(f"{running.gateway.url}/messages/batches", json={}, timeout=30)
    assert (reply.status_code, reply.json()["type"], reply.json()["error"]["type"]) == (404, "error", "not_found_error")
    reply = httpx2.put(f"{running.gateway.url}/rerank", json={}, headers=SURFACE, timeout=30)
    assert (reply.status_code, reply.headers["allow"]) == (405, "GET, POST, DELETE")
    assert running.account.calls == []


def test_batches_of_messages_run_at_an_anthropic_service(running: EndpointsSetup, claude: anthropic.Anthropic) -> None:
    """Its key goes in `x-api-key`, version and betas go with it, and the SDK reads results through the gateway."""
    made = claude.messages.batches.create(
        requests=[
            {
                "custom_id": "a",
                "params": {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]},
            }
        ],
        extra_headers={"anthropic-beta": "some-2026-01-01"},
    )
    (call,) = running.account.calls
    assert (call.method, call.path, call.value["requests"][0]["custom_id"]) == ("POST", "/v1/messages/batches", "a")
    assert call.headers["x-api-key"] == "sk-scripted" and "authorization" not in call.headers
    assert call.headers["anthropic-version"] == claude.default_headers["anthropic-version"]
    assert call.headers["anthropic-beta"] == "some-2026-01-01"
    assert made.id == "msgbatch_1" and made.results_url == "/v1/messages/batches/msgbatch_1/results"
    assert [one.results_url for one in claude.messages.batches.list()] == [made.results_url]
    assert [one.custom_id for one in claude.messages.batches.results(made.id)] == ["a"]
    assert {one.headers["x-api-key"] for one in running.account.calls} == {"sk-scripted"}
    running.account.refusal = (404, b'{"type":"error","error":{"type":"not_found_error","message":"gone"}}', {})
    with pytest.raises(anthropic.NotFoundError, match="gone"):
        claude.messages.batches.retrieve("msgbatch_2")


async def test_tenants_see_nothing_of_each_other(tmp_path: Path) -> None:
    """Only what is posted to the very path is free of what others have made, unless the config shares it."""
    tenants = {name: {"key_file": str(tmp_path / name)} for name in ("one", "two")}
    for name in tenants:
        (tmp_path / name).write_text(f"key-of-{name}")
        (tmp_path / name).chmod(0o600)
    policy = CHAT + "endpoints: {other: {/v1/rerank: account}}\n"
    headers = {"authorization": "Bearer key-of-one"}
    with Account() as account:
        for shared, status in ((False, 403), (True, 200)):
            services = {"account": {"base_url": account.url, "share_files": shared}}
            settings = {"services": services, "tenants": tenants}
            async with in_process(tmp_path, account.url, policies={"chat": policy}, settings=settings) as app:
                for path in ("/v1/rerank", "/v1/rerank/x"):
                    assert (await app.get(path, headers)).status_code == status
                assert (await app.client.post("/v1/rerank/x", json={}, headers=headers)).status_code == status
                assert (await app.client.post("/v1/rerank", json={}, headers=headers)).status_code == 200
                assert (await app.client.post("/v1/rerank", json={})).status_code == 401
        assert not any("authorization" in call.headers for call in account.calls)


async def test_a_reload_begins_and_ends_it(tmp_path: Path) -> None:
    """Which paths are passed on is the policies' in force."""
    with Account() as account:
        settings = {"services": {"account": {"base_url": account.url}}}
        async with in_process(tmp_path, account.url, settings=settings) as app:
            file = tmp_path / "policies" / "chat.yaml"
            for text, status in (("", 404), ("endpoints: {other: {/v1/rerank: account}}\n", 200), ("", 404)):
                file.write_text(CHAT + text)
                async with asyncio.timeout(10):
                    while (await app.client.post("/v1/rerank", json={})).status_code != status:
                        await asyncio.sleep(0.05)
