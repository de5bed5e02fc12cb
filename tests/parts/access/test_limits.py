"""Limits and budgets of callers over the real gateway and a real store, as clients and the official SDKs meet them.

Every test has a tenant of its own, so that one gateway serves them all. A call reads 100 tokens and writes 100, for two
cents.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis
from websockets.asyncio.client import connect

from gateway.telemetry.ledger import ACCOUNT_PREFIX
from policies.quantities import NANO
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream
from tests.support.wait import eventually, until

PRICE = {"input": 100, "output": 100}
CALL_USD = 0.02
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
MONTH = {"per": "month", "zone": "Europe/Berlin"}
TENANTS: dict[str, dict[str, Any]] = {
    "twelve": {"limits": {"requests_per_minute": 12}},
    "three": {"limits": {"requests_per_minute": 3}},
    "words": {"limits": {"tokens_per_minute": 1000}},
    "single": {"limits": {"concurrent": 1}},
    "people": {"per_user": {"requests_per_minute": 1}},
    "shared": {"per_session": {"budgets": [{"usd": 0.03, "per": "day"}]}},
    "agents": {"per_session": {"requests_per_minute": 1}},
    "poor": {"limits": {"budgets": [{"usd": 0.05, **MONTH}]}},
    "thrifty": {"limits": {"budgets": [{"usd": 0.05, **MONTH}]}},
    "none": {"limits": {"budgets": [{"usd": 0, "per": "day"}]}},
    "hurried": {"limits": {"budgets": [{"usd": 0.05, "per": "day"}]}},
    "late": {"limits": {"budgets": [{"usd": 0.2, "per": "day"}]}},
    "expected": {"limits": {"budgets": [{"usd": 50, "per": "day"}]}},
    "leaver": {"limits": {"budgets": [{"usd": 1, "per": "day"}]}},
    "member": {"team": "web"},
    "unpriced": {"limits": {"budgets": [{"usd": 1, "per": "day"}]}},
    "free": {},
    "followed": {"limits": {"budgets": [{"usd": 10, "per": "total"}]}},
    "hasty": {"limits": {"budgets": [{"usd": 10, "per": "total"}]}},
    "absent": {"limits": {"budgets": [{"usd": 10, "per": "total"}]}},
    **{f"walk-{number}": {"limits": {"requests_per_minute": 1}} for number in range(80)},
}
FREE = {
    "/v1/models": "shows the policies",
    "/v1/responses/{response_id}": "shows, deletes or cancels what is kept; SDKs poll it",
    "/v1/conversations": "keeps and shows items; nothing is called",
    "/v1/feedback": "notes what somebody thinks of an answer",
    "/health": "is a probe", "/readyz": "is a probe", "/metrics": "is the operator's",
    "/openapi.json": "is a document", "/docs": "is a document",
}  # fmt: skip
"""Beginnings of the paths that count against no limit, and why: what they do costs no backend anything."""
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello", "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64000},
    "/v1/completions": {"prompt": "hello"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limits")


@pytest.fixture(scope="module")
def own_upstream() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def own_store() -> Iterator[LocalStore]:
    with local_store() as store:
        yield store


@pytest.fixture(scope="module")
def two(folder: Path, own_upstream: Upstream, own_store: LocalStore) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways on one store."""
    for name in TENANTS:
        (folder / f"{name}.key").write_text(f"key-of-{name}")
        (folder / f"{name}.key").chmod(0o600)
    tenants = {name: {"key_file": f"{name}.key", **terms} for name, terms in TENANTS.items()}
    made = config(own_upstream.url, None, own_store.url, tenants=tenants)
    made["teams"] = {"web": {"limits": {"requests_per_minute": 1}}}
    priced = {"base_url": own_upstream.url, "model": "small", "price": PRICE}
    unpriced = {"base_url": own_upstream.url, "model": "nobody-knows", "price": None}
    made["tiers"] = [{"name": "local", "backends": [priced]}, {"name": "hosted", "backends": [unpriced]}]
    one = CHAT.replace("[local, hosted]", "[local]")
    other = (
        CHAT.replace("[local, hosted]", "[hosted]").replace("local:", "hosted:").replace("[chat, gpt-4o-mini]", "[odd]")
    )
    write_deployment(folder, made, {"chat": one, "odd": other.replace("surface: chat", "surface: odd")})
    with running(folder, environment(), forked=True) as first, running(folder, environment(), forked=True) as second:
        yield first, second


