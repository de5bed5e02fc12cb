"""Keys of the store over real processes: four workers, the command, a store that is killed and one that comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.ask import ask
from tests.support.gateway import CHAT, ROOT, Gateway, config, environment, running, write_deployment
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import until

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalStore]:
    """A store with an append-only file, which a restart reads again."""
    store = LocalStore("--appendonly yes --appendfsync always")
    store.start()
    yield store
    store.close()


def tierline(server: LocalStore, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gateway", *arguments, "--store", server.url, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def statuses(gateway: Gateway, key: str, tries: int = 12) -> set[int]:
    """The statuses of requests over connections of their own, which all workers take a part of."""
    headers = {"authorization": f"Bearer {key}", "x-tierline-cache": "no-store"}
    url = f"{gateway.url}/chat/completions"
    return {httpx2.post(url, json=BODY, headers=headers, timeout=20).status_code for _ in range(tries)}


@pytest.mark.long
def test_keys_hold_over_workers_restarts_and_a_store_that_is_killed(
    upstream: Upstream, tmp_path: Path, server: LocalStore
) -> None:
    """A revoked key is refused by the last of four workers within a second. While the store is down used keys work,
    also after a restart of the gateway, and others are told to come again; nothing is lost when it is back.
    """
    settings = {"keys": {"required": True}, "embedding": {"state": str(tmp_path / "state")}}
    write_deployment(tmp_path, config(upstream.url, None, server.url, **settings))
    used, lost, unused = (tierline(server, "keys", "create", "--name", name) for name in ("used", "lost", "unused"))
    assert used["on_disk"] is True
    with running(tmp_path, environment(), "--workers", "4") as gateway:
        assert statuses(gateway, "none") == {401}
        assert statuses(gateway, used["key"]) == {200}
        assert statuses(gateway, lost["key"]) == {200}
        tierline(server, "keys", "revoke", "lost", "-m", "lost")
        time.sleep(1)
        assert statuses(gateway, lost["key"], 24) == {401}
        rotated = tierline(server, "keys", "rotate", "used", "--grace", "1h")
        assert statuses(gateway, rotated["key"]) | statuses(gateway, used["key"]) == {200}
        time.sleep(0.5)  # what was used is on disk with the next look
        server.stop()
        assert statuses(gateway, used["key"]) == {200}
        assert statuses(gateway, unused["key"]) == {503}
        assert statuses(gateway, lost["key"]) == {401}
    with running(tmp_path, environment()) as gateway:
        assert statuses(gateway, rotated["key"], 2) == {200}
        assert statuses(gateway, unused["key"], 2) == {503}
        server.start()
        until(lambda: statuses(gateway, unused["key"], 1) == {200}, 20, "the store's keys")
        assert statuses(gateway, lost["key"], 2) == {401}
    names = {key["name"]: key["state"] for key in tierline(server, "keys", "list")["keys"]}
    assert names == {"used": "active", "lost": "revoked", "unused": "active"}


@pytest.mark.long
def test_who_waits_for_money_goes_by_the_terms_of_now(upstream: Upstream, tmp_path: Path, store: LocalStore) -> None:
    """While others hold a budget it is raised, lowered, and its key revoked: who waits gets in, is refused, is 401."""
    made = config(upstream.url, None, store.url)
    backend = {"base_url": upstream.url, "model": "small", "price": {"input": 100, "output": 100}}
    made["tiers"] = [{"name": "local", "backends": [backend]}]
    write_deployment(tmp_path, made, {"chat": CHAT.replace("[local, hosted]", "[local]")})
    usage = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    upstream.on("slow").reply(usage=usage, before_headers_s=9.0)
    upstream.on("quick").reply(usage=usage)
    key = tierline(store, "keys", "create", "--name", "one", "--budget", "0.5/month")["key"]

    headers = {"authorization": f"Bearer {key}", "x-tierline-cache": "no-cache, no-store"}
    update = ("keys", "update", "one", "--budget")
    changes = (
        ((*update, "20/month"), 200, "0.55/month"),
        ((*update, "0.01/month"), 429, "0.57/month"),
        (("keys", "revoke", "one"), 401, ""),
    )
    with running(tmp_path, environment(), forked=True) as gateway, ThreadPoolExecutor(2) as pool:
        assert {ask(gateway, "quick", headers=headers).status_code for _ in range(23)} == {200}
        time.sleep(1.0)  # over 90% is spent, and known to be: from there on requests wait for the rest
        for change, then, nearly_spent in changes:
            holding = pool.submit(ask, gateway, "slow", headers=headers)
            until(lambda: upstream.in_flight == 1, 5)
            waiting = pool.submit(ask, gateway, "quick", headers=headers)
            time.sleep(0.5)
            assert not waiting.done()
            tierline(store, *change)
            assert waiting.result().status_code == then
            assert not holding.done()
            assert holding.result().status_code == 200
            if nearly_spent:
                tierline(store, *update, nearly_spent)
                time.sleep(1.0)
