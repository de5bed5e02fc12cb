"""What people do with the cache of a running gateway: by the admin API, by `tierline cache`, by feedback, by tags."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.hit_audits.control import RiskFigures
from gateway.parts.hit_audits.groups import GroupFigures
from gateway.parts.hit_audits.published import PublishedRisk, publication
from tests.support.ask import ask
from tests.support.gateway import CHAT, Gateway, serve
from tests.support.ports import free_port
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Reply, Upstream
from tests.support.wait import until

MEANING = CHAT.replace("surface: chat", "surface: meaning").replace("[chat, gpt-4o-mini]", "[meaning]") + (
    "  semantic: {ttl: 1h, audit: 0%}\n"
)
TENANTS = {"acme": {"key_env": "ACME_KEY"}, "zeta": {"key_env": "ZETA_KEY"}}
KEYS = {"ACME_KEY": "acme-key", "ZETA_KEY": "zeta-key", "ADMIN_KEY": "admin-key"}


@pytest.fixture(scope="module")
def cache_store() -> Iterator[LocalStore]:
    with local_store() as server:
        yield server


@pytest.fixture(scope="module")
def admin_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream() as running:
        running.default = Reply(text="Rome.", logprob=-0.01)
        yield running


@pytest.fixture(scope="module")
def gateway(
    tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, cache_store: LocalStore, admin_port: int
) -> Iterator[Gateway]:
    """Two tenants, an admin API, and a surface `meaning` with a semantic cache."""
    settings = {"tenants": TENANTS, "admin": {"key_env": "ADMIN_KEY", "port": admin_port}}
    folder: Path = tmp_path_factory.mktemp("admin")
    policies = {"chat": CHAT, "meaning": MEANING}
    with serve(
        folder, upstream.url, upstream.url, store_url=cache_store.url, policies=policies, settings=settings, env=KEYS
    ) as running:
        yield running


def tenant_asks(
    gateway: Gateway, question: str, tenant: str = "acme", model: str = "chat", **headers: str
) -> httpx2.Response:
    sent = {"authorization": f"Bearer {tenant}-key", **headers}
    return ask(gateway, question, model=model, headers=sent, temperature=0)


def path(gateway: Gateway, question: str, tenant: str = "acme", model: str = "chat", **headers: str) -> str:
    return tenant_asks(gateway, question, tenant, model, **headers).headers["x-tierline-path"]


def recognised(gateway: Gateway, question: str, tenant: str) -> httpx2.Response | None:
    """The reply where an answer to another wording is found; where it is not yet, no model is asked."""
    reply = tenant_asks(gateway, question, tenant, model="meaning", **{"x-tierline-cache": "only-if-cached"})
    return reply if reply.headers.get("x-tierline-path") == "cache-semantic" else None


def kept(gateway: Gateway, question: str, tenant: str = "acme", **headers: str) -> str:
    """Asks until the cache answers; that request's id."""
    ids: list[str] = []

    def answered() -> bool:
        reply = tenant_asks(gateway, question, tenant, **headers)
        ids.append(reply.headers["x-request-id"])
        return reply.headers["x-tierline-path"] == "cache-exact"

    until(answered, 5, f"a hit for {question}")
    return ids[-1]


def still_kept(gateway: Gateway, question: str, tenant: str = "acme") -> None:
    """Whether the cache answers without a model: a busy machine's store may miss its time, and is asked again."""
    stored = {"x-tierline-cache": "only-if-cached"}
    until(lambda: tenant_asks(gateway, question, tenant, **stored).status_code == 200, 5, f"a hit for {question}")


