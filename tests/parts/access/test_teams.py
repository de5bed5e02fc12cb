"""Teams within a tenant: what one of them has kept, no other of them reads, changes or is answered with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.base import Append
from gateway.parts.access.keys.records import OwnerRecord
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.quotas.terms import Terms
from gateway.parts.hit_audits.audit import Audits
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, ledger_blob
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.access.keys.conftest import WHY, registry, server, store
from tests.parts.access.test_keys_of_store import gateway, made
from tests.support.account import Account
from tests.support.app import in_process
from tests.support.gateway import CHAT, serve
from tests.support.identity_provider import IdentityProvider
from tests.support.store import LocalStore
from tests.support.upstream import Reply, Upstream
from tests.support.wait import SLOWNESS

__all__ = ["registry", "server", "store"]
Json = dict[str, Any]
WITHIN_TEAM = CHAT.replace("cache:", "cache:\n  scope: team")


async def test_what_a_team_keeps_is_its_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Responses and conversations: shown, listed, gone on with, changed and deleted by keys of that team alone."""
    async with gateway(tmp_path, upstream, server) as app:
        hr, _ = await made(registry, tenant="acme", team="hr")
        again, _ = await made(registry, tenant="acme", team="hr")
        others = [
            (await made(registry, tenant="acme", team="sales"))[0],
            (await made(registry, tenant="acme"))[0],
            (await made(registry, tenant="gamma", team="hr"))[0],
        ]
        client = app.client
        body = {"model": "chat", "input": "our pay"}
        kept = (await client.post("/v1/responses", json=body, headers=hr)).json()["id"]
        talk = (await client.post("/v1/conversations", json={}, headers=hr)).json()["id"]
        response, conversation = f"/v1/responses/{kept}", f"/v1/conversations/{talk}"
        async with asyncio.timeout(20):
            while (await app.get(response, hr)).status_code == 404:
                await asyncio.sleep(0.005)
        for other in others:
            for path in (response, f"{response}/input_items", conversation, f"{conversation}/items"):
                assert (await app.get(path, other)).status_code == 404, path
            for path in (response, conversation):
                assert (await client.delete(path, headers=other)).status_code == 404, path
            assert (await client.post(f"{response}/cancel", headers=other)).status_code == 404
            assert (await client.post(conversation, json={"metadata": {"a": "b"}}, headers=other)).status_code == 404
            for more in ({"previous_response_id": kept}, {"conversation": talk}):
                for url in ("/v1/responses", "/v1/responses/input_tokens"):
                    reply = await client.post(url, json={**body, **more}, headers=other)
                    assert reply.status_code in (400, 404), (url, more, reply.text)
        for path in (response, f"{response}/input_items", conversation):
            assert (await app.get(path, again)).status_code == 200, path
        gone_on = {**body, "previous_response_id": kept}
        assert (await client.post("/v1/responses", json=gone_on, headers=again)).status_code == 200
        for path in (response, conversation):
            assert (await client.delete(path, headers=again)).status_code == 200, path


async def test_a_response_in_the_background_is_its_teams_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """From its beginning, while it runs, not only once it is whole."""
    upstream.default = Reply(text="our pay", before_first_s=20.0)
    own, again = [(await made(registry, tenant="acme", team="hr"))[0] for _ in range(2)]
    others = [(await made(registry, tenant="acme", team=team))[0] for team in ("sales", "")]
    with serve(tmp_path, upstream.url, store_url=server.url) as running:
        async with httpx2.AsyncClient(base_url=running.url, timeout=30) as client:
            body = {"model": "chat", "input": "our pay", "background": True}
            begun = (await client.post("/responses", json=body, headers=own)).json()
            path = f"/responses/{begun['id']}"
            statuses = [(await client.get(path, headers=one)).status_code for one in (*others, again)]
            assert statuses == [404, 404, 200]
            for one in others:
                assert (await client.post(f"{path}/cancel", headers=one)).status_code == 404
            assert (await client.get(path, headers=own)).json()["status"] == "in_progress"
            cancelled = await client.post(f"{path}/cancel", headers=again)
            assert cancelled.json()["status"] == "cancelled"


@pytest.mark.parametrize(("policy", "shared"), [(CHAT, True), (WITHIN_TEAM, False)])
async def test_a_policy_narrows_stored_answers_to_teams(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, policy: str, *, shared: bool
) -> None:
    """With `scope: team`; a tenant's are shared otherwise. A purge of the tenant is one of its teams."""
    settings = {"embedding": {"state": str(tmp_path / "state")}, "admin": {"key_env": "ADMIN_KEY", "port": 8788}}
    async with in_process(
        tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings,
        env={"ADMIN_KEY": "the-admin-key"},
    ) as app:  # fmt: skip
        hr, _ = await made(registry, tenant="acme", team="hr")
        sales, _ = await made(registry, tenant="acme", team="sales")
        stranger, _ = await made(registry, tenant="gamma", team="hr")

        async def is_stored(headers: Json) -> bool:
            only = {**headers, "x-tierline-cache": "only-if-cached"}
            return (await app.ask("who is let go?", only)).status_code == 200

        assert (await app.ask("who is let go?", hr)).status_code == 200
        async with asyncio.timeout(20):
            while not await is_stored(hr):
                await asyncio.sleep(0.005)
        assert [await is_stored(one) for one in (sales, stranger)] == [shared, False]
        admin = {"authorization": "Bearer the-admin-key"}
        body = {"surface": "chat", "tenant": "acme"}
        purged = await app.client.post("http://localhost:8788/admin/cache/purge", json=body, headers=admin)
        assert (purged.status_code, purged.json()["entries"]) == (200, 1), purged.text
        assert not await is_stored(hr)


