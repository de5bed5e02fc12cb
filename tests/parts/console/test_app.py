"""The console's pages over a real archive and store: HTML and JSON, errors in words, and who may see them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import html
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.config.launch import Launch
from gateway.errors import NotFound
from gateway.parts import standard
from gateway.parts.access.keys.roles import VIEWER, Person
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.assets import STATIC
from gateway.parts.console.live import LiveUpdates
from gateway.parts.console.page import PolicyPlaces
from gateway.parts.console.views.policy import ROLLOUT
from gateway.parts.ledger.columns import REQUESTS
from gateway.parts.ledger.folder import segment_path
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.rollout.registry.checks import seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.seams import ConsoleShell
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.ledger.test_keeper import record
from tests.support.wait import SLACK

__all__ = ["server", "store"]


BACKENDS = "[{kind: scripted, script: [{reply: {text: Hello.}}]}]"
TIERS = f"[{{name: local, backends: {BACKENDS}}}, {{name: hosted, backends: {BACKENDS}}}]"


def places(folder: Path, store: RedisStore, source: str = "store") -> PolicyPlaces:
    """A deployment of two scripted tiers, with the shipped policies in force from the store, or from files."""
    config = folder / "tierline.yaml"
    folder.mkdir(exist_ok=True)
    config.write_text(f"policies: {{source: {source}}}\ntiers: {TIERS}\n")
    launch = Launch(config=config)
    deployment = launch.deployment()
    return PolicyPlaces(deployment, launch.policy_source(deployment), folder, config, f"redis://{store}")


@contextlib.asynccontextmanager
async def console(
    folder: Path,
    store: RedisStore,
    requests: int,
    keys: dict[Person, str] | None = None,
    scripted: tuple[str, ...] = (),
    **ledger: Any,
) -> AsyncIterator[httpx2.AsyncClient]:
    """A console that has seen so many requests."""
    archive = LiveArchive(folder, store)
    archive.start()
    try:
        if requests:
            await record(store, 1, requests, **ledger)
            async with asyncio.timeout(5 * SLACK):
                while not await archive.ask("SELECT 1 FROM requests WHERE request_id = $id", {"id": f"req-{requests}"}):
                    await archive.wait_for_requests(archive.added, 0.2)
        access = ConsoleAccess(keys or {})
        app = ConsoleApp(archive, store, places(folder, store), access, scripted=scripted).asgi()
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield client
    finally:
        await archive.aclose()


async def test_a_part_brings_a_page_of_its_own(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the navigation after ours, its template in the part's folder, and its errors become pages."""

    async def data(request: Request) -> dict[str, str]:
        if request.query_params.get("wrong"):
            raise NotFound("Nothing here.")
        if request.query_params.get("moved"):
            raise HTTPException(303, headers={"location": "/now"})
        return {"word": request.state.person.name}

    def add_pages(shell: ConsoleShell) -> None:
        shell.page("/guards", "guards.html", data, "look", name="Guards", key="x")

    folder = tmp_path / "guardrail"
    (folder / "templates").mkdir(parents=True)
    text = '{% extends "base.html" %}{% block main %}<h1>for {{ word }}</h1>{% endblock %}'
    (folder / "templates" / "guards.html").write_text(text)
    part = SimpleNamespace(PROVIDES=("pages",), add_pages=add_pages, __file__=str(folder / "part.py"))
    monkeypatch.setattr(standard, "outside_parts", lambda: (part,))
    async with console(tmp_path, store, 0) as client:
        page = await client.get("/guards")
        assert "<h1>for console</h1>" in page.text
        names = re.findall(r'<a href="/[^"]*"[^>]*data-key="\w">([^<]+)</a>', page.text)
        assert names == ["Now", "Requests", "Policies", "What if", "Changes", "Cache", "Usage", "Keys", "Guards"]
        assert (await client.get("/guards.json")).json() == {"word": "console"}
        wrong = await client.get("/guards?wrong=1")
        assert wrong.status_code == 404 and "Nothing here." in wrong.text
        moved = await client.get("/guards?moved=1")
        assert (moved.status_code, moved.headers["location"]) == (303, "/now")


