"""`tierline keys` and `tierline teams` as a user runs them, against a real store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.access.audit.trail import AuditTrail
from gateway.parts.access.keys.records import CONTEXT, digest_of
from gateway.parts.access.keys.registry import KeyRegistry
from tests.parts.access.keys.conftest import registry, server, store
from tests.support.store import LocalStore

__all__ = ["registry", "server", "store"]
Tierline = Callable[..., Coroutine[Any, Any, tuple[int, str, str]]]


@pytest.fixture
def tierline(server: LocalStore, capsys: pytest.CaptureFixture[str], store: RedisStore) -> Tierline:
    """Run a command against the store; return its code, stdout and stderr."""

    async def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = await asyncio.to_thread(main, [*arguments, "--store", server.url])
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


async def made(tierline: Tierline, *arguments: str) -> dict[str, Any]:
    code, text, problem = await tierline("keys", "create", *arguments, "--json")
    assert code == 0, problem
    return dict(json.loads(text))


async def test_a_key_is_made_shown_once_and_found(tierline: Tierline, registry: KeyRegistry) -> None:
    """With all that is said of it; later commands never show it or its digest again."""
    key = await made(
        tierline, "--name", "ada", "--team", "web", "--budget", "25/month@Europe/Berlin", "--budget", "5/day",
        "--rpm", "60", "--user-tpm", "900", "--surface", "chat", "--surface", "code", "--expires", "90d",
        "--metadata", "app=ide",
    )  # fmt: skip
    digest = digest_of(key["key"].encode(), CONTEXT).hex()
    record = await registry.by_digest(digest)
    assert record is not None
    assert (record.id, record.name, record.surfaces) == (key["id"], "ada", ("chat", "code"))
    assert [budget.text for budget in record.terms.budgets] == ["25/month@Europe/Berlin", "5/day"]
    assert (record.terms.requests_per_minute, record.per_user.tokens_per_minute) == (60, 900)
    assert key["on_disk"] is False
    for command in (("list",), ("show", "ada"), ("show", key["id"], "--json"), ("list", "--json")):
        code, text, _ = await tierline("keys", *command)
        assert code == 0
        assert all(word in text for word in (key["id"], "ada", "chat", "code"))
        assert key["key"] not in text
        assert digest not in text


async def test_a_change_is_of_what_is_given_alone(tierline: Tierline, registry: KeyRegistry) -> None:
    """`none` takes a limit away, and the rest stays."""
    key = await made(tierline, "--rpm", "60", "--concurrent", "2", "--budget", "5/day", "--metadata", "a=1")
    code, text, problem = await tierline(
        "keys", "update", key["id"], "--rpm", "none", "--budget", "7/week", "--metadata", "b=2", "--metadata", "a="
    )
    assert (code, problem) == (0, "")
    assert "within a second" in text
    record = await registry.find(key["id"])
    assert record.terms.plain() == {"concurrent": 2, "budgets": [{"usd": 7.0, "per": "week"}]}
    assert record.metadata == {"b": "2"}


async def test_keys_are_rotated_disabled_and_revoked_with_author_and_reason(
    tierline: Tierline, store: RedisStore, registry: KeyRegistry
) -> None:
    """All of it is in the audit trail."""
    key = await made(tierline, "--name", "ci", "--author", "ada", "-m", "for the build")
    code, text, _ = await tierline("keys", "rotate", "ci", "--grace", "1h", "--json")
    assert (code, json.loads(text)["id"]) == (0, key["id"])
    assert json.loads(text)["key"] != key["key"]
    for action in ("disable", "enable", "revoke"):
        assert (await tierline("keys", action, "ci", "-m", "so"))[0] == 0
    assert [one.action async for one in AuditTrail(store).newest()] == [
        "revoke",
        "enable",
        "disable",
        "rotate",
        "create",
    ]
    assert (await registry.find(key["id"])).state == "revoked"
    code, _, problem = await tierline("keys", "enable", "ci")
    assert code == 2
    assert "stays so" in problem
    assert key["id"] in (await tierline("keys", "list", "--only", "revoked"))[1]
    assert key["id"] not in (await tierline("keys", "list", "--only", "active"))[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "--budget", "25"), "write 25/month"),
        (("create", "--budget", "5/month@Nowhere"), "no time zone"),
        (("create", "--budget", "5/day", "--budget", "6/day"), "two budgets are per day"),
        (("create", "--rpm", "0"), "whole number"),
        (("create", "--expires", "soon"), "not a duration"),
        (("create", "--team", "Web Team"), "is no name"),
        (("create", "--metadata", "x"), "NAME=VALUE"),
        (("show", "nobody"), "there is no key 'nobody'"),
        (("import",), "name one file"),
    ],
)
async def test_what_is_wrong_is_said_in_a_line(tierline: Tierline, arguments: tuple[str, ...], words: str) -> None:
    """With exit code 2, and nothing is made."""
    code, text, problem = await tierline("keys", *arguments)
    assert (code, text) == (2, "")
    assert words in problem


async def test_teams_have_terms(tierline: Tierline, registry: KeyRegistry) -> None:
    """Made, changed, listed and removed; a tenant's by its kind."""
    assert (await tierline("teams", "create", "web", "--budget", "200/month", "--longest-life", "90d"))[0] == 0
    code, _, problem = await tierline("teams", "create", "web")
    assert code == 2
    assert "already" in problem
    assert (await tierline("teams", "update", "web", "--budget", "50/month", "--surface", "chat"))[0] == 0
    assert (await tierline("teams", "create", "tenant:acme", "--concurrent", "5"))[0] == 0
    web = await registry.owner("team", "web")
    assert web is not None
    assert (web.surfaces, web.longest_life_s, web.revision) == (("chat",), 90 * 86400.0, 2)
    listed = (await tierline("teams", "list"))[1]
    assert "$50/month" in listed
    assert "acme" in listed
    assert (await tierline("teams", "remove", "web"))[0] == 0
    assert await registry.owner("team", "web") is None
    code, _, problem = await tierline("teams", "update", "web", "--rpm", "1")
    assert code == 2
    assert "teams create" in problem


