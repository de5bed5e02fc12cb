"""The admin API of keys and teams over HTTP, by role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.parts.access.keys.records import LATEST
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.server.app import App
from tests.parts.access.keys.conftest import registry, server, store
from tests.support.app import in_process
from tests.support.identity_provider import IdentityProvider
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

__all__ = ["registry", "server", "store"]
ROLES = [
    {"role": "admin", "where": {"groups": "platform"}},
    {"role": "key_admin", "where": {"groups": "leads"}, "teams": ["web"]},
    {"role": "viewer", "where": {"groups": "staff"}},
]


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


def as_of(provider: IdentityProvider, *groups: str) -> dict[str, str]:
    """The headers of a person in these groups."""
    return {"authorization": f"Bearer {provider.token(groups=list(groups))}"}


@asynccontextmanager
async def admin_port(
    folder: Path, upstream: Upstream, server: LocalStore, provider: IdentityProvider | None = None
) -> AsyncIterator[tuple[httpx2.AsyncClient, httpx2.AsyncClient]]:
    """Clients of the admin port, with its key, and of the public one."""
    settings: dict[str, Any] = {
        "admin": {"key_env": "ADMIN_KEY", "port": 8788}, "embedding": {"state": str(folder / "state")},
    }  # fmt: skip
    if provider is not None:
        issuer = {"issuer": provider.issuer, "audience": provider.AUDIENCE, "claims": {"team": "groups"}}
        settings |= {"identity": {"issuers": [issuer]}, "roles": ROLES}
    app = in_process(folder, upstream.url, store_url=server.url, settings=settings, env={"ADMIN_KEY": "the-admin-key"})
    async with app as running:
        transport = httpx2.ASGITransport(app=App(running.steps))
        headers = {"authorization": "Bearer the-admin-key"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8788", headers=headers) as client:
            yield client, running.client


async def test_a_key_lives_from_its_creation_to_its_end(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """It is made, used, changed, rotated, disabled and revoked, and shown once."""
    async with admin_port(tmp_path, upstream, server) as (admin, public):
        body = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}

        async def used(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return int((await public.post("/v1/chat/completions", json=body, headers=headers)).status_code)

        terms = {"requests_per_minute": 600, "budgets": [{"usd": 25, "per": "month", "zone": "Europe/Berlin"}]}
        made = await admin.post("/admin/keys", json={"name": "ada", "team": "web", "terms": terms, "message": "new"})
        assert made.status_code == 200, made.text
        key = made.json()
        assert await used(key["key"]) == 200
        shown = (await admin.get(f"/admin/keys/{key['id']}")).json()
        assert (shown["name"], shown["terms"]["requests_per_minute"]) == ("ada", 600)
        assert "key" not in shown
        assert "digest" not in shown
        patch = {"surfaces": ["chat"], "terms": None, "revision": 1}
        changed = (await admin.patch(f"/admin/keys/{key['id']}", json=patch)).json()
        assert (changed["surfaces"], "terms" in changed) == (["chat"], False)
        stale = await admin.patch(f"/admin/keys/{key['id']}", json=patch)
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "key_conflict")
        rotated = (await admin.post("/admin/keys/ada/rotate", json={"grace": "1h"})).json()
        assert rotated["id"] == key["id"]
        assert [await used(one["key"]) for one in (key, rotated)] == [200, 200]
        listed = (await admin.get("/admin/keys?team=web")).json()
        assert [one["id"] for one in listed["keys"]] == [key["id"]]
        assert (await admin.post("/admin/keys/ada/revoke", json={"message": "lost"})).json()["state"] == "revoked"
        assert (await admin.post("/admin/keys/ada/enable", json={})).status_code == 400
        assert (await admin.get("/admin/keys/nobody")).status_code == 404
        exported = (await admin.get("/admin/keys/export")).json()["text"]
        assert key["key"] not in exported
        again = (await admin.post("/admin/keys/import", json={"text": exported})).json()
        assert (again["imported"], again["there_already"]) == (0, 2)


async def test_teams_are_made_changed_and_removed(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """And tenants, by their kind; what is wrong is said."""
    async with admin_port(tmp_path, upstream, server) as (admin, _):
        put = await admin.put("/admin/teams/web", json={"terms": {"concurrent": 5}, "surfaces": ["chat"]})
        assert (put.status_code, put.json()["terms"]) == (200, {"concurrent": 5})
        put = await admin.put("/admin/teams/web", json={"surfaces": None})
        assert ("surfaces" in put.json(), put.json()["terms"], put.json()["revision"]) == (False, {"concurrent": 5}, 2)
        await admin.put("/admin/teams/acme?kind=tenant", json={"per_user": {"requests_per_minute": 9}})
        listed = (await admin.get("/admin/teams")).json()["teams"]
        assert [(one["kind"], one["name"]) for one in listed] == [("team", "web"), ("tenant", "acme")]
        wrong = await admin.put("/admin/teams/web", json={"terms": {"concurrent": 0}})
        assert wrong.status_code == 400
        assert (await admin.put("/admin/teams/W eb", json={})).status_code == 400
        assert (await admin.delete("/admin/teams/web")).json()["removed"] is True
        assert (await admin.get("/admin/teams/web")).status_code == 404


async def test_a_person_does_what_their_role_and_team_allow(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, provider: IdentityProvider
) -> None:
    """A member makes keys of their team within its terms; others' keys are neither shown nor changed."""
    async with admin_port(tmp_path, upstream, server, provider) as (admin, _):
        await admin.put("/admin/teams/ops", json={"surfaces": ["chat"], "terms": {"requests_per_minute": 60}})
        web = (await admin.post("/admin/keys", json={"name": "web-1", "team": "web"})).json()
        member, lead, viewer = (as_of(provider, group) for group in ("ops", "leads", "staff"))
        made = await admin.post("/admin/keys", json={"name": "mine", "team": "ops"}, headers=member)
        assert (made.status_code, made.json()["surfaces"]) == (200, ["chat"])
        too_much = {"name": "more", "team": "ops", "terms": {"requests_per_minute": 61}}
        refused = await admin.post("/admin/keys", json=too_much, headers=member)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_permitted")
        listed = (await admin.get("/admin/keys", headers=member)).json()["keys"]
        assert [one["name"] for one in listed] == ["mine"]
        assert (await admin.get(f"/admin/keys/{web['id']}", headers=member)).status_code == 404
        assert (await admin.get("/admin/keys/web-1", headers=member)).status_code == 404
        assert (await admin.post(f"/admin/keys/{web['id']}/revoke", json={}, headers=lead)).status_code == 200
        assert (await admin.put("/admin/teams/web", json={}, headers=lead)).status_code == 403
        assert (await admin.post("/admin/keys", json={"team": "web"}, headers=viewer)).status_code == 403
        assert (await admin.get("/admin/keys/export", headers=lead)).status_code == 403


