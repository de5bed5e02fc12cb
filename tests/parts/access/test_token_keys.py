"""A company's tokens as keys of a gateway, on its sockets: who pays, what is refused, and what a request costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.access.authenticator import Callers
from gateway.parts.access.keys import identities as module
from gateway.parts.access.keys.records import OwnerRecord
from gateway.parts.access.keys.registry import KeyRegistry
from gateway.parts.access.quotas.terms import Terms
from tests.parts.access.keys.conftest import WHY, registry, server, store
from tests.support.app import in_process
from tests.support.gateway import CHAT as POLICY
from tests.support.identity_provider import IdentityProvider
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import SLACK

__all__ = ["registry", "server", "store"]

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as running:
        yield running


def settings(folder: Path, provider: IdentityProvider, **more: Any) -> dict[str, Any]:
    issuer = {
        "issuer": provider.issuer, "audience": provider.AUDIENCE, "claims": {"tenant": "org", "team": "groups"},
        "limits": {"requests_per_minute": 60},
    }  # fmt: skip
    teams = {"web": {"limits": {"concurrent": 9}}}
    state = {"embedding": {"state": str(folder / "state")}}
    return {"identity": {"issuers": [issuer]}, "teams": teams, **state, **more}


def sent(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"])
async def test_a_token_is_a_key_of_every_api(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider, path: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/responses": {"model": "chat", "input": "hello"}, "/v1/messages": {**CHAT, "max_tokens": 9},
        "/v1/completions": {"model": "chat", "prompt": "hello"},
    }  # fmt: skip
    tenants = {"tenants": {"other": {"key_env": "OTHER_KEY"}}}
    async with in_process(
        tmp_path, upstream.url, settings=settings(tmp_path, provider, **tenants), env={"OTHER_KEY": "key-of-other"}
    ) as app:
        body = bodies.get(path, CHAT)
        claims = {"org": "acme", "groups": ["web"]}
        for token, status in (
            (provider.token(**claims), 200), (provider.token(**claims, aud="another"), 401),
            (provider.token(groups=["web"]), 401), ("key-of-other", 200), ("eyJhbGciOiJub25lIn0.e30.", 401), ("", 401),
        ):  # fmt: skip
            reply = await app.client.post(path, json=body, headers=sent(token))
            assert reply.status_code == status, reply.text
        in_header = {"x-api-key": provider.token(**claims)}
        assert (await app.client.post(path, json=body, headers=in_header)).status_code == 200


async def test_limits_of_the_subject_and_its_team_are_found(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider
) -> None:
    async with in_process(tmp_path, upstream.url, settings=settings(tmp_path, provider)) as app:
        token = provider.token(org="acme", groups=["web"]).encode()
        caller = await app.steps.authenticator.find({b"authorization": b"Bearer " + token})
        assert (caller.tenant, caller.team) == ("acme", "web") and caller.key.startswith("u_")
        assert [(one.kind, one.name) for one in caller.limited] == [("key", caller.key), ("team", "acme/web")]
        assert caller.limited[0].terms.requests_per_minute == 60


async def test_a_token_costs_one_lookup_while_it_is_known(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found with no await, until it ends; what its team may is read again after half a second."""
    async with in_process(tmp_path, upstream.url, settings=settings(tmp_path, provider)) as app:
        callers: Callers = app.steps.authenticator
        headers = {b"authorization": b"Bearer " + provider.token(org="acme", groups=["web"]).encode()}
        assert callers.known(headers) is None
        found = await callers.find(headers)
        assert callers.known(headers) is found
        now = time.time()
        monkeypatch.setattr(module.time, "time", lambda: now + 1)
        assert callers.known(headers) is None
        assert (await callers.find(headers)).key == found.key
        monkeypatch.setattr(module.time, "time", lambda: now + 340)
        with pytest.raises(module.Unauthorized):
            await callers.find(headers)


async def test_an_issuer_that_is_away_is_503_and_not_401(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider
) -> None:
    provider.refuse()
    async with in_process(tmp_path, upstream.url, settings=settings(tmp_path, provider)) as app:
        reply = await app.ask(headers=sent(provider.token(org="acme", groups=["web"])))
        assert reply.status_code == 503 and reply.json()["error"]["code"] == "issuer_unavailable"
        assert (await app.ask()).status_code == 200, "where none is demanded, who sends no key is served"


