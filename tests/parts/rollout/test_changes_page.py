"""The page Changes: who changed what, filtered and paged, whether it is whole, and what is said without a store."""

from __future__ import annotations

import asyncio
import html
import re
from pathlib import Path

import httpx2

from cache.store.base import Command, NoStore
from cache.store.redis_store import RedisStore
from gateway.parts.access.audit.entries import KEYS
from gateway.parts.access.keys.roles import EDITOR
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.ledger.live import LiveArchive
from tests.parts.access.audit.test_trail import of_key
from tests.parts.console.test_app import console, in_registry, places
from tests.parts.rollout.registry.conftest import server, store

__all__ = ["server", "store"]


async def test_changes_are_listed_filtered_and_paged(store: RedisStore, tmp_path: Path) -> None:
    """With links to what was changed, and texts that are no markup."""
    await in_registry(store, tmp_path)
    for number in range(150):
        await of_key(store, f"k_{number}", "create")
    await of_key(store, "<b>", "disable")
    async with console(tmp_path, store, 0) as client:
        page = (await client.get("/changes")).text
        assert page.count("<li data-row>") == 100 and '<a href="/keys/k_149">' in page
        assert "&lt;b&gt;" in page and "<b>" not in page and "state: active -&gt; disabled" in page
        [older] = re.findall(r'<a href="(\?[^"]*)">Older', page)
        second = (await client.get(f"/changes{html.unescape(older)}")).text
        assert '<a href="/keys/k_149">' not in second and '<a href="/policies/chat">' in second
        one = (await client.get("/changes.json?kind=key&by=ada&subject=k_14&since=7d")).json()
        assert one["entries"] == []  # these happened in 1970
        one = (await client.get("/changes.json?kind=key&by=ada&subject=k_149")).json()
        assert [entry["subject"] for entry in one["entries"]] == ["k_149"]
        assert "No change fits" in (await client.get("/changes?by=nobody")).text
        for wrong in ("before=x", "since=soon"):
            assert (await client.get(f"/changes?{wrong}")).status_code == 400


async def test_a_broken_trail_says_so(store: RedisStore, tmp_path: Path) -> None:
    for number in range(3):
        await of_key(store, f"k_{number}", "create")
    async with console(tmp_path, store, 0) as client:
        assert "Nothing was altered" in (await client.get("/changes?verify=1")).text
        [page] = await store.ask([Command((b"XRANGE", KEYS.encode(), b"-", b"+"))])
        await store.ask([Command((b"XDEL", KEYS.encode(), page[1][0]))])
        assert "The trail is broken" in (await client.get("/changes?verify=1")).text


async def test_who_signs_in_is_entered(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, 0, {EDITOR: "an-editors-key"}) as client:
        await client.post("/sign-in", data={"key": "wrong"})
        await client.post("/sign-in", data={"key": "an-editors-key"})
        entries = (await client.get("/changes.json?kind=login")).json()["entries"]
        assert [(one["by"], one["action"], one["how"]) for one in entries] == [("editor key", "sign-in", "console")]


async def test_without_a_store_the_page_says_what_to_do(store: RedisStore, tmp_path: Path) -> None:
    archive = LiveArchive(tmp_path, store)
    app = ConsoleApp(archive, NoStore(), places(tmp_path, store), ConsoleAccess({})).asgi()
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        page = await client.get("/changes")
        assert page.status_code == 200 and "TIERLINE_STORE_URL" in page.text
    await asyncio.wait_for(archive.aclose(), 10)
