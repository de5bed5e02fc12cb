"""The playground: a console that races prompts through a real gateway, over scripted upstreams and a real store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.redis_store import RedisStore
from gateway.archive.live import LiveArchive
from gateway.config.launch import Launch
from gateway.console.access import ConsoleAccess
from gateway.console.app import ConsoleApp
from gateway.console.gateway_client import GatewayClient
from gateway.console.page import PolicyPlaces
from gateway.console.prompt_race import PromptRaces
from gateway.keys.roles import EDITOR, VIEWER, Person
from tests.support.gateway import CHAT, Gateway, secrets_of, serve
from tests.support.ports import free_port
from tests.support.store import UNHURRIED, LocalStore, local_store
from tests.support.upstream import Fault, Reply, Upstream, error_reply
from tests.support.wait import eventually

HELD_OUT = CHAT.replace("surface: chat", "surface: held").replace("models: [chat, gpt-4o-mini]", "models: [held]")
HELD_OUT = HELD_OUT.replace("holdout: 0%  # chance has no place in a test", "holdout: 100%")
DOUBTED = Reply(text="perhaps it is one of several things", logprob=-3.0)
SURE = Reply(text="It is blue because of scattering.", logprob=-0.01)


@pytest.fixture(scope="module")
def store() -> Iterator[LocalStore]:
    with local_store() as server:
        yield server


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, store: LocalStore, _upstreams: tuple[Upstream, Upstream]
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("playground")
    settings = {"policies": {"source": "store"}}
    policies = {"chat": CHAT, "held": HELD_OUT}
    local, hosted = _upstreams
    with serve(folder, local.url, hosted.url, store_url=store.url, settings=settings, policies=policies) as gateway:
        yield gateway


@pytest.fixture
def gateway(served: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    local_upstream.default = hosted_upstream.default = SURE
    return served


@dataclass(frozen=True)
class RacingConsole:
    """A console and what it reads."""

    client: httpx2.AsyncClient
    archive: LiveArchive

    async def send(self, a: str, b: str, *, script: bool = False, **fields: str) -> httpx2.Response:
        """What the form gives: for a script at once, else once the race is over."""
        form = {"a": a, "b": b, "prompt": "Why is the sky blue?", "stream": "1", **fields}
        headers = {"hx-request": "true"} if script else {}
        return await self.client.post("/playground", data=form, headers=headers, timeout=60)

    async def race(self, a: str, b: str, **fields: str) -> dict[str, Any]:
        """The data of a race that is over."""
        sent = await self.send(a, b, **fields)
        assert sent.status_code == 303, sent.text
        return await self.data(sent.headers["location"])

    async def data(self, path: str) -> dict[str, Any]:
        """The data of a race."""
        race: dict[str, Any] = (await self.client.get(f"{path}.json")).json()["race"]
        return race


@contextlib.asynccontextmanager
async def console(
    gateway: Gateway,
    store: LocalStore,
    folder: Path,
    url: str | None = None,
    keys: dict[Person, str] | None = None,
    *,
    connected: bool = True,
) -> AsyncIterator[RacingConsole]:
    """A console on the gateway's store that sends to the gateway, or to `url`."""
    launch = Launch(config=gateway.folder / "tierline.yaml", policies=gateway.policies)
    deployment = launch.deployment(secrets_of("hosted"))
    opened = RedisStore.from_url(store.url, slack=UNHURRIED)
    archive = LiveArchive(folder, opened)
    archive.start()
    places = PolicyPlaces(deployment, launch.policy_source(deployment), folder, launch.config, store.url)
    races = PromptRaces(GatewayClient(url or gateway.origin), archive) if connected else None
    app = ConsoleApp(archive, opened, places, ConsoleAccess(keys or {}), prompt_races=races).asgi()
    transport = httpx2.ASGITransport(app=app)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8790") as client:
            yield RacingConsole(client, archive)
    finally:
        if races is not None:
            await races.aclose()
        await archive.aclose()
        await opened.aclose()


async def test_a_draft_that_is_held_and_given_up_is_shown_with_its_reason(
    gateway: Gateway, store: LocalStore, local_upstream: Upstream, tmp_path: Path
) -> None:
    local_upstream.on("sky").reply(DOUBTED)
    async with console(gateway, store, tmp_path) as ours:
        race = await ours.race("chat/live", "chat/tier/hosted")
        a, b = race["lanes"]
        assert (a["state"], a["path"], a["tier"], a["text"]) == ("done", "escalated", "hosted", SURE.text)
        assert (b["state"], b["path"], b["tier"], b["text"]) == ("done", "direct", "hosted", SURE.text)
        draft, answer = a["rows"]
        assert (draft["label"], draft["served"], answer["label"], answer["served"]) == ("local", False, "hosted", True)
        assert "given up before anybody saw it: confidence" in draft["text"]
        assert {kind for kind, _, _ in draft["parts"]} <= {"wait", "held", "dropped"}
        assert {kind for kind, _, _ in answer["parts"]} <= {"wait", "held", "sent"}
        assert len(a["arrivals_ms"]) > 1 and a["first_ms"] <= a["total_ms"] <= race["end_ms"]
        assert a["cost_usd"] > 0 and len(race["compared"]) == 3
        for lane in (a, b):
            page = await ours.client.get(f"/requests/{lane['request_id']}")
            assert page.status_code == 200 and "playground" in page.text
            assert f"/requests/{lane['request_id']}?at=" in (await ours.client.get(f"/playground/{race['id']}")).text


