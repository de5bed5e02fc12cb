"""Keys that people make for themselves over the admin API: no wider than their own tokens, also where they spend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.access.keys.registry import KeyRegistry
from tests.parts.access.keys.conftest import registry, server, store
from tests.parts.access.test_keys_of_store import made, sent
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.identity_provider import IdentityProvider
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream

__all__ = ["registry", "server", "store"]
SEARCH = CHAT.replace("surface: chat", "surface: search").replace("[chat, gpt-4o-mini]", "[search]").replace(
    "tiers: [local, hosted]", "tiers: [hosted]").replace("{local: otherwise}", "{hosted: otherwise}")  # fmt: skip
ADMIN = "http://localhost:8788"
BUDGET = 0.01


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


@asynccontextmanager
async def gateway(
    folder: Path, upstream: Upstream, server: LocalStore, provider: IdentityProvider
) -> AsyncIterator[InProcess]:
    """A gateway whose people have one surface, and a cent a day each."""
    issuer = {
        "issuer": provider.issuer, "audience": provider.AUDIENCE,
        "claims": {"team": "groups", "surfaces": "may"}, "limits": {"budgets": [{"usd": BUDGET, "per": "day"}]},
    }  # fmt: skip
    settings = {
        "identity": {"issuers": [issuer]}, "admin": {"key_env": "ADMIN_KEY", "port": 8788},
        "embedding": {"state": str(folder / "state")},
        "roles": [{"role": "key_admin", "where": {"groups": "leads"}}],
    }  # fmt: skip
    policies, env = {"chat": CHAT, "search": SEARCH}, {"ADMIN_KEY": "the-admin-key"}
    async with in_process(
        folder, upstream.url, upstream.url, store_url=server.url, policies=policies, settings=settings, env=env
    ) as app:
        yield app


async def test_what_a_person_makes_is_theirs_in_surfaces_and_money(
    upstream: Upstream, tmp_path: Path, server: LocalStore, provider: IdentityProvider
) -> None:
    """Their team has no record; many keys and their token have one budget together, and one surface."""
    usage = {"prompt_tokens": 20, "completion_tokens": 95, "total_tokens": 115}  # $0.001
    upstream.on(lambda _: True).reply(Reply(usage=usage))
    token = sent(provider.token(groups=["web"], may=["search"]))
    async with gateway(tmp_path, upstream, server, provider) as app:
        keys = []
        for name in "abc":
            reply = await app.client.post(f"{ADMIN}/admin/keys", json={"name": name, "team": "web"}, headers=token)
            assert reply.status_code == 200, reply.text
            assert reply.json()["surfaces"] == ["search"] and reply.json()["expires"] is not None
            keys.append(sent(reply.json()["key"]))
        wide: dict[str, Any] = {"name": "d", "team": "web", "terms": {"budgets": [{"usd": 5, "per": "day"}]}}
        assert (await app.client.post(f"{ADMIN}/admin/keys", json=wide, headers=token)).status_code == 403
        spent, statuses = 0.0, []
        for number in range(40):
            headers = [*keys, token][number % 4]
            assert (await app.ask(headers=headers)).status_code == 403, "another surface"
            reply = await app.ask(f"question {number}", headers, model="search", max_tokens=100)
            statuses.append(reply.status_code)
            spent += float(reply.headers.get("x-tierline-cost-usd", 0))
        assert spent == pytest.approx(len(upstream.requests) * 0.001)
        assert 0.5 * BUDGET <= spent <= 1.2 * BUDGET
        assert statuses[0] == 200 and 200 not in statuses[-8:]


async def test_only_who_has_a_key_or_a_role_rotates_it(
    upstream: Upstream, tmp_path: Path, server: LocalStore, provider: IdentityProvider, registry: KeyRegistry
) -> None:
    """A member would end a colleague's or a program's key of the team at once, with a grace of none."""
    headers, program = await made(registry, tenant="default", team="web", name="ci")
    member = sent(provider.token(groups=["web"], may=["search"], sub="mo"))
    lead = sent(provider.token(groups=["leads"], may=["search", "chat"], sub="kay"))
    async with gateway(tmp_path, upstream, server, provider) as app:
        colleague = sent(provider.token(groups=["web"], may=["search"], sub="ada"))
        reply = await app.client.post(f"{ADMIN}/admin/keys", json={"name": "own", "team": "web"}, headers=colleague)
        own = reply.json()["id"]
        for key, who, status in (
            (program.id, member, 403), (own, member, 403), (own, colleague, 200), (own, lead, 200),
        ):  # fmt: skip
            url = f"{ADMIN}/admin/keys/{key}/rotate"
            reply = await app.client.post(url, json={"grace": "0s"}, headers=who)
            assert reply.status_code == status, (key, reply.text)
        assert (await app.ask(headers=headers)).status_code == 200
