"""The console's cache page: its figures are those of what was recorded, and a wrong hit is gone once it is marked."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import pytest_asyncio

from cache.response_cache import ResponseCache
from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.caching.lookups import hit_attributes
from gateway.parts.access.keys.roles import VIEWER
from gateway.parts.console.views.caching import savings
from gateway.parts.console.wrong_hits import COMMENT, UNDONE
from gateway.parts.hit_audits.audit import Audits
from gateway.parts.hit_audits.groups import LEAST_LABELS, Label
from gateway.parts.hit_audits.published import PUBLISHED
from gateway.parts.measures import feedback
from gateway.parts.reasons.details import complete
from gateway.telemetry import names
from gateway.telemetry.ledger import TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from tests.cache.samples import Facts, answer, body, policy
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import console
from tests.support.wait import eventually

__all__ = ["server", "store"]

ITALY, SAME, CHILE = "What is the capital of Italy?", "what's the capital of Italy", "What is the capital of Chile?"
VECTOR = np.array([1, 0, 0, 0], np.float32)
RULES = policy(semantic={"ttl": "6h", "min_similarity": 0.85, "audit": "0%"})
MEASURED = {"surface": "chat", "policy": "chat@1", "status": 200, "tier": "local", "model": "model-1"}


@dataclass
class Served:
    """A gateway's cache with one answer, which was served to another question."""

    cache: ResponseCache
    store: RedisStore
    tenant: str

    async def asked(
        self, request_id: str, question: str, *, capture: bool = False, beside: Any = None, **ledger: Any
    ) -> str:
        """Look a question up, record the request, and return the path that it took."""
        plan = self.cache.plan(body(question), RULES, self.tenant, Facts())
        trace = Trace(names.REQUEST)
        if capture:
            trace.root.attributes[names.PROMPT] = question
        hop = trace.begin(names.CACHE_SEMANTIC)
        lookup = await self.cache.semantic(plan, VECTOR)
        hop.attributes |= {names.CACHE_OUTCOME: lookup.outcome, names.SIMILARITY: lookup.similarity}
        hop.attributes[names.NEIGHBOUR] = lookup.question if capture else lookup.neighbour
        if lookup.reason:
            hop.attributes[names.CACHE_REASON] = lookup.reason
        if lookup.hit is not None:
            hop.attributes |= hit_attributes(lookup.hit)
        hop.end()
        if beside is not None:
            trace.begin(names.ATTEMPT, beside).end()
        trace.root.end()
        complete(trace)
        path = "direct" if lookup.hit is None else "cache-semantic"
        measured = {**MEASURED, "path": path, "tenant": self.tenant, "kept": "head", "total_ms": 400.0}
        measured |= {"similarity": None if lookup.hit is None else lookup.similarity, **ledger}
        blob = ledger_blob(trace, Ledger(request_id, **measured))
        await self.store.apply([Append(TRACES, blob, 1000)])
        return path

    async def found(self, question: str) -> str:
        """Return the outcome of another lookup, of which nothing is recorded."""
        plan = self.cache.plan(body(question), RULES, self.tenant, Facts())
        return (await self.cache.semantic(plan, VECTOR)).outcome


@pytest_asyncio.fixture
async def served(store: RedisStore) -> AsyncIterator[Served]:
    await store.delete(PUBLISHED)
    audits = Audits(store, secrets.token_hex(4))
    cache = ResponseCache(store, embedder_name=secrets.token_hex(4), dimension=4, bound=audits)
    # Generations that were read hold however busy the machine is: without them a worker shares with nobody for a while.
    cache._generations._clock = lambda: 0.0
    await cache.start()
    one = Served(cache, store, f"t{secrets.token_hex(6)}")
    await cache.write(cache.plan(body(ITALY), RULES, one.tenant, Facts()), answer("It is Milan."), VECTOR)
    yield one
    await cache.aclose()