async def test_tenants_of_tokens_do_not_share_what_a_service_keeps(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider
) -> None:
    """With issuers there are several tenants, whether the config lists any or not."""
    async with in_process(tmp_path, upstream.url, settings=settings(tmp_path, provider)) as app:
        assert not app.steps.deployment.unshared
    async with in_process(tmp_path, upstream.url) as app:
        assert app.steps.deployment.unshared == {"default"}


async def test_a_teams_record_in_the_store_holds_for_its_tokens(
    tmp_path: Path, upstream: Upstream, provider: IdentityProvider, server: LocalStore, registry: KeyRegistry
) -> None:
    """From the first request on, and within a second of a change."""
    before = await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=3)), WHY)
    state = settings(tmp_path, provider)
    async with in_process(tmp_path, upstream.url, store_url=server.url, settings=state) as app:
        headers = {b"authorization": b"Bearer " + provider.token(org="acme", groups=["web"]).encode()}

        async def limits() -> list[int | None]:
            caller = await app.steps.authenticator.find(headers)
            return [one.terms.concurrent for one in caller.limited if one.kind == "team"]

        assert await limits() == [3], "the store's record stands in place of the config's"
        await registry.put_owner(before, OwnerRecord("team", "web", Terms(concurrent=1)), WHY)
        async with asyncio.timeout(1.0 * SLACK):
            while await limits() != [1]:
                await asyncio.sleep(0.02)
        await registry.put_owner(None, OwnerRecord("team", "acme/web", Terms(concurrent=2)), WHY)
        async with asyncio.timeout(1.0 * SLACK):
            while await limits() != [2]:  # what is said of this tenant's team alone
                await asyncio.sleep(0.02)


async def test_a_team_of_which_nothing_is_known_is_503_while_the_store_is_down(
    tmp_path: Path, upstream: Upstream, provider: IdentityProvider, server: LocalStore, registry: KeyRegistry
) -> None:
    """Else its limits would not hold; a token whose team was asked for before is served on."""
    await registry.put_owner(None, OwnerRecord("team", "web", Terms(concurrent=3)), WHY)
    async with in_process(tmp_path, upstream.url, store_url=server.url, settings=settings(tmp_path, provider)) as app:
        token = provider.token(org="acme", groups=["web"])
        assert (await app.ask(headers=sent(token))).status_code == 200
        server.stop()
        try:
            refused = await app.ask(headers=sent(provider.token(org="acme", groups=["search"])))
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "keys_unavailable"
            again = provider.token(org="acme", groups=["web"], sub="another")
            assert (await app.ask(headers=sent(again))).status_code == 200
        finally:
            server.start()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"])
async def test_a_token_uses_the_surfaces_of_its_claim_alone(
    upstream: Upstream, tmp_path: Path, provider: IdentityProvider, path: str
) -> None:
    """In every API, by whatever name, and `auto` is the first that it may use."""
    config = settings(tmp_path, provider)
    config["identity"]["issuers"][0]["claims"] = {"surfaces": "may_use"}
    policies = {"chat": POLICY, "code": POLICY.replace("surface: chat", "surface: code").replace("[chat,", "[coder,")}
    policies["code"] = policies["code"].replace(", gpt-4o-mini]", "]")
    async with in_process(tmp_path, upstream.url, settings=config, policies=policies) as app:
        headers = sent(provider.token(may_use=["code"]))
        text = {"/v1/responses": {"input": "hello"}, "/v1/completions": {"prompt": "hello"}}
        body = text.get(path, {"messages": CHAT["messages"], "max_tokens": 9})
        for model, more, status in (
            ("coder", {}, 200), ("auto", {}, 200), ("chat", {}, 403), ("gpt-4o-mini", {}, 403),
            ("coder", {"x-tierline-surface": "chat"}, 403), ("auto", {"x-tierline-surface": "code"}, 200),
        ):  # fmt: skip
            reply = await app.client.post(path, json={**body, "model": model}, headers={**headers, **more})
            assert reply.status_code == status, (model, more, reply.text)
            assert status == 403 or reply.headers["x-tierline-surface"] == "code"
            assert status == 200 or reply.json()["error"].get("code", "model_not_allowed") == "model_not_allowed"
        listed = await app.get("/v1/models", headers)
        assert [one["id"] for one in listed.json()["data"]] == ["auto", "code"]
        assert (await app.get("/v1/models/chat", headers)).status_code == 404
        embedded = await app.client.post("/v1/embeddings", json={"model": "chat", "input": "x"}, headers=headers)
        assert embedded.status_code == 403
    assert all(request.body["messages"] for request in upstream.requests)
