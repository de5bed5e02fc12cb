"""The store's memory, divided among tenants: one that floods takes nothing from another, and evictions are told."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from cache.planning.plan import CachePlan
from cache.response_cache import ResponseCache
from cache.scopes.scope import Caps
from cache.store.base import Store
from cache.store.redis_store import RedisStore
from cache.write import CacheWrite
from gateway.config.backends import BackendConfig, TierConfig
from gateway.config.schema import CacheConfig, Deployment
from gateway.config.sections import asked_quotas, deployment_model
from gateway.parts.access.config import TenantConfig
from gateway.parts.apis.config import ResponsesConfig
from gateway.parts.apis.stores.kept_responses import KeptResponses
from gateway.parts.cache_admin import store_room
from gateway.parts.cache_admin.store_room import DividedStore, fitted_quotas
from policies.loader import PolicySet
from policies.model import Policy
from policies.sections import policy_model
from tests.cache.samples import Facts, answer, body, policy
from tests.gateway.telemetry.metric_text import value_of
from tests.support.app import in_process
from tests.support.store import UNHURRIED, local_store
from tests.support.upstream import Upstream
from tests.support.wait import eventually

_MIB = 1 << 20
_MEMORY = 24 * _MIB
_SMALL = f"--maxmemory {_MEMORY} --maxmemory-policy volatile-lfu"
_SURFACES = ("chat", "agent", "voice")
_POLICIES = {name: policy_model().model_validate({**dict(policy()), "surface": name}) for name in _SURFACES}
_SET = PolicySet(_POLICIES, _POLICIES["chat"], {}, {})


def deployed(tenants: int = 2, **sections: Any) -> Deployment:
    """A deployment with the default quotas, unless `sections` say otherwise."""
    backend = BackendConfig(base_url="http://127.0.0.1:1/v1", model="m")
    names = ["loud", "quiet", *map(str, range(2, tenants))][:tenants]
    keys = {name: TenantConfig(key_env=(f"KEY_{name}",)) for name in names}
    return deployment_model()(tiers=(TierConfig(name="local", backends=(backend,)),), tenants=keys, **sections)


def room_in(store: Store, deployment: Deployment) -> DividedStore:
    """What divides a store's memory, of the quotas that the config asks for."""
    quotas = {name: Caps(asked.entries, asked.bytes) for name, asked in asked_quotas(deployment).items()}
    return DividedStore(store, deployment, lambda: _SET, quotas)