async def test_hits_guards_and_sizes_are_those_of_the_records(served: Served, tmp_path: Path) -> None:
    assert (
        await served.asked("req-hit", SAME, total_ms=2.0, counterfactual_usd=0.001, list_usd=0.0003) == "cache-semantic"
    )
    for number in (1, 2):
        miss = await served.asked(f"req-miss-{number}", CHILE, cost_usd=0.0004)
        assert miss == "direct"
    async with console(tmp_path, served.store, 1, surface="voice") as client:
        data = (await client.get("/cache.json?surface=chat")).json()
        chat = next(one for one in data["surfaces"] if one["surface"] == "chat")
        assert (chat["requests"], chat["exact"], chat["semantic"]) == (3, 0, 1)
        assert chat["saved_usd"] == pytest.approx(0.0003)  # its own, not what misses cost on average
        assert chat["saved_ms"]["value"] == 398.0 and chat["against_strongest"] == 0.001
        assert data["lookups"]["lookups"] == 3
        [guard] = data["lookups"]["guards"]
        assert guard["requests"] == guard["decided"] == 2
        assert {one["request_id"] for one in guard["examples"]} == {"req-miss-1", "req-miss-2"}
        [hit] = data["hits"]
        assert hit["request_id"] == "req-hit" and hit["similarity"] == 1.0 and hit["asked"] is None
        own = [one for one in data["stored"]["scopes"] if one.get("tenant") == served.tenant]
        assert [(one["surface"], one["entries"]) for one in own] == [("chat", 2)]
        await client.get("/cache.json")  # which waits for what the page may show a moment later
        page = (await client.get("/cache")).text
        assert guard["guard"] in page and "Texts are not captured" in page and "Milan" not in page
        assert (await client.get("/cache?since=2h")).status_code == 400


async def test_texts_are_shown_where_they_were_captured(served: Served, tmp_path: Path) -> None:
    await served.asked("req-hit", SAME, capture=True)
    async with console(tmp_path, served.store, 1) as client:
        page = (await client.get("/cache")).text
        assert "what&#39;s the capital of Italy" in page and ITALY in page and "Texts are not captured" not in page


async def test_a_wrong_hit_is_removed_and_learned_from_once(served: Served, tmp_path: Path) -> None:
    """The rating, the removal and the complaint are those of a client's feedback; doing it again changes nothing."""
    audits, state = served.cache.bound, served.cache.bound and served.cache.bound.in_force
    assert isinstance(audits, Audits) and state is not None
    assert await served.asked("req-hit", SAME) == "cache-semantic"
    learned = audits.surface("chat", RULES.cache.semantic, 0.85)  # type: ignore[arg-type]
    await eventually(lambda: learned.published is not None, 20)
    async with console(tmp_path, served.store, 1) as client:
        listed = (await client.get("/cache.json")).json()["hits"][0]
        assert "This hit is wrong" in (await client.get("/cache")).text
        assert "This hit is wrong" in (await client.get("/requests/req-hit")).text
        form = {"request": "req-hit", "at": str(listed["entry_ms"])}
        asked = (await client.get("/cache/wrong", params=form)).text
        assert "Is this hit wrong?" in asked and listed["entry"] in asked and "with 1 copy" in asked
        assert f"about its next {round(1 / RULES.cache.semantic.max_error)} requests" in asked  # type: ignore[union-attr]
        assert "Remove it" in asked and "undone for 15 minutes" in asked and "served until" in asked
        assert await served.found(SAME) == "hit", "nothing is changed by looking"
        done = await client.post("/cache/wrong", data=form)
        assert done.status_code == 200 and "The answer is removed" in done.text and listed["entry"] in done.text
        assert "with 1 copy" in done.text and "learns of it within two seconds" in done.text
        assert await served.found(SAME) == await served.found(ITALY) == "miss"
        await eventually(lambda: (found := state("chat", f"tenant:{served.tenant}")) is not None and
                         found.threshold > listed["score"], 20)  # fmt: skip
        other = state("chat", "tenant:other")
        assert other is not None and other.threshold <= listed["score"]
        again = await client.post("/cache/wrong", data=form)
        assert again.status_code == 200 and "gone already" in again.text
        entries = [feedback.decode_feedback(value) for _, value in await served.store.latest(feedback.STREAM, 10)]
        rated = [(one.request_id, one.score, one.comment) for one in entries if one is not None]
        assert set(rated) == {("req-hit", 0.0, COMMENT)}
        for wrong in ("req-1", "nobody"):
            refused = await client.post("/cache/wrong", data={"request": wrong})
            assert refused.status_code == 422 and "Nothing was changed" in refused.text