async def test_answers_that_come_whole_are_raced_too(
    gateway: Gateway, store: LocalStore, local_upstream: Upstream, tmp_path: Path
) -> None:
    local_upstream.on("sky").reply(DOUBTED)
    async with console(gateway, store, tmp_path) as ours:
        a, b = (await ours.race("chat/live", "chat/tier/local", stream="0", system="Be brief.", max_tokens="50"))[
            "lanes"
        ]
        assert (a["path"], a["text"], len(a["arrivals_ms"])) == ("escalated", SURE.text, 1)
        assert b["text"] == DOUBTED.text and b["tokens"][1] > 0
        body = local_upstream.requests[0].body
        assert body["messages"][0] == {"role": "system", "content": "Be brief."} and body["max_tokens"] == 50


async def test_a_race_reads_and_writes_the_cache_only_if_told_to(
    gateway: Gateway, store: LocalStore, tmp_path: Path
) -> None:
    async with console(gateway, store, tmp_path) as ours:
        for path in ("direct", "direct"):
            lanes = (await ours.race("chat/live", "chat/tier/hosted", prompt="Is this kept?"))["lanes"]
            assert lanes[0]["path"] == path
        async with asyncio.timeout(20):
            while True:
                a, _ = (await ours.race("chat/live", "chat/tier/hosted", prompt="Is this kept?", cached="1"))["lanes"]
                if a["path"] == "cache-exact":
                    break
        assert [row["label"] for row in a["rows"]] == ["cache"] and a["rows"][0]["text"] == "a stored answer"


async def test_no_figure_counts_a_race_and_chance_has_no_part_in_it(
    gateway: Gateway, store: LocalStore, tmp_path: Path
) -> None:
    """A surface that holds out every request does not hold out these; they have a cost, and no objective."""
    async with console(gateway, store, tmp_path) as ours:
        race = await ours.race("held/live", "held/live")
        assert [lane["tier"] for lane in race["lanes"]] == ["local", "local"]
        ids = [lane["request_id"] for lane in race["lanes"]]
        rows = await ours.archive.ask("SELECT * FROM playground WHERE list_contains($ids, request_id)", {"ids": ids})
        assert [(row["arm"], row["slo"], row["holdout"], row["kept"]) for row in rows] == [
            ("playground", None, None, "head")
        ] * 2
        assert not await ours.archive.ask("SELECT * FROM requests WHERE list_contains($ids, request_id)", {"ids": ids})


async def test_a_candidate_and_versions_before_it_can_be_raced(
    gateway: Gateway, store: LocalStore, tmp_path: Path
) -> None:
    """A candidate that only decides serves nobody but here; the version that it replaces stays to be chosen."""
    async with console(gateway, store, tmp_path) as ours:
        first = (await ours.race("chat/live", "chat/tier/local"))["lanes"][0]["policy"]
        stricter = CHAT.replace("confidence_below: 0.5", "confidence_below: 0.7")
        form = {"text": stricter, "do": "apply", "how": "evaluate", "message": "to be raced", "author": "ada"}
        applied = await ours.client.post("/policies/chat", data=form)
        assert applied.status_code == 200, applied.text
        page = (await ours.client.get("/playground.json")).json()
        choices = {one["value"]: one for surface in page["surfaces"] for one in surface["choices"]}
        assert "(evaluate)" in choices["chat/candidate"]["label"] and page["b"] == "chat/candidate"

        async def policies(a: str, b: str) -> list[str]:
            return [lane["policy"] for lane in (await ours.race(a, b))["lanes"]]

        async with asyncio.timeout(20):
            while (found := await policies("chat/live", "chat/candidate"))[1] in ("", first):
                pass
        assert found[0] == first and found[1] == choices["chat/candidate"]["label"].split()[1]
        now = {"text": stricter.replace("0.7", "0.8"), "do": "apply", "how": "now", "message": "on"}
        back = await ours.client.post("/policies/chat", data=now)
        assert back.status_code == 422  # a candidate stands there
        version = found[1].partition("@")[2]
        unknown = await ours.send("chat/live", f"chat/version/{version[:4]}ffffffff")
        assert unknown.status_code == 422 and "choose again" in unknown.text


async def test_a_lane_that_fails_says_why_and_the_other_goes_on(
    gateway: Gateway, store: LocalStore, hosted_upstream: Upstream, tmp_path: Path
) -> None:
    hosted_upstream.default = error_reply(400, "this model cannot do that")
    async with console(gateway, store, tmp_path) as ours:
        a, b = (await ours.race("chat/tier/hosted", "chat/tier/local"))["lanes"]
        assert (a["state"], b["state"], b["text"]) == ("failed", "done", SURE.text)
        assert a["problem"][0].startswith("The gateway answered 400") and a["problem"][1]
        assert a["recorded"]


