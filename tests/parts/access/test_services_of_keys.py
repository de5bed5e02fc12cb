"""Services by keys: what shows or changes others' at one account, paths that lead elsewhere, and keys of some tiers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.parts.access.keys.registry import KeyRegistry
from tests.integration.endpoints import ENDPOINTS
from tests.parts.access.keys.conftest import registry, server, store
from tests.parts.access.test_keys_of_store import made
from tests.support.account import Account
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

__all__ = ["registry", "server", "store"]


@asynccontextmanager
async def gateway(
    folder: Path, upstream: Upstream, server: LocalStore, account: Account, **more: Any
) -> AsyncIterator[InProcess]:
    """A gateway with a service for every endpoint."""
    account.release.set()
    names = ("account", "unset", "judge", "claude", "spare")
    services = {name: {"base_url": account.url, "key_env": "HOSTED_KEY", **more} for name in names}
    services["spare"]["base_url"] = upstream.url
    settings = {"embedding": {"state": str(folder / "state")}, "services": services}
    policy = CHAT + ENDPOINTS.replace("embeddings: {", "embeddings: {fallback: spare, ")
    async with in_process(
        folder, upstream.url, upstream.url, store_url=server.url, policies={"chat": policy}, settings=settings
    ) as app:
        yield app


@pytest.mark.parametrize(("shares", "status"), [(False, 403), (True, 200)])
async def test_what_may_show_others_is_closed_unless_it_is_shared(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, *, shares: bool, status: int
) -> None:
    """Reading and deleting below every endpoint, and further POSTs; what asks for an answer is open."""
    with Account() as account:
        async with gateway(tmp_path, upstream, server, account, share_files=shares) as app:
            headers, _ = await made(registry, tenant="acme")
            for method, path in (
                ("GET", "/v1/audio/voices"), ("DELETE", "/v1/audio/voices/1"), ("POST", "/v1/audio/voices"),
                ("GET", "/v1/images"), ("DELETE", "/v1/images/1"), ("GET", "/v1/images/generations"),
                ("POST", "/v1/images/generations/1/cancel"), ("GET", "/v1/moderations/1"), ("GET", "/v1/files"),
            ):  # fmt: skip
                reply = await app.client.request(method, path, headers=headers)
                assert reply.status_code == status, (method, path, reply.text)
            if not shares:
                assert not account.calls
            for path, body in (
                ("/v1/moderations", {"model": "m", "input": "hi"}), ("/v1/audio/speech", {"model": "m", "input": "hi"}),
                ("/v1/images/generations", {"prompt": "hi"}), ("/v1/images/edits/", {"prompt": "hi"}),
                ("/v1/rerank", {"query": "hi"}),
            ):  # fmt: skip
                reply = await app.client.post(path, json=body, headers=headers)
                assert reply.status_code == 200, (path, reply.text)


@pytest.mark.parametrize("step", ["..;", "..;a=b", ".;"])
async def test_a_path_that_leads_elsewhere_at_some_servers_is_none(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, step: str
) -> None:
    """Servers that take parameters of segments read `..;` as `..`."""
    with Account() as account:
        async with gateway(tmp_path, upstream, server, account) as app:
            scope_path = f"/v1/audio/speech/{step}/{step}/files"
            request = app.client.build_request("POST", "http://localhost/v1/audio/speech", json={"a": 1})
            request.url = request.url.copy_with(raw_path=scope_path.encode())
            reply = await app.client.send(request)
            assert (reply.status_code, account.calls) == (404, []), reply.text


async def test_a_key_of_some_tiers_uses_the_services_among_them(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """A service is no tier of a ladder, and may cost as much: it is listed by its name."""
    sent: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"model": "text-embedding-3-small", "input": "hi"}),
        ("/v1/moderations", {"model": "m", "input": "hi"}),
        ("/v1/completions", {"model": "chat", "prompt": "hi"}),
        ("/v1/rerank", {"query": "hi"}),
        ("/v1/images/generations", {"prompt": "hi"}),
    ]
    with Account() as account:
        async with gateway(tmp_path, upstream, server, account) as app:
            for tiers, status in ((("local",), 403), (("local", "account"), 200)):
                headers, _ = await made(registry, tenant="default", tiers=tiers)
                for path, body in sent:
                    reply = await app.client.post(path, json=body, headers=headers)
                    assert reply.status_code == status, (path, tiers, reply.text)
                assert bool(account.calls) == (status == 200)
            calls = len(account.calls)
            account.refusal = (500, b'{"error": {"message": "down"}}', {})
            body = {"model": "text-embedding-3-small", "input": "something else"}
            assert (await app.client.post("/v1/embeddings", json=body, headers=headers)).status_code >= 500
            assert len(account.calls) - calls == 2, "asked twice"
            assert not [one for one in upstream.probes if "embeddings" in one.path], "and never the spare service"
