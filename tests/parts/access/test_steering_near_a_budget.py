"""The end of a budget over the real gateway: the strong tier, then the cheap one with a word on it, then 429.

A call of the hosted tier costs 10 cents, one of the local tier a cent. Two gateways share a store, and every test has a
team of its own with a dollar a day.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import orjson
import pytest
import redis

from gateway.parts.local.kinds.scripted.script import ModelReply
from gateway.telemetry.ledger import ACCOUNT_PREFIX, TIER_WORTH, TRACES
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream
from tests.support.wait import until

USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
TEAMS = ("web", "apis", "jobs", "free", "told", "pins")
WORTH = {
    "word": "people",
    "tokens_in": 100.0,
    "tokens_out": 100.0,
    "tiers": {"local": [0.7, 0.6, 0.8], "hosted": [0.9, 0.8, 1.0]},
}
"""What the keeper would leave of the surface `chat`."""
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64000},
    "/v1/responses": {"input": "hello", "store": False},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 64000},
    "/v1/completions": {"prompt": "hello"},
}
HARD = CHAT.replace("{local: otherwise}", "{local: turns > 9, hosted: otherwise}")


def surface(name: str, more: str) -> str:
    return HARD.replace("surface: chat", f"surface: {name}").replace("[chat, gpt-4o-mini]", "[]") + more


@pytest.fixture(scope="module")
def own_store() -> Iterator[LocalStore]:
    with local_store() as store:
        yield store


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, own_store: LocalStore) -> Iterator[tuple[Gateway, Gateway]]:
    """Two gateways on one store."""
    folder = tmp_path_factory.mktemp("steered")
    for name in (*TEAMS, "agents"):
        (folder / f"{name}.key").write_text(f"key-of-{name}")
        (folder / f"{name}.key").chmod(0o600)
    with Upstream() as local, Upstream() as hosted:
        for upstream in (local, hosted):
            upstream.default = ModelReply(usage=USAGE)
        local.on("slowly").reply(usage=USAGE, before_headers_s=1.0)
        hosted.on("pinned").reply(before_first_s=1.0, usage=USAGE)
        made = config(local.url, None, own_store.url, access={"public_metrics": True})
        made["tenants"] = {name: {"key_file": f"{name}.key", "team": name} for name in TEAMS}
        made["tenants"]["agents"] = {"key_file": "agents.key", "per_session": {"budgets": [{"usd": 1, "per": "day"}]}}
        made["teams"] = {name: {"limits": {"budgets": [{"usd": 1, "per": "day"}]}} for name in TEAMS}
        tiers = {"local": (local, "small", 50), "hosted": (hosted, "large", 500)}
        made["tiers"] = [
            {
                "name": name,
                "backends": [{"base_url": one.url, "model": model, "price": {"input": usd, "output": usd}}],
            }
            for name, (one, model, usd) in tiers.items()
        ]
        jobs = surface("jobs", "load: {priority: batch}\nspending: {wait: 1s}\n")
        policies = {"chat": HARD, "jobs": jobs, "free": surface("free", "spending: {cap: none}\n")}
        write_deployment(folder, made, policies)
        with redis.Redis.from_url(own_store.url) as client:
            client.hset(TIER_WORTH, "chat", orjson.dumps(WORTH))
        with (
            running(folder, environment(), forked=True) as first,
            running(folder, environment(), forked=True) as second,
        ):
            yield first, second


def sent(gateway: Gateway, team: str, path: str = PATHS[0], model: str = "chat", **more: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer key-of-{team}", "x-tierline-cache": "no-cache, no-store"}
    headers |= more.pop("headers", {})
    body = {"model": model, **BODIES[path], **more}
    return httpx2.post(gateway.origin + path, json=body, headers=headers, timeout=30)


def answered_by(reply: httpx2.Response) -> tuple[int, str | None, str | None]:
    return reply.status_code, reply.headers.get("x-tierline-tier"), reply.headers.get("x-tierline-budget")


def spent(store: LocalStore, owner: str) -> int:
    """Return the nanodollars that the store says an owner, as `team:web` or a pattern, has spent today."""
    with redis.Redis.from_url(store.url, decode_responses=True) as client:
        accounts = [*client.scan_iter(f"{ACCOUNT_PREFIX}{owner}/usd/????-??-??@UTC")]
        return sum(int(client.hget(account, "spent") or 0) for account in accounts)


def reserved(store: LocalStore, owner: str) -> int:
    """Return the nanodollars that requests under way will probably cost an owner, as the store has it."""
    with redis.Redis.from_url(store.url, decode_responses=True) as client:
        accounts = [*client.scan_iter(f"{ACCOUNT_PREFIX}{owner}/usd/????-??-??@UTC")]
        leases = [fields for one in accounts for name, fields in client.hgetall(one).items() if name.startswith("w:")]
        return sum(int(lease.split()[2]) for lease in leases)


def spend(gateway: Gateway, store: LocalStore, team: str, owner: str = "", **more: Any) -> None:
    """Spend 90 cents, and wait until each call is written: a client may have its answer before it is charged."""
    owner = owner or f"team:{team}"
    for so_far in range(spent(store, owner) // 10_000_000, 90, 10):
        until(lambda known=so_far: is_known(store, owner, known))
        assert answered_by(sent(gateway, team, **more)) == (200, "hosted", None)
    until(lambda: is_known(store, owner, 90))


def is_known(store: LocalStore, owner: str, cents: int) -> bool:
    """Return whether so much is spent and counts as spent alone: for a moment a worker counts it as leased, too."""
    return spent(store, owner) == cents * 10_000_000 and not reserved(store, owner)


def test_a_budget_steers_at_90_percent_and_stops_at_100(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """Below 90% the strong tier answers, then the cheap one, which says so; only with all of it spent is it a 429."""
    gateway, _ = two
    spend(gateway, own_store, "web")
    for percent in range(90, 100):
        until(lambda cents=percent: is_known(own_store, "team:web", cents))
        reply = sent(gateway, "web")
        assert answered_by(reply) == (200, "local", f"{percent}% of team web, capped at local")
    until(lambda: spent(own_store, "team:web") == 1_000_000_000)
    refused = sent(gateway, "web")
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "insufficient_quota"
    assert refused.headers["x-should-retry"] == "false"
    sdk = openai.OpenAI(base_url=gateway.origin + "/v1", api_key="key-of-web", max_retries=2)
    with pytest.raises(openai.RateLimitError, match="has spent"):
        sdk.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hello"}])
    metrics = httpx2.get(gateway.origin + "/metrics").text
    assert 'tierline_steered_total{outcome="capped",surface="chat"}' in metrics


@pytest.mark.parametrize("stream", [False, True])
def test_every_api_is_steered(two: tuple[Gateway, Gateway], own_store: LocalStore, stream: bool) -> None:
    """Also by a gateway that has not seen the team before, from its first request on, whole and as a stream."""
    gateway, other = two
    if not stream:
        spend(gateway, own_store, "apis")
    for path in PATHS if not stream else PATHS[:1]:
        status, tier, budget = answered_by(sent(other, "apis", path, stream=stream))
        assert (status, tier) == (200, "local"), path
        assert budget is not None and budget.endswith("% of team apis, capped at local"), path


def test_a_surface_may_forbid_the_cap(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """With `cap: none` the strong tier goes on, and the reply says how much is spent."""
    gateway, _ = two
    spend(gateway, own_store, "free")
    assert answered_by(sent(gateway, "free", model="free")) == (200, "hosted", "90% of team free")


def test_what_is_pinned_is_reserved_and_no_cap_is_claimed(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """A client's own tier answers at its own price: the head claims no cap, and the reservation is that tier's cost."""
    gateway, _ = two
    spend(gateway, own_store, "pins")
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(sent, gateway, "pins", model="tier:hosted", messages=[{"role": "user", "content": "pinned"}])
        assert until(lambda: reserved(own_store, "team:pins")) >= 80_000_000
    assert answered_by(slow.result()) == (200, "hosted", "90% of team pins")


def test_batch_waits_while_others_go_first(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """A job is held back as long as its policy says, and then answered; a chat of the same team is not."""
    gateway, _ = two
    began = time.monotonic()
    assert sent(gateway, "jobs", model="jobs").status_code == 200
    assert time.monotonic() - began < 1.0
    until(lambda: spent(own_store, "team:jobs") == 100_000_000)
    spend(gateway, own_store, "jobs")
    began = time.monotonic()
    assert answered_by(sent(gateway, "jobs"))[1] == "local"
    assert time.monotonic() - began < 1.0
    until(lambda: spent(own_store, "team:jobs") == 910_000_000)
    began = time.monotonic()
    reply = sent(gateway, "jobs", model="jobs")
    assert answered_by(reply) == (200, "local", "91% of team jobs, capped at local")
    assert 1.0 <= time.monotonic() - began < 5.0
    assert "budget.wait;dur=" in reply.headers["server-timing"]
    assert (
        'tierline_steered_total{outcome="held_back",surface="jobs"} 1.0' in httpx2.get(gateway.origin + "/metrics").text
    )


def test_nobody_else_gets_the_answer_of_a_steered_request(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """An equal request of another session, whose budget is whole, does not share the answer under way."""
    gateway, _ = two
    cached = {"x-tierline-cache": "max-age=60"}
    slow = {"messages": [{"role": "user", "content": "slowly"}]}
    spender, other = ({"x-tierline-session": name} for name in ("spender", "other"))
    spend(gateway, own_store, "agents", "session:*", headers=spender)
    until(lambda: answered_by(sent(gateway, "agents", headers=spender))[1] == "local")  # this worker knows it, too
    with ThreadPoolExecutor(1) as beside:
        first = beside.submit(sent, gateway, "agents", headers={**spender, **cached}, **slow)
        time.sleep(0.3)
        second = sent(gateway, "agents", headers={**other, **cached}, **slow)
        assert answered_by(second) == (200, "hosted", None)
        assert not first.done()
        status, tier, budget = answered_by(first.result())
    assert (status, tier) == (200, "local")
    assert budget is not None and "% of this session of tenant agents, capped at local" in budget


def test_the_record_says_what_it_saved(two: tuple[Gateway, Gateway], own_store: LocalStore) -> None:
    """The tier at which it would have started, what it would have cost there, and the input of its decision."""
    gateway, _ = two
    spend(gateway, own_store, "told")
    found = until(lambda reply=sent(gateway, "told"): recorded(own_store, reply.headers["x-request-id"]))
    ledger = found["ledger"]
    assert (ledger["steered_from"], ledger["cost_usd"]) == ("hosted", pytest.approx(0.01))
    assert ledger["steered_usd"] == pytest.approx(0.1)
    assert found["decide"]["in"][-1] == [0.9, "local"]
    route = next(hop for hop in found["hops"] if hop["name"] == "route")["attributes"]
    assert route["tierline.budget"] == "90% of team told, capped at local"
    assert route["tierline.budget.cap"] == "local"
    assert route["tierline.clause"] == "spending.cap"
    assert route["tierline.reason"] == "hosted: otherwise; 90.0% of the budget is spent: capped at local"


def recorded(store: LocalStore, request_id: str) -> dict[str, Any] | None:
    """Return the record of a request; None while it is on its way."""
    with redis.Redis.from_url(store.url) as client:
        records = [orjson.loads(value) for _, entry in client.xrevrange(TRACES, count=20) for value in entry.values()]
    return next((one for one in records if one["ledger"]["request_id"] == request_id), None)