def noise(number: int, size: int) -> str:
    """A text that no compression makes shorter than half."""
    return np.random.default_rng(number).bytes(size // 2).hex()


def flood(client: redis.Redis) -> None:
    for number in range(200):
        client.set(f"{number}", b"x" * 60_000, ex=600)


def response(name: str, number: int, size: int) -> dict[str, Any]:
    return {"id": f"resp_{name}_{number}", "object": "response", "output": [{"id": "m", "text": noise(number, size)}]}


async def keep_all(kept: KeptResponses, tenant: str, count: int, size: int) -> None:
    for number in range(count):
        kept.keep(tenant, response(tenant, number, size), [], [], 86_400)
        while kept._pending_bytes > _MIB:
            await asyncio.sleep(0.002)
    while kept._pending:
        await asyncio.sleep(0.002)


async def write_all(cache: ResponseCache, plans: list[CachePlan], size: int) -> None:
    for start in range(0, len(plans), 20):
        keeps = [CacheWrite(plan, answer(noise(start + i, size))) for i, plan in enumerate(plans[start : start + 20])]
        assert all(outcome.stored for outcome in await cache.write_all(keeps))


def plans(cache: ResponseCache, tenant: str, on: Policy, count: int) -> list[CachePlan]:
    return [cache.plan(body(f"Tell me of number {number}"), on, tenant, Facts()) for number in range(count)]


@pytest.mark.parametrize(("count", "size"), [(500, 60_000), (8_000, 300)])
async def test_a_tenant_that_floods_takes_nothing_from_another(count: int, size: int) -> None:
    """It fills its quotas on every surface, with large values or small ones, and the store has evicted nothing."""
    with local_store(_SMALL) as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        room = room_in(store, deployed())
        cache = ResponseCache(store, embedder_name="e", dimension=4, caps=room.quotas["cache"])
        kept = KeptResponses(store, b"secret", room.quotas["responses"])
        await room.start()
        await cache.start()
        kept.start()
        quiet = plans(cache, "quiet", _POLICIES["chat"], 100)
        await write_all(cache, quiet, 2_000)
        await keep_all(kept, "quiet", 50, 10_000)
        await keep_all(kept, "loud", count, size)
        for on in _POLICIES.values():
            await write_all(cache, plans(cache, "loud", on, count // 2), size)
        assert [(await cache.exact(plan)).outcome for plan in quiet] == ["hit"] * 100
        assert all([await kept.find("quiet", f"resp_quiet_{number}") for number in range(50)])
        assert (await store.memory()).evicted == 0
        assert room.degraded() == []
        await kept.aclose()
        await cache.aclose()
        await room.aclose()
        await store.aclose()


def test_quotas_never_add_up_to_more_than_the_room() -> None:
    """Whatever the number of tenants and the config: three quarters, of which one tenant has at most a quarter each."""
    huge = {"cache": CacheConfig(bytes="1024GiB", entries=1 << 30), "responses": ResponsesConfig(bytes="1024GiB")}
    for tenants in (1, 2, 3, 10, 200):
        cache, responses = fitted_quotas(deployed(tenants, **huge), _SET, 256 * _MIB).values()
        of_one = len(_SURFACES) * (cache.bytes + 450 * cache.entries)
        assert of_one <= 64 * _MIB
        assert responses.bytes <= 40 * _MIB
        assert tenants * (of_one + responses.bytes + 450 * responses.entries) <= 192 * _MIB


def test_a_store_without_a_limit_leaves_the_quotas_alone() -> None:
    """As does one that is large enough."""
    for limit in (0, 1 << 40):
        cache, responses = fitted_quotas(deployed(), _SET, limit).values()
        assert (cache.entries, cache.bytes) == (20_000, 32 * _MIB)
        assert (responses.entries, responses.bytes) == (20_000, 256 * _MIB)


async def test_what_is_cut_down_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """When the gateway starts, and again when the store's memory changes; as a warning where the config says more."""
    with local_store(_SMALL) as server, caplog.at_level(logging.INFO, "tierline.store"):
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        asked = deployed(responses=ResponsesConfig(bytes="256MiB"))
        room = room_in(store, asked)
        await room.refresh()
        await room.refresh()
        cut = [record.getMessage() for record in caplog.records]
        assert [(one.levelname, line.partition(":")[0]) for one, line in zip(caplog.records, cut, strict=True)] == [
            ("INFO", "cache"),
            ("WARNING", "responses"),
        ]
        assert "cut down to 1536 and 1.9 MiB, a tenant's part of the store's 24 MiB" in cut[1]
        with redis.Redis(port=server.port) as administrator:
            administrator.config_set("maxmemory", 0)
        await room.refresh()
        assert (room.quotas["cache"].bytes, room.quotas["responses"].bytes) == (32 * _MIB, 256 * _MIB)
        await store.aclose()


async def test_evictions_are_told(tmp_path: Path, local_upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /readyz, which is degraded for five minutes, in a gauge, and in one line of the log a minute."""
    monkeypatch.setattr(store_room, "_EVERY_S", 0.05)
    lines: list[str] = []
    monkeypatch.setattr(store_room.log, "warning", lambda text, *args: lines.append(text % args))
    now = [1000.0]
    with local_store("--maxmemory 6mb --maxmemory-policy volatile-lfu") as server:
        async with in_process(tmp_path, local_upstream.url, store_url=server.url) as app:
            room = app.steps.room
            assert isinstance(room, DividedStore)
            room._clock = lambda: now[0]
            assert not [line for line in (await app.get("/readyz")).json()["degraded"] if "store" in line]
            with redis.Redis(port=server.port) as other:
                for _ in range(3):
                    await asyncio.to_thread(flood, other)
                    seen = other.info("stats")["evicted_keys"]
                    await eventually(lambda seen=seen: room.evicted() >= seen)
            report = (await app.get("/readyz")).json()
            assert report["status"] == "degraded"
            (told,) = [line for line in report["degraded"] if line.startswith("store: evicts")]
            assert "evicts what was stored, as its 6 MiB are full (volatile-lfu); give it more memory" in told
            assert value_of((await app.get("/metrics")).content, "tierline_store_evicted_keys") >= seen
            (logged,) = [line for line in lines if "evicts" in line]
            assert re.search(r"\([1-9]\d* keys in the last five minutes\)$", logged)
            now[0] += 301
            assert not [line for line in (await app.get("/readyz")).json()["degraded"] if "evicts" in line]


async def test_a_store_that_may_evict_anything_is_told() -> None:
    """Policies and records have no expiry, and such a store takes them too."""
    with local_store("--maxmemory 6mb --maxmemory-policy allkeys-lru") as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        room = room_in(store, deployed())
        await room.refresh()
        assert "may evict anything when it is full (allkeys-lru)" in "".join(room.degraded())
        await store.aclose()


async def test_a_store_that_does_not_say_leaves_the_quotas_alone() -> None:
    """INFO may be forbidden: then nothing is known, and nothing is said."""
    with local_store(_SMALL) as server:
        with redis.Redis(port=server.port) as administrator:
            administrator.acl_setuser("default", commands=["-info"])
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        room = room_in(store, deployed())
        await room.start()
        assert (room.memory, room.degraded(), room.quotas["responses"].bytes) == (None, [], 256 * _MIB)
        await room.aclose()
        await store.aclose()


@pytest.mark.parametrize(("flags", "told"), [("--rename-command ZMSCORE GONE", True), ("", False)])
async def test_a_server_that_is_too_old_is_told(flags: str, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    """From the start, in `/readyz` and once in the log: what lacks a command of Redis 6.2 fails where it is needed."""
    with local_store(flags) as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        room = room_in(store, deployed())
        with caplog.at_level(logging.WARNING, "tierline.store"):
            await room.start()
            await room.refresh()
        assert [line.startswith("store: older than Redis 6.2") for line in room.degraded()] == [True] * told
        assert sum("older than" in record.getMessage() for record in caplog.records) == told
        await room.aclose()
        await store.aclose()