async def test_addresses_of_pages_that_are_gone_lead_on(store: RedisStore, tmp_path: Path) -> None:
    """Each leads to a page that is there, and its JSON to that one's."""
    async with console(tmp_path, store, 1) as client:
        for old, new in (
            ("/differ?is=slow", "/requests"),
            ("/differ.json?since=24h", "/requests.json"),
            ("/quality?surface=chat", "/now"),
            ("/conversations?since=1h", "/requests"),
            ("/conversations/00c0ffee", "/requests?since=all&conversation=00c0ffee"),
            ("/conversations/00c0ffee.json", "/requests.json?since=all&conversation=00c0ffee"),
            ("/money?by=tier", "/usage"),
            ("/rollout", "/changes"),
            ("/audit?kind=key&by=ada", "/changes?kind=key&by=ada"),
            ("/audit.json?since=7d", "/changes.json?since=7d"),
            ("/playground?a=chat/live", "/policies"),
            ("/playground/0123456789ab", "/policies"),
        ):  # fmt: skip
            reply = await client.get(old)
            assert (reply.status_code, reply.headers["location"]) == (307, new), old
            assert (await client.get(new)).status_code == 200, new


async def test_every_page_says_that_replies_are_scripted(store: RedisStore, tmp_path: Path) -> None:
    pages = (
        "/now",
        "/requests",
        "/requests/req-1",
        "/policies",
        "/policies/chat",
        "/changes",
        "/sign-in",
        "/nowhere",
    )
    said = "scripted-small and scripted-large answer"
    async with console(tmp_path, store, 1, scripted=("scripted-small", "scripted-large")) as client:
        assert [path for path in pages if said not in (await client.get(path)).text] == []
        for path in pages:
            given = (await client.get(f"{path}.json")).json()
            assert path == "/sign-in" or given["scripted"] == ["scripted-small", "scripted-large"], path
    async with console(tmp_path, store, 0) as client:
        assert "Scripted replies" not in (await client.get("/now")).text
        assert "scripted" not in (await client.get("/now.json")).json()


@pytest.mark.parametrize("digits", ["9" * 16, "9" * 40, "9" * 4400, "\N{ARABIC-INDIC DIGIT THREE}" * 3000])
async def test_numbers_that_are_too_long_are_no_bugs(store: RedisStore, tmp_path: Path, digits: str) -> None:
    """Python refuses to read more than 4,300 digits, and DuckDB more than 39."""
    addresses = (
        "/requests/req-1?at={}", "/requests/req-1?hop={}", "/requests?before={}-{}", "/requests?peek=req-1&at={}",
        "/what-if?surface=chat&to={}", "/surfaces/chat?from=1&to={}",
        "/cache/wrong?request=req-1&at={}",
    )  # fmt: skip
    async with console(tmp_path, store, 1) as client:
        for address in addresses:
            assert (await client.get(address.replace("{}", digits))).status_code < 500, address
        for address, form in (
            ("/cache/wrong", {"request": "req-1", "at": digits}),
            ("/changes/chat", {"do": "pause", "message": "x", "revision": digits}),
        ):  # fmt: skip
            assert (await client.post(address, data=form)).status_code < 500, address


async def test_a_request_has_a_page_and_the_same_as_json(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, 2) as client:
        page = await client.get("/requests/req-2")
        assert page.status_code == 200 and "attempt 2 · hosted" in page.text and "escalated" in page.text
        data = (await client.get("/requests/req-2.json")).json()
        assert data["ledger"]["path"] == "escalated" and len(data["timeline"]["bars"]) == 8


