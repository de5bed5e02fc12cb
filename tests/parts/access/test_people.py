"""People and the admin API: each role does what the table says and no more, and changes have its person's name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.parts.access.admin_api import admin_api
from gateway.parts.access.keys.roles import ACTIONS
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.parts.rollout.registry.view import history_of
from gateway.server.app import App
from policies.errors import ConfigError
from tests.gateway.telemetry.conftest import server, store
from tests.support.app import in_process
from tests.support.gateway import CHAT, config, secrets_of, write_deployment
from tests.support.identity_provider import IdentityProvider, rsa_key, sign
from tests.support.upstream import Upstream

__all__ = ["server", "store"]

ROLES = [
    {"role": "admin", "where": {"groups": "platform"}},
    {"role": "editor", "where": {"groups": "search"}, "surfaces": ["search"]},
    {"role": "editor", "where": {"groups": "policies"}},
    {"role": "viewer", "where": {"groups": "staff"}},
]


ENV = {"ADMIN_KEY": "the-admin-key", "ACME_KEY": "key-of-acme"}


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


@asynccontextmanager
async def admin_port(
    folder: Path, provider: IdentityProvider, store_url: str | None = None, **more: Any
) -> AsyncIterator[httpx2.AsyncClient]:
    """The admin port of a gateway whose people are the provider's; the admin key is `the-admin-key` if it has one."""
    issuer = {"issuer": provider.issuer, "audience": provider.AUDIENCE, "claims": {"team": "groups"}}
    settings = {
        "identity": {"issuers": [issuer]}, "roles": ROLES, "admin": {"key_env": "ADMIN_KEY", "port": 8788}, **more,
        "embedding": {"state": str(folder / "state")},
    }  # fmt: skip
    with Upstream() as upstream:
        app = in_process(folder, upstream.url, store_url=store_url, settings=settings, env=ENV)
        async with app as running:
            transport = httpx2.ASGITransport(app=App(running.steps))
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost:8788") as client:
                yield client


def url_of(store: RedisStore) -> str:
    return f"redis://{str(store)[11:-1]}"


