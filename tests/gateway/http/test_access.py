"""Who may reach a gateway that asks for no key, and what strangers are told by one that does."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.config.launch import Launch
from gateway.parts.local.child import without_secrets
from gateway.parts.local.state import claimed_folder
from policies.errors import ConfigError
from tests.support.app import in_process
from tests.support.gateway import config, write_deployment
from tests.support.upstream import Upstream

TENANTS = {"tenants": {"acme": {"key_env": "ACME_KEY"}}}
ACME = {"authorization": "Bearer sk-of-acme"}
ADMIN = {"authorization": "Bearer sk-admin"}
ENV = {"ACME_KEY": "sk-of-acme", "ADMIN_KEY": "sk-admin"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8787"}, 200),
        ({"host": "127.1.2.3"}, 200),
        ({"host": "localhost:8787"}, 200),
        ({"host": "LocalHost"}, 200),
        ({"host": "app.localhost:80"}, 200),
        ({"host": "[::1]:8787"}, 200),
        ({"host": "gateway.lan:8787"}, 200),
        ({"host": "rebound.example"}, 403),
        ({"host": "127.0.0.1.rebound.example:8787"}, 403),
        ({"host": "localhost.rebound.example"}, 403),
        ({"host": "[::2]:8787"}, 403),
        ({"host": "10.0.0.5:8787"}, 403),
        ({"host": ""}, 403),
        ({"host": "localhost", "origin": "http://localhost:3000"}, 200),
        ({"host": "localhost", "origin": "http://[::1]:3000"}, 200),
        ({"host": "localhost", "origin": "https://gateway.lan"}, 200),
        ({"host": "localhost", "origin": "https://any.example"}, 403),
        ({"host": "localhost", "origin": "https://localhost.any.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "origin": "file://"}, 403),
    ],
)
async def test_no_web_page_spends_a_keyless_gateways_keys(
    upstream: Upstream, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    """On loopback and without keys, a request comes to a name of this machine and from no other site's page."""
    settings = {"access": {"hosts": ["gateway.lan"]}}
    async with in_process(tmp_path, upstream.url, settings=settings) as app:
        answers = [
            await app.ask(headers=headers),
            await app.get("/v1/models", headers),
            await app.get("/metrics", headers),
        ]
    assert [answer.status_code for answer in answers] == [status] * 3
    assert len(upstream.requests) == (status == 200)
    if status == 403:
        refused = {"origin_not_allowed" if "origin" in headers else "host_not_allowed"}
        assert {answer.json()["error"]["code"] for answer in answers} == refused
        assert all(answer.headers["x-request-id"] for answer in answers)


@pytest.mark.parametrize(("content_type", "status"), [(None, 415), ("text/plain", 415), ("application/json", 200)])
async def test_a_keyless_gateway_asks_for_a_json_content_type(
    upstream: Upstream, tmp_path: Path, content_type: str | None, status: int
) -> None:
    """A page of another site can send a body without a preflight only if its type is not JSON's, or missing."""
    content = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
    headers = {"content-type": content_type} if content_type else {}
    async with in_process(tmp_path, upstream.url) as app:
        for path in ("/v1/chat/completions", "/v1/feedback"):
            answer = await app.client.post(path, content=content, headers=headers)
            assert (answer.status_code == 415) is (status == 415), (path, answer.text)


async def test_with_keys_names_do_not_matter(upstream: Upstream, tmp_path: Path) -> None:
    """Where every request has a key, a page of another site has none to send: any name, origin or proxy will do."""
    headers = {**ACME, "host": "gateway.example", "origin": "https://app.example"}
    content = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
    async with in_process(tmp_path, upstream.url, settings=TENANTS, env=ENV) as app:
        assert (await app.ask(headers=headers)).status_code == 200
        untyped = await app.client.post("/v1/chat/completions", content=content, headers=headers)
        assert untyped.status_code == 200


def launch(folder: Path, host: str | None = None, settings: Mapping[str, Any] | None = None) -> Launch:
    """A launch of a config with these settings, and with `host` on the command line."""
    write_deployment(folder, config("http://127.0.0.1:9/v1", None, **(settings or {})))
    return Launch(config=folder / "tierline.yaml", policies=folder / "policies", host=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.example", ""])
@pytest.mark.parametrize("place", ["config", "command line"])
def test_an_open_address_needs_keys(tmp_path: Path, host: str, place: str) -> None:
    """An address that other machines reach is refused without tenants, and the message says what to do."""
    started = launch(tmp_path, host) if place == "command line" else launch(tmp_path, settings={"host": host})
    with pytest.raises(ConfigError) as refused:
        started.deployment(ENV)
    (problem,) = refused.value.problems
    assert problem.key == "host"
    assert "tenants" in problem.message
    assert "access: {keyless: true}" in problem.message


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("0.0.0.0", TENANTS),
        ("0.0.0.0", {"access": {"keyless": True}}),
        ("127.0.0.1", {}),
        ("localhost", {}),
        ("::1", {}),
    ],
)
def test_an_address_that_is_safe_is_taken(tmp_path: Path, host: str, settings: dict[str, Any]) -> None:
    """With tenants, or where the config says that keyless is meant, any address will do; loopback always does."""
    assert launch(tmp_path, host, settings).deployment(ENV).host == host


@pytest.mark.parametrize("headers", [None, ACME], ids=["no key", "a tenant's key"])
async def test_strangers_are_told_neither_models_nor_spending(
    upstream: Upstream, tmp_path: Path, headers: dict[str, str] | None
) -> None:
    """Once there are tenants, /metrics and the details of /readyz are the operator's, by the admin's key."""
    settings = {**TENANTS, "admin": {"key_env": "ADMIN_KEY", "port": 1}}
    async with in_process(tmp_path, upstream.url, settings=settings, env=ENV) as app:
        ready = await app.get("/readyz", headers)
        assert (ready.status_code, set(ready.json())) == (200, {"status"})
        refused = await app.get("/metrics", headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert "tiers" in (await app.get("/readyz", ADMIN)).json()
        assert "tierline_requests" in (await app.get("/metrics", ADMIN)).text


async def test_metrics_can_be_public(upstream: Upstream, tmp_path: Path) -> None:
    """Where the network keeps strangers out, the config may leave /metrics and /readyz open."""
    settings = {**TENANTS, "access": {"public_metrics": True}}
    async with in_process(tmp_path, upstream.url, settings=settings, env=ENV) as app:
        assert "tierline_requests" in (await app.get("/metrics")).text
        assert "tiers" in (await app.get("/readyz")).json()


def test_children_get_no_secrets() -> None:
    """The store and the local model start with what a process needs to run, and with none of the gateway's keys."""
    environ = {"PATH": "/bin", "HOME": "/root", "LANG": "C", "LC_ALL": "C", "LD_LIBRARY_PATH": "/lib", "TMPDIR": "/tmp"}
    environ |= {"OMP_NUM_THREADS": "2", "PYTHONPATH": "/src", "CUDA_VISIBLE_DEVICES": "0", "SSL_CERT_FILE": "/ca"}
    secrets = {"OPENAI_API_KEY": "sk-1", "TIERLINE_CACHE_SECRET": "s", "AWS_SECRET_ACCESS_KEY": "a", "ACME_KEY": "b"}
    assert without_secrets({**environ, **secrets}) == environ


def test_a_state_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """What lies in the state folder is closed to others, also where the folder was there and open to all."""
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "store").mkdir()
    for folder in (state, state / "logs", state / "store"):
        folder.chmod(0o755)
    with claimed_folder(state):
        modes = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (state, state / "logs", state / "store")}
    assert set(modes.values()) == {0o700}, modes
