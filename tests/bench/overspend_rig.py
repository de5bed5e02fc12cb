"""Start what the ways to overspend are tried at: a store, a provider that counts, and a gateway with a tenant a way."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx2
import redis

from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.bench.overspend_provider import (
    EMBED_PRICE,
    IMAGE_USD,
    LONG_OVER,
    LONG_PRICE,
    PRICE,
    SOURCES_PRICE,
    CountingProvider,
)
from tests.bench.overspend_ways import BUDGET_USD, JUDGE_USD, Way
from tests.support.gateway import CHAT, Gateway, config, environment, running, write_deployment
from tests.support.identity_provider import IdentityProvider
from tests.support.ports import free_port
from tests.support.processes import children_of, command_line
from tests.support.store import LocalStore, local_store
from tests.support.wait import until

_ADMIN: Final = "key-of-the-admin"
_MUCH_USD: Final = 5.0
"""The budget of tenants whose own is not what a way is about."""
_SOURCES: Final = "gpt-5.4"
"""A model that the facts which ship have, at about a quarter of what the deployment's own file says."""
_SPENT_BY_JUDGE: Final = "tierline:learn:spent"


@dataclass(frozen=True, slots=True)
class OverspendRig:
    """What the ways are tried at."""

    store: LocalStore
    provider: CountingProvider
    gateway: Gateway
    people: IdentityProvider | None
    """Who signs the tokens of people; None where no way needs any."""
    admin: str
    """The URL of the admin API."""

    def keys(self, way: Way) -> tuple[str, ...]:
        """Return the keys that the requests of a way have in turn; those of a person are made now."""
        if not way.own_keys:
            return (f"key-of-{way.tenant}",)
        assert self.people is not None
        token = self.people.token(groups=["web"], may=["chat"])
        made = [
            httpx2.post(
                f"{self.admin}/admin/keys", json={"name": name, "team": "web"}, timeout=60,
                headers={"authorization": f"Bearer {token}"},
            )
            for name in "abc"
        ]  # fmt: skip
        return (*(str(reply.json()["key"]) for reply in made), token)

    def booked(self, way: Way) -> int:
        """Return what the counter of a way's budget says, in nanodollars."""
        with redis.Redis.from_url(self.store.url, decode_responses=True) as client:
            if way.judged:
                field = f"{datetime.now(UTC):%Y-%m-%d}:verify:judged@{way.tenant}"
                return int(client.hget(_SPENT_BY_JUDGE, field) or 0)
            accounts = [f"{ACCOUNT_PREFIX}tenant:{way.tenant}/usd/total"]
            if way.own_keys:
                accounts = list(client.scan_iter(f"{ACCOUNT_PREFIX}key:*/usd/total", 1000))
            return sum(int(client.hget(account, "spent") or 0) for account in accounts)

    @contextmanager
    def troubled(self, trouble: str) -> Iterator[None]:
        """Do to the store, or to the workers, what a way says; at the end of the block it is over."""
        with redis.Redis.from_url(self.store.url) as client:
            if trouble == "freeze":
                self.store.freeze()
            elif trouble == "kill":
                self.store.stop()
            elif trouble == "fill":
                client.config_set("maxmemory-policy", "noeviction")
                client.config_set("maxmemory", 1)
            elif trouble == "workers":
                over = threading.Event()
                killer = threading.Thread(target=self._kill_workers, args=(len(self.provider.arrived) + 12, over))
                killer.start()
            yield
            if trouble == "freeze":
                self.store.thaw()
            elif trouble == "kill":
                self.store.start()
            elif trouble == "fill":
                client.config_set("maxmemory", 0)
            elif trouble == "flush":
                time.sleep(0.5)
                client.flushall()
            elif trouble == "workers":
                over.set()
                killer.join()
                until(self._answers, 30, "workers in place of those that were killed")

    def _kill_workers(self, arrived: int, over: threading.Event) -> None:
        """Kill every worker once the provider has had so many requests, or all of the round are answered."""
        while len(self.provider.arrived) < arrived and not over.wait(0.01):
            pass
        for pid in children_of(self.gateway.process.pid):
            if "spawn_main" in command_line(pid):
                os.kill(pid, signal.SIGKILL)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.gateway.origin}/healthz", timeout=1).status_code == 200
        except httpx2.HTTPError:
            return False