async def test_a_removal_can_be_undone(served: Served, tmp_path: Path) -> None:
    """The answer and its copy are stored again, the complaint is withdrawn, and the request is rated 1; once."""
    audits, state = served.cache.bound, served.cache.bound and served.cache.bound.in_force
    assert isinstance(audits, Audits) and state is not None
    assert await served.asked("req-hit", SAME) == "cache-semantic"
    learned = audits.surface("chat", RULES.cache.semantic, 0.85)  # type: ignore[arg-type]
    await eventually(lambda: learned.published is not None, 20)
    owner = f"tenant:{served.tenant}"

    def threshold() -> float:
        found = state("chat", owner)
        return -1.0 if found is None else found.threshold

    async with console(tmp_path, served.store, 1) as client:
        listed = (await client.get("/cache.json")).json()["hits"][0]
        form = {"request": "req-hit", "at": str(listed["entry_ms"])}
        early = await client.post("/cache/wrong", data=form | {"do": "undo"})
        assert early.status_code == 422 and "cannot be undone" in early.text
        done = await client.post("/cache/wrong", data=form)
        assert "Undo: the hit was right" in done.text
        assert "Undo: the hit was right" in (await client.get("/cache/wrong", params=form)).text, "later, too"
        await eventually(lambda: threshold() > listed["score"], 20)
        undone = await client.post("/cache/wrong", data=form | {"do": "undo"})
        assert undone.status_code == 200 and "2 entries are stored again" in undone.text
        await eventually(lambda: threshold() <= listed["score"], 20)
        assert await served.found(SAME) == await served.found(ITALY) == "hit"
        entries = [feedback.decode_feedback(value) for _, value in await served.store.latest(feedback.STREAM, 10)]
        assert {(one.score, one.comment) for one in entries if one is not None} == {(0.0, COMMENT), (1.0, UNDONE)}
        again = await client.post("/cache/wrong", data=form | {"do": "undo"})
        assert again.status_code == 422 and "undone already" in again.text


async def test_undoing_leaves_what_the_client_said_and_what_was_stored_since(served: Served, tmp_path: Path) -> None:
    """A client's own complaint is not the console's to withdraw; a newer answer is the better one."""
    await served.asked("req-hit", SAME)
    wrong = feedback.Feedback("req-hit", served.tenant, "chat", 0.0, "no", time.time())
    await served.store.apply([Append(feedback.STREAM, wrong.encode(), 100)])
    async with console(tmp_path, served.store, 1) as client:
        await eventually_rated(client)
        form = {"request": "req-hit"}
        assert "rated 0 already" in (await client.get("/cache/wrong", params=form)).text
        assert (await client.post("/cache/wrong", data=form)).status_code == 200
        plan = served.cache.plan(body(ITALY), RULES, served.tenant, Facts())
        await served.cache.write(plan, answer("It is Rome."), VECTOR)
        undone = await client.post("/cache/wrong", data=form | {"do": "undo"})
        assert "both stay" in undone.text and "Nothing came back" in undone.text
        found = await served.cache.exact(plan)
        assert found.hit is not None and b"Rome" in found.hit.entry.body
        scores = [feedback.decode_feedback(value) for _, value in await served.store.latest(feedback.STREAM, 10)]
        assert {one.score for one in scores if one is not None and one.request_id == "req-hit"} == {0.0}


async def eventually_rated(client: httpx2.AsyncClient) -> None:
    """Wait until the console has read the rating of `req-hit`."""
    for _ in range(200):
        if "rated 0" in (await client.get("/requests/req-hit")).text:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the rating was not read")


