"""Keys of the store over HTTP: whom they let in, and to what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.config.schema import key_digest
from gateway.parts.access.keys.records import KeyRecord, OwnerRecord, new_key
from gateway.parts.access.keys.registry import KeyRegistry
from tests.parts.access.keys.conftest import WHY, minted, registry, server, store
from tests.support.app import InProcess, in_process
from tests.support.gateway import CHAT
from tests.support.store import LocalStore
from tests.support.upstream import Upstream

__all__ = ["registry", "server", "store"]
CODE = CHAT.replace("surface: chat", "surface: code").replace("models: [chat, gpt-4o-mini]", "models: [code, coder]")
POLICIES = {"chat": CHAT, "code": CODE}


@asynccontextmanager
async def gateway(folder: Path, upstream: Upstream, server: LocalStore, **settings: Any) -> AsyncIterator[InProcess]:
    """A gateway of two surfaces and two tiers, with a store."""
    more = {"embedding": {"state": str(folder / "state")}, **settings}
    async with in_process(
        folder, upstream.url, upstream.url, store_url=server.url, policies=POLICIES, settings=more
    ) as app:
        yield app


def sent(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def made(registry: KeyRegistry, **fields: Any) -> tuple[dict[str, str], KeyRecord]:
    """Return the headers of a new key, and its record."""
    key, record = minted(**fields)
    return sent(key), await registry.create(record, WHY)


async def test_a_key_is_checked_also_where_none_is_demanded(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Without one, and with any other text, the tenant is `default`; a `tl_` key that is none is refused."""
    async with gateway(tmp_path, upstream, server) as app:
        headers, _ = await made(registry, team="web")
        assert (await app.ask(headers=headers)).status_code == 200
        assert (await app.ask()).status_code == 200
        assert (await app.ask(headers=sent("sk-any"))).status_code == 200
        refused = await app.ask(headers=sent(new_key()))
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        by_header = await app.ask(headers={"x-api-key": headers["authorization"].split()[1]})
        assert by_header.status_code == 200