async def test_a_role_for_a_team_is_none_for_a_tenant_nor_in_another_tenant(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, provider: IdentityProvider
) -> None:
    """Neither for a tenant of the same name, nor for keys of another tenant's team of the same name."""
    async with admin_port(tmp_path, upstream, server, provider) as (admin, _):
        await admin.put("/admin/teams/web?kind=tenant", json={"terms": {"requests_per_minute": 9}})
        await admin.put("/admin/teams/web", json={"terms": {"requests_per_minute": 5}})
        other = (await admin.post("/admin/keys", json={"name": "theirs", "team": "web", "tenant": "acme"})).json()
        for group in ("leads", "web"):
            headers = as_of(provider, group)
            listed = (await admin.get("/admin/teams", headers=headers)).json()["teams"]
            assert [(one["kind"], one["name"]) for one in listed] == [("team", "web")]
            assert (await admin.get("/admin/teams/web", headers=headers)).status_code == 200
            assert (await admin.get("/admin/teams/web?kind=tenant", headers=headers)).status_code == 403
            for path in ("/admin/keys", "/admin/keys?team=web"):
                keys = (await admin.get(path, headers=headers)).json()["keys"]
                assert other["id"] not in [one["id"] for one in keys]
            assert (await admin.get(f"/admin/keys/{other['id']}", headers=headers)).status_code == 404
            own = (await admin.post("/admin/keys", json={"team": "web"})).json()["id"]
            for beyond in ({"team": "ops"}, {"team": None}, {"tenant": "acme"}, {"may_try": True}):
                tried = await admin.patch(f"/admin/keys/{own}", json=beyond, headers=headers)
                assert tried.status_code == 403, beyond
                tried = await admin.post("/admin/keys", json={"team": "web"} | beyond, headers=headers)
                assert tried.status_code == 403, beyond
            for action in ("disable", "revoke", "rotate"):
                tried = await admin.post(f"/admin/keys/{other['id']}/{action}", json={}, headers=headers)
                assert tried.status_code in (403, 404), action
        assert (await admin.get(f"/admin/keys/{other['id']}")).json()["state"] == "active"


