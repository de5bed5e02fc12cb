"""The pages Keys and Teams over a real store: what is made, shown once, changed and refused, and by whom."""

from __future__ import annotations

import asyncio
import html
import re
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from cache.store.base import Command, NoStore
from cache.store.redis_store import RedisStore
from gateway.parts.access.config import OwnerTerms
from gateway.parts.access.keys import registry as module
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, digest_of, is_mistyped
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.keys.roles import ADMIN, Grant, Person
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.access.quotas.accounts import OwnerAccounts
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.parts.console.app import ConsoleApp
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from policies.quantities import NANO
from tests.parts.console.test_app import console, places
from tests.parts.rollout.registry.conftest import server, store

__all__ = ["server", "store"]
MEMBER = Person("mo@acme.example", "u_1", tenant="default", teams=("web",))
KEY_ADMIN = Person("kay@acme.example", "u_2", (Grant("key_admin", ("web",)),))
VIEWER = Person("vi@acme.example", "u_3", (Grant("viewer"),))
NEW = {"name": "laptop", "team": "web", "owner": "bob", "surfaces": "chat, code", "requests_per_minute": "600",
       "budgets": "25/month Europe/Berlin, 5/day", "expires": "90d", "message": "for bob"}  # fmt: skip


def secret_in(page: httpx2.Response) -> str:
    [secret] = re.findall(r'<code id="the-key"[^>]*>([^<]+)</code>', page.text)
    return str(secret)


async def made(client: httpx2.AsyncClient, **more: str) -> tuple[str, str]:
    """Make a key by the form; return its id and the key itself."""
    page = await client.post("/keys", data={**NEW, **more})
    assert page.status_code == 200, re.findall(r'role="alert">([^<]*)', page.text)
    return re.findall(r'href="/keys/(k_\w+)"', page.text)[0], secret_in(page)


async def act(client: httpx2.AsyncClient, name: str, /, **form: str) -> httpx2.Response:
    """Send a form of a key's page, with the revision that it shows."""
    page = (await client.get(f"/keys/{name}.json")).json()
    return await client.post(f"/keys/{name}", data={"revision": str(page["key"]["revision"]), **form})


async def test_a_key_is_shown_once_and_works(store: RedisStore, tmp_path: Path) -> None:
    """With what a client needs to use it; the store knows it by its hash, and no other page has either."""
    async with console(tmp_path, store, 0) as client:
        assert "There is no key yet" in (await client.get("/keys")).text
        page = await client.post("/keys", data=NEW)
        secret = secret_in(page)
        assert not is_mistyped(secret.encode())
        assert page.headers["cache-control"] == "no-store"
        for needed in ("base_url=&#34;http://127.0.0.1:8787/v1&#34;", "ANTHROPIC_BASE_URL=http://127.0.0.1:8787 "):
            assert needed in page.text
        digest = digest_of(secret.encode(), CONTEXT).hex()
        record = await KeyRegistry(store).by_digest(digest)
        assert record is not None
        assert (record.name, record.team, record.owner, record.surfaces) == ("laptop", "web", "bob", ("chat", "code"))
        assert [budget.text for budget in record.terms.budgets] == ["25/month@Europe/Berlin", "5/day"]
        assert record.expires is not None and abs(record.expires - time.time() - 90 * 86400) < 60
        for path in (page + kind for page in ("/keys", f"/keys/{record.id}", "/changes") for kind in ("", ".json")):
            text = (await client.get(path)).text
            assert record.id in text and secret not in text and digest not in text, path
        [entry] = (await client.get("/changes.json?kind=key")).json()["entries"]
        assert "budgets 25/month@Europe/Berlin and 5/day" in entry["words"]
        assert re.search(r"expires: 2\d{3}-\d\d-\d\dT", entry["words"])
        assert (entry["by"], entry["how"], entry["message"]) == ("console", "console", "for bob")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"requests_per_minute": "-1"}, "whole number"),
        ({"tokens_per_minute": "9" * 4400}, "longer than"),
        ({"budgets": "25"}, "25/month"),
        ({"budgets": "5/day, 6/day"}, "two budgets are per day"),
        ({"per_user_budgets": "5/day@Nowhere"}, "no time zone"),
        ({"expires": "soon"}, "duration"),
        ({"expires": "99999999d"}, "100 years"),
        ({"team": "../web"}, "no name of a team"),
        ({"name": "x" * 300}, "longer than"),
    ],
)
async def test_a_mistake_in_the_form_is_said_and_kept(
    store: RedisStore, tmp_path: Path, wrong: dict[str, str], said: str
) -> None:
    """What was typed stays in the form, and nothing is made."""
    async with console(tmp_path, store, 0) as client:
        page = await client.post("/keys", data={**NEW, **wrong})
        assert page.status_code == 422 and said in html.unescape(page.text)
        assert 'value="laptop"' in page.text or "name" in wrong
        assert (await client.get("/keys.json")).json()["keys"] == []


