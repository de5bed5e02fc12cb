"""The page Usage: what keys, teams and tenants spent, of which budget, and who may see whose."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.keys.roles import Grant, Person
from gateway.parts.console.views.usage import UsageView
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry.ledger import SHADOW, Ledger
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.consoles import console
from tests.parts.console.test_app import console as pages_of
from tests.parts.ledger.test_usage import one, used
from tests.support.wait import SLACK

__all__ = ["server", "store"]


@pytest.fixture
async def archive(store: RedisStore, tmp_path: Path) -> AsyncIterator[LiveArchive]:
    opened = LiveArchive(tmp_path, store)
    yield opened
    await opened.aclose()


def some() -> list[Ledger]:
    hit: dict[str, Any] = {"path": "cache-exact", "list_usd": 0.05}
    return [
        one(1, usd=0.25),
        one(2, usd=0.0, **hit),
        one(3, "k_2", usd=0.5, cost_unknown=True),
        one(4, "k_3", team="ops", usd=1.0),
        one(5, "", team="", usd=0.125),
        one(6, usd=9.0, arm=SHADOW),
    ]


async def test_what_everybody_spent_is_there_within_a_second(store: RedisStore, archive: LiveArchive) -> None:
    """By key and by team, the dearest first, with hits beside and unknown prices said."""
    archive.start()
    view = UsageView(archive, store)
    assert (await view.data("key"))["rows"] == []
    began = time.monotonic()
    await used(store, [(time.time(), ledger) for ledger in some()])
    while len((data := await view.data("key"))["rows"]) < 4:
        assert time.monotonic() < began + SLACK
    rows = [(row["name"], row["requests"], row["spent"], row["list"], row["unpriced"]) for row in data["rows"]]
    assert rows == [("k_3", 1, 1.0, 0, 0), ("k_2", 1, 0.5, 0, 1), ("k_1", 2, 0.25, 0.05, 0), ("none", 1, 0.125, 0, 0)]
    assert [row["request_id"] for row in data["latest"]] == [f"req-{number}" for number in (5, 4, 3, 2, 1)]
    assert [(row["name"], row["spent"]) for row in (await view.data("team"))["rows"]] == [
        ("acme/ops", 1.0), ("acme/web", 0.75), ("none", 0.125),
    ]  # fmt: skip


async def test_a_key_admin_sees_their_teams_alone(store: RedisStore, archive: LiveArchive) -> None:
    """In the rows, in the total and among the last requests."""
    await used(store, [(time.time(), ledger) for ledger in some()])
    await archive.catch_up()
    data = await UsageView(archive, store).data("key", ["acme/ops"])
    assert data["costs"] is None
    assert [row["name"] for row in data["rows"]] == ["k_3"] and data["total"]["spent"] == 1.0
    assert [row["request_id"] for row in data["latest"]] == ["req-4"]
    assert "tenant" not in data["columns"]


async def test_nothing_is_forecast_of_a_key_without_a_history(store: RedisStore, archive: LiveArchive) -> None:
    """Its first request was an hour ago: where it goes is not known."""
    await used(store, [(time.time() - 3600, one(1))])
    await archive.catch_up()
    [row] = (await UsageView(archive, store).data("key"))["rows"]
    assert row["month"].usd is None


async def test_the_page_leads_to_requests_keys_and_teams(store: RedisStore, tmp_path: Path) -> None:
    """And to a file of its table; what is not known is said so; and the filters it names are ones of that page."""
    record = KeyRecord("k_1", "ab" * 32, "acme", "web", name="ada's agent")
    await KeyRegistry(store).create(record, Why("tester"))
    async with console(tmp_path, store, some()) as client:
        text = (await client.get("/usage")).text
        for link in (
            '<a href="/keys/k_1" title="k_1">ada&#39;s agent</a>',
            'href="/teams/team/ops"',
            'href="/usage.csv?by=key"',
            'href="/requests?key=k_2',
        ):
            assert link in text, link
        assert "1 of unknown price" in text and "not known" in text
        assert '<a href="/usage" aria-current="page"' in text
        assert "req-4" in (await client.get("/requests?key=k_3&since=30d")).text
        found = (await client.get("/requests?team=ops&since=30d")).text
        assert "req-4" in found and "req-3" not in found
        assert (await client.get("/usage?by=color")).status_code == 400
        lines = list(csv.DictReader(io.StringIO((await client.get("/usage.csv?by=team")).text)))
        assert [(line["team"], line["charged_usd"]) for line in lines] == [
            ("acme/ops", "1.0"),
            ("acme/web", "0.75"),
            ("none", "0.125"),
        ]
        assert {row["name"] for row in (await client.get("/usage.json")).json()["rows"]} == {
            "k_1",
            "k_2",
            "k_3",
            "none",
        }


async def test_people_see_the_teams_that_their_role_says(store: RedisStore, tmp_path: Path) -> None:
    """Members and key admins of some teams theirs, and no tenant; viewers all; also in the file."""
    member = Person("mo@acme.example", "u_1", tenant="acme", teams=("ops",))
    admin_of_web = Person("kay@acme.example", "u_2", (Grant("key_admin", ("web",)),), "acme")
    viewer = Person("vi@acme.example", "u_3", (Grant("viewer"),))
    people = {member: "member-key-1", admin_of_web: "key-admin-key-1", viewer: "viewer-key-1"}
    await used(store, [(time.time(), ledger) for ledger in some()])
    async with pages_of(tmp_path, store, 1, people, key="k_1", team="web") as client:
        for person, keys in (
            (member, {"k_3"}),
            (admin_of_web, {"k_1", "k_2"}),
            (viewer, {"k_1", "k_2", "k_3", "none"}),
        ):
            headers = {"authorization": f"Bearer {people[person]}"}
            data = (await client.get("/usage.json", headers=headers)).json()
            assert {row["name"] for row in data["rows"]} == keys
            lines = csv.DictReader(io.StringIO((await client.get("/usage.csv", headers=headers)).text))
            assert {line["key"] for line in lines} == keys
            by_tenant = await client.get("/usage.json?by=tenant", headers=headers)
            assert by_tenant.status_code == (200 if person is viewer else 400)
