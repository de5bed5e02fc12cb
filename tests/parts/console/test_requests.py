"""The list of requests: words of prompts, counts over time, what is new, and the one order."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.filters import Filter
from gateway.parts.console.views.requests import newer_than
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated, failed
from tests.parts.console.consoles import console as recorded
from tests.parts.console.test_app import places

__all__ = ["server", "store"]

PROMPTS = {"req-1": 'Which "Owls" live in Quito?', "req-2": "A receipt of Kyoto. " * 9, "req-3": ""}


async def add(store: RedisStore, request_id: str, prompt: str = "", **ledger: Any) -> None:
    """Record one escalated request."""
    trace, made = escalated(request_id, **ledger)
    if prompt:
        trace.root.attributes[names.PROMPT] = prompt
    await store.apply([Append(TRACES, ledger_blob(trace, made), 100)])


@pytest.fixture
async def archive(store: RedisStore, tmp_path: Path) -> AsyncIterator[LiveArchive]:
    """Three requests, two of them with a captured prompt, one of which missed a limit."""
    for request_id, prompt in PROMPTS.items():
        await add(store, request_id, prompt, slo={"ttft_p99": request_id != "req-2"})
    one = LiveArchive(tmp_path, store)
    await one.catch_up()
    yield one
    await one.aclose()


@pytest.fixture
async def client(archive: LiveArchive, store: RedisStore, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    app = ConsoleApp(archive, store, places(tmp_path, store), ConsoleAccess({})).asgi()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as one:
        yield one


async def found(client: httpx2.AsyncClient, query: str) -> list[str]:
    rows = (await client.get(f"/requests.json?{query}")).json()["rows"]
    return [row["request_id"] for row in rows]


async def test_rows_show_the_beginning_of_captured_prompts_which_can_be_searched(client: httpx2.AsyncClient) -> None:
    """In either case, with other filters; what is no id is looked for in prompts, too."""
    rows = {row["request_id"]: row for row in (await client.get("/requests.json")).json()["rows"]}
    assert rows["req-1"]["prompt"] == PROMPTS["req-1"] and len(rows["req-2"]["prompt"]) == 80
    assert rows["req-3"]["prompt"] is None
    assert "Which &#34;Owls&#34; live in Quito?" in (await client.get("/requests")).text
    assert await found(client, "prompt=owls%22%20live") == ["req-1"] == await found(client, "q=OWLS")
    assert await found(client, "prompt=o&surface=chat&is=slow") == ["req-2"]
    assert await found(client, "prompt=%25") == [] == await found(client, "prompt=o&surface=voice")
    nothing = (await client.get("/requests?prompt=zebra")).text
    assert "telemetry.prompts" in nothing and "prompt with “zebra”" in nothing


async def test_an_exact_id_opens_its_request(client: httpx2.AsyncClient) -> None:
    """The request's or its trace's; the beginning of one that fits several is a list, and JSON stays JSON."""
    opened = await client.get("/requests?q=req-2")
    assert opened.status_code == 303 and opened.headers["location"].startswith("/requests/req-2?at=")
    assert (await client.get("/requests?q=req-")).text.count("<tr data-row") == 3
    assert await found(client, "q=req-2") == ["req-2"]


async def test_the_list_has_one_order_which_it_shows(client: httpx2.AsyncClient) -> None:
    """By when requests were recorded, also where a longer one began before."""
    page = (await client.get("/requests")).text
    times = re.findall(r'<td class="time"><time datetime="([^"]+)"', page)
    assert len(times) == 3 and times == sorted(times, reverse=True)


async def test_requests_are_counted_over_time(
    client: httpx2.AsyncClient, store: RedisStore, archive: LiveArchive
) -> None:
    """As the list is filtered, from the first of them on; a bar leads to the list from its end backwards."""
    trace, ledger = failed("req-4")
    await store.apply([Append(TRACES, ledger_blob(trace, ledger), 100)])
    await archive.catch_up()
    data = (await client.get("/requests.json")).json()
    over_time = data["over_time"]
    assert (over_time["requests"], over_time["failed"], over_time["slow"]) == (4, 1, 1)
    assert sum(bar["requests"] for bar in over_time["bars"]) == 4
    assert over_time["from_ms"] == min(row["entry_ms"] for row in data["rows"])
    page = (await client.get("/requests?is=failed")).text
    assert "1 request," in page
    [href] = re.findall(r'<a href="\?([^"]+before=\d+-0)" tabindex="-1"', page)
    assert await found(client, href.replace("&amp;", "&")) == ["req-4"]
    assert (await client.get("/requests.json?prompt=o")).json()["over_time"] is None


async def test_what_is_new_is_counted_and_moves_nothing(
    client: httpx2.AsyncClient, store: RedisStore, archive: LiveArchive
) -> None:
    """Of what the filter lets through, after the newest row of the page; older pages do not ask."""
    place = (await client.get("/requests.json?is=escalated")).json()["newest"]
    page = (await client.get("/requests?is=escalated")).text
    assert f"/requests/live?is=escalated&amp;since=24h&amp;after={place}" in page
    assert await newer_than(archive, Filter(flags=("escalated",)), place) == 0
    await add(store, "req-5")
    await add(store, "req-6", path="direct")
    await archive.catch_up()
    assert await newer_than(archive, Filter(flags=("escalated",)), place) == 1
    assert await newer_than(archive, Filter(), place) == 2
    assert "/requests/live" not in (await client.get("/requests?before=1-0&since=all")).text


async def test_all_that_is_kept_stays_all_in_links(client: httpx2.AsyncClient) -> None:
    """A page that names no span has 24h, so links say `all`."""
    page = (await client.get("/requests?surface=chat&since=24h")).text
    assert 'href="/requests?surface=chat&amp;since=all"' in page, "without the span's chip"
    assert "since=all&amp;peek=" in (await client.get("/requests?surface=chat&since=all")).text


async def test_a_request_leads_to_the_others_of_its_conversation(store: RedisStore, tmp_path: Path) -> None:
    """From its page and from the peek beside the list."""

    def turn(number: int, conversation: str) -> Ledger:
        return Ledger(f"req-{number}", surface="chat", status=200, path="direct", conversation=conversation)

    async with recorded(tmp_path, store, [turn(1, "a" * 16), turn(2, "b" * 16), turn(3, "a" * 16)]) as client:
        link = f"/requests?since=all&conversation={'a' * 16}"
        for address in ("/requests/req-1", "/requests?peek=req-1"):
            assert f'href="{html.escape(link)}"' in (await client.get(address)).text, address
        rows = (await client.get(link.replace("?", ".json?"))).json()["rows"]
        assert [row["request_id"] for row in rows] == ["req-3", "req-1"]