async def test_the_trail_tells_of_keys_what_their_readers_may_see(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, provider: IdentityProvider
) -> None:
    """A viewer, and a key admin of other teams, find who changed a key and when, and not what it is."""
    async with admin_port(tmp_path, upstream, server, provider) as (admin, _):
        await admin.post("/admin/keys", json={"name": "quiet", "team": "ops", "metadata": {"plan": "secret"}})
        assert "quiet" in (await admin.get("/admin/audit")).text
        for group in ("staff", "leads"):
            told = await admin.get("/admin/audit?kind=key", headers=as_of(provider, group))
            assert [one["action"] for one in told.json()["entries"]] == ["create"]
            assert "quiet" not in told.text and "secret" not in told.text


async def test_the_trail_tells_of_teams_what_their_readers_may_see(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, provider: IdentityProvider
) -> None:
    """A key admin reads the limits and budgets of their own teams, a viewer of those of their own tenant."""
    terms = {"terms": {"budgets": [{"usd": 123.5, "per": "total"}]}}
    async with admin_port(tmp_path, upstream, server, provider) as (admin, _):
        for team, tenant in (("web", ""), ("ops", ""), ("ops", "acme")):
            assert (await admin.put(f"/admin/teams/{team}", params={"tenant": tenant}, json=terms)).status_code == 200
            body = {"owner": f"team:{tenant + '/' if tenant else ''}{team}", "usd": 7.25, "message": "why"}
            assert (await admin.post("/admin/budgets/topup", json=body)).status_code == 200
        for group, readable in (("platform", 3), ("staff", 2), ("leads", 1)):
            for kind in ("team", "budget"):
                reply = await admin.get(f"/admin/audit?kind={kind}", headers=as_of(provider, group))
                entries = reply.json()["entries"]
                assert len(entries) == 3, "that something was changed is told"
                assert sum(bool(one["after"]) and bool(one["words"]) for one in entries) == readable, (group, kind)


async def test_a_key_ends_at_a_date_or_never(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """A later one could not be shown: the lists of whoever administers keys would fail."""
    async with admin_port(tmp_path, upstream, server) as (admin, _):
        key = (await admin.post("/admin/keys", json={"team": "web"})).json()
        for end in (1e308, 9e15):
            assert (await admin.post("/admin/keys", json={"expires": end})).status_code == 400
            assert (await admin.patch(f"/admin/keys/{key['id']}", json={"expires": end})).status_code == 400
            assert (await admin.put("/admin/teams/web", json={"longest_life_s": end})).status_code == 400
        rotated = await admin.post(f"/admin/keys/{key['id']}/rotate", json={"grace": "99999999999d"})
        assert (rotated.status_code, rotated.json()["old_until"]) == (200, LATEST)


async def test_a_key_holds_so_much_and_no_more(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Workers keep thousands of them in memory, and whoever is in a team may make as many as they like."""
    async with admin_port(tmp_path, upstream, server) as (admin, _):
        for body, wrong in (
            ({"metadata": {"a": "x" * 512}}, {"metadata": {"a": "x" * 513}}),
            ({"metadata": {str(n): "" for n in range(16)}}, {"metadata": {str(n): "" for n in range(17)}}),
            ({"models": ["m"] * 64}, {"models": ["m"] * 65}),
        ):
            assert (await admin.post("/admin/keys", json=body)).status_code == 200
            refused = await admin.post("/admin/keys", json=wrong)
            assert (refused.status_code, refused.json()["error"]["param"].partition(".")[0]) == (400, next(iter(wrong)))


async def test_a_key_has_no_owner_whose_name_is_none(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Neither when it is made nor later, so that no account's name can be made to look like another's."""
    async with admin_port(tmp_path, upstream, server) as (admin, _):
        key = (await admin.post("/admin/keys", json={"team": "web"})).json()
        for wrong in ({"team": "web/usd"}, {"tenant": "key:k_1"}, {"tenant": ""}, {"team": "web\n"}):
            assert (await admin.post("/admin/keys", json=wrong)).status_code == 400
            assert (await admin.patch(f"/admin/keys/{key['id']}", json=wrong)).status_code == 400