async def test_a_key_is_rotated_disabled_changed_and_revoked(store: RedisStore, tmp_path: Path) -> None:
    """Each once, from the state that was looked at; revoking is confirmed, and for ever."""
    registry = KeyRegistry(store)
    async with console(tmp_path, store, 0) as client:
        name, first = await made(client)
        rotated = await act(client, name, do="rotate", grace="1h")
        second = secret_in(rotated)
        assert second != first and "valid until" in rotated.text
        old, new = [await registry.by_digest(digest_of(one.encode(), CONTEXT).hex()) for one in (first, second)]
        assert old is not None and new is not None and old.id == new.id == name
        assert old.expires is not None and abs(old.expires - time.time() - 3600) < 60
        assert "It is disabled" in (await act(client, name, do="disable", message="a holiday")).text
        assert ">disabled</span>" in (await client.get(f"/keys/{name}")).text
        assert "It is active again" in (await act(client, name, do="enable")).text
        fields = {"name": "desktop", "owner": "", "budgets": "7/week", "surfaces": ""}
        assert "It is changed" in (await act(client, name, do="change", **fields)).text
        key = await registry.find(name)
        assert (key.name, key.owner, key.surfaces, key.terms.requests_per_minute) == ("desktop", "", (), None)
        assert key.expires == new.expires  # an end that is left empty stays
        stale = await client.post(f"/keys/{name}", data={"do": "disable", "revision": "1"})
        assert stale.status_code == 422 and "changed meanwhile" in stale.text
        assert "mark that it is" in (await act(client, name, do="revoke")).text
        assert "It is revoked" in (await act(client, name, do="revoke", sure="1")).text
        for do in ("enable", "rotate"):
            assert (await act(client, name, do=do)).status_code == 422
        history = (await client.get(f"/keys/{name}.json")).json()["history"]
        assert [one["words"] for one in history][2:5] == ["state: disabled -> active", "state: active -> disabled", ""]
        actions = [one["action"] for one in history]
        assert actions == ["revoke", "update", "enable", "disable", "rotate", "create"]


