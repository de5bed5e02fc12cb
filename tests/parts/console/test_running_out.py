"""What Now says of budgets that run out, of rate limits that fell, and of what does not stay up."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.console.running_out import LimitWatch, child_needs, ends_of, flapping
from gateway.parts.console.standing import StandingMark, StandingReader, needs_of
from gateway.parts.fleet.gossip import STREAM
from gateway.parts.local.child import note_end
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from policies.quantities import NANO
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.test_app import console, places

__all__ = ["server", "store"]


def test_a_rate_limit_that_fell_is_told_until_it_is_back() -> None:
    watch = LimitWatch()

    def said(of: float, at_s: float) -> list[tuple[str, float | None]]:
        limits = {"requests": {"left": of / 2, "of": of}, "tokens_in": {"left": 5.0, "of": None}}
        tiers = {
            "hosted": {"backends": {"large": {"headroom": limits}, "here": {"headroom": {}}, "x": {"headroom": None}}}
        }
        return [(need.what, need.since_s) for need in watch.needs(tiers, at_s)]

    assert said(10_000, 1.0) == said(9_000, 2.0) == []
    what = "The provider of backend large of tier hosted allows 500 requests a minute, where it allowed 10,000."
    assert said(500, 3.0) == said(500, 9.0) == [(what, 3.0)]
    assert said(10_000, 10.0) == []


def test_a_process_that_ends_again_and_again_is_told(tmp_path: Path) -> None:
    for _ in range(2):
        note_end(tmp_path / "local.log", "exited with code 1")
    note_end(tmp_path / "ledger.log", "exited with code 1")
    assert list(child_needs(tmp_path, time.time())) == [] == list(child_needs(None, 0.0))
    note_end(tmp_path / "local.log", "was killed by SIGKILL")
    [need] = child_needs(tmp_path, time.time())
    assert need.what.startswith("The local model ended 3 times in the last 15 min: it was killed by SIGKILL")
    assert need.since_s == ends_of(tmp_path)["local"][0][0] and str(tmp_path / "local.log") in need.todo
    assert list(child_needs(tmp_path, time.time() + 901)) == [], "what is over is not told"


def test_a_tier_that_comes_and_goes_is_told() -> None:
    """However short each time was; surfaces that saw the same one tell it once."""
    marks = [
        StandingMark(surface, "breaker", at, text)
        for at in (100.0, 200.0, 300.0)
        for surface in ("chat", "voice")
        for text in ("tier local went down: refused", "tier local came back")
    ]
    [need] = flapping(marks, 310.0, 900.0)
    assert need.what == "Tier local went down 3 times: refused." and need.since_s == 100.0
    assert list(flapping(marks, 1150.0, 900.0)) == []


@pytest.mark.parametrize(
    ("cause", "left_s", "told"),
    [("pause", 60.0, True), ("pause", 0.0, False), ("failing", 0.0, False), ("key", 0.0, True)],
)
async def test_a_backend_whose_pause_is_over_is_not_out(
    store: RedisStore, tmp_path: Path, cause: str, left_s: float, told: bool
) -> None:
    """It waits for a request, which may not come for long; a key that it refuses is refused until somebody mends it."""
    now_ms = int(time.time() * 1000)
    await store.ask([Command((b"DEL", STREAM.encode()))])
    for age_s, left in ((60, 5.0), *((age_s, left_s) for age_s in range(55, 0, -1))):
        ejection = {"cause": cause, "reason": "asked for a pause", "left_s": left, "status": 429}
        entry = orjson.dumps({"v": 2, "worker": "a", "backends": {"local@0123456789ab": {"ejection": ejection}}})
        number = f"{now_ms - age_s * 1000}-0".encode()
        await store.ask([Command((b"XADD", STREAM.encode(), number, b"v", entry))])
    reader = StandingReader(store, places(tmp_path, store).deployment)
    needs = [need.what for need in needs_of(await reader.read(), reader)]
    assert any("is not called" in what for what in needs) is told, needs


async def test_now_tells_of_a_budget(store: RedisStore, tmp_path: Path) -> None:
    """By the counters in the store."""
    name = f"key:k_9/usd/{datetime.now(UTC):%Y-%m}@UTC"
    key = f"{ACCOUNT_PREFIX}{name}".encode()
    await store.ask([Command((b"DEL", STREAM.encode()))])
    await store.ask([Command((b"HSET", key, b"spent", b"%d" % (26 * NANO), b"limit", b"%d" % (25 * NANO)))])
    await store.ask([Command((b"ZADD", b"{tierline:traces}:quotas", b"9999999999999", key))])
    async with console(tmp_path, store, 1) as client:
        data = (await client.get("/now.json")).json()
        assert "The budget of key k_9 is spent: $26.00 of $25.00 a month" in data["needs"][0]["what"], data["needs"]
        assert data["verdict"]["level"] == "bad" and data["verdict"]["text"].startswith(
            "The budget of key k_9 is spent"
        )
