"""The page of a surface: which limit is missed, by whom, and where the time of those requests went."""

from __future__ import annotations

import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from cache.store.base import Append
from cache.store.redis_store import RedisStore
from gateway.parts.measures.label import LABELS
from gateway.telemetry.ledger import CallAccount, Ledger
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.consoles import console
from tests.parts.console.test_quality import label

__all__ = ["server", "store"]


def call(attempt: int, tier: str, start_ms: float, queue_ms: float, ttft_ms: float | None, total_ms: float) -> Any:
    """A call whose answer was served, unless its tier is the local one and another came after it."""
    return CallAccount(
        attempt, tier, tier, "m", "accepted", 10, 5, False, 0.0, False, queue_ms, ttft_ms, total_ms, start_ms
    )


def request(number: int, *, missed: bool, tier: str, calls: list[Any], ttft_ms: float, **more: Any) -> Ledger:
    given: dict[str, Any] = {
        "surface": "chat", "policy": "chat@3f2a91c", "status": 200, "path": "direct", "tier": tier, "backend": tier,
        "stream": True, "ttft_ms": ttft_ms, "total_ms": ttft_ms + 100, "calls": calls, "tokens_in": 10,
        "slo": {"ttft_p95": not missed, "deadline": True},
    }  # fmt: skip
    return Ledger(f"req-{number}", **given | more)


def fast(number: int) -> Ledger:
    """Its first token came after 60 ms, 10 of which the gateway took before the call, and 20 the judge after it."""
    return request(number, missed=False, tier="local", calls=[call(1, "local", 10, 0, 30, 150)], ttft_ms=60)


def queued(number: int) -> Ledger:
    """A draft was given up after 90 ms; then it waited 800 ms in the queue, and 200 ms for the first token."""
    draft = call(1, "local", 10, 0, 30, 90)
    draft.wasted = True
    calls = [draft, call(2, "hosted", 100, 800, 200, 1100)]
    return request(number, missed=True, tier="hosted", calls=calls, ttft_ms=1100, path="escalated")


async def test_it_says_who_missed_a_limit_and_where_the_time_went(store: RedisStore, tmp_path: Path) -> None:
    """The parts of the time add up; the limit that is missed most is looked at, unless another is asked for."""
    async with console(tmp_path, store, [*map(fast, range(60)), *map(queued, range(60, 80))]) as client:
        data = (await client.get("/surfaces/chat.json")).json()
        assert (data["requests"], data["looked_at"]["name"], data["looked_at"]["missed"]) == (80, "ttft_p95", 20)
        assert [(one["name"], one["held"], one["missed"]) for one in data["limits"]] == [
            ("deadline", 80, 0), ("ttft_p95", 80, 20),
        ]  # fmt: skip
        missed, met = data["times"]["missed"], data["times"]["met"]
        parts = list(data["parts"])
        assert [met[part] for part in parts] == pytest.approx([10, 0, 0, 30, 20, 100])
        assert [missed[part] for part in parts] == pytest.approx([10, 90, 800, 200, 0, 100])
        assert sum(missed[part] for part in parts) == pytest.approx(1200) and missed["ended"][0] == pytest.approx(
            1100, rel=0.05
        )
        assert data["most"] == "queue"
        groups = {(one["dimension"], one["value"]): one for one in data["groups"]}
        assert set(groups) == {("Tier", "hosted"), ("Backend", "hosted"), ("Path", "escalated")}
        assert all(
            (one["rate"], one["rest"], one["of_all"], one["differs"]) == (1, 0, 1, True) for one in groups.values()
        )
        page = (await client.get("/surfaces/chat")).text
        assert "<strong>the queue of its tier</strong>" in page
        assert "/requests?surface=chat&amp;is=slow&amp;tier=hosted&amp;since=" in page
        assert "<polyline" in page, "the chart stands there without scripts"
        other = (await client.get("/surfaces/chat.json?limit=deadline")).json()
        assert (other["looked_at"]["name"], other["times"]["missed"], other["most"], other["groups"]) == (
            "deadline", None, "", [],
        )  # fmt: skip
        assert "Every request met it." in (await client.get("/surfaces/chat?limit=deadline")).text


