"""Caps of sessions over the real gateway: the last request is told to conclude, and later ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from gateway.parts.agents.admission import CONCLUDE
from tests.support.gateway import CHAT, Gateway, config, environment, running, serve, write_deployment
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.store import LocalStore, local_store
from tests.support.strict_messages import StrictMessages, text
from tests.support.upstream import Upstream
from tests.support.wait import until

CLAUDE, CODEX = {"X-Claude-Code-Session-Id": "sc"}, {"session-id": "sx", "thread-id": "t1"}
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "read", "parameters": SCHEMA}
USER: list[Any] = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "system", "content": "Be brief."}, *USER],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "/v1/responses": {
        "instructions": "Be brief.", "input": "hello", "store": False,
        "tools": [{"type": "function", "strict": False, **FUNCTION}],
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be brief."}], "messages": USER, "max_tokens": 100,
        "tools": [{"name": "read", "input_schema": SCHEMA}],
    },
}  # fmt: skip


def capped(caps: str) -> dict[str, str]:
    return {"chat": CHAT + f"session: {caps}\n"}


@pytest.fixture(scope="module")
def _two_workers(
    tmp_path_factory: pytest.TempPathFactory, _upstreams: tuple[Upstream, Upstream], _store: LocalStore
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("workers")
    write_deployment(folder, config(_upstreams[0].url, None, _store.url), capped("{calls: 3}"))
    with running(folder, environment(), "--workers", "2") as gateway:
        yield gateway


@pytest.fixture
def two_workers(_two_workers: Gateway, local_upstream: Upstream, store: LocalStore) -> Gateway:
    """One gateway for all: each test has a session of its own."""
    return _two_workers


def session_caps(gateway: Gateway) -> dict[str, float]:
    """The requests that were the last, and those over the cap, so far."""
    lines = httpx2.get(f"{gateway.origin}/metrics").text.splitlines()
    counted = (line.rsplit(" ", 1) for line in lines if line.startswith("tierline_session_caps_total{"))
    return {name.partition('outcome="')[2].partition('"')[0]: float(count) for name, count in counted}


def posted(gateway: Gateway, path: str, *, session: str = "s1", headers: Any = None, **more: Any) -> httpx2.Response:
    """One request on a connection of its own, so that workers share them."""
    headers = {"x-tierline-session": session, "x-tierline-debug": "1", **(headers or {})}
    body = {"model": "chat", **BODIES[path], **more}
    return httpx2.post(gateway.origin + path, json=body, headers=headers, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_the_last_request_concludes_and_later_ones_are_refused(
    two_workers: Gateway, local_upstream: Upstream, path: str, *, stream: bool
) -> None:
    """In each API, over all workers; another session goes on."""
    own = f"{path}{stream}"
    for _ in range(2):
        assert posted(two_workers, path, session=own, stream=stream).status_code == 200
    assert CONCLUDE not in str([one.body for one in local_upstream.requests])
    last = posted(two_workers, path, session=own, stream=stream)
    assert last.status_code == 200 and "told to conclude" in last.headers["x-tierline-reason"]
    sent = local_upstream.requests[-1].body
    assert sent["messages"][0]["content"] == f"Be brief.\n\n{CONCLUDE}" or CONCLUDE in str(sent["messages"][0])
    assert sent["tool_choice"] == "none" and sent["tools"]
    refused = posted(two_workers, path, session=own, stream=stream)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert "3 requests" in refused.json()["error"]["message"]
    kind = "rate_limit_error"
    assert refused.json()["error"]["type"] == kind
    assert path == "/v1/messages" or refused.json()["error"]["code"] == "session_limit_reached"
    assert posted(two_workers, path, session=f"{own}2", stream=stream).status_code == 200


def claude(gateway: Gateway, headers: dict[str, str]) -> Any:
    client = anthropic.Anthropic(base_url=gateway.origin, api_key="any")
    return client.messages.create(model="chat", extra_headers=CLAUDE | headers, **BODIES["/v1/messages"])


def codex(gateway: Gateway, headers: dict[str, str]) -> Any:
    client = openai.OpenAI(base_url=gateway.url, api_key="any")
    return client.responses.create(model="chat", extra_headers=CODEX | headers, **BODIES["/v1/responses"])


@pytest.mark.parametrize(
    ("send", "agent", "limit"),
    [
        (claude, {"x-claude-code-agent-id": "a1"}, anthropic.RateLimitError),
        (codex, {"thread-id": "t2"}, openai.RateLimitError),
    ],
)
def test_sub_agents_share_the_caps_and_the_sdks_do_not_retry(
    two_workers: Gateway, send: Callable[..., Any], agent: dict[str, str], limit: type[Exception]
) -> None:
    """With the headers that Claude Code and Codex send. Their default is two retries of a 429."""
    before = session_caps(two_workers)
    for headers in ({}, agent, {}):
        send(two_workers, headers)
    with pytest.raises(limit, match="Begin a new session"):
        send(two_workers, agent)
    assert session_caps(two_workers) == {name: before.get(name, 0) + 1 for name in ("over", "last")}


def test_money_is_counted(tmp_path: Path, upstream: Upstream, store: LocalStore) -> None:
    """The request that is expected to reach the cap, by what those before it cost, is the last."""
    own = {"headers": {"x-tierline-min-tier": "hosted"}}
    with serve(tmp_path, upstream.url, upstream.url, store_url=store.url) as gateway:
        cost = float(posted(gateway, "/v1/chat/completions", **own).headers["x-tierline-cost-usd"])
    assert cost > 0
    policies = capped(f"{{usd: {cost * 2.5:.12f}}}")
    with serve(tmp_path, upstream.url, upstream.url, store_url=store.url, policies=policies) as gateway:
        told = [posted(gateway, "/v1/chat/completions", seed=seed, **own) for seed in range(3)]
        until(lambda: posted(gateway, "/v1/chat/completions", seed=9, **own).status_code == 429, 20)
    assert ["told to conclude" in one.headers["x-tierline-reason"] for one in told] == [False, False, True]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("system", [True, False])
def test_a_backend_of_the_clients_own_api_is_told(
    tmp_path: Path, store: LocalStore, path: str, *, system: bool
) -> None:
    """In its words, behind the client's own system text if there is one."""
    server = StrictMessages() if path == "/v1/messages" else ResponsesUpstream()
    kind = {"/v1/messages": "anthropic", "/v1/responses": "responses"}[path]
    with server as provider:
        if isinstance(provider, StrictMessages):
            provider.say(text("Done."))
        backend = {"kind": kind, "base_url": provider.url, "model": "claude-sonnet-4-6", "key_env": "PROVIDER_KEY"}
        tiers = [{"name": "local", "backends": [{**backend, "capabilities": ["tools", "json"]}]}]
        policies = {"chat": capped("{calls: 1}")["chat"].replace("[local, hosted]", "[local]")}
        key = {"PROVIDER_KEY": StrictMessages.KEY}
        with serve(tmp_path, "", store_url=store.url, policies=policies, settings={"tiers": tiers}, env=key) as gateway:
            more = {} if system else {"system": None, "instructions": None}
            body = {name: value for name, value in (BODIES[path] | more).items() if value is not None}
            headers = {"x-tierline-session": "s1", "anthropic-version": "2023-06-01"}
            reply = httpx2.post(gateway.origin + path, json={"model": "chat", **body}, headers=headers, timeout=30)
            assert reply.status_code == 200, reply.text
        sent = provider.requests[-1].body
    if path == "/v1/messages":
        blocks = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": CONCLUDE}]
        assert sent["system"] == (blocks if system else CONCLUDE)
        assert sent["tool_choice"] == {"type": "none"}
    else:
        assert sent["instructions"] == (f"Be brief.\n\n{CONCLUDE}" if system else CONCLUDE)
        assert sent["tool_choice"] == "none"
    assert str(sent).count(CONCLUDE) == 1


def test_each_worker_counts_while_the_store_is_down(tmp_path: Path, upstream: Upstream) -> None:
    """From what it saw last; the trace says so."""
    with (
        local_store() as store,
        serve(tmp_path, upstream.url, store_url=store.url, policies=capped("{calls: 4}")) as gateway,
    ):
        for _ in range(2):
            assert posted(gateway, "/v1/chat/completions").status_code == 200
        store.stop()
        replies = [posted(gateway, "/v1/chat/completions") for _ in range(3)]
    assert [one.status_code for one in replies] == [200, 200, 429]
    assert all("counted by this worker" in one.headers["x-tierline-reason"] for one in replies)
    assert "told to conclude" in replies[1].headers["x-tierline-reason"]


def test_without_caps_the_store_counts_nothing(tmp_path: Path, upstream: Upstream, store: LocalStore) -> None:
    """A surface without the section costs no round trip."""
    with serve(tmp_path, upstream.url, store_url=store.url) as gateway:
        reply = posted(gateway, "/v1/chat/completions")
    assert "session" not in reply.headers["x-tierline-reason"] + reply.headers["server-timing"]