def sent(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_role_opens_what_the_table_says(tmp_path: Path, provider: IdentityProvider, store: RedisStore) -> None:
    async with admin_port(tmp_path, provider, url_of(store)) as client:
        expected = {
            "platform": (200, 409, 409, 404), "staff": (200, 403, 403, 403), "search": (200, 409, 403, 403),
            "policies": (200, 409, 409, 404), "nobody": (403, 403, 403, 403),
        }  # fmt: skip
        for group, statuses in expected.items():
            headers = sent(provider.token(groups=[group]))
            got = [
                await client.get("/admin/policies", headers=headers),
                await client.post("/admin/policies/search/pause", json={"message": "why"}, headers=headers),
                await client.post("/admin/policies/chat/pause", json={"message": "why"}, headers=headers),
                await client.get("/admin/cache/entries/abcdef012345", headers=headers),
            ]
            assert tuple(reply.status_code for reply in got) == statuses, group
            refused = [reply.json()["error"] for reply in got if reply.status_code == 403]
            assert {error["code"] for error in refused} <= {"not_permitted"}
        reply = await client.get("/admin/policies", headers=sent("the-admin-key"))
        assert reply.status_code == 200, "the key of today stays valid"


async def test_a_token_that_is_not_accepted_counts_as_a_wrong_key(tmp_path: Path, provider: IdentityProvider) -> None:
    """What is wrong with it is told; after ten of them one more has to wait, a right key of that address has not."""
    async with admin_port(tmp_path, provider) as client:
        ended = await client.get("/admin/policies", headers=sent(provider.token(exp=1)))
        assert ended.status_code == 401 and "exp" in ended.json()["error"]["message"]
        for number in range(9):
            other = provider.token(aud=f"another-{number}")
            assert (await client.get("/admin/policies", headers=sent(other))).status_code == 401
        for _ in range(30):
            assert (await client.get("/admin/policies", headers=sent("wrong"))).status_code == 429
        assert (await client.get("/admin/policies", headers=sent("the-admin-key"))).status_code == 200


async def test_an_issuer_that_is_away_is_told_apart_from_a_wrong_token(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.refuse()
    async with admin_port(tmp_path, provider) as client:
        reply = await client.get("/admin/policies", headers=sent(provider.token(groups=["staff"])))
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "issuer_unavailable"
        assert reply.headers["retry-after"] == "10"
        assert (await client.get("/admin/policies", headers=sent("the-admin-key"))).status_code == 200


async def test_a_change_has_the_name_that_the_provider_gives(
    tmp_path: Path, provider: IdentityProvider, store: RedisStore
) -> None:
    """Nobody writes another name into the history; who has the admin key says who they are, as before."""
    async with admin_port(tmp_path, provider, url_of(store), policies={"source": "store"}) as client:
        headers = sent(provider.token(groups=["policies"]))
        change = {"text": CHAT.replace("0.5", "0.6"), "message": "a try", "author": "somebody else", "how": "now"}
        applied = await client.post("/admin/policies/chat/apply", json=change, headers=headers)
        assert applied.status_code == 200, applied.text
        other = {**change, "text": CHAT.replace("0.5", "0.7")}
        applied = await client.post("/admin/policies/chat/apply", json=other, headers=sent("the-admin-key"))
        assert applied.status_code == 200, applied.text
        refused = await client.post(
            "/admin/policies/chat/apply", json=change, headers=sent(provider.token(groups=["search"]))
        )
        assert refused.status_code == 403 and "surface chat" in refused.json()["error"]["message"]
    by = [change["by"] for change in await history_of(PolicyRegistry(store), "chat")]
    assert "ada@acme.example" in by and "somebody else" in by and len(by) == 3


async def test_an_editor_of_one_surface_takes_no_names_of_another(
    tmp_path: Path, provider: IdentityProvider, store: RedisStore
) -> None:
    """An alias is more specific than the other surface's wildcard; who may edit both moves it."""
    async with admin_port(tmp_path, provider, url_of(store), policies={"source": "store"}) as client:
        search = CHAT.replace("surface: chat", "surface: search").replace("[chat, gpt-4o-mini]", "[look-up]")
        chat = CHAT.replace("[chat, gpt-4o-mini]", "['gpt-*']")
        change = {"message": "why", "how": "now"}
        everybody = sent(provider.token(groups=["policies"]))
        editor = sent(provider.token(groups=["search"]))
        for surface, text in (("chat", chat), ("search", search)):
            reply = await client.post(
                f"/admin/policies/{surface}/apply", json={**change, "text": text}, headers=everybody
            )
            assert reply.status_code == 200, reply.text
        for taken in ("gpt-4o", "'gpt-4*'"):
            body = {**change, "text": search.replace("[look-up]", f"[look-up, {taken}]")}
            refused = await client.post("/admin/policies/search/apply", json=body, headers=editor)
            assert refused.status_code == 409 and "may not change" in refused.json()["error"]["message"], refused.text
        free = {**change, "text": search.replace("[look-up]", "[look-up, o3]")}
        assert (await client.post("/admin/policies/search/apply", json=free, headers=editor)).status_code == 200
        assert (await client.post("/admin/policies/search/apply", json=body, headers=everybody)).status_code == 200


async def test_a_role_reads_the_metrics_of_all_tenants(tmp_path: Path, provider: IdentityProvider) -> None:
    tenants = {"acme": {"key_env": "ACME_KEY"}}
    async with admin_port(tmp_path, provider, tenants=tenants) as client:
        for token, status in (
            (provider.token(groups=["staff"]), 200), (provider.token(groups=["others"]), 401),
            (provider.token(groups=["staff"], aud="another"), 401), ("the-admin-key", 200), ("key-of-acme", 401),
        ):  # fmt: skip
            assert (await client.get("http://localhost/metrics", headers=sent(token))).status_code == status


async def test_every_route_is_an_action_of_the_table(tmp_path: Path) -> None:
    """So a route that is added without one is found, and none answers to somebody who has no role."""
    with Upstream() as upstream:
        settings = {"admin": {"key_env": "ADMIN_KEY"}}
        async with in_process(tmp_path, upstream.url, settings=settings, env={"ADMIN_KEY": "the-admin-key"}) as app:
            api = admin_api(app.steps)
    routers = [router for one in api.routes if (router := getattr(one, "original_router", None)) is not None]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    described = {route.path for route in iter_route_contexts(api.routes)} - {"/docs", "/docs.css", "/openapi.json"}
    assert {route.path for route in routes} == described and len(described) > 15
    for route in routes:
        actions = _actions(route.dependant)
        assert len(actions) == 1 and actions <= ACTIONS.keys(), route.path
        assert "GET" in route.methods or not (actions & {"look", "cache.see", "keys.see"}), route.path


def _actions(dependant: Any) -> set[str]:
    own = {action} if (action := getattr(dependant.call, "action", None)) else set()
    return own.union(*(_actions(inner) for inner in dependant.dependencies))


async def test_a_gateway_without_an_admin_key_is_administered_by_people(
    tmp_path: Path, provider: IdentityProvider
) -> None:
    async with admin_port(tmp_path, provider, admin={"port": 8788}) as client:
        assert (await client.get("/admin/policies", headers=sent(provider.token(groups=["staff"])))).status_code == 200
        for key in ("", "None", "the-admin-key"):
            assert (await client.get("/admin/policies", headers=sent(key))).status_code == 401
        forged = provider.claims(groups=["platform"])
        token = sign(forged, rsa_key(5), {"kid": "one"})
        assert (await client.get("/admin/policies", headers=sent(token))).status_code == 401


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"admin": {"port": 9001}}, "nobody could use it"),
        ({"roles": ROLES}, "its claims come from no issuer"),
        (
            {"console": {"login": {"issuer": "https://a.example", "client_id": "c", "url": "https://b.example"}}},
            "no such issuer",
        ),
        ({"console": {"login": {"client_secret": "hush"}}}, "a secret is never written here"),
    ],
    ids=str,
)
def test_a_config_that_lets_nobody_in_or_anybody_is_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    write_deployment(tmp_path, config("http://127.0.0.1:9", None, **settings))
    with pytest.raises(ConfigError, match=said):
        Launch(config=tmp_path / "tierline.yaml", policies=tmp_path / "policies").deployment(secrets_of(None))