async def test_an_export_comes_back_whole(
    tierline: Tierline, tmp_path: Path, store: RedisStore, registry: KeyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rotated keys and teams, into an empty store, once; under another secret it is refused."""
    key = await made(tierline, "--name", "ci", "--team", "web")
    await tierline("keys", "rotate", "ci")
    await tierline("teams", "create", "web", "--rpm", "5")
    file = tmp_path / "keys.jsonl"
    assert (await tierline("keys", "export", str(file)))[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key["key"] not in file.read_text()
    before = sorted([one async for one in registry.records()], key=lambda one: one.digest)
    await store.ask([Command((b"FLUSHALL",))])
    monkeypatch.setenv("TIERLINE_KEY_SECRET", "another")
    code, _, problem = await tierline("keys", "import", str(file))
    assert code == 2
    assert "another TIERLINE_KEY_SECRET" in problem
    monkeypatch.delenv("TIERLINE_KEY_SECRET")
    code, text, _ = await tierline("keys", "import", str(file))
    assert (code, text) == (0, "3 imported, 0 there already.\n")
    assert sorted([one async for one in registry.records()], key=lambda one: one.digest) == before
    assert (await tierline("keys", "import", str(file)))[1] == "0 imported, 3 there already.\n"


async def test_a_key_is_made_by_the_secret_of_the_gateway_alone(
    tierline: Tierline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who forgot to set it is told, instead of getting a key that no gateway knows."""
    await made(tierline)
    monkeypatch.setenv("TIERLINE_KEY_SECRET", "pepper")
    code, _, problem = await tierline("keys", "create")
    assert code == 2
    assert "TIERLINE_KEY_SECRET" in problem


async def test_keys_of_litellm_go_on_being_valid(tierline: Tierline, tmp_path: Path, registry: KeyRegistry) -> None:
    """With their limits; what has no counterpart is said of each."""
    one, other = "sk-first-key-of-litellm", "sk-other"
    keys = [
        {
            "token": hashlib.sha256(one.encode()).hexdigest(), "key_alias": "ada", "team_id": "Web Team", "spend": 3.5,
            "max_budget": 25, "budget_duration": "30d", "rpm_limit": 60, "tpm_limit": 9000, "max_parallel_requests": 2,
            "models": ["gpt-4o", "claude"], "expires": "2030-01-01T00:00:00Z",
            "metadata": {"app": "ide", "n": {"a": 1}}, "user_id": "ada@example.com", "model_max_budget": {"gpt-4o": 1},
        },
        {"token": hashlib.sha256(other.encode()).hexdigest(), "blocked": True, "max_budget": 1,
         "budget_duration": "12h", "models": ["all-proxy-models"]},
        {"token": "no hash", "key_alias": "broken"},
    ]  # fmt: skip
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": keys, "total_count": 3}))
    code, text, _ = await tierline("keys", "import", "--litellm", str(file), "--tenant", "acme")
    assert code == 0
    assert text.startswith("2 imported, 0 there already.")
    for words in (
        "model_max_budget has no counterpart",
        "$3.50",
        "called 'web-team' here",
        "per 12h holds per day",
        "left out",
    ):
        assert words in " ".join(text.split()), words
    key = await registry.by_digest(hashlib.sha256(one.encode()).hexdigest())
    assert key is not None
    assert (key.name, key.team, key.tenant, key.owner, key.models) == (
        "ada", "web-team", "acme", "ada@example.com", ("gpt-4o", "claude"),
    )  # fmt: skip
    assert key.terms.plain() == {
        "requests_per_minute": 60, "tokens_per_minute": 9000, "concurrent": 2, "budgets": [{"usd": 25.0}],
    }  # fmt: skip
    assert key.metadata == {"app": "ide", "n": '{"a":1}'}
    assert key.imported
    blocked = await registry.by_digest(hashlib.sha256(other.encode()).hexdigest())
    assert blocked is not None
    assert (blocked.state, blocked.models) == ("disabled", ())
    table = tmp_path / "keys.csv"
    table.write_text(
        "token,key_alias,models,rpm_limit,metadata,expires\n" + "ab" * 32 + ',bob,"{gpt-4o,claude}",5,{},\n'
    )
    assert (await tierline("keys", "import", "--litellm", str(table)))[1].startswith("1 imported")
    assert (await registry.find("bob")).models == ("gpt-4o", "claude")


async def test_without_a_store_that_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And what to do."""
    assert await asyncio.to_thread(main, ["keys", "list", "--state", str(tmp_path)]) == 2
    assert "no store to read" in capsys.readouterr().err