async def test_a_hit_beside_an_attempt_that_lost_has_a_page(served: Served, tmp_path: Path) -> None:
    """As where an attempt began before the lookup's end: the page says why it lost, and offers to take the hit back."""
    lost = {names.ATTEMPT_NUMBER: 1, names.TIER: "local", names.BACKEND: "local-1", names.OUTCOME: names.LOST}
    await served.asked("req-hit", SAME, beside=lost | {names.SPECULATIVE: True})
    async with console(tmp_path, served.store, 1) as client:
        page = await client.get("/requests/req-hit")
        assert page.status_code == 200 and "This hit is wrong" in page.text and ">lost<" in page.text


async def test_viewers_may_look_and_remove_nothing(served: Served, tmp_path: Path) -> None:
    await served.asked("req-hit", SAME)
    async with console(tmp_path, served.store, 1, {VIEWER: "view"}) as client:
        client.headers["authorization"] = "Bearer view"
        page = await client.get("/cache")
        assert page.status_code == 200 and "Newest hits by meaning" in page.text
        assert "This hit is wrong" not in page.text + (await client.get("/requests/req-hit")).text
        assert (await client.post("/cache/wrong", data={"request": "req-hit"})).status_code == 403
        shown = await client.get("/cache/wrong?request=req-hit")
        assert shown.status_code == 200 and "may not remove" in shown.text and "Remove it" not in shown.text
        assert await served.found(SAME) == "hit"


async def test_the_error_bound_is_that_of_the_audits(served: Served, tmp_path: Path) -> None:
    """With its target, its samples, and whether it is breached."""
    audits, semantic = served.cache.bound, RULES.cache.semantic
    assert isinstance(audits, Audits) and semantic is not None
    surface = audits.surface("chat", semantic, 0.85)
    surface.requests, surface.scores = 1000, [0.95] * 60
    surface.labels = [Label(0.95, True, 2.0, judged=True)] * 15 + [Label(0.97, False, 2.0, judged=True)] * LEAST_LABELS
    surface.labels += [Label(0.96, True, 2.0, judged=True, language="Thai", owner="tenant:desk")] * 5
    surface.languages, surface.owners = {"Thai": 90, "Latin": 910}, {"tenant:desk": 90, "tenant:acme": 910}
    audits._wake.set()
    await eventually(lambda: surface.published is not None and surface.published.labels > LEAST_LABELS, 20)
    async with console(tmp_path, served.store, 1) as client:
        [risk] = (await client.get("/cache.json")).json()["risks"]
        figures = surface.figures()
        assert risk["state"] == "breached" and risk["max_error"] == semantic.max_error
        assert (risk["labels"], risk["threshold"]) == (LEAST_LABELS + 20, figures.threshold)
        assert risk["error_most"] <= risk["max_error"] and risk["wrong"] == 0
        page = (await client.get("/cache")).text
        assert "more hits were wrong than its policy allows" in page
        assert {(one["words"], one["breached"]) for one in risk["groups"]} == {
            ("language Thai", True), ("tenant desk", True),
        }  # fmt: skip
        assert "<strong>chat, tenant desk</strong>: more hits were wrong" in page
    await served.store.delete(PUBLISHED)
    async with console(tmp_path, served.store, 1) as client:
        assert "No gateway has measured a surface yet" in (await client.get("/cache")).text


def test_savings_carry_their_interval_and_say_what_is_not_known() -> None:
    hits = {"requests": 100, "saved_usd": 0.1, "total_ms": 500.0, "total_squares": 2599.0, "against_strongest": 0.2}
    misses = {"requests": 400, "total_ms": 400_000.0, "total_squares": 4e8 + 399 * 90_000.0}
    found = savings(hits, misses)
    assert found["saved_usd"] == 0.1
    assert found["saved_ms"]["high"] - found["saved_ms"]["value"] == pytest.approx(1.959964 * 100 * 15.0, rel=0.01)
    assert found["saved_ms"]["low"] < 99_500.0 < found["saved_ms"]["high"]
    assert savings(hits, None)["saved_ms"] is None and savings(None, misses)["saved_usd"] is None
