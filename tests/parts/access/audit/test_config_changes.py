"""Changes of the config in the audit trail: one entry each, with the keys that changed, and no value."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cache.store.base import Command, NoStore
from cache.store.redis_store import RedisStore
from gateway.parts.access.audit.config_changes import note_content
from gateway.parts.access.audit.entries import TrailEntry
from gateway.parts.access.audit.trail import TrailFilter
from tests.parts.access.audit.test_trail import listed
from tests.parts.rollout.registry.conftest import server, store
from tests.support.gateway import serve
from tests.support.store import UNHURRIED, LocalStore
from tests.support.wait import until

__all__ = ["server", "store"]
BEFORE: dict[str, Any] = {
    "port": 8787,
    "store": {"url": "redis://:hunter2@10.0.0.5"},
    "tiers": [{"name": "local", "backends": [{"model": "small", "key_env": "K"}]}],
}


async def test_a_change_names_its_keys_and_no_value(store: RedisStore) -> None:
    """Keys in lists are named by the tier and the model; nothing in the store has what stands behind a key."""
    await note_content(store, "/etc/tierline.yaml", BEFORE)
    after = {**BEFORE, "port": 9000, "log": {"requests": True}}
    after["tiers"] = [{"name": "local", "backends": [{"model": "small", "key_env": "OTHER"}]}]
    after["store"] = {"url": "redis://:hunter3@10.0.0.5"}
    await note_content(store, "/etc/tierline.yaml", after)
    await note_content(store, "/etc/tierline.yaml", {"port": 9000})
    removed, changed, started = await listed(store)
    assert (started.kind, started.subject, started.action, started.after) == (
        "config",
        "/etc/tierline.yaml",
        "start",
        {"keys": 5},
    )
    assert changed.after == {
        "added": ["log.requests"],
        "changed": ["port", "store.url", "tiers.local.backends.small.key_env"],
    }
    assert removed.after["removed"][0] == "log.requests" and "changed" not in removed.after
    assert started.how == "config" and started.by
    dumped = [await store.ask([Command((b"HGETALL", b"tierline:{audit}:configs"))]), started, changed]
    assert "hunter" not in str(dumped)


async def test_replicas_that_start_together_make_one_entry(store: RedisStore) -> None:
    """Also where each of them still saw the config before; a file at another path has entries of its own."""
    await note_content(store, "a", BEFORE)
    await asyncio.gather(*(note_content(store, "a", {**BEFORE, "port": 9000}) for _ in range(8)))
    assert [one.action for one in await listed(store)] == ["change", "start"]
    await note_content(store, "b", BEFORE)
    assert [one.subject for one in await listed(store)] == ["b", "a", "a"]
    await note_content(NoStore(), "a", {})


def test_a_gateway_that_starts_with_another_config_says_so(server: LocalStore, tmp_path: Path) -> None:
    """The next start with the same file says nothing, and one with another key names it."""

    async def entries() -> list[TrailEntry]:
        opened = RedisStore.from_url(server.url, slack=UNHURRIED)
        try:
            return await listed(opened, TrailFilter(kind="config", subject=str(tmp_path)))
        finally:
            await opened.aclose()

    for settings, wanted in (({}, 1), ({}, 1), ({"log": {"requests": True}}, 2)):
        with serve(tmp_path, "http://127.0.0.1:9/v1", store_url=server.url, settings=settings):
            until(lambda: len(asyncio.run(entries())) == wanted, 10.0, f"{wanted} entries")  # noqa: B023
    assert asyncio.run(entries())[0].after == {"added": ["log.requests"]}