@contextmanager
def overspend_rig(ways: tuple[Way, ...], workers: int) -> Iterator[OverspendRig]:
    """Start a store, a provider and a gateway of so many workers, with a tenant for each way."""
    with ExitStack() as stack:
        store = stack.enter_context(local_store("--appendonly yes --appendfsync always"))
        provider = stack.enter_context(CountingProvider())
        people = stack.enter_context(IdentityProvider()) if any(way.own_keys for way in ways) else None
        port = free_port()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = _deployment(folder, ways, provider, store.url) | ({} if people is None else _access(people, port))
        write_deployment(folder, made, _policies())
        env = environment() if people is None else environment(ADMIN_KEY=_ADMIN)
        several = ("--workers", str(workers)) if workers > 1 else ()
        gateway = stack.enter_context(running(folder, env, *several, forked=workers == 1 and people is None))
        yield OverspendRig(store, provider, gateway, people, f"http://127.0.0.1:{port}")


def _access(people: IdentityProvider, port: int) -> dict[str, Any]:
    """Return the sections by which people make keys for themselves, with a cent each."""
    issuer = {
        "issuer": people.issuer, "audience": people.AUDIENCE, "claims": {"team": "groups", "surfaces": "may"},
        "limits": {"budgets": [{"usd": 0.01, "per": "total"}]},
    }  # fmt: skip
    return {"identity": {"issuers": [issuer]}, "admin": {"key_env": "ADMIN_KEY", "port": port}}


def _deployment(folder: Path, ways: tuple[Way, ...], provider: CountingProvider, store: str) -> dict[str, Any]:
    def secret(name: str, key: str) -> str:
        (folder / name).write_text(key)
        (folder / name).chmod(0o600)
        return name

    tenants = {}
    for way in ways:
        usd = _MUCH_USD if way.judged else way.budget
        tenants[way.tenant] = {
            "key_file": secret(f"{way.tenant}.key", f"key-of-{way.tenant}"),
            "limits": {"budgets": [{"usd": usd, "per": "total"}]},
        }
    can = ("tools", "json", "vision", "files", "n")
    shared = {"base_url": provider.url, "model": "m", "context": 128_000, "logprobs": False}
    backends: dict[str, Mapping[str, Any]] = {
        "local": {"price": {**PRICE}},
        "claude": {
            "kind": "anthropic", "price": {**PRICE, "cache_write": 1.25}, "context": None,
            "key_file": secret("claude.key", "key-of-the-provider"),
        },
        "long": {"price": {**PRICE, "long": {"over": LONG_OVER, **LONG_PRICE}}},
        "sources": {"base_url": provider.url.replace("127.0.0.1", "localhost"), "model": _SOURCES},
        "judge": {"model": "judge", "price": {**PRICE}, "logprobs": True},
    }  # fmt: skip
    tiers = []
    for name, more in backends.items():
        backend = {"name": name, "capabilities": list(can), **shared, **more}
        if name == "claude":
            del backend["capabilities"], backend["context"], backend["logprobs"]
        tiers.append({"name": name, "backends": [backend]})
    own = {
        "dated": f"{datetime.now(UTC):%Y-%m-%d}", "hosts": {"localhost": "openai"},
        "models": {"openai": {_SOURCES: {"price": SOURCES_PRICE}}},
    }  # fmt: skip
    (folder / "prices.json").write_text(json.dumps(own))
    other = {"base_url": provider.url, "request_price": IMAGE_USD, "prices": {"e": EMBED_PRICE}}
    return config(provider.url, None, store, tenants=tenants) | {
        "embedding": {"state": str(folder / "state")}, "tiers": tiers, "services": {"other": other},
        "prices": {"file": "prices.json"},
    }  # fmt: skip


def _policies() -> dict[str, str]:
    policy = CHAT.replace("[local, hosted]", "[local]") + (
        "endpoints: {embeddings: {service: other, model: e, ttl: 0s}, images: other, audio: other, batches: other}\n"
    )

    def of_surface(name: str) -> str:
        return policy.replace("surface: chat", f"surface: {name}").replace("[chat, gpt-4o-mini]", f"[{name}]")

    def of_tier(name: str) -> str:
        return of_surface(name).replace("[local]", f"[{name}]").replace("{local:", f"{{{name}:")

    judge = f"judge: {{backend: judge, within: 5s, max_usd_per_day: {JUDGE_USD}}}"
    judged = of_surface("judged").replace("[local]", "[local, long]")
    return {
        "chat": policy,
        "capped": of_surface("capped") + f"session: {{usd: {BUDGET_USD}}}\n",
        "judged": judged.replace("no_signal: accept", f"no_signal: accept\n  verify: [judge]\n  {judge}"),
        **{name: of_tier(name) for name in ("long", "claude", "sources")},
    }