async def test_nothing_on_a_page_is_inline_or_from_elsewhere(store: RedisStore, tmp_path: Path) -> None:
    """At most three requests make a page, all to this host; its policy forbids the rest, so nothing may need it."""
    async with console(tmp_path, store, 1) as client:
        for path in ("/now", "/requests", "/requests/req-1", "/policies", "/nothing"):
            page = await client.get(path)
            assert page.headers["content-security-policy"].startswith("default-src 'self'")
            assert not re.search(r"<script(?! src=)|<style| style=| on[a-z]+=|javascript:", page.text), path
            loaded = re.findall(r'(?:<script src|<link rel="stylesheet" href)="([^"]+)"', page.text)
            assert len(loaded) == 2
            weight = len(page.content)
            for url in loaded:
                assert url.startswith("/static/")
                asset = await client.get(url, headers={"accept-encoding": "gzip"})
                assert "immutable" in asset.headers["cache-control"]
                weight += int(asset.headers["content-length"])
            assert weight < 150_000


async def test_the_list_is_filtered_by_its_url(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, 60) as client:
        data = (await client.get("/requests.json?surface=chat&is=escalated")).json()
        assert [row["request_id"] for row in data["rows"]] == [f"req-{n}" for n in range(60, 10, -1)]
        assert all(len(json.dumps(row)) <= 700 for row in data["rows"])
        older = (await client.get(f"/requests.json?surface=chat&before={data['more']}")).json()
        assert [row["request_id"] for row in older["rows"]] == [f"req-{n}" for n in range(10, 0, -1)] and not older[
            "more"
        ]
        assert not (await client.get("/requests.json?surface=voice")).json()["rows"]
        found = (await client.get("/requests.json?q=req-60")).json()
        assert [row["request_id"] for row in found["rows"]] == ["req-60"]
        peek = await client.get("/requests?peek=req-7")
        assert "attempt 2 · hosted" in peek.text


async def test_errors_say_what_to_do(store: RedisStore, tmp_path: Path) -> None:
    wrong = (
        ("/requests/nobody", "", 404, "ledger.keep"),
        ("/requests", "?since=2h", 400, "2h"),
        ("/nothing", "", 404, "no such page"),
    )
    async with console(tmp_path, store, 0) as client:
        for path, query, status, words in wrong:
            page = await client.get(path + query)
            assert page.status_code == status and words in page.text, path
            assert (await client.get(f"{path}.json{query}")).status_code == status
        assert "No request has been recorded yet" in (await client.get("/requests?since=all")).text
        assert (await client.get("/requests", headers={"host": "evil.example"})).status_code == 403


