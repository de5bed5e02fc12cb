"""The page of money: the figures of `tierline ledger`, by any column, with what leads to the requests behind them."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cache.store.redis_store import RedisStore
from gateway.archive.columns import REQUESTS
from gateway.archive.figures import figures
from gateway.archive.folder import TableFiles
from gateway.archive.live import LiveArchive
from gateway.cascade.daily_budget import DailyBudget
from gateway.console.filters import filter_of
from gateway.console.views.money import BY, MoneyRow, MoneyView
from gateway.telemetry.ledger import PLAYGROUND, CallAccount, Ledger
from tests.gateway.archive.test_keeper import keep
from tests.gateway.archive.test_live import becomes
from tests.gateway.console.consoles import console, record
from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]


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
    """The same requests cost, wasted and saved the same on the page as in `tierline ledger`, in all and by a column.

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
        view = MoneyView(archive, store)
        await archive.catch_up()
        archive.start()

        async def summarised() -> Any:
            return await archive.ask("SELECT sum(requests) AS n FROM kept_money_1800000")

        await becomes(summarised, [{"n": 400}] if in_files else [{"n": None}])
        rows = [{**row, "score": None} for row in await archive.ask("SELECT * FROM requests")]
        assert_agrees((await view.data(filter_of([("since", "24h")]), "surface"))["total"], rows)
        for by in ("surface", "tenant"):
            for shown in (await view.data(filter_of([("since", "24h")]), by))["rows"]:
                assert_agrees(shown, [row for row in rows if (row[by] or "none") == shown.name])
        some = await view.data(filter_of([("since", "24h"), ("tenant", "globex")]), "tier")
        assert_agrees(some["total"], [row for row in rows if row["tenant"] == "globex"])
        assert sum(map(sum, some["bars"])) == pytest.approx(some["total"].spent)
        assert some["beside"]["played"] == 3 and some["beside"]["playground"] == 3.0
        assert some["choices"]["tenant"] == ["acme", "globex"]
        assert some["forecasts"]["today"].spent == pytest.approx(some["total"].spent)
    finally:
        await archive.aclose()


def assert_agrees(shown: MoneyRow, rows: list[dict[str, Any]]) -> None:
    told = figures(rows)
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


async def test_each_figure_leads_to_its_requests(store: RedisStore, tmp_path: Path) -> None:
    made = [
        request(1, [call(1, 0.001)]),
        request(2, [call(1, 0.002, wasted=True, outcome="low_confidence"), call(2, 0.004)], surface="voice"),
        request(3, [call(1, 0.0)], cost_unknown=True),
        request(4, [call(1, 0.003), call(2, 0.001, wasted=True, outcome="lost"), call(0, 0.0005, wasted=True)]),
        request(5, [call(1, 0.003), replace(call(0, 0.0002, wasted=True, outcome="cancelled"), verifier="judge")]),
    ]
    async with console(tmp_path, store, made) as client:
        page = (await client.get("/money?by=surface")).text
        links = {link.replace("&amp;", "&") for link in re.findall(r'href="(/requests\?[^"]+)"', page)}
        assert {"/requests?since=24h", "/requests?since=24h&surface=chat", "/requests?since=24h&is=unpriced"} <= links
        for flag, ids in (("wasted", {"req-2", "req-4", "req-5"}), ("unpriced", {"req-3"})):
            rows = (await client.get(f"/requests.json?since=24h&is={flag}")).json()["rows"]
            assert {row["request_id"] for row in rows} == ids
        data = (await client.get("/money.json?by=path")).json()
        assert {(one["kind"], one["tier"]): one["usd"] for one in data["waste"]} == {
            ("draft", "local"): 0.002, ("race", "hosted"): 0.001, ("sample", "local"): 0.0005,
            ("judge", "local"): 0.0002,
        }  # fmt: skip
        assert "1 requests of unknown price" in page or "1 of unknown price" in page


async def test_every_column_and_empty_state_has_a_page(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, traffic(30)) as client:
        for by in BY:
            assert (await client.get(f"/money?by={by}&since=1h")).status_code == 200
        assert '<a href="/usage">Usage</a>' in (await client.get("/money?by=tenant")).text
        assert "No request fits these filters" in (await client.get("/money?surface=nowhere")).text
        for query in ("by=key", "since=2h", "since=all", "is=wasted", "backend=b"):
            assert (await client.get(f"/money?{query}")).status_code == 400


async def test_without_requests_the_page_says_so(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, []) as client:
        page = await client.get("/money")
        assert page.status_code == 200 and "No request in the last 24h" in page.text


async def test_what_is_reserved_stands_in_the_store(store: RedisStore, tmp_path: Path) -> None:
    async with console(tmp_path, store, [request(1, [call(1, 0.001)])]) as client:
        assert "Nothing is reserved today" in (await client.get("/money")).text
        budget = DailyBudget(store)
        assert await budget.reserve("chat", 0.25, 2.0) is not None
        assert await budget.reserve("shadow:chat", 0.5, 2.0) is not None
        data = (await client.get("/money.json?by=tier")).json()
        assert [(one["purpose"], one["usd"]) for one in data["reserved"]] == [("comparisons", 0.25), ("shadows", 0.5)]