def entry_of(store: LocalStore, request_id: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The id of the entry that answered a request, as its trace has it."""
    capsys.readouterr()
    until(lambda: main(["trace", "show", request_id, "--store", store.url, "--json"]) == 0, 5, "the trace")
    record = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    return next(hop["attributes"]["tierline.cache.entry"] for hop in record["hops"] if hop["name"] == "cache.exact")


def admin(port: int, method: str, url: str, key: str = "admin-key", **more: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx2.request(method, f"http://127.0.0.1:{port}{url}", headers=headers, timeout=20, **more)


def command(*arguments: str, store: LocalStore) -> int:
    return main(["cache", *arguments, "--store", store.url])


def test_the_admin_api_answers_on_its_own_port_to_its_own_key(gateway: Gateway, admin_port: int) -> None:
    """Not on the public port, whatever a request says, nor to a tenant's key; and models are not asked there (S9)."""
    assert admin(admin_port, "GET", "/admin/cache/stats").status_code == 200
    for key in ("acme-key", "x", "admin-ke", "admin-key2"):
        refused = admin(admin_port, "GET", "/admin/cache/stats", key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    for url in ("/admin/cache/stats", "/admin/cache/entries/aaaaaaaaaaaa", "//admin/cache/stats"):
        spoofed = {"host": f"127.0.0.1:{admin_port}", "x-forwarded-port": str(admin_port)}
        public = httpx2.get(f"{gateway.origin}{url}", headers={**spoofed, "authorization": "Bearer admin-key"})
        assert public.status_code == 404
    assert admin(admin_port, "POST", "/v1/chat/completions", json={}).status_code == 404
    assert admin(admin_port, "GET", "/metrics").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {}, [], {"surface": 1}, {"surface": "../x"}, {"tag": "a b"}, {"tag": ""}, {"entry": "nope"},
        {"tenant": "acme"}, {"surface": "chat", "tenant": "a", "team": "b"}, {"entry": "a" * 12, "tenant": "acme"},
        {"surface": "chat", "foo": "x"},
    ],
)  # fmt: skip
def test_a_purge_that_cannot_be_meant_is_refused(gateway: Gateway, admin_port: int, body: Any) -> None:
    """With 400 and what is wrong; nothing is purged."""
    assert admin(admin_port, "POST", "/admin/cache/purge", json=body).status_code == 400


def test_no_path_leads_out_of_the_admin_api(gateway: Gateway, admin_port: int) -> None:
    """An entry's id is hex digits, and nothing else is looked for."""
    for odd in ("..%2f..%2fetc", "%00", "*", "a" * 11, "a" * 33, "A" * 12):
        assert admin(admin_port, "GET", f"/admin/cache/entries/{odd}").status_code in (400, 404)


def test_a_surface_is_purged_for_one_tenant_and_for_all(
    gateway: Gateway, admin_port: int, cache_store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the admin API and by the command; who is not meant keeps what is kept."""
    for tenant in ("acme", "zeta"):
        kept(gateway, "The capital of Italy?", tenant)
    said = admin(admin_port, "POST", "/admin/cache/purge", json={"surface": "chat", "tenant": "acme"}).json()
    assert (said["surface"], said["entries"] >= 1) == ("chat", True)
    assert path(gateway, "The capital of Italy?") == "direct"
    still_kept(gateway, "The capital of Italy?", "zeta")
    capsys.readouterr()
    assert command("purge", "--surface", "chat", store=cache_store) == 0
    assert "chat is purged: " in capsys.readouterr().out
    assert path(gateway, "The capital of Italy?", "zeta") == "direct"


def test_what_was_drawn_from_a_source_goes_with_it(
    gateway: Gateway, cache_store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request names its sources in a header; purging one of them takes its answers at once."""
    tags = {"x-tierline-cache-tags": "doc:42, doc:43"}
    kept(gateway, "What does the handbook say?", **tags)
    kept(gateway, "What does nobody say?")
    assert command("purge", "--tag", "doc:43", store=cache_store) == 0
    assert path(gateway, "What does the handbook say?") != "cache-exact"
    still_kept(gateway, "What does nobody say?")
    assert "tagged doc:43" in capsys.readouterr().out


@pytest.mark.parametrize("tags", ["a b", "x" * 65, ",", ",".join(f"t{i}" for i in range(17)), "a;b", "é"])
def test_tags_that_cannot_be_meant_are_refused(gateway: Gateway, tags: str) -> None:
    """With 400, naming the header."""
    body = {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}]}
    headers = [(b"authorization", b"Bearer acme-key"), (b"x-tierline-cache-tags", tags.encode("latin-1"))]
    reply = httpx2.post(f"{gateway.url}/chat/completions", json=body, headers=headers, timeout=20)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-tierline-cache-tags")


