"""Limits and budgets while the store is away, by the config's word."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.store import local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

PRICE = {"input": 100, "output": 100}
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
CALL = 20_000_000
"""Nanodollars of a call."""
TERMS: dict[str, dict[str, Any]] = {
    "often": {"limits": {"requests_per_minute": 10}},
    "poor": {"limits": {"budgets": [{"usd": 10, "per": "total"}]}},
}
BEFORE = 25
"""Calls of each gateway before the store is away, of which it learns what one costs."""


def sent(gateway: Gateway, tenant: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer key-of-{tenant}", "x-tierline-cache": "no-cache, no-store"}
    body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}
    return httpx2.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=30)


@pytest.mark.long
def test_without_the_store_requests_go_on_by_the_configs_word_and_money_by_its_lease(
    tmp_path: Path, upstream: Upstream
) -> None:
    """`open` lets requests in up to the limit; `closed` refuses. What was charged meanwhile is counted later."""
    upstream.default = Reply(usage=USAGE)
    with ExitStack() as stack:
        store = stack.enter_context(local_store())
        gateways = {}
        for word in ("open", "closed"):
            folder = tmp_path / word
            folder.mkdir()
            for name in TERMS:
                (folder / f"{name}.key").write_text(f"key-of-{name}")
                (folder / f"{name}.key").chmod(0o600)
            tenants = {name: {"key_file": f"{name}.key", **terms} for name, terms in TERMS.items()}
            keys = {"when_store_is_down": word}
            made = config(upstream.url, None, store.url, tenants=tenants, keys=keys, embedding={"state": str(folder)})
            priced = {"base_url": upstream.url, "model": "small", "price": PRICE}
            made["tiers"] = [{"name": "local", "backends": [priced]}]
            write_deployment(folder, made, {"chat": CHAT.replace("[local, hosted]", "[local]")})
            gateways[word] = stack.enter_context(running(folder, environment(), forked=True))
        for word in ("closed", "open"):  # the one that goes on comes last: a lease that nobody uses is given back
            assert sent(gateways[word], "often").status_code == 200
            assert [sent(gateways[word], "poor").status_code for _ in range(BEFORE)] == [200] * BEFORE
        store.stop()
        calls = len(upstream.requests)
        codes = [sent(gateways["open"], "poor").status_code for _ in range(100)]
        money = len(upstream.requests) - calls
        assert codes.count(200) == money, set(codes)
        assert 0 < money * CALL <= 10_000_000_000 // 10 + 2 * CALL
        # Both gateways have let one in, and this one goes on by its own count.
        codes = [sent(gateways["open"], "often").status_code for _ in range(20)]
        assert codes == [200] * codes.count(200) + [429] * codes.count(429)
        assert 8 <= codes.count(200) <= 9

        def refused() -> bool:
            reply = sent(gateways["closed"], "often")
            return (reply.status_code, reply.json().get("error", {}).get("code")) == (503, "limits_unavailable")

        until(refused, 20)
        store.start()
        spent = "{tierline:traces}:quota:tenant:poor/usd/total"
        with redis.Redis.from_url(store.url) as there:
            # What each gateway charged in the second before the loss may be missing; what it charged after it is not.
            until(lambda: int(there.hget(spent, "spent") or 0) >= money * CALL, 20)  # type: ignore[arg-type]