@pytest.fixture
def gateway(two: tuple[Gateway, Gateway], own_upstream: Upstream) -> Gateway:
    own_upstream.reset()
    own_upstream.default = own_upstream.default.__class__(usage=USAGE)
    return two[0]


def sent(gateway: Gateway, tenant: str, path: str = PATHS[0], *, fresh: bool = True, **more: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer key-of-{tenant}", **more.pop("headers", {})}
    if fresh:
        headers["x-tierline-cache"] = "no-cache, no-store"
    return httpx2.post(
        gateway.origin + path, json={"model": "chat", **BODIES[path], **more}, headers=headers, timeout=30
    )


def test_a_limit_of_requests_holds_over_two_gateways(two: tuple[Gateway, Gateway], gateway: Gateway) -> None:
    """Three a minute are let in of all that both get; the fourth is told which limit it was, and when to come back."""
    replies = [sent(one, "three") for one in (*two, *two)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    refused = replies[-1]
    assert refused.headers["x-tierline-limited-by"] == "tenant:three/requests"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "3 requests a minute" in refused.json()["error"]["message"]
    assert replies[0].headers["x-ratelimit-limit-requests"] == "3"
    assert int(refused.headers["x-ratelimit-remaining-requests"]) == 0


def test_the_head_counts_down_to_the_limit(gateway: Gateway, own_upstream: Upstream) -> None:
    """Also where the answer comes long after what was leased for it went back; and when all of it is free again."""
    own_upstream.on("slow").reply(before_first_s=0.7, usage=USAGE)
    left = []
    for turn in range(13):
        word = "slow" if turn in (1, 11) else "hello"
        headers = sent(gateway, "twelve", messages=[{"role": "user", "content": word}]).headers
        left.append(int(headers["x-ratelimit-remaining-requests"]))
        assert headers["x-ratelimit-reset-requests"] in ("1m0s", "1m1s", "59s"), left
    assert left == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    time.sleep(1.5)
    reset = sent(gateway, "twelve").headers["x-ratelimit-reset-requests"]
    assert 50 <= int(reset.removesuffix("s")) <= 59


@pytest.mark.parametrize("path", PATHS)
def test_every_api_says_what_is_spent_as_its_clients_understand_it(gateway: Gateway, path: str) -> None:
    """With no money at all a call is refused, in the client's envelope, and told not to be tried again."""
    refused = sent(gateway, "none", path)
    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["x-tierline-limited-by"].startswith("tenant:none/usd/")
    error = refused.json()["error"]
    assert "quota.wait;dur=" in refused.headers["server-timing"]
    assert error["type"] == ("billing_error" if path == "/v1/messages" else "insufficient_quota")
    assert error["code"] == "insufficient_quota"


def test_the_official_sdks_do_not_try_again_without_money(gateway: Gateway, own_upstream: Upstream) -> None:
    """OpenAI's and Anthropic's raise their errors of rate limits after one request."""
    tries = []
    key = "key-of-none"
    counting = httpx2.Client(event_hooks={"request": [tries.append]})
    openai_client = openai.OpenAI(base_url=gateway.url, api_key=key, max_retries=3, http_client=counting)
    with pytest.raises(openai.RateLimitError) as spent:
        openai_client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hello"}])
    assert spent.value.code == "insufficient_quota" and len(tries) == 1
    counting = httpx2.Client(event_hooks={"request": [tries.append]})
    anthropic_client = anthropic.Anthropic(base_url=gateway.origin, api_key=key, max_retries=3, http_client=counting)
    with pytest.raises(anthropic.RateLimitError) as refused:
        anthropic_client.messages.create(model="chat", max_tokens=9, messages=[{"role": "user", "content": "hello"}])
    assert "budget of $0" in str(refused.value) and len(tries) == 2
    assert not own_upstream.requests


def test_a_budget_ends_at_its_limit_and_hits_go_on(two: tuple[Gateway, Gateway], gateway: Gateway) -> None:
    """Five cents are two calls of two cents and one more; then nothing is called, but what is stored costs nothing."""
    assert sent(gateway, "poor", fresh=False).status_code == 200
    replies = [sent(one, "poor") for one in (two[1], gateway)]
    assert [reply.status_code for reply in replies] == [200, 200]
    until(lambda: sent(two[1], "poor").status_code == 429, 5)
    refused = sent(gateway, "poor")
    assert refused.status_code == 429 and "$0.06 of its budget of $0.05 a month" in refused.json()["error"]["message"]
    hit = sent(gateway, "poor", fresh=False)
    assert (hit.status_code, hit.headers["x-tierline-path"]) == (200, "cache-exact")


def test_the_wait_for_money_ends_with_the_deadline(two: tuple[Gateway, Gateway], own_upstream: Upstream) -> None:
    """Who may not wait as long as others hold the money is told so, and when to come again; not a time-out."""
    own_upstream.on("slow").reply(before_headers_s=2.0, usage=USAGE)
    slow, hurry = [{"role": "user", "content": "slow"}], {"x-tierline-deadline-ms": "400"}
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(sent, two[0], "hurried", messages=slow)
        until(lambda: own_upstream.in_flight == 1, 5)
        for one, path in zip(two, PATHS, strict=False):
            refused = sent(one, "hurried", path, headers=hurry)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_in_use")
            assert refused.headers["retry-after"] == "1"
        assert not holding.done()
        assert holding.result().status_code == 200


def test_near_the_end_of_a_budget_the_wait_ends_with_the_deadline_too(gateway: Gateway, own_upstream: Upstream) -> None:
    """From 80% spent on a request may wait for what another holds, but not longer than its own time."""
    own_upstream.on("slow").reply(before_headers_s=2.0, usage=USAGE)
    for _ in range(8):
        assert sent(gateway, "late").status_code == 200
    slow = {"messages": [{"role": "user", "content": "slow"}], "max_tokens": 600}
    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(sent, gateway, "late", **slow)
        until(lambda: own_upstream.in_flight == 1, 5)
        began = time.monotonic()
        refused = sent(gateway, "late", headers={"x-tierline-deadline-ms": "1000"}, **slow)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_in_use")
        assert 0.6 < time.monotonic() - began < 1.9
        assert holding.result().status_code == 200


def test_refused_requests_teach_nothing(gateway: Gateway, own_upstream: Upstream, own_store: LocalStore) -> None:
    """However often a key without money asks, what a call of the surface is expected to cost stays what calls cost."""
    own_upstream.on("slow").reply(before_headers_s=1.0, usage=USAGE)
    for _ in range(3):
        assert sent(gateway, "expected").status_code == 200
    assert {sent(gateway, "none").status_code for _ in range(60)} == {429}
    with redis.Redis.from_url(own_store.url, decode_responses=True) as client, ThreadPoolExecutor(1) as pool:

        def reserved() -> int:
            [account] = client.keys(f"{ACCOUNT_PREFIX}tenant:expected/usd/*")
            return max(int(lease.split()[2]) for name, lease in client.hgetall(account).items() if name[:2] == "w:")

        until(lambda: reserved() == 0, 5)
        slow = pool.submit(sent, gateway, "expected", messages=[{"role": "user", "content": "slow"}])
        until(lambda: reserved() >= CALL_USD * NANO / 2, 2)
        assert slow.result().status_code == 200


def test_large_max_tokens_are_not_what_is_expected(gateway: Gateway) -> None:
    """An agent that may write 64,000 tokens, for more than its budget, is let in: it never does."""
    assert sent(gateway, "thrifty", max_tokens=64000).status_code == 200
    assert sent(gateway, "thrifty", "/v1/messages").status_code == 200


def test_tokens_are_corrected_by_what_came(gateway: Gateway) -> None:
    """A thousand tokens a minute are five calls of two hundred, whatever was estimated before."""
    codes = [(reply := sent(gateway, "words")).status_code for _ in range(6)]
    assert codes.count(200) in (4, 5) and codes[-1] == 429
    assert reply.headers["x-tierline-limited-by"] == "tenant:words/tokens"
    assert reply.headers["x-ratelimit-limit-tokens"] == "1000"


def test_requests_at_once_are_those_under_way(gateway: Gateway, own_upstream: Upstream) -> None:
    """A second one is refused while the first streams, and let in after it."""
    own_upstream.on("slow").reply(before_first_s=4.0, usage=USAGE)
    slow = [{"role": "user", "content": "slow"}]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(sent, gateway, "single", messages=slow, stream=True)
        until(lambda: own_upstream.in_flight == 1, 5)
        refused = sent(gateway, "single")
        assert refused.status_code == 429 and refused.headers["x-tierline-limited-by"] == "tenant:single/concurrent"
        assert first.result().status_code == 200
    assert sent(gateway, "single").status_code == 200


def test_each_end_user_has_their_own_limit(gateway: Gateway) -> None:
    """By any name that an API has for them; Claude Code's is the same over its sessions."""

    def claude(session: str) -> dict[str, Any]:
        return {"metadata": {"user_id": json.dumps({"device_id": "d" * 60, "session_id": session})}}

    assert sent(gateway, "people").status_code == sent(gateway, "people").status_code == 200  # nobody is named
    for path, more in ((PATHS[0], {"user": "ann"}), (PATHS[0], {"safety_identifier": "bob"}), (PATHS[2], claude("a"))):
        assert sent(gateway, "people", path, **more).status_code == 200
    refused = [
        sent(gateway, "people", "/v1/responses", safety_identifier="ann"),
        sent(gateway, "people", "/v1/responses", user="bob"),
        sent(gateway, "people", PATHS[2], **claude("b")),
    ]
    assert [reply.status_code for reply in refused] == [429, 429, 429]
    assert refused[0].headers["x-tierline-limited-by"].startswith("user:tenant:people:")
    assert "end user of tenant people" in refused[0].json()["error"]["message"]


def test_each_session_has_its_own_limit(gateway: Gateway) -> None:
    """By the id that the agent sends, sub-agents included."""
    ids = ({"x-claude-code-session-id": "s1"}, {"session-id": "s2"}, {"x-claude-code-session-id": "s1"})
    assert [sent(gateway, "agents", headers=one).status_code for one in ids] == [200, 200, 429]


def test_an_equal_request_of_another_owner_is_not_refused_with_it(two: tuple[Gateway, Gateway]) -> None:
    """A leader without money fails alone: those who wait for the same answer have budgets of their own."""

    def told(gateway: Gateway, session: str, word: str, *, fresh: bool = False) -> int:
        messages = [{"role": "user", "content": word}]
        headers = {"x-tierline-session": session}
        return sent(gateway, "shared", fresh=fresh, headers=headers, messages=messages).status_code

    one, other = two  # the other has not heard of the session that has spent its budget
    for turn in range(3):
        until(lambda session=f"spent-{turn}": told(one, session, "hello", fresh=True) == 429)
        with ThreadPoolExecutor(9) as pool:
            leader = pool.submit(told, other, f"spent-{turn}", f"the same {turn}")
            waiting = [pool.submit(told, other, f"other-{turn}-{number}", f"the same {turn}") for number in range(8)]
            assert [each.result() for each in waiting] == [200] * 8
            assert leader.result() in (200, 429)  # it may have followed


def test_a_team_of_the_config_limits_its_tenants(gateway: Gateway) -> None:
    """The reply names the team."""
    codes = [(reply := sent(gateway, "member")).status_code for _ in range(2)]
    assert codes == [200, 429] and reply.headers["x-tierline-limited-by"] == "team:web/requests"


def test_an_unknown_price_is_never_nothing(gateway: Gateway) -> None:
    """Where a budget applies, a model whose price nobody states is refused; without one it is called."""
    refused = sent(gateway, "unpriced", model="odd")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "price_unknown")
    assert sent(gateway, "free", model="odd").status_code == 200


def test_anthropics_clients_get_their_own_headers(gateway: Gateway) -> None:
    """Limits, what is left, and when all is free again, as RFC 3339 writes times."""
    headers = sent(gateway, "words", "/v1/messages").headers
    assert headers["anthropic-ratelimit-tokens-limit"] == "1000"
    assert time.strptime(headers["anthropic-ratelimit-tokens-reset"], "%Y-%m-%dT%H:%M:%SZ")
    assert "x-ratelimit-limit-tokens" not in headers


def test_no_route_escapes_the_limits(gateway: Gateway) -> None:
    """Of every operation of the public port, the second one in a minute is refused, but for those listed as free."""
    described = httpx2.get(f"{gateway.origin}/openapi.json").json()["paths"]
    operations = [(method.upper(), path) for path, methods in described.items() for method in methods]
    assert len(operations) > 30
    escaped = []
    for number, (method, path) in enumerate(operations):
        own = path if path.startswith("/v1") else f"/v1{path}"
        known = next((body for start, body in BODIES.items() if own.startswith(start)), {"input": "hello"})
        body = {"model": "chat", **known}
        headers = {"authorization": f"Bearer key-of-walk-{number}", "x-tierline-cache": "no-cache, no-store"}
        url = gateway.origin + path.partition("{")[0].ljust(len(path), "x") if "{" in path else gateway.origin + path
        options = {"json": body} if method == "POST" else {}
        codes = [httpx2.request(method, url, headers=headers, timeout=30, **options).status_code for _ in range(2)]
        if (codes[1] != 429) != (path == "/" or any(path.startswith(free) for free in FREE)):
            escaped.append((method, path, codes))
    assert not escaped, escaped


def spent(store: LocalStore, tenant: str) -> int:
    with redis.Redis.from_url(store.url) as there:
        value = there.hget(f"{{tierline:traces}}:quota:tenant:{tenant}/usd/total", "spent")
        return int(value or 0)  # type: ignore[arg-type]


def test_followers_and_hits_cost_nothing(gateway: Gateway, own_upstream: Upstream, own_store: LocalStore) -> None:
    """Of four equal requests at once and one later, the key pays one call."""
    own_upstream.on("shared").reply(before_first_s=0.3, usage=USAGE)
    body = {"messages": [{"role": "user", "content": "shared"}], "fresh": False}
    with ThreadPoolExecutor() as pool:
        replies = list(pool.map(lambda _: sent(gateway, "followed", **body), range(4)))
    replies.append(sent(gateway, "followed", **body))
    assert [reply.status_code for reply in replies] == [200] * 5 and len(own_upstream.requests) == 1
    until(lambda: spent(own_store, "followed") == round(CALL_USD * 1e9), 5)


def test_an_abandoned_stream_counts_once(gateway: Gateway, own_upstream: Upstream, own_store: LocalStore) -> None:
    """The client leaves after the first words: what had come until then is charged, and nothing is held any more."""
    own_upstream.on("long").reply(text="word " * 400, between_s=0.02, usage=None)
    headers = {"authorization": "Bearer key-of-absent"}
    body = {"model": "chat", "stream": True, "max_tokens": 150, "messages": [{"role": "user", "content": "long"}]}
    with httpx2.stream("POST", f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=30) as reply:
        next(reply.iter_bytes())
    until(lambda: spent(own_store, "absent") > 0, 5)
    once = spent(own_store, "absent")
    assert once < 0.04 * 1e9
    time.sleep(0.5)
    assert spent(own_store, "absent") == once
    with redis.Redis.from_url(own_store.url) as there:
        ledgers = [json.loads(entry[1][b"v"])["ledger"] for entry in there.xrange("tierline:traces")]
    assert [round(one["charged_usd"] * 1e9) for one in ledgers if one["tenant"] == "absent"] == [once]


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_that_is_not_waited_for_is_paid(
    gateway: Gateway, own_upstream: Upstream, own_store: LocalStore, path: str
) -> None:
    """The client hangs up, or its deadline passes, while an answer is made: the provider bills that all the same."""
    own_upstream.on("patient").reply(before_headers_s=0.5, usage=USAGE)
    body = {"model": "chat", **BODIES[path]}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 100
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": "patient"}]
    else:
        body["input" if path == "/v1/responses" else "prompt"] = "patient"
    headers = {"authorization": "Bearer key-of-hasty", "x-tierline-cache": "no-cache, no-store"}
    before, calls = spent(own_store, "hasty"), len(own_upstream.requests)
    for stream in (False, True):
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(gateway.origin + path, json={**body, "stream": stream}, headers=headers, timeout=0.25)
    hurry = headers | {"x-tierline-deadline-ms": "250"}
    assert httpx2.post(gateway.origin + path, json=body, headers=hurry, timeout=30).status_code == 504
    calls = len(own_upstream.requests) - calls
    assert calls >= 3
    until(lambda: spent(own_store, "hasty") - before >= 0.95 * calls * CALL_USD / 2 * NANO, 5)  # of output alone


async def test_a_socket_that_is_left_before_its_first_token_is_paid(
    gateway: Gateway, own_upstream: Upstream, own_store: LocalStore
) -> None:
    """It closes, or loses its peer without a word, while an answer is made that the provider bills."""
    own_upstream.on("patient").reply(before_headers_s=1.0, usage=USAGE)
    url, before = gateway.origin.replace("http", "ws") + "/v1/responses", spent(own_store, "hasty")
    asked = {"type": "response.create", "model": "chat", "store": False, "input": "patient", "max_output_tokens": 100}
    for number, abruptly in enumerate((False, True), start=1):
        async with connect(url, additional_headers={"authorization": "Bearer key-of-hasty"}) as socket:
            await socket.send(json.dumps(asked))
            await asyncio.to_thread(own_upstream.wait_for, number)
            if abruptly:
                socket.transport.abort()
    calls = len(own_upstream.requests)
    await eventually(lambda: spent(own_store, "hasty") - before >= 0.95 * calls * CALL_USD / 2 * NANO, 5)