@pytest.mark.parametrize("required", [False, True])
async def test_of_two_credentials_the_key_of_ours_counts(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, *, required: bool
) -> None:
    """Clients that are signed in to a provider send its token beside our key; a refused key is not made up for."""
    imported = KeyRecord("k_old", key_digest(b"sk-old-one").hex(), "acme", imported=True, surfaces=("code",))
    for with_imported in (False, True):
        if with_imported:
            await registry.restore([imported], WHY)
        async with gateway(tmp_path / str(with_imported), upstream, server, keys={"required": required}) as app:
            headers, record = await made(registry, surfaces=("code",))
            key, theirs = headers["authorization"].split()[1], "sk-ant-oat01-0000"
            gone, revoked = await made(registry)
            await registry.update(revoked, WHY, state="revoked")
            ended = gone["authorization"].split()[1]
            ways = [(f"Bearer {theirs}", key, 200), (f"Bearer {key}", theirs, 200), ("Bearer ", key, 200)]
            ways += [("", key, 200), (f"Bearer {ended}", key, 200), (f"Bearer {key}", ended, 200)]
            ways += [(f"Bearer {theirs}", ended, 401), (f"Bearer {ended}", theirs, 401), ("Basic eDp5", key, 200)]
            ways += [(f"Bearer {new_key()}", key, 200), (f"Bearer {theirs}", "sk-ant-api03", 401 if required else 0)]
            if with_imported:
                ways += [(f"Bearer {theirs}", "sk-old-one", 200), ("Bearer sk-old-one", theirs, 200)]
            for bearer, other, status in ways * 2:  # found, then known
                two = {"authorization": bearer, "x-api-key": other}
                reply = await app.ask(headers=two, model="auto")
                if status:
                    assert reply.status_code == status, (bearer, other, reply.text)
                if reply.status_code == 200:
                    expected = "code" if status else "chat"
                    assert reply.headers["x-tierline-surface"] == expected, (bearer, other)
                body = {"model": "code", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
                got = (await app.client.post("/v1/messages", json=body, headers=two)).status_code
                assert got == (status or 200), (bearer, other)
                assert (await app.get("/v1/models", two)).status_code == (status or 200), (bearer, other)
        await registry.update(record, WHY, state="revoked")


async def test_where_keys_are_required_nobody_gets_in_without(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """On all routes alike."""
    async with gateway(tmp_path, upstream, server, keys={"required": True}) as app:
        headers, _ = await made(registry)
        for path in ("/v1/models", "/v1/models/chat"):
            assert (await app.get(path)).status_code == 401
            assert (await app.get(path, headers)).status_code == 200
        for path in ("/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/completions", "/v1/chat/completions"):
            assert (await app.client.post(path, json={})).status_code == 401, path
            assert (await app.client.post(path, json={}, headers=headers)).status_code == 400, path


async def test_a_key_may_use_its_surfaces_alone(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Others are 403 by every way of naming them, and not listed; `auto` is its own."""
    async with gateway(tmp_path, upstream, server) as app:
        headers, _ = await made(registry, surfaces=("code",))
        listed = (await app.get("/v1/models", headers)).json()["data"]
        assert [one["id"] for one in listed] == ["auto", "code"]
        assert (await app.get("/v1/models/chat", headers)).status_code == 404
        assert (await app.ask(headers=headers, model="coder")).status_code == 200
        assert (await app.ask(headers=headers, model="auto")).headers["x-tierline-surface"] == "code"
        for more in ({"model": "chat"}, {"model": "gpt-4o-mini"}):
            refused = await app.ask(headers=headers, **more)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
            assert "it may use code" in refused.json()["error"]["message"]
        surface = {**headers, "x-tierline-surface": "chat"}
        assert (await app.ask(headers=surface, model="coder")).status_code == 403
        embedding = await app.client.post("/v1/embeddings", json={"input": "x", "model": "chat"}, headers=headers)
        assert embedding.status_code == 403
        message = {"model": "claude-chat", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        refused = await app.client.post("/v1/messages", json=message, headers=headers)
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        message.pop("max_tokens")
        counted = await app.client.post("/v1/messages/count_tokens", json=message, headers=headers)
        assert counted.status_code == 403


@pytest.mark.parametrize("model", ["auto", "unheard-of"])
async def test_a_key_whose_surfaces_are_gone_has_none(
    model: str, upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Neither a chat's nor the default one's other endpoints; so of a key that its team leaves no surface."""
    await registry.put_owner(None, OwnerRecord("team", "writers", surfaces=("chat",)), WHY)
    async with gateway(tmp_path, upstream, server) as app:
        narrowed: tuple[dict[str, Any], ...] = ({"surfaces": ("gone",)}, {"team": "writers", "surfaces": ("code",)})
        for fields in narrowed:
            headers, _ = await made(registry, **fields)
            body = {"input": "x", "model": model}
            refused = await app.client.post("/v1/embeddings", json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
            assert (await app.ask(headers=headers, model=model)).status_code in (403, 404)


async def test_a_key_has_a_default_surface_of_its_own(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """For `auto` and for models that stand for nothing here, not for those that do."""
    async with gateway(tmp_path, upstream, server) as app:
        headers, _ = await made(registry, default_surface="code")
        surfaces = [
            (await app.ask(headers=headers, model=model)).headers["x-tierline-surface"]
            for model in ("auto", "gpt-unheard-of", "chat")
        ]
        assert surfaces == ["code", "code", "chat"]


async def test_a_key_may_use_its_tiers_and_models_alone(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Nothing escalates beyond them, and a tier that is pinned is refused; so what its team may not use."""
    async with gateway(tmp_path, upstream, server) as app:
        headers, _ = await made(registry, tiers=("hosted",), models=("chat", "tier:local"))
        assert (await app.ask(headers=headers)).headers["x-tierline-tier"] == "hosted"
        assert (await app.ask(headers=headers, model="tier:local")).status_code == 403
        most = {**headers, "x-tierline-max-tier": "local"}
        refused = await app.ask(headers=most)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await app.ask(headers=headers, model="coder")).status_code == 403
        await registry.put_owner(None, OwnerRecord("team", "small", tiers=("local",), surfaces=("chat",)), WHY)
        headers, _ = await made(registry, team="small")
        assert (await app.ask(headers=headers)).headers["x-tierline-tier"] == "local"
        assert (await app.ask(headers=headers, model="code")).status_code == 403
        headers, _ = await made(registry, team="small", tiers=("hosted",))
        assert (await app.ask(headers=headers)).status_code == 403


@pytest.mark.parametrize("required", [False, True])
async def test_keys_of_another_gateway_go_on_being_valid(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry, *, required: bool
) -> None:
    """By their plain SHA-256, with their limits; a disabled one is refused also where no key is demanded."""
    record = KeyRecord("k_old", key_digest(b"sk-old-one").hex(), "acme", "web", imported=True, surfaces=("code",))
    disabled = KeyRecord("k_off", key_digest(b"sk-old-off").hex(), "acme", state="disabled", imported=True)
    await registry.restore([record, disabled], WHY)
    async with gateway(tmp_path, upstream, server, keys={"required": required}) as app:
        assert (await app.ask(headers=sent("sk-old-one"))).status_code == 403
        assert (await app.ask(headers=sent("sk-old-one"), model="auto")).headers["x-tierline-surface"] == "code"
        assert (await app.ask(headers=sent("sk-old-off"))).status_code == 401
        assert (await app.ask(headers=sent("sk-any"))).status_code == (401 if required else 200)


async def test_tenants_that_are_in_the_store_alone_share_no_answers(
    upstream: Upstream, tmp_path: Path, server: LocalStore, registry: KeyRegistry
) -> None:
    """Each has a cache of its own, and so has whoever sends no key."""
    async with gateway(tmp_path, upstream, server) as app:
        acme, _ = await made(registry, tenant="acme")
        zeta, _ = await made(registry, tenant="zeta")
        for headers in (acme, zeta, {}):
            assert "age" not in (await app.ask("a question", headers)).headers
            async with asyncio.timeout(20):
                while "age" not in (await app.ask("a question", headers)).headers:
                    await asyncio.sleep(0.002)


async def test_a_key_stands_in_no_log_error_or_record(
    upstream: Upstream,
    tmp_path: Path,
    server: LocalStore,
    registry: KeyRegistry,
    store: RedisStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither one that is right nor one that is refused: in no answer, log, metric, trace, repr or file."""
    caplog.set_level(logging.DEBUG)
    async with gateway(tmp_path, upstream, server, log={"requests": True}) as app:
        headers, record = await made(registry)
        right, wrong = headers["authorization"].split()[1], new_key()
        answers = [await app.ask(headers=sent(key)) for key in (right, wrong, right[:-1])]
        answers += [
            await app.ask(headers=headers, model="nothing"),
            await app.get("/metrics"),
            await app.get("/readyz"),
        ]
        found = await app.steps.authenticator.find({b"x-api-key": right.encode()})
        seen = [answer.text + repr(answer.headers) for answer in answers]
        seen += [repr(app.steps.authenticator), repr(found), repr(app.steps), caplog.text]
    for name in await names_in(store):
        dumped = await store.ask([Command((b"DUMP", name))])
        seen.append(name.decode() + dumped[0].decode("latin-1"))
    seen += [file.read_bytes().decode("latin-1") for file in (tmp_path / "state").rglob("*") if file.is_file()]
    secrets = (right, wrong, right[3:-1])
    assert record.id in "".join(seen)
    assert not [secret for secret in secrets for text in seen if secret in text]


async def names_in(store: RedisStore) -> list[bytes]:
    """Return the names of all keys of the store."""
    (names,) = await store.ask([Command((b"KEYS", b"*"))])
    return list(names)
