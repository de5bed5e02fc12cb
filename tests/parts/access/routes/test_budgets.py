"""The admin API of budgets: who may look and who may change, and what a change leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.audit.trail import AuditTrail, TrailFilter
from tests.gateway.telemetry.conftest import server, store
from tests.parts.access.test_people import admin_port, sent, url_of
from tests.support.identity_provider import IdentityProvider

__all__ = ["server", "store"]

TEAMS = {"web": {"limits": {"budgets": [{"usd": 100, "per": "total"}]}}}
ACCOUNT = "team:web/usd/total"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


async def test_admins_change_and_members_look(tmp_path: Path, provider: IdentityProvider, store: RedisStore) -> None:
    """A member sees their own team's budget; a reset has its person's name, in the trail too."""
    await store.ask([Command((b"DEL", b"{tierline:traces}:quota:team:web/usd/total", b"{tierline:traces}:audit"))])
    async with admin_port(tmp_path, provider, url_of(store), teams=TEAMS) as client:
        admin, member = (
            sent(provider.token(groups=["platform"], preferred_username="ada")),
            sent(provider.token(groups=["web"])),
        )
        body = {"owner": "team:web", "usd": 12.5, "message": "as agreed", "author": "somebody else"}
        assert (await client.post("/admin/budgets/reset", json=body, headers=member)).status_code == 403
        done = (await client.post("/admin/budgets/reset", json=body, headers=admin)).json()["budgets"]
        assert [(one["account"], one["spent_usd"], one["limit_usd"], one["share"]) for one in done] == [
            (ACCOUNT, 12.5, 100, 0.125)
        ]
        topped = await client.post("/admin/budgets/topup", json={**body, "usd": 2}, headers=sent("the-admin-key"))
        assert topped.json()["budgets"][0]["spent_usd"] == 10.5
        seen = await client.get("/admin/budgets?owner=team:web", headers=member)
        assert seen.json()["budgets"][0]["spent_usd"] == 10.5
        for path in ("/admin/budgets", "/admin/budgets?owner=team:ops", "/admin/budgets?owner=tenant:web"):
            assert (await client.get(path, headers=member)).status_code == 403, path
        entries = (await AuditTrail(store).page(TrailFilter("budget"), "", 9))["entries"]
        assert [(one["by"], one["action"], one["how"]) for one in entries] == [
            ("somebody else", "topup", "admin"),
            ("ada", "reset", "admin"),
        ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"owner": "team:ops", "message": "so"}, "team ops has no budget"),
        ({"owner": "color:red", "message": "so"}, "is no owner"),
        ({"owner": "team:web", "usd": -1, "message": "so"}, "usd"),
        ({"owner": "team:web"}, "message"),
    ],
)
async def test_what_cannot_be_changed_is_said(
    body: dict[str, object], says: str, tmp_path: Path, provider: IdentityProvider, store: RedisStore
) -> None:
    """In the envelope of errors."""
    async with admin_port(tmp_path, provider, url_of(store), teams=TEAMS) as client:
        reply = await client.post("/admin/budgets/reset", json=body, headers=sent("the-admin-key"))
        assert reply.status_code == 400 and says in str(reply.json()["error"])