async def test_a_stream_that_breaks_off_keeps_what_came(
    gateway: Gateway, store: LocalStore, hosted_upstream: Upstream, tmp_path: Path
) -> None:
    hosted_upstream.default = Reply(text="a b c d e f g h", logprob=-0.01, fault=Fault.CLOSE_MID_STREAM, fault_after=6)
    async with console(gateway, store, tmp_path) as ours:
        a, b = (await ours.race("chat/tier/hosted", "chat/tier/local"))["lanes"]
        assert a["state"] == "failed" and a["text"].startswith("a b c") and "broke off" in a["problem"][0]
        assert b["state"] == "done"


async def test_a_gateway_that_is_not_there_is_named(gateway: Gateway, store: LocalStore, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with console(gateway, store, tmp_path, url) as ours:
        race = await ours.race("chat/live", "chat/tier/hosted")
        for lane in race["lanes"]:
            assert lane["state"] == "failed" and url in lane["problem"][0] and "console.gateway" in lane["problem"][1]


async def test_stopping_cancels_both(
    gateway: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path
) -> None:
    local_upstream.default = hosted_upstream.default = Reply(text="late", before_first_s=30, logprob=-0.01)
    async with console(gateway, store, tmp_path) as ours:
        sent = await ours.send("chat/tier/local", "chat/tier/hosted", script=True)
        assert sent.status_code == 204
        path = sent.headers["hx-redirect"]
        await eventually(lambda: bool(local_upstream.requests and hosted_upstream.requests), 10, "both calls")
        assert "Stop both" in (await ours.client.get(path)).text
        stopped = await ours.client.post(f"{path}/stop")
        assert stopped.status_code == 303
        for upstream in (local_upstream, hosted_upstream):
            await asyncio.to_thread(upstream.requests[0].wait_gone, 5)
        for lane in (await ours.data(path))["lanes"]:
            assert lane["state"] == "stopped" and lane["recorded"]
            assert [row["text"].partition("; ")[2] for row in lane["rows"]] == ["stopped, as its client left"]
        race = f"{path.removeprefix('/playground/')}"
        found = "SELECT status, error FROM playground WHERE contains(request_id, $race)"
        rows = await ours.archive.ask(found, {"race": race})
        assert [(row["status"], row["error"]) for row in rows] == [(499, "client_gone")] * 2


async def test_an_open_page_is_told_until_the_race_is_over(gateway: Gateway, store: LocalStore, tmp_path: Path) -> None:
    async with console(gateway, store, tmp_path) as ours:
        sent = await ours.send("chat/live", "chat/tier/hosted", script=True)
        path = sent.headers["hx-redirect"]
        events = await ours.client.get(f"{path}/events", timeout=60)
        assert events.headers["content-type"].startswith("text/event-stream")
        parts = [part for part in events.text.split("\n\n") if part]
        assert parts[0] == ": connected" and parts[-1].startswith("event: over")
        assert "Where its time went" in parts[-2] and SURE.text in parts[-2]
        page = (await ours.client.get(path)).text
        assert "hx-sse:connect" not in page and "Where its time went" in page


async def test_who_may_only_look_is_told_so(gateway: Gateway, store: LocalStore, tmp_path: Path) -> None:
    keys = {EDITOR: "editor-key", VIEWER: "viewer-key"}
    async with console(gateway, store, tmp_path, keys=keys) as ours:
        ours.client.headers["authorization"] = "Bearer viewer-key"
        page = await ours.client.get("/playground")
        assert "You may look, and may not send" in page.text and "disabled" in page.text
        refused = await ours.send("chat/live", "chat/tier/hosted")
        assert refused.status_code == 403 and "Your role does not allow it" in refused.text
        ours.client.headers["authorization"] = "Bearer editor-key"
        foreign = await ours.client.post("/playground", data={"a": "x"}, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403
        assert (await ours.send("chat/live", "chat/live")).status_code == 303


async def test_what_cannot_be_sent_is_said(gateway: Gateway, store: LocalStore, tmp_path: Path) -> None:
    async with console(gateway, store, tmp_path) as ours:
        for fields, words in (
            ({"prompt": " "}, "There is no prompt"),
            ({"max_tokens": "many"}, "number of tokens"),
            ({"b": "chat/tier/none"}, "choose again"),
        ):
            sent = await ours.send(**{"a": "chat/live", "b": "chat/live", **fields})
            assert sent.status_code == 422 and words in sent.text
        wrong = await ours.client.get("/playground?a=nothing")
        assert wrong.status_code == 400 and "chat/live" in wrong.text
        gone = await ours.client.get("/playground/0123456789ab")
        assert gone.status_code == 404 and "arm=playground" in gone.text
    async with console(gateway, store, tmp_path, connected=False) as ours:
        assert "console: {gateway:" in (await ours.client.get("/playground")).text
        assert "console: {gateway:" in (await ours.send("chat/live", "chat/live")).text
