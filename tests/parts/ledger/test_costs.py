"""What requests cost and saved on the page Usage: the figures of `tierline ledger`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.ledger.columns import REQUESTS
from gateway.parts.ledger.costs import CostRow, Costs
from gateway.parts.ledger.figures import usage_figures
from gateway.parts.ledger.folder import TableFiles
from gateway.parts.ledger.live import LiveArchive
from gateway.telemetry.ledger import PLAYGROUND, CallAccount, Ledger
from tests.gateway.telemetry.conftest import server, store
from tests.parts.console.consoles import console, record
from tests.parts.ledger.test_keeper import keep
from tests.parts.ledger.test_live import becomes

__all__ = ["server", "store"]

TIERS = ("local", "hosted")


def call(attempt: int, usd: float, *, wasted: bool = False, estimated: bool = False, outcome: str = "") -> CallAccount:
    tier = "local" if attempt < 2 else "hosted"
    return CallAccount(attempt, tier, tier, "m", outcome or "accepted", 100, 20, estimated, usd, wasted, 0.0, None, 9.0)


def request(number: int, calls: Sequence[CallAccount] = (), full: float | None = 0.01, **ledger: Any) -> Ledger:
    """A request with these calls, which the strongest tier would have answered for `full` dollars."""
    unused = [one for one in calls if one.wasted]
    given: dict[str, Any] = {
        "tenant": "acme", "surface": "chat", "policy": "chat@3f2a91c", "status": 200, "path": "direct", "tier": "local",
        "model": "m", "served": tuple(one.attempt for one in calls if not one.wasted), "calls": calls,
        "cost_usd": sum(one.cost_usd for one in calls), "wasted_usd": sum(one.cost_usd for one in unused),
        "wasted_tokens": sum(one.tokens_in + one.tokens_out for one in unused), "counterfactual_usd": full,
        "usage_estimated": any(one.estimated for one in calls),
        "answer_estimated": any(one.estimated and not one.wasted for one in calls),
    }  # fmt: skip
    return Ledger(f"req-{number}", **given | ledger)


def traffic(count: int, seed: int = 5) -> list[Ledger]:
    """Requests of every kind that the figures tell apart."""
    rng = random.Random(seed)
    made = []
    for number in range(1, count + 1):
        price = rng.choice((0.0, 0.0001, 0.001))
        calls = [call(1, price * rng.random(), wasted=(wasted := rng.random() < 0.3), estimated=rng.random() < 0.3)]
        if wasted:
            calls.append(call(2, 0.005 * rng.random(), estimated=rng.random() < 0.1))
        full = None if rng.random() < 0.1 else 0.01 * rng.random()
        who = {"tenant": rng.choice(("acme", "globex")), "surface": rng.choice(("chat", "voice", ""))}
        caches = {"prompt_cache_usd": (None, -0.001, 0.01)[number % 3]}
        made.append(request(number, calls, full, cost_unknown=rng.random() < 0.1, **who, **caches))
    return made


@pytest.mark.parametrize("in_files", [False, True])
async def test_the_figures_are_those_of_the_ledger(store: RedisStore, tmp_path: Path, *, in_files: bool) -> None:
    """The same requests cost, wasted and saved the same on the page as in `tierline ledger`, in all and by surface.

    Whether they are in memory or in segments, which the archive has summarised; those of the playground count nowhere.
    """
    played = [request(n, [call(1, 1.0)], arm=PLAYGROUND) for n in range(900, 903)]
    await record(store, [*traffic(400), *played])
    if in_files:
        await keep(store, tmp_path)
        with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
            files.rotate()
    archive = LiveArchive(tmp_path, store)
    try:
        all_costs = Costs(archive)
        await archive.catch_up()
        archive.start()

        async def summarised() -> Any:
            return await archive.ask("SELECT sum(requests) AS n FROM kept_costs_1800000")

        await becomes(summarised, [{"n": 400}] if in_files else [{"n": None}])
        rows = [{**row, "score": None} for row in await archive.ask("SELECT * FROM requests")]
        start = rows[0]["entry_ms"] // 1_800_000 * 1800 - 1800
        costs = await all_costs.between(start, start + 7200)
        assert_agrees(costs["total"], rows)
        for shown in costs["surface"]:
            assert_agrees(shown, [row for row in rows if (row["surface"] or "none") == shown.name])
        assert {shown.name for shown in costs["surface"]} == {"chat", "voice", "none"}
        for by in ("tier", "model"):
            assert sum(shown.spent for shown in costs[by]) == pytest.approx(costs["total"].spent)
        owed = {tier: sum(c["cost_usd"] for row in rows for c in row["calls"] if c["tier"] == tier) for tier in TIERS}
        assert {shown.name: shown.spent for shown in costs["tier"]} == pytest.approx(owed)
        before = await all_costs.between(start - 7200, start)
        assert before["total"].requests == 0 and before["total"].saving is None and before["tier"] == []
    finally:
        await archive.aclose()


def assert_agrees(shown: CostRow, rows: list[dict[str, Any]]) -> None:
    told = usage_figures(rows)
    alone = told["strongest_alone"]
    assert (shown.requests, shown.unpriced) == (told["requests"], told["cost_unknown"])
    assert shown.spent == pytest.approx(told["cost_usd"]) and shown.wasted == pytest.approx(told["wasted"]["usd"])
    assert shown.saving is not None and shown.saving.requests == alone["requests"] > 0
    assert shown.saving.usd == pytest.approx(alone["saved_usd"])
    assert shown.saving.share == pytest.approx(alone["saved_share"])
    assert (shown.saving.low, shown.saving.high) == pytest.approx(alone["interval_95"])
    assert shown.saving.low < shown.saving.usd < shown.saving.high
    assert shown.saving.estimated == alone["estimated"]["requests"] > 0
    assert shown.saving.estimated_usd == pytest.approx(alone["estimated"]["cost_usd"])
    assert shown.unknown == alone["unknown"]["requests"]
    assert shown.prompt_caches == pytest.approx(told["prompt_caches"]["saved_usd"]) and shown.prompt_caches > 0


async def test_the_page_tells_them_to_who_may_see_all(store: RedisStore, tmp_path: Path) -> None:
    made = [
        request(1, [call(1, 0.001)]),
        request(2, [call(1, 0.002, wasted=True, outcome="low_confidence"), call(2, 0.004)], surface="voice"),
        request(3, [call(1, 0.0)], cost_unknown=True),
        request(4, [call(1, 0.003), call(2, 0.001, wasted=True, outcome="lost"), call(0, 0.0005, wasted=True)]),
        request(5, [call(1, 0.003), replace(call(0, 0.0002, wasted=True, outcome="cancelled"), verifier="judge")]),
    ]
    async with console(tmp_path, store, made) as client:
        costs = (await client.get("/usage.json")).json()["costs"]
        assert {one["name"]: one["spent"] for one in costs["tier"]} == pytest.approx({"local": 0.0097, "hosted": 0.005})
        assert (costs["total"]["wasteful"], costs["total"]["unpriced"]) == (2, 1)
        page = (await client.get("/usage")).text
        assert "Saved against the strongest tier" in page and 'href="/requests?tier=hosted&amp;since=30d"' in page
        rows = (await client.get("/requests.json?since=30d&is=wasted")).json()["rows"]
        assert {row["request_id"] for row in rows} == {"req-2", "req-4", "req-5"}
