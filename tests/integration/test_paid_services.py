"""What is asked of services is paid by whoever asks, waited for or not, over the real gateway and a real store."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import redis

from policies.quantities import NANO
from tests.integration.endpoints import ENDPOINTS
from tests.support.account import Account
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.wait import until

REQUEST_USD = 0.01
TOKEN_USD = 1e-3
TEXT = "word " * 100
IMAGES: dict[str, Any] = {"prompt": "a house", "n": 3}
EMBEDDED: dict[str, Any] = {"input": TEXT, "model": "text-embedding-3-small"}
PATHS = {
    "/v1/images/generations": (IMAGES, 3 * REQUEST_USD),
    "/v1/rerank": ({"query": "a house"}, REQUEST_USD),
    "/v1/audio/speech": ({"input": "hello", "model": "tts"}, REQUEST_USD),
    "/v1/embeddings": (EMBEDDED, 100 * TOKEN_USD),
}
"""What is asked, and what it costs at least."""
LIMITS: dict[str, dict[str, Any]] = {
    "rich": {"budgets": [{"usd": 100, "per": "total"}]},
    **{f"poor-{number}": {"budgets": [{"usd": 0.05, "per": "total"}]} for number in range(len(PATHS))},
    "few": {"tokens_per_minute": 50},
}


@pytest.fixture(scope="module")
def own_store() -> Iterator[LocalStore]:
    with local_store() as store:
        yield store


@pytest.fixture(scope="module")
def _account() -> Iterator[Account]:
    with Account() as account:
        yield account


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, _account: Account, own_store: LocalStore) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("services")
    for name in LIMITS:
        (folder / f"{name}.key").write_text(f"key-of-{name}")
        (folder / f"{name}.key").chmod(0o600)
    tenants = {name: {"key_file": f"{name}.key", "limits": limits} for name, limits in LIMITS.items()}
    service = {
        "base_url": _account.url,
        "request_price": REQUEST_USD,
        "prices": {EMBEDDED["model"]: TOKEN_USD * 1e6},
        "share_files": True,
        "idle_timeout": "1s",
    }
    services = {name: copy.deepcopy(service) for name in ("account", "judge", "claude", "unset")}
    settings = {"tenants": tenants, "services": services}
    policies = {"chat": CHAT + ENDPOINTS}
    with serve(
        folder, "http://127.0.0.1:9/v1", store_url=own_store.url, policies=policies, settings=settings
    ) as gateway:
        yield gateway


@pytest.fixture
def account(_account: Account) -> Account:
    _account.reset()
    _account.release.set()
    return _account


def sent(
    gateway: Gateway, tenant: str, path: str, body: Any, timeout: float = 30, deadline_ms: int = 9000
) -> httpx2.Response:
    headers = {
        "authorization": f"Bearer key-of-{tenant}",
        "x-tierline-cache": "no-cache, no-store",
        "x-tierline-deadline-ms": str(deadline_ms),
    }
    return httpx2.post(gateway.origin + path, json=body, headers=headers, timeout=timeout)


def spent(store: LocalStore, tenant: str = "rich") -> float:
    with redis.Redis.from_url(store.url) as there:
        value = there.hget(f"{{tierline:traces}}:quota:tenant:{tenant}/usd/total", "spent")
        return int(value or 0) / NANO  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PATHS)
def test_a_reply_that_is_not_waited_for_is_paid(
    gateway: Gateway, account: Account, own_store: LocalStore, path: str
) -> None:
    """The client hangs up, or its deadline passes, before the head of the reply: the service bills it all the same."""
    body, usd = PATHS[path]
    before, account.delay_s = spent(own_store), 0.6
    with pytest.raises(httpx2.TimeoutException):
        sent(gateway, "rich", path, body, timeout=0.2)
    until(lambda: spent(own_store) - before >= 0.95 * usd, 5)
    assert sent(gateway, "rich", path, body, deadline_ms=200).status_code == 504
    assert len(account.calls) == 2
    until(lambda: spent(own_store) - before >= 2 * 0.95 * usd, 5)


@pytest.mark.parametrize("path", PATHS)
def test_a_service_that_is_silent_for_too_long_is_paid(
    gateway: Gateway, account: Account, own_store: LocalStore, path: str
) -> None:
    """Nobody knows whether it answers; it has the request, so what was reserved is owed."""
    body, usd = PATHS[path]
    before, account.delay_s = spent(own_store), 5.0
    assert sent(gateway, "rich", path, body).status_code == 504
    until(lambda: spent(own_store) - before >= 0.95 * usd * len(account.calls), 5)


@pytest.mark.parametrize("path", PATHS)
def test_a_reply_is_paid_once_and_a_refusal_is_free(
    gateway: Gateway, account: Account, own_store: LocalStore, path: str
) -> None:
    body, usd = PATHS[path]
    before, account.refusal = spent(own_store), (400, b'{"error":{"message":"no"}}', {})
    assert sent(gateway, "rich", path, body).status_code == 400
    account.refusal = None
    assert sent(gateway, "rich", path, body).status_code == 200
    usd = 2 * TOKEN_USD if path == "/v1/embeddings" else usd  # as the service counts them
    until(lambda: spent(own_store) > before, 5)
    time.sleep(0.3)
    assert spent(own_store) - before == pytest.approx(usd)


@pytest.mark.parametrize("path", PATHS)
def test_requests_at_once_have_their_money_reserved(gateway: Gateway, account: Account, path: str) -> None:
    """Of twelve that begin together, the service sees no more than the budget pays, and one."""
    body, usd = PATHS[path]
    account.delay_s, poor = 0.8, f"poor-{list(PATHS).index(path)}"
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda _: sent(gateway, poor, path, body), range(12)))
    assert {reply.status_code for reply in replies} <= {200, 402, 429}
    assert len(account.calls) <= 0.05 / usd + 1


def test_what_nobody_can_price_is_refused_where_a_budget_counts(gateway: Gateway, account: Account) -> None:
    """A batch has any number of requests."""
    reply = sent(gateway, "rich", "/v1/batches", {"input_file_id": "file-1"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "price_unknown")
    assert not account.calls


def test_texts_to_embed_count_against_a_tenants_tokens_before_they_are_sent(gateway: Gateway, account: Account) -> None:
    """Not only once the service has counted them: else many get in at once."""
    account.delay_s = 0.8
    with ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda _: sent(gateway, "few", "/v1/embeddings", EMBEDDED), range(6)))
    assert sorted(reply.status_code for reply in replies) == [200, 429, 429, 429, 429, 429]