async def test_each_stage_has_its_p99_beside_its_share(store: RedisStore, tmp_path: Path) -> None:
    """A surface that limits stages has a table of them; a missed one is marked, and others have none."""
    held = {"ttft_p95": True, "deadline": True}

    def staged(number: int) -> Ledger:
        stages = {"cache": 5.0, "queue": 0.0 if number < 90 else 80.0, "prefill": 50.0}
        slo = held | {"stages_queue_p50": True, "stages_queue_p99": number < 90}
        return request(number, missed=False, tier="local", calls=[], ttft_ms=100, stages=stages, slo=slo)

    async with console(tmp_path, store, [*map(staged, range(100))]) as client:
        data = (await client.get("/surfaces/chat.json")).json()
        rows = {row["stage"]: row for row in data["stages"]}
        assert list(rows) == ["cache", "queue", "prefill"]
        assert [row["share"] for row in rows.values()] == pytest.approx([0.025, 0.04, 0.25])
        assert rows["prefill"]["quantiles"] == pytest.approx([50, 50, 50], rel=0.03)
        assert rows["queue"]["quantiles"][2] == pytest.approx(80, rel=0.03)
        assert (rows["queue"]["limit"]["name"], rows["cache"]["limit"]) == ("stages_queue_p99", None)
        page = (await client.get("/surfaces/chat")).text
        assert data["looked_at"]["name"] in ("ttft_p95", "deadline"), "a stage is looked at when somebody asks for it"
        assert 'id="stages"' in page and "limit=stages_queue_p99" in page
        assert (await client.get("/surfaces/chat?limit=stages_queue_p99")).status_code == 200


async def test_a_window_may_be_drawn(store: RedisStore, tmp_path: Path) -> None:
    """From one time to another, which is in the address; what cannot be is refused with what can."""
    now_ms = int(time.time() * 1000)
    async with console(tmp_path, store, [fast(1)]) as client:
        inside = (await client.get(f"/surfaces/chat.json?from={now_ms - 60_000}&to={now_ms + 60_000}")).json()
        assert (inside["requests"], inside["span"], inside["list_span"]) == (1, "", "15m")
        before = f"from={now_ms - 90_000}&to={now_ms - 60_000}"
        assert (await client.get(f"/surfaces/chat.json?{before}")).json()["requests"] == 0
        assert "No request of chat in this time" in (await client.get(f"/surfaces/chat?{before}")).text
        for wrong in ("from=2&to=1", "from=1", "from=x&to=2", "since=2h", "limit=moon"):
            assert (await client.get(f"/surfaces/chat?{wrong}")).status_code == 400, wrong
        missing = await client.get("/surfaces/moon")
        assert missing.status_code == 404 and "There are chat." in missing.text


async def test_hits_and_refused_requests_have_a_page_too(store: RedisStore, tmp_path: Path) -> None:
    """Requests without any call spend their time in the gateway; those held against no limit have none to look at."""
    hit = request(1, missed=False, tier="local", calls=[], ttft_ms=5, path="cache-exact")
    unlimited = request(2, missed=False, tier="", calls=[], ttft_ms=5, surface="voice", slo=None)
    async with console(tmp_path, store, [hit, unlimited]) as client:
        met = (await client.get("/surfaces/chat.json")).json()["times"]["met"]
        assert (met["ours"], met["prefill"], met["decode"]) == (5, 0, 100)
        voice = await client.get("/surfaces/voice")
        assert voice.status_code == 200 and "No request had a limit to keep" in voice.text


def steered(number: int, *, capped: bool) -> Ledger:
    """A request at the end of a budget, whose answer would have cost 0.01 dollars at the tier that the rules wanted."""
    moved: dict[str, Any] = {"steered_from": "hosted", "steered_usd": 0.01} if capped else {"steered_from": "local"}
    calls = [call(1, "local", 10, 0, 30, 150)]
    return request(number, missed=False, tier="local", calls=calls, ttft_ms=60, cost_usd=0.002, **moved)


async def test_it_says_what_budgets_did(store: RedisStore, tmp_path: Path) -> None:
    """How many were steered, what that saved, and what quality it cost by what was said; without it, "not known"."""
    await store.delete(LABELS)
    made = [steered(number, capped=number < 10) for number in range(1, 13)]
    async with console(tmp_path, store, made) as client:
        told = (await client.get("/surfaces/chat.json")).json()["steered"]
        assert (told["requests"], told["capped"], told["quality"]) == (12, 9, None)
        assert told["saved_usd"] == pytest.approx(9 * 0.008)
        page = unescape((await client.get("/surfaces/chat")).text)
        assert "Steered by budgets" in page and "$0.072" in page and "not known" in page
    for number in range(1, 41):
        await store.apply([Append(LABELS, label(number, good=number % 4 != 0).encode(), 1000)])
    async with console(tmp_path, store, [fast(20)]) as client:
        quality = (await client.get("/surfaces/chat.json")).json()["steered"]["quality"]
        assert quality["value"] == pytest.approx(-0.25) and quality["low"] < -0.25 < quality["high"] < 0
        assert quality["word"] == "judge"
        assert "-25.0 points" in unescape((await client.get("/surfaces/chat")).text)
        assert "Steered by budgets" not in (await client.get("/surfaces/voice?since=15m")).text
    await store.delete(LABELS)
