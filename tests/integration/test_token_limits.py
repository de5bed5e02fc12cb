"""What counts against tokens a minute: what a provider read from its prompt cache does not, as with the providers.

Every test has a session of its own, which has the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream

LIMIT = 1000
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": "TEXT"},
    "/v1/responses": {"input": "TEXT", "store": False},
    "/v1/messages": {"messages": "TEXT", "max_tokens": 100},
    "/v1/completions": {"prompt": "TEXT", "max_tokens": 100},
}


def usage(tokens_in: int, cached: int) -> dict[str, Any]:
    """The usage of an answer of 100 tokens."""
    counts = {"prompt_tokens": tokens_in, "completion_tokens": 100, "total_tokens": tokens_in + 100}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


@pytest.fixture(scope="module")
def upstream_() -> Iterator[Upstream]:
    with Upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def store_() -> Iterator[LocalStore]:
    with local_store() as store:
        yield store


def gateway_of(folder: Path, upstream: Upstream, store: str, tenants: int) -> Iterator[Gateway]:
    """A gateway of so many tenants, of which each has the limit for every session."""
    named: dict[str, Any] = {}
    for number in range(tenants):
        (folder / f"{number}.key").write_text(f"key-of-the-test-{number}")
        (folder / f"{number}.key").chmod(0o600)
        named[f"t{number}"] = {"key_file": f"{number}.key", "per_session": {"tokens_per_minute": LIMIT}}
    made = config(upstream.url, None, store, tenants=named)
    made["tiers"] = [{"name": "local", "backends": [{"base_url": upstream.url, "model": "small"}]}]
    write_deployment(folder, made, {"chat": CHAT.replace("[local, hosted]", "[local]")})
    with running(folder, environment(), forked=True) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, upstream_: Upstream, store_: LocalStore) -> Iterator[Gateway]:
    yield from gateway_of(tmp_path_factory.mktemp("alone"), upstream_, store_.url, 1)


def sent(gateway: Gateway, path: str, session: str, text: str = "hello", **more: Any) -> httpx2.Response:
    """Send a request of the first tenant, and return the whole reply."""
    body = {"model": "chat", **PATHS[path], **more}
    for name, value in body.items():
        if value == "TEXT":
            body[name] = [{"role": "user", "content": text}] if name == "messages" else text
    headers = {
        "authorization": "Bearer key-of-the-test-0",
        "x-tierline-session": session,
        "x-tierline-cache": "no-store, no-cache",
    }
    return httpx2.post(gateway.origin + path, json=body, headers=headers, timeout=30)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", list(PATHS))
def test_what_was_read_from_a_prompt_cache_does_not_count(
    gateway: Gateway, upstream_: Upstream, path: str, stream: bool
) -> None:
    """Of 200 tokens 80 were read from the cache: eight such requests are within the limit, and more are not."""
    upstream_.default = upstream_.default.__class__(usage=usage(100, 80))
    session = str(uuid4())
    statuses = [sent(gateway, path, session, stream=stream).status_code for _ in range(9)]
    assert statuses[:8] == [200] * 8
    assert statuses[8] == 429


def test_an_agent_goes_on_whose_prompt_alone_is_beyond_the_limit(gateway: Gateway, upstream_: Upstream) -> None:
    """All but 20 tokens of its long prompt come from the cache, so its next step is expected to take few."""
    upstream_.default = upstream_.default.__class__(usage=usage(5000, 4980))
    session, text = str(uuid4()), "word " * 5000
    assert [sent(gateway, "/v1/chat/completions", session, text).status_code for _ in range(5)] == [200] * 5


def test_the_limit_tells_no_tenant_what_others_have_in_the_cache(
    tmp_path: Path, upstream_: Upstream, store_: LocalStore
) -> None:
    """Where several share a backend, what is left of the limit would say whether somebody sent the same prompt."""
    upstream_.default = upstream_.default.__class__(usage=usage(100, 80))
    session = str(uuid4())
    for gateway in gateway_of(tmp_path, upstream_, store_.url, 2):
        statuses = [sent(gateway, "/v1/chat/completions", session).status_code for _ in range(6)]
        assert statuses == [200] * 5 + [429]