def test_an_entry_is_shown_and_taken_out(
    gateway: Gateway, admin_port: int, cache_store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the id in a trace: its question, its answer, who gave it, how long it has; and then it is gone."""
    entry = entry_of(cache_store, kept(gateway, "Show me \x1b[31mred?", **{"x-tierline-cache-tags": "doc:1"}), capsys)
    shown = admin(admin_port, "GET", f"/admin/cache/entries/{entry}").json()
    assert (shown["id"], shown["tenant"], shown["tier"], shown["tags"]) == (entry, "acme", "local", ["doc:1"])
    assert (shown["answer"], shown["question"]) == ("Rome.", "Show me \x1b[31mred?")
    assert 0 < shown["ttl_left_s"] <= 3600
    assert command("show", entry, store=cache_store) == 0
    drawn = capsys.readouterr().out
    assert "\x1b[31m" not in drawn
    assert "Rome." in drawn
    assert command("show", entry, "--json", store=cache_store) == 0
    assert orjson.loads(capsys.readouterr().out)["id"] == entry
    assert admin(admin_port, "DELETE", f"/admin/cache/entries/{entry}").json()["entries"] == 1
    assert admin(admin_port, "GET", f"/admin/cache/entries/{entry}").status_code == 404
    assert command("show", entry, store=cache_store) == 2
    assert f"there is no entry {entry}" in capsys.readouterr().err
    assert path(gateway, "Show me \x1b[31mred?") != "cache-exact"


def test_a_hit_that_its_client_calls_wrong_is_not_served_again(gateway: Gateway) -> None:
    """Feedback below 0.5 takes the entry out; what others were answered, and what was no hit, stays."""
    for tenant in ("acme", "zeta"):
        request_id = kept(gateway, "Which is wrong?", tenant)
    said = {"request_id": request_id, "correct": False}

    def told() -> bool:
        headers = {"authorization": "Bearer zeta-key"}
        reply = httpx2.post(f"{gateway.url}/feedback", json=said, headers=headers, timeout=20)
        return reply.status_code == 200 and len(reply.json()["cache_entry_removed"]) == 12

    until(told, 5, "the feedback")
    assert path(gateway, "Which is wrong?", "zeta") != "cache-exact"
    still_kept(gateway, "Which is wrong?", "acme")


def wrong(gateway: Gateway, request_id: str, tenant: str) -> str:
    """Says that the answer to a request was wrong; the id of the entry that went for it, or ''."""
    said, headers = {"request_id": request_id, "correct": False}, {"authorization": f"Bearer {tenant}-key"}
    replies: list[httpx2.Response] = []

    def told() -> bool:
        replies.append(httpx2.post(f"{gateway.url}/feedback", json=said, headers=headers, timeout=20))
        return replies[-1].status_code == 200

    until(told, 5, "the feedback")
    return str(replies[-1].json().get("cache_entry_removed", ""))


def test_a_tenant_that_calls_a_rephrasings_answer_wrong_gets_no_like_one(gateway: Gateway) -> None:
    """The complaint counts at the hit's score, at once and once: for that tenant, and for no other. What has taken the
    wrong answer's place stays, however often the first one is complained of.
    """
    first, rephrased = "What is the capital city of Italy?", "What's the capital city of Italy?"

    def by_meaning(tenant: str) -> str:
        """The id of a request for the rephrasing that was answered by meaning."""
        until(lambda: path(gateway, first, tenant, model="meaning") == "cache-exact", 5, "a stored answer")
        reply = until(lambda: recognised(gateway, rephrased, tenant), 5, "an answer by meaning")
        return reply.headers["x-request-id"]

    complained = by_meaning("acme")
    assert wrong(gateway, complained, "acme")
    until(lambda: path(gateway, first, "acme", model="meaning") == "cache-exact", 5, "a fresh answer, stored")
    assert path(gateway, rephrased, "acme", model="meaning") == "direct"
    assert not wrong(gateway, complained, "acme")
    assert path(gateway, first, "acme", model="meaning") == "cache-exact"
    by_meaning("zeta")


def test_stats_say_who_keeps_how_much(
    gateway: Gateway,
    admin_port: int,
    cache_store: LocalStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Per surface, tenant and models, with how lookups went; the command says it too, with the index of the gateway."""
    kept(gateway, "What is there?")
    monkeypatch.delenv("TIERLINE_ADMIN_KEY", raising=False)
    assert command("stats", "--gateway", gateway.url, store=cache_store) != 0
    assert "TIERLINE_ADMIN_KEY" in capsys.readouterr().err
    monkeypatch.setenv("TIERLINE_ADMIN_KEY", "admin-key")
    stats = admin(admin_port, "GET", "/admin/cache/stats").json()
    (acme,) = [
        one for one in stats["scopes"] if one.get("tenant") == "acme" and one["current"] and one["surface"] == "chat"
    ]
    assert (acme["surface"], acme["entries"] > 0, acme["bytes"] > 0) == ("chat", True, True)
    assert acme["models"] == "small -> large"
    assert stats["lookups"]["exact"]["hit"] > 0
    assert command("stats", "--gateway", gateway.url, store=cache_store) == 0
    drawn = capsys.readouterr().out
    assert "acme" in drawn
    assert "replica" in drawn
    assert "small -> large" in drawn, "a cell is broken into lines though there is room for it"
    assert command("stats", "--gateway", gateway.url, "--json", store=cache_store) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert told["index"]["kind"] == "replica"
    assert "chat" in {one["surface"] for one in told["scopes"]} <= {"chat", "meaning"}


def test_stats_say_whose_hits_are_wrong(cache_store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    """By surface, by language and by tenant."""
    han = GroupFigures("language", "Han", 400, 9, 6, math.inf, 0.02, True)
    figures = RiskFigures(0.01, 0.9, 0.8, 0.02, False, 20_000, 300, 100, 40, 1, 0, 0, 0.002, 0.005, (han,))
    risk = publication(PublishedRisk("chat", "stream", time.time(), figures))

    async def publish() -> None:
        store = RedisStore.from_url(cache_store.url)
        await store.ask([risk])
        await store.aclose()

    asyncio.run(publish())
    assert command("stats", store=cache_store) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "chat 1.00% 0.20% 0.900 300 20000" in lines
    assert "language Han 1.00% 2.00% breached none served 9 400" in lines
    assert command("stats", "--json", store=cache_store) == 0
    told = {one["surface"]: one for one in orjson.loads(capsys.readouterr().out)["risks"]}
    assert [(one["words"], one["breached"], one["threshold"]) for one in told["chat"]["groups"]] == [
        ("language Han", True, None)
    ]


def test_without_a_gateway_the_store_says_which_index_it_carries(
    tmp_path: Path, cache_store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a gateway on it would choose."""
    assert command("stats", "--state", str(tmp_path), store=cache_store) == 0
    assert "replica" in capsys.readouterr().out
    assert command("stats", "--state", str(tmp_path), "--json", store=cache_store) == 0
    told = orjson.loads(capsys.readouterr().out)
    assert (told["lookups"], told["index"]["kind"]) == (None, "replica")


@pytest.mark.parametrize("wrong", [["purge"], ["purge", "--entry", "a" * 12, "--surface", "chat"]])
def test_a_command_that_cannot_be_meant_ends_with_2(
    wrong: list[str], cache_store: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says what to give instead."""
    assert command(*wrong, store=cache_store) == 2
    assert "--entry" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    assert main(["cache", "stats", "--store", "redis://127.0.0.1:9/0"]) == 2
    assert "the store does not answer" in capsys.readouterr().err


def test_several_workers_serve_the_admin_api(tmp_path: Path, upstream: Upstream, cache_store: LocalStore) -> None:
    """Any of them answers for all; without `admin` there is no second port."""
    assert "admin" not in CHAT
    port = free_port()
    settings = {"admin": {"key_env": "ADMIN_KEY", "port": port}}
    with serve(tmp_path, upstream.url, store_url=cache_store.url, settings=settings, env=KEYS):
        until(lambda: admin(port, "GET", "/admin/cache/stats").status_code == 200, 10, "the statistics")
    with pytest.raises(httpx2.ConnectError):
        admin(port, "GET", "/admin/cache/stats")