async def test_a_key_is_asked_for_and_opens_the_console(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, 1, {VIEWER: "secret"}) as client:
        assert (await client.get("/requests.json")).status_code == 401
        turned = await client.get("/requests?surface=chat&since=all")
        assert turned.status_code == 303 and turned.headers["location"].startswith("/sign-in")
        signed = await client.post(turned.headers["location"], data={"key": "secret"})
        assert signed.headers["location"] == "/requests?surface=chat&since=all", "where they wanted to go"
        client.cookies.clear()
        assert (await client.post("/sign-in", data={"key": "wrong"})).status_code == 401
        signed = await client.post("/sign-in?to=//evil.example", data={"key": "secret"})
        assert signed.status_code == 303 and signed.headers["location"] == "/"
        assert (
            "httponly" in signed.headers["set-cookie"].lower()
            and "samesite=strict" in signed.headers["set-cookie"].lower()
        )
        assert (await client.get("/requests")).status_code == 200
        client.cookies.clear()
        assert (await client.get("/requests.json", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_now_says_what_needs_somebody(store: RedisStore, tmp_path: Path) -> None:
    """Its first sentence names the limit that is missed, by how many and by whom; figures are those of its records."""
    async with console(tmp_path, store, 0) as client:
        assert "No request in the last 15m" in (await client.get("/now")).text
        assert (await client.get("/now?since=2h")).status_code == 400
    async with console(tmp_path, store, 60, slo={"ttft_p99": False}, counterfactual_usd=0.0005) as client:
        data = (await client.get("/now.json?since=1h")).json()
        [surface] = data["surfaces"]
        assert (surface["requests"], surface["goodput"], surface["paths"]["escalated"]) == (60, 0.0, 1.0)
        assert surface["state"] == "needs" and data["verdict"]["level"] == "bad"
        assert data["totals"]["saving"]["usd"] == surface["saving"]["usd"] == pytest.approx(60 * 0.0002)
        assert surface["saving"]["low"] == pytest.approx(60 * 0.0002)
        what = data["needs"][0]["what"]
        assert what.startswith("chat: 0.0% of requests were good, where 99% shall be (60 of 60 were not: 60 came late")
        assert what.endswith("by tier hosted and on path escalated.") and data["verdict"]["text"].startswith(what)
        assert data["needs"][0]["href"] == "/surfaces/chat?limit=ttft_p99" and data["needs"][0]["since_s"]
        p95 = [value for value in surface["over_time"]["ttft_p95"] if value is not None]
        assert p95 and all(value == pytest.approx(surface["ttft_p95"]) == pytest.approx(120, rel=0.02) for value in p95)
        page = (await client.get("/now")).text
        assert "Needs you" in page and what in page and len(data["latest"]) == 20
        assert (await client.get(data["needs"][0]["href"])).status_code == 200


async def test_an_objective_of_many_requests_that_is_missed_needs_somebody(store: RedisStore, tmp_path: Path) -> None:
    """A p95 that every second request misses is no goodput lost, and yet a limit missed."""
    async with console(tmp_path, store, 30, slo={"ttft_p95": False, "ttft_p99": True}) as client:
        data = (await client.get("/now.json")).json()
        assert data["span"] == "15m", "the span fits what there is"
        assert data["surfaces"][0]["goodput"] == 1.0 and data["verdict"]["level"] == "bad"
        assert "100.0% of first tokens came later than" in data["needs"][0]["what"], data["needs"]


@pytest.mark.parametrize(("requests", "level", "words"), [(3, "few", "Too few requests"), (120, "good", "keeps its")])
async def test_now_says_well_only_of_enough_requests(
    store: RedisStore, tmp_path: Path, requests: int, level: str, words: str
) -> None:
    async with console(tmp_path, store, requests, slo={"ttft_p95": True, "ttft_p99": True}) as client:
        data = (await client.get("/now.json")).json()
        assert (data["verdict"]["level"], data["needs"]) == (level, []) and words in data["verdict"]["text"]
        assert data["surfaces"][0]["state"] == ("few" if level == "few" else "well")


async def in_registry(store: RedisStore, folder: Path) -> PolicyRegistry:
    registry = PolicyRegistry(store)
    await registry.seed(seeds(places(folder, store).source, time.time()), "the shipped files")
    return registry


async def test_a_policy_is_edited_checked_and_applied(store: RedisStore, tmp_path: Path) -> None:
    """A mistake is told at its line; a change is applied with its reason, once, from the version that was edited."""
    registry = await in_registry(store, tmp_path)
    async with console(tmp_path, store, 0) as client:
        assert "autocomplete" in (await client.get("/policies")).text
        data = (await client.get("/policies/chat.json")).json()
        assert data["findings"] == [] and data["lines"][3]["text"] == "surface: chat" and data["history"]
        text, base = data["text"], data["version"]
        wrong = await client.post("/policies/chat", data={"text": text.replace("hedge:", "hegde:"), "do": "check"})
        assert "hegde" in wrong.text and "did you mean" in wrong.text and ">line 4" in wrong.text
        edited = text.replace("deadline: 2m", "deadline: 50s")
        form = {"text": edited, "do": "apply", "how": "now", "base": base, "author": "ann"}
        assert "Say why" in (await client.post("/policies/chat", data=form)).text
        done = await client.post("/policies/chat", data={**form, "message": "shorter"})
        assert done.status_code == 200 and "is applied (now)" in done.text
        assert "deadline: 50s" in (await registry.version("chat", (await registry.surface("chat")).live)).text
        again = await client.post("/policies/chat", data={**form, "message": "late"})
        assert again.status_code == 422 and "stale" in again.text and "deadline: 50s" in again.text
        blame = (await client.get("/policies/chat.json")).json()["lines"]
        assert {line["author"] for line in blame if "deadline: 50s" in line["text"]} == {"ann"}
        old = (await client.get(f"/policies/chat.json?version={base[:12]}")).json()["lines"]
        assert {line["version"] for line in old} == {base} and "ann" not in {line["author"] for line in old}
        assert (await client.get("/policies/nosuch")).status_code == 404


async def test_a_candidate_is_taken_on_stopped_and_taken_back_by_a_form(store: RedisStore, tmp_path: Path) -> None:
    """Each with its reason, from the state that the page showed; viewers may not."""
    registry = await in_registry(store, tmp_path)
    async with console(tmp_path, store, 0) as client:
        shown = (await client.get("/policies/chat.json")).json()
        edited = re.sub(r"deadline: \d+s", "deadline: 45s", shown["text"])  # tests of this file share a store
        inserted = (await client.post("/policies/chat", data={"text": edited, "do": "rollout"})).text
        assert "steps: [1%, 5%, 25%]" in inserted and 'value="rollout"' not in inserted
        checked = await client.post("/policies/chat", data={"text": edited + ROLLOUT, "do": "check"})
        assert "T603" not in checked.text and "T105" not in checked.text and "No findings" in checked.text
        form = {"text": edited + ROLLOUT.replace("quality: -2%, ", ""), "base": shown["version"], "message": "try"}
        assert "T603" in (await client.post("/policies/chat", data={**form, "do": "check"})).text
        assert (
            "no guard of the canary looks at them"
            in (await client.post("/policies/chat", data={**form, "do": "apply"})).text
        )

        revision = (await registry.surface("chat")).revision
        page = (await client.get("/changes")).text
        assert "Promote to 5%" in page and 'value="rollback"' in page

        async def change(do: str, at: int, message: str = "why not") -> httpx2.Response:
            return await client.post("/changes/chat", data={"do": do, "revision": str(at), "message": message})

        assert "Say why" in (await change("promote", revision, " ")).text
        assert "5%" in (await change("promote", revision)).text
        late = await change("pause", revision)
        assert late.status_code == 422 and "Nothing was changed" in late.text
        assert "Resume" in (await change("pause", revision + 1)).text
        assert (await change("resume", revision + 2)).status_code == 200
        assert "rolled back" in (await change("rollback", revision + 3)).text
        assert (await change("nonsense", revision + 4)).status_code == 422
        state = await registry.surface("chat")
        assert state.rolling is None and state.live == shown["version"]
        assert [entry.message for entry in await registry.history("chat")][-1] == "why not"
    async with console(tmp_path, store, 0, {VIEWER: "view"}) as client:
        client.headers["authorization"] = "Bearer view"
        assert (await client.post("/changes/chat", data={"do": "pause", "message": "x"})).status_code == 403


async def test_policies_in_files_are_listed_shown_and_checked(store: RedisStore, tmp_path: Path) -> None:
    """And not applied: the page says where to save the text."""
    archive = LiveArchive(tmp_path, store)
    app = ConsoleApp(archive, store, places(tmp_path, store, "files"), ConsoleAccess({})).asgi()
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
            listed = await client.get("/policies")
            assert listed.status_code == 200 and "from files" in listed.text and "autocomplete" in listed.text
            text = (await client.get("/policies/chat.json")).json()["text"]
            refused = await client.post("/policies/chat", data={"text": text, "do": "apply", "message": "x"})
            assert refused.status_code == 422 and "Policies come from files here" in refused.text
    finally:
        await archive.aclose()


async def test_forms_of_other_sites_and_viewers_change_nothing(store: RedisStore, tmp_path: Path) -> None:
    registry = await in_registry(store, tmp_path)
    before = (await registry.surface("chat")).live
    form = {"text": "surface: chat", "do": "apply", "message": "x"}
    async with console(tmp_path, store, 0) as client:
        foreign = await client.post("/policies/chat", data=form, headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403
        big = await client.post("/policies/chat", data={"text": "x" * (2 << 20)})
        assert big.status_code == 413
    async with console(tmp_path, store, 0, {VIEWER: "view"}) as client:
        client.headers["authorization"] = "Bearer view"
        refused = await client.post("/policies/chat", data=form)
        assert refused.status_code == 422 and "may not change policies" in refused.text
        assert 'value="apply"' not in (await client.get("/policies/chat")).text
    assert (await registry.surface("chat")).live == before


async def test_a_page_that_is_open_is_updated(store: RedisStore, tmp_path: Path) -> None:
    """One update is made for all who watch, when requests have come, and none while nobody does."""
    archive = LiveArchive(tmp_path, store)
    archive.start()
    made: list[str] = []

    async def make(key: str) -> str:
        made.append(key)
        return f"<p>update {len(made)}</p>\n<p>of {key}</p>"

    try:
        live = LiveUpdates(archive, make)
        await record(store, 1, 1)
        assert await archive.wait_for_requests(0, 5 * SLACK)
        assert made == []
        watchers = [live.updates("1h") for _ in range(3)]
        assert {await anext(watcher) for watcher in watchers} == {b": connected\n\n"}
        waiting = [asyncio.create_task(anext(watcher)) for watcher in watchers]
        await asyncio.sleep(0)
        await record(store, 2, 2)
        events = await asyncio.wait_for(asyncio.gather(*waiting), 5 * SLACK)
        assert set(events) == {b"data: <p>update 1</p>\ndata: <p>of 1h</p>\n\n"} and made == ["1h"]
        for watcher in watchers:
            await watcher.aclose()
        before = archive.added
        await record(store, 3, 3)
        assert await archive.wait_for_requests(before, 5 * SLACK)
        assert made == ["1h"]
    finally:
        await archive.aclose()


async def test_a_request_that_comes_while_an_update_is_made_has_its_own(store: RedisStore, tmp_path: Path) -> None:
    """So has one that came between the page and its stream, and one whose update failed: none waits for the next."""
    archive = LiveArchive(tmp_path, store)
    archive.start()
    begun, go = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def make(key: str) -> str:
        rows = await archive.ask("SELECT count(*) AS n FROM requests")
        begun.release()
        await go.acquire()
        return f"<p>{rows[0]['n']}</p>"

    try:
        watcher = LiveUpdates(archive, make).updates("1h", archive.added)
        await record(store, 1, 1)
        assert await archive.wait_for_requests(0, 5 * SLACK)
        assert await anext(watcher) == b": connected\n\n"
        first = asyncio.create_task(anext(watcher))
        await asyncio.wait_for(begun.acquire(), 5 * SLACK)
        before = archive.added
        await record(store, 2, 2)
        assert await archive.wait_for_requests(before, 5 * SLACK)
        go.release()
        assert await asyncio.wait_for(first, 5 * SLACK) == b"data: <p>1</p>\n\n"
        go.release()
        assert await asyncio.wait_for(anext(watcher), 60 * SLACK) == b"data: <p>2</p>\n\n"
        await watcher.aclose()
    finally:
        await archive.aclose()


async def test_an_update_that_failed_is_made_again(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.parts.console.live._AFTER_ERROR_S", 0.01)
    archive = LiveArchive(tmp_path, store)
    archive.start()
    tries: list[str] = []

    async def make(key: str) -> str:
        tries.append(key)
        if len(tries) == 1:
            raise RuntimeError("once")
        return "<p>made</p>"

    try:
        watcher = LiveUpdates(archive, make).updates("1h")
        assert await anext(watcher) == b": connected\n\n"
        await record(store, 1, 1)
        assert await asyncio.wait_for(anext(watcher), 5 * SLACK) == b"data: <p>made</p>\n\n"
        await watcher.aclose()
    finally:
        await archive.aclose()


def test_vendored_files_are_those_that_were_published() -> None:
    """Each has its name, version, licence and hash; nothing else is vendored."""
    folder = STATIC / "vendor"
    listed = json.loads((folder / "VENDORED.json").read_text())
    for name, entry in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
        assert (folder / entry["licence_file"]).is_file() and entry["version"] and entry["source"]
    licences = {entry["licence_file"] for entry in listed.values()}
    assert {path.name for path in folder.iterdir()} == {*listed, *licences, "VENDORED.json"}


def test_our_own_assets_stay_small() -> None:
    for kind in ("css", "js"):
        files = [file for file in STATIC.rglob(f"*.{kind}") if file.parent.name != "vendor"]
        assert files and sum(file.stat().st_size for file in files) < 60_000, kind


async def test_an_attempt_that_lost_its_race_is_on_the_page(store: RedisStore, tmp_path: Path) -> None:
    trace, ledger = escalated("req-lost")
    first = next(hop for hop in trace.hops if hop.name == names.ATTEMPT)
    first.attributes[names.OUTCOME] = names.LOST
    await store.apply([Append(TRACES, ledger_blob(trace, ledger), 100)])
    async with console(tmp_path, store, 1) as client:
        page = await client.get("/requests/req-lost")
        assert page.status_code == 200 and "cancelled at" in page.text


async def test_every_page_names_the_ledgers_damaged_files(store: RedisStore, tmp_path: Path) -> None:
    """A notice says which files no figure has, and why; `/metrics` counts them."""
    async with console(tmp_path, store, 1) as client:
        assert "cannot be read" not in (await client.get("/requests")).text
        assert "tierline_ledger_damaged_files 0\n" in (await client.get("/metrics")).text
    segment_path(tmp_path, REQUESTS, (1, 0), (2, 0)).touch()
    async with console(tmp_path, store, 0) as client:
        page = await client.get("/requests")
        assert page.status_code == 200 and "1 of the ledger&#39;s files" in page.text.replace("'", "&#39;")
        assert "requests-00000000000000001-000000-00000000000000002-000000.parquet (" in page.text
        assert "tierline_ledger_damaged_files 1\n" in (await client.get("/metrics")).text


@pytest.mark.parametrize("name", ["team/a?b#c%2Fd", "/", "a//b", "..%2e&x=1;y", "req+1"])
async def test_a_request_of_any_id_has_its_page(store: RedisStore, tmp_path: Path, name: str) -> None:
    """Clients choose ids; of two tenants' equal ones each link shows its own, and each page links to the other."""
    for tenant in ("acme", "zeta"):
        trace, ledger = escalated(name, tenant=tenant)
        await store.apply([Append(TRACES, ledger_blob(trace, ledger), 1000)])
        await asyncio.sleep(0.005)
    async with console(tmp_path, store, 1) as client:
        links = re.findall(r'class="link"><a href="(/requests/[^"]+)"', (await client.get("/requests?since=all")).text)
        assert len(links) == 3
        other = {"acme": "zeta", "zeta": "acme"}
        shown = []
        for link in links[1:]:
            page = await client.get(html.unescape(link))
            path, _, query = html.unescape(link).partition("?")
            data = (await client.get(f"{path}.json?{query}")).json()
            assert page.status_code == 200 and data["request_id"] == name
            tenant = data["ledger"]["tenant"]
            assert [one["tenant"] for one in data["same_id"]] == [other[tenant]]
            assert f">{other[tenant]}, " in page.text
            shown.append(tenant)
        assert sorted(shown) == ["acme", "zeta"]