async def test_keys_are_searched_and_paged(store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By id, name, owner, team and state; a search that has looked at enough says so, and goes on."""
    registry = KeyRegistry(store)
    keys = [
        KeyRecord(f"k_{n}", f"{n:064x}", "default", "web" if n % 2 else "ops", f"name-{n}", created=1.0 + n,
                  expires=5.0 if n == 7 else None, state="disabled" if n == 8 else "active")
        for n in range(120)
    ]  # fmt: skip
    await registry.restore(keys, Why("ada"))
    async with console(tmp_path, store, 0) as client:

        async def listed(query: str) -> list[str]:
            return [one["id"] for one in (await client.get(f"/keys.json?{query}")).json()["keys"]]

        assert await listed("") == [f"k_{n}" for n in range(119, 69, -1)]
        [older] = re.findall(r'<a href="(\?[^"]*)">More', (await client.get("/keys")).text)
        assert await listed(html.unescape(older)[1:]) == [f"k_{n}" for n in range(69, 19, -1)]
        assert await listed("q=NAME-7&state=expired") == ["k_7"]
        assert await listed("state=disabled") == ["k_8"]
        assert set(await listed("q=ops")) <= {f"k_{n}" for n in range(0, 120, 2)}
        assert await listed("q=nothing") == [] and "No key fits" in (await client.get("/keys?q=nothing")).text
        assert (await client.get("/keys?after=k_none")).status_code == 404
        monkeypatch.setattr(module, "MOST_LOOKED_AT", 60)
        monkeypatch.setattr(module, "_PAGE", 60)
        page = (await client.get("/keys?q=name-8")).text  # name-8 itself is among the oldest
        assert "k_89" in page and "Looked at 60 keys" in page
        [further] = re.findall(r'<a href="(\?[^"]*)">More', page)
        assert await listed(html.unescape(further)[1:]) == ["k_8"]


async def test_a_budget_shows_what_its_counter_says(store: RedisStore, tmp_path: Path) -> None:
    """As a share too; the last use is that of the ledger."""
    async with console(tmp_path, store, 0) as client:
        name, _ = await made(client)
        key = await KeyRegistry(store).find(name)
        month, _ = OwnerAccounts("key", name, key.terms).money(time.time())
        field = f"{ACCOUNT_PREFIX}{month.name}".encode()
        await store.ask([Command((b"HSET", field, b"spent", b"%d" % (20 * NANO)))])
        [shown] = (await client.get("/keys.json")).json()["keys"]
        assert [one["spent_usd"] for one in shown["budgets"]] == [20.0, 0.0] and shown["last_used"] == 0
        assert "$20.00 of $25.00 a month" in re.sub(r"\s+", " ", (await client.get(f"/keys/{name}")).text)
    async with console(tmp_path / "used", store, 3, key=name, team="web") as client:
        [shown] = (await client.get("/keys.json")).json()["keys"]
        assert shown["last_used"] > 0


async def test_people_see_and_make_what_their_role_allows(store: RedisStore, tmp_path: Path) -> None:
    """A member the keys of their own team, within what it allows; a viewer none; an admin all."""
    people = {ADMIN: "admin-key-1", MEMBER: "member-key-1", KEY_ADMIN: "key-admin-key-1", VIEWER: "viewer-key-1"}
    async with console(tmp_path, store, 0, people) as client:

        def as_(person: Person) -> None:
            client.headers["authorization"] = f"Bearer {people[person]}"

        as_(ADMIN)
        of_web, _ = await made(client)
        of_ops, _ = await made(client, team="ops")
        team = {"revision": "0", "surfaces": "chat", "longest_life": "30d", "requests_per_minute": "100"}
        assert (await client.post("/teams/team/web", data=team)).status_code == 200
        as_(MEMBER)
        assert [one["id"] for one in (await client.get("/keys.json")).json()["keys"]] == [of_web]
        assert (await client.get(f"/keys/{of_ops}")).status_code == 404
        assert "within what web allows" in (await client.post("/keys", data=NEW)).text
        assert "not make keys of team ops" in (await client.post("/keys", data={"team": "ops"})).text
        own, _ = await made(client, surfaces="", requests_per_minute="50", expires="", budgets="")
        key = await KeyRegistry(store).find(own)
        assert (key.owner, key.created_by, key.surfaces) == ("mo@acme.example", "mo@acme.example", ("chat",))
        assert key.expires is not None and key.expires < time.time() + 31 * 86400
        assert (await act(client, own, do="rotate", grace="0s")).status_code == 200
        assert (await act(client, own, do="disable")).status_code == 422
        assert (await client.post("/teams/team/web", data={"revision": "1"})).status_code == 403
        as_(KEY_ADMIN)
        assert (await act(client, of_web, do="disable")).status_code == 200  # though it is beyond what the team allows
        assert (await client.post(f"/keys/{of_ops}", data={"do": "disable"})).status_code == 404
        as_(VIEWER)
        assert (await client.get("/keys")).status_code == 403 and "/keys" not in (await client.get("/now")).text
        assert (await client.post("/keys", data=NEW)).status_code == 403


async def test_a_team_gets_limits_that_its_page_shows(store: RedisStore, tmp_path: Path) -> None:
    """Also a tenant; they are removed as they were made, once, from the state that was looked at."""
    async with console(tmp_path, store, 0) as client:
        assert "No team has limits yet" in (await client.get("/teams")).text
        goes_on = await client.get("/teams/new?kind=team&name=web")
        assert goes_on.status_code == 303 and goes_on.headers["location"] == "/teams/team/web"
        form = {
            "budgets": "100/month",
            "tokens_per_minute": "1,000",
            "per_session_budgets": "2/total",
            "longest_life": "90d",
        }
        done = await client.post("/teams/team/web", data={"revision": "0", **form, "message": "a start"})
        assert "Its limits are set" in done.text and 'value="1000"' in done.text and 'value="90d"' in done.text
        assert (await client.post("/teams/tenant/acme", data={"revision": "0", "concurrent": "9"})).status_code == 200
        listed = (await client.get("/teams.json")).json()["owners"]
        assert [(one["kind"], one["name"], one["limits"]) for one in listed] == [
            ("team", "web", "1,000 tokens/min"),
            ("tenant", "acme", "9 at once"),
        ]
        assert (await client.post("/teams/team/web", data={"revision": "0"})).status_code == 422
        assert (await client.post("/teams/team/web", data={"revision": "1", "do": "remove"})).status_code == 422
        gone = await client.post("/teams/team/web", data={"revision": "1", "do": "remove", "sure": "1"})
        assert "are removed" in gone.text
        for nowhere in ("/teams/team/..%2fx", "/teams/key/x", "/teams/new?kind=team&name=A b"):
            assert (await client.get(nowhere)).status_code == 404, nowhere
        entries = (await client.get("/changes.json?kind=team")).json()["entries"]
        assert [one["action"] for one in entries] == ["remove", "create"]


async def test_forms_of_other_sites_change_nothing(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, 0) as client:
        for path in ("/keys", "/keys/k_x", "/teams/team/web"):
            reply = await client.post(path, data=NEW, headers={"origin": "https://evil.example"})
            assert reply.status_code == 403, path
        assert (await client.get("/keys.json")).json()["keys"] == []


async def test_without_a_store_the_pages_say_what_to_do(store: RedisStore, tmp_path: Path) -> None:
    archive = LiveArchive(tmp_path, store)
    app = ConsoleApp(archive, NoStore(), places(tmp_path, store), ConsoleAccess({})).asgi()
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/keys", "/teams"):
            page = await client.get(path)
            assert page.status_code == 200 and "TIERLINE_STORE_URL" in page.text
        assert (await client.post("/keys", data=NEW)).status_code == 503
    await asyncio.wait_for(archive.aclose(), 10)


async def test_no_key_is_made_by_another_secret(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateways would not know it; what is said names the variable."""
    monkeypatch.setenv("TIERLINE_KEY_SECRET", "what-the-gateway-has")
    async with console(tmp_path, store, 0) as client:
        name, _ = await made(client)
        monkeypatch.delenv("TIERLINE_KEY_SECRET")
        for refused in (await client.post("/keys", data=NEW), await act(client, name, do="rotate")):
            assert refused.status_code == 422 and "TIERLINE_KEY_SECRET" in refused.text
        assert len((await client.get("/keys.json")).json()["keys"]) == 1
        assert (await act(client, name, do="disable")).status_code == 200


async def test_a_team_of_the_config_is_shown_until_the_store_has_it(store: RedisStore, tmp_path: Path) -> None:
    archive = LiveArchive(tmp_path, store)
    plain = places(tmp_path, store)
    teams = {"web": OwnerTerms(limits=Terms(concurrent=7, budgets=(Budget(usd=9),)))}
    where = replace(plain, deployment=plain.deployment.model_copy(update={"teams": teams}))
    app = ConsoleApp(archive, store, where, ConsoleAccess({})).asgi()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
        [listed] = (await client.get("/teams.json")).json()["owners"]
        assert (listed["name"], listed["limits"], listed["budgets"][0]["limit_usd"]) == ("web", "7 at once", 9.0)
        page = (await client.get("/teams/team/web")).text
        assert "stand in the config" in page and 'value="9/month"' in page
        assert (await client.post("/teams/team/web", data={"revision": "0", "concurrent": "8"})).status_code == 200
        assert "stand in the config" not in (await client.get("/teams/team/web")).text
        assert [one["limits"] for one in (await client.get("/teams.json")).json()["owners"]] == ["8 at once"]
    await archive.aclose()
