"""A budget is topped up and reset on the page of its key or team, by who may, and the audit trail says why."""

from __future__ import annotations

import html
import re
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.quotas.accounts import OwnerAccounts
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from policies.quantities import NANO
from tests.gateway.telemetry.conftest import server, store
from tests.parts.access.pages.test_keys import ADMIN, KEY_ADMIN, made
from tests.parts.console.test_app import console

__all__ = ["server", "store"]


async def spent(client: httpx2.AsyncClient, path: str) -> list[float]:
    page = (await client.get(f"{path}.json")).json()
    return [one["spent_usd"] for one in (page.get("key") or page["owner"])["budgets"]]


async def spend(store: RedisStore, kind: Any, name: str, terms: Any, usd: float) -> None:
    """Have so much count as spent in each window of an owner."""
    for account in OwnerAccounts(kind, name, terms).money(time.time()):
        field = f"{ACCOUNT_PREFIX}{account.name}".encode()
        await store.ask([Command((b"HSET", field, b"spent", b"%d" % round(usd * NANO)))])


async def test_a_key_is_topped_up_and_reset_on_its_page(store: RedisStore, tmp_path: Path) -> None:
    """One budget of several by its window; what was done stands on the page, in the audit trail, and in its counter."""
    async with console(tmp_path, store, 0) as client:
        name, _ = await made(client)
        key = await KeyRegistry(store).find(name)
        await spend(store, "key", name, key.terms, 20.0)
        path = f"/keys/{name}"
        assert 'value="topup"' in (await client.get(path)).text
        done = await client.post(path, data={"do": "topup", "usd": "$5", "per": "month", "message": "a busy week"})
        assert done.status_code == 200 and "$5.00 more may be spent: $15.00 of $25.00 counts as spent" in done.text
        assert sorted(await spent(client, path)) == [15.0, 20.0]
        reset = await client.post(path, data={"do": "reset", "usd": "1", "message": "a wrong price"})
        assert reset.status_code == 200 and await spent(client, path) == [1.0, 1.0]
        entries = (await client.get("/changes.json?kind=budget")).json()["entries"]
        assert [(one["action"], one["message"]) for one in entries] == [
            ("reset", "a wrong price"), ("reset", "a wrong price"), ("topup", "a busy week"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"do": "topup", "usd": "5"}, "Say why"),
        ({"do": "topup", "usd": "", "message": "m"}, "how many dollars"),
        ({"do": "reset", "usd": "-1", "message": "m"}, "is no amount of US dollars"),
        ({"do": "reset", "usd": "nan", "message": "m"}, "is no amount of US dollars"),
        ({"do": "topup", "usd": "5", "message": "m"}, "there are budgets per"),
        ({"do": "topup", "usd": "5", "per": "year", "message": "m"}, "is no window"),
    ],
)
async def test_what_cannot_be_done_changes_nothing(
    form: dict[str, str], why: str, store: RedisStore, tmp_path: Path
) -> None:
    async with console(tmp_path, store, 0) as client:
        name, _ = await made(client)
        await spend(store, "key", name, (await KeyRegistry(store).find(name)).terms, 3.0)
        refused = await client.post(f"/keys/{name}", data=form)
        assert refused.status_code == 422 and why in html.unescape(refused.text)
        assert await spent(client, f"/keys/{name}") == [3.0, 3.0]


async def test_a_team_is_topped_up_by_admins_alone(store: RedisStore, tmp_path: Path) -> None:
    """Whoever changes keys of a team may not give it more money, and is not offered to."""
    people = {ADMIN: "admin-key-1", KEY_ADMIN: "key-admin-key-1"}
    async with console(tmp_path, store, 0, people) as client:
        client.headers["authorization"] = f"Bearer {people[ADMIN]}"
        team = {"revision": "0", "budgets": "10/total"}
        assert (await client.post("/teams/team/web", data=team)).status_code == 200
        name, _ = await made(client)
        form = {"do": "topup", "usd": "4", "message": "more"}
        done = await client.post("/teams/team/web", data=form)
        assert done.status_code == 200 and await spent(client, "/teams/team/web") == [-4.0]
        assert re.search(r'name="budgets"[^>]*value="10/total"', done.text)
        client.headers["authorization"] = f"Bearer {people[KEY_ADMIN]}"
        assert 'value="topup"' not in (await client.get(f"/keys/{name}")).text
        refused = await client.post(f"/keys/{name}", data={**form, "per": "month"})
        assert refused.status_code == 422 and "An admin can" in refused.text
        assert (await client.post("/teams/team/web", data=form)).status_code == 403
        client.headers["authorization"] = f"Bearer {people[ADMIN]}"
        assert await spent(client, "/teams/team/web") == [-4.0]