async def test_vectors_are_a_teams_own_where_its_policy_says_so(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Stored ones of texts that a team had embedded; else another could find out what these are."""
    policy = f"{WITHIN_TEAM}endpoints: {{embeddings: {{service: account, model: embed}}}}\n"
    with Account() as account:
        account.release.set()
        settings = {"embedding": {"state": str(tmp_path / "state")}, "services": {"account": {"base_url": account.url}}}
        async with in_process(
            tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
        ) as app:
            keys = {team: (await made(registry, tenant="acme", team=team))[0] for team in ("hr", "sales", "")}
            body = {"model": "chat", "input": "who is let go?"}

            async def status(headers: Json) -> int:
                return (await app.client.post("/v1/embeddings", json=body, headers=headers)).status_code

            stored = {"x-tierline-cache": "only-if-cached"}
            assert await status(keys["hr"]) == 200
            async with asyncio.timeout(20):
                while await status({**keys["hr"], **stored}) != 200:
                    await asyncio.sleep(0.005)
            assert [await status({**keys[team], **stored}) for team in ("sales", "")] == [504, 504]


async def test_files_of_one_account_are_no_teams_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """They are refused to teams as to tenants, unless the config shares them."""
    policy = f"{CHAT}endpoints: {{files: account}}\n"
    for shares, team_status in ((False, 403), (True, 200)):
        services = {"account": {"base_url": upstream.url, "key_env": "HOSTED_KEY", "share_files": shares}}
        settings = {"embedding": {"state": str(tmp_path / "state")}, "services": services}
        async with in_process(
            tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
        ) as app:
            team, _ = await made(registry, tenant="default", team="hr")
            alone, _ = await made(registry, tenant="default")
            statuses = [(await app.get("/v1/files", one)).status_code for one in (team, alone)]
            assert (statuses[0] == 403, statuses[1] == 403) == (team_status == 403, False)


async def test_two_tenants_that_call_a_team_alike_share_no_budget(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """A record that names no tenant holds in each for itself, one that does in that one alone, at once."""
    limits = Terms(requests_per_minute=1)
    await registry.put_owner(None, OwnerRecord("team", "web", limits), WHY)
    async with gateway(tmp_path, upstream, server) as app:
        keys = {tenant: (await made(registry, tenant=tenant, team="web"))[0] for tenant in ("acme", "gamma", "default")}
        for tenant, headers in keys.items():
            replies = [await app.ask(headers=headers) for _ in range(2)]
            assert [one.status_code for one in replies] == [200, 429], tenant
            named = "team:web/requests" if tenant == "default" else f"team:{tenant}%2Fweb/requests"
            assert replies[1].headers["x-tierline-limited-by"] == named
        own = await registry.put_owner(None, OwnerRecord("team", "acme/web", Terms(requests_per_minute=9)), WHY)
        async with asyncio.timeout(20):
            while (await app.ask(headers=keys["acme"])).status_code != 200:
                await asyncio.sleep(0.02)
        assert (await app.ask(headers=keys["gamma"])).status_code == 429
        await registry.remove_owner(own, WHY)
        async with asyncio.timeout(20):
            while (await app.ask(headers=keys["acme"])).status_code != 429:
                await asyncio.sleep(0.02)


async def test_a_member_sees_the_team_of_their_own_tenant(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Neither another tenant's team of the same name, nor what it has spent, over the admin API."""
    with IdentityProvider() as provider:
        issuer = {"issuer": provider.issuer, "audience": provider.AUDIENCE, "claims": {"team": "groups"}}
        settings = {
            "identity": {"issuers": [{**issuer, "tenant": "acme"}]}, "admin": {"key_env": "ADMIN_KEY", "port": 8788},
            "embedding": {"state": str(tmp_path / "state")},
        }  # fmt: skip
        async with in_process(
            tmp_path, upstream.url, upstream.url, store_url=server.url, settings=settings,
            env={"ADMIN_KEY": "the-admin-key"},
        ) as app:  # fmt: skip
            admin = {"authorization": "Bearer the-admin-key"}
            member = {"authorization": f"Bearer {provider.token(groups=['web'])}"}
            url = "http://localhost:8788/admin"
            for tenant, usd in (("", 1), ("acme", 2), ("gamma", 3)):
                terms = {"terms": {"budgets": [{"usd": usd, "per": "total"}]}}
                put = await app.client.put(f"{url}/teams/web", params={"tenant": tenant}, json=terms, headers=admin)
                assert put.status_code == 200, put.text
            seen = (await app.get(f"{url}/teams", member)).json()["teams"]
            assert [one["name"] for one in seen] == ["acme/web", "web"]
            statuses = [
                (await app.get(f"{url}/teams/web?tenant={tenant}", member)).status_code for tenant in ("acme", "gamma")
            ]
            assert statuses == [200, 403]
            for owner, status in (("team:web", 200), ("team:acme/web", 200), ("team:gamma/web", 403)):
                reply = await app.get(f"{url}/budgets?owner={owner}", member)
                assert reply.status_code == status, (owner, reply.text)
                if status == 200:
                    assert reply.json()["budgets"][0]["limit_usd"] == 2
            bad = await app.client.put(f"{url}/teams/a%20b", params={"tenant": "acme"}, json={}, headers=admin)
            assert bad.status_code == 400


async def test_an_idempotency_key_is_its_teams_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """A service that is sent another team's would give that team's reply; keys of one team share theirs."""
    policy = f"{CHAT}endpoints: {{images: account}}\n"
    with Account() as account:
        settings = {"embedding": {"state": str(tmp_path / "state")}, "services": {"account": {"base_url": account.url}}}
        async with in_process(
            tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
        ) as app:
            for team in ("hr", "hr", "sales", ""):
                headers, _ = await made(registry, tenant="acme", team=team)
                headers["idempotency-key"] = "ours"
                body = {"prompt": "a logo"}
                await app.client.post("/v1/images/generations", json=body, headers=headers)
        first, again, *others = [call.headers["idempotency-key"] for call in account.calls]
        assert first == again and len({first, *others, "ours"}) == 4


async def test_a_team_rates_its_own_requests_alone(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """To another team, to a key of none and to another tenant's team, there is no such request."""
    async with gateway(tmp_path, upstream, server) as app:
        own, again = [(await made(registry, tenant="acme", team="hr"))[0] for _ in range(2)]
        others = [
            (await made(registry, tenant="acme", team="sales"))[0],
            (await made(registry, tenant="acme"))[0],
            (await made(registry, tenant="gamma", team="hr"))[0],
        ]
        alone = (await app.ask("of the whole tenant", others[1])).headers["x-request-id"]
        asked = (await app.ask("our pay", own)).headers["x-request-id"]

        async def rated(request_id: str, headers: Json) -> int:
            body = {"request_id": request_id, "correct": False}
            return (await app.client.post("/v1/feedback", json=body, headers=headers)).status_code

        async with asyncio.timeout(20 * SLOWNESS):
            while await rated(asked, own) == 404:  # its record is on its way
                await asyncio.sleep(0.01)
        assert [await rated(asked, one) for one in (own, again, *others)] == [200, 200, 404, 404, 404]
        assert [await rated(alone, one) for one in (others[1], own)] == [200, 404]


@pytest.mark.parametrize(("scope", "owner"), [("tenant", "tenant:acme"), ("team", "tenant:acme/hr")])
async def test_a_complaint_is_of_those_who_share_answers(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, scope: str, owner: str
) -> None:
    """It raises the threshold that the team's requests are held against: the tenant's, or by `scope: team` its own."""
    policy = CHAT.replace("cache:", f"cache:\n  scope: {scope}\n  semantic: {{ttl: 1h}}")
    settings = {"embedding": {"state": str(tmp_path / "state")}}
    async with in_process(
        tmp_path, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
    ) as app:
        live, audits = app.steps.policies.current.by_surface["chat"], app.steps.cache.bound
        assert isinstance(audits, Audits) and live.cache.semantic is not None
        surface = audits.surface("chat", live.cache.semantic, 1.0)
        headers, key = await made(registry, tenant="acme", team="hr")
        trace, ledger = escalated("req-1", team="hr", key=key.id)
        hit = {names.CACHE_ENTRY: "0" * 32, names.CACHE_CREATED: 1.0, names.CACHE_SCORE: 0.5}
        trace.begin(names.CACHE_SEMANTIC, hit).end()
        await app.steps.store.apply([Append(TRACES, ledger_blob(trace, ledger), 1000)])
        wrong = {"request_id": "req-1", "correct": False}
        assert (await app.client.post("/v1/feedback", json=wrong, headers=headers)).status_code == 200
        [complaint] = surface.complaints
        assert complaint.owner == owner


async def test_a_compaction_is_its_teams_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """What it sums up is told to keys of that team alone, in a request and where tokens are counted."""
    async with gateway(tmp_path, upstream, server) as app:
        own, again = [(await made(registry, tenant="acme", team="hr"))[0] for _ in range(2)]
        others = [
            (await made(registry, tenant="acme", team="sales"))[0],
            (await made(registry, tenant="acme"))[0],
            (await made(registry, tenant="gamma", team="hr"))[0],
        ]
        body = {"model": "chat", "input": "our pay"}
        reply = await app.client.post("/v1/responses/compact", json=body, headers=own)
        body["input"] = reply.json()["output"]
        for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
            statuses = [
                (await app.client.post(path, json=body, headers=one)).status_code for one in (own, again, *others)
            ]
            assert statuses == [200, 200, 400, 400, 400], path
