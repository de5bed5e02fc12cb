"""A request's page: what stands beside each hop, and where its links lead."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.access.pages.sessions import ConsoleAccess
from gateway.parts.console.app import ConsoleApp
from gateway.parts.console.timeline import timeline_of
from gateway.parts.console.views.request import line_of_key, nearest_line, slow_hops
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.reasons import detail_names as detail
from gateway.parts.rollout.registry.checks import seeds
from gateway.parts.rollout.registry.registry import PolicyRegistry
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.parts.console.test_app import console, places
from tests.parts.console.test_timeline import ROUTE, attempt, record

__all__ = ["server", "store"]

JUDGED = {
    detail.VERDICT_AT: 12.0,
    names.CLAUSE: "escalate.when.confidence_below",
    detail.PREFIX: [-0.1, -2.0],
}


async def page_of(store: RedisStore, folder: Path, policy: str, url: str, **texts: Any) -> httpx2.Response:
    """What the console shows at `url` of an escalated request `req-1` with a judged first attempt."""
    trace, ledger = escalated(policy=policy, served=(2,))
    first = next(hop for hop in trace.hops if hop.name == names.ATTEMPT)
    first.attributes.update(JUDGED)
    if texts:
        first.attributes[names.PREFIX_TOKENS] = texts["rejected"]
        trace.root.attributes[names.ANSWER] = texts["served"]
    await store.apply([Append(TRACES, ledger_blob(trace, ledger), 100)])
    archive = LiveArchive(folder, store)
    try:
        await archive.catch_up()
        app = ConsoleApp(archive, store, places(folder, store), ConsoleAccess({})).asgi()
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
            return await client.get(url)
    finally:
        await archive.aclose()


async def test_a_rejected_answer_stands_beside_the_one_that_replaced_it(store: RedisStore, tmp_path: Path) -> None:
    """Both texts where they are captured; else their lengths and scores, and the page says so."""
    bare = (await page_of(store, tmp_path, "chat@3f2a91c", "/requests/req-1")).text
    assert "Rejected: attempt 1" in bare and "Served instead: attempt 2" in bare and "Texts are not captured" in bare
    assert "confidence 0.41 where 0.62 is needed" in bare and 'class="said"' not in bare
    whole = await page_of(
        store, tmp_path, "chat@3f2a91c", "/requests/req-1", rejected=["May", "<b>be"], served="Certainly."
    )
    assert "May&lt;b&gt;be</pre>" in whole.text and "Certainly.</pre>" in whole.text
    assert "Texts are not captured" not in whole.text


async def test_the_first_sentence_and_both_texts_are_on_top(store: RedisStore, tmp_path: Path) -> None:
    """Of direct requests and hits, too: the answer is the request's own; without capture the page says so."""
    bare = (await page_of(store, tmp_path, "chat@3f2a91c", "/requests/req-1")).text
    sentence = "local&#39;s draft scored 0.41 where 0.62 is asked, so hosted answered"
    assert sentence in bare and bare.index(sentence) < bare.index("First byte") < bare.index("Where the time went")
    assert "neither is captured (telemetry.prompts)" in bare
    page = await page_of(store, tmp_path, "chat@3f2a91c", "/requests/req-1", rejected=["No"], served="Yes.\n" * 9)
    assert page.text.index("Yes.\nYes.") < page.text.index("First byte")
    assert page.text.count('class="unfold"') == 1, "what is longer than six lines is folded"
    data = (await page_of(store, tmp_path, "chat@3f2a91c", "/requests/req-1.json", rejected=["No"], served="A")).json()
    assert data["texts"]["answer"] == "A" and data["summary"]["missed"] == []
    changed = data["changes"]["The escalation"][0]
    assert changed[0]["key"] == JUDGED[names.CLAUSE] and changed[0]["value"] == 0.41


async def test_a_hop_has_an_address(store: RedisStore, tmp_path: Path) -> None:
    page = (await page_of(store, tmp_path, "chat@3f2a91c", "/requests/req-1?hop=3")).text
    assert 'class="hop-row here" id="hop-3"' in page and page.count(" here") == 1
    assert "hop=4#hop-4" in page


async def test_a_hop_leads_to_the_line_that_decided_it(store: RedisStore, tmp_path: Path) -> None:
    """Of a policy from the registry the line is looked up in its text; the page of that version says who set it."""
    registry = PolicyRegistry(store)
    await registry.seed(seeds(places(tmp_path, store).source, time.time()), "the shipped files")
    version = await registry.version("chat", (await registry.surface("chat")).live)
    label = version.label
    line = nearest_line(line_of_key(version.text), JUDGED[names.CLAUSE])
    assert line is not None and "confidence_below" in version.text.splitlines()[line - 1]
    link = f"/policies/chat?version={label[5:]}#L{line}"
    assert link in (await page_of(store, tmp_path, label, "/requests/req-1")).text
    blame = (await page_of(store, tmp_path, label, link)).text
    assert f'id="L{line}"' in blame and "the shipped files" in blame


async def test_a_hop_stands_among_its_kind(store: RedisStore, tmp_path: Path) -> None:
    """Once enough of a kind are recorded; also as JSON."""
    async with console(tmp_path, store, 30) as client:
        data = (await client.get("/requests/req-30.json")).json()
        assert len(data["usual"]) == len(data["timeline"]["bars"]) and all(
            len(one) == 6 for one in data["usual"].values()
        )
        assert (await client.get("/requests/req-30")).text.count('class="minigraph"') == len(data["usual"])


def test_lines_of_keys_that_are_not_written_are_those_around_them() -> None:
    lines = line_of_key("surface: chat\nroute:\n  start: {local: otherwise}\ntiers:\n- local\n")
    assert nearest_line(lines, "route.start.local") == 3 and nearest_line(lines, "tiers.0") == 5
    assert nearest_line(lines, "route.classifier") == 2 and nearest_line(lines, "cache.exact") is None


def test_slow_hops_are_those_above_the_95th_percentile_that_matter() -> None:
    laid_out = timeline_of(record(ROUTE, attempt(1, 3, 200), attempt(2, 203, 397, "hosted")), None, ())
    usual = {(names.ROUTE, None): [0.1] * 6, (names.ATTEMPT, "local"): [1.0, 2, 3, 4, 150, 300]}
    assert slow_hops(laid_out, usual) == {2: 150}
    assert slow_hops(laid_out, {(names.ATTEMPT, "hosted"): [1.0, 2, 3, 4, 400, 500]}) == {}
