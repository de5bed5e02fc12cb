"""Limits and budgets of callers over the real gateway and a real store, as clients and the official SDKs meet them.

Every test has a tenant of its own, so that one gateway serves them all. A call reads 100 tokens and writes 100, for two
cents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream

PRICE = {"input": 100, "output": 100}
CALL_USD = 0.02
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
MONTH = {"per": "month", "zone": "Europe/Berlin"}
TENANTS: dict[str, dict[str, Any]] = {
    "three": {"limits": {"requests_per_minute": 3}},
    "words": {"limits": {"tokens_per_minute": 1000}},
    "single": {"limits": {"concurrent": 1}},
    "people": {"per_user": {"requests_per_minute": 1}},
    "agents": {"per_session": {"requests_per_minute": 1}},
    "poor": {"limits": {"budgets": [{"usd": 0.05, **MONTH}]}},
    "thrifty": {"limits": {"budgets": [{"usd": 0.05, **MONTH}]}},
    "none": {"limits": {"budgets": [{"usd": 0, "per": "day"}]}},
    "leaver": {"limits": {"budgets": [{"usd": 1, "per": "day"}]}},
    "member": {"team": "web"},
    "unpriced": {"limits": {"budgets": [{"usd": 1, "per": "day"}]}},
    "free": {},
}
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
    unpriced = {"base_url": own_upstream.url, "model": "nobody-knows"}
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
