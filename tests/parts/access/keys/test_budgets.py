"""An operator's reset and top-up: counter, ledger and audit trail change together, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.access.audit.entries import BUDGETS
from gateway.parts.access.audit.trail import AuditTrail, TrailFilter
from gateway.parts.access.keys.budgets import Owned, OwnerBudgets, account_named
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry, KeysRefused, Why
from gateway.parts.access.quotas.accounts import OwnerAccounts
from gateway.parts.access.quotas.alerts import MARK
from gateway.parts.access.quotas.leases import Demand, Entered, QuotaLeases
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.parts.ledger.live import LiveArchive
from gateway.parts.ledger.usage import UsageQuery, usage_lines
from gateway.parts.measures import reader
from gateway.telemetry.ledger import ACCOUNT_PREFIX
from tests.support.store import UNHURRIED, LocalStore, local_store

NOW = datetime(2026, 11, 26, 15, tzinfo=UTC).timestamp()
MONTH = "key:k_1/usd/2026-11@UTC"
WHY = Why("ann", "test traffic")


@pytest.fixture
def server() -> AsyncIterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    terms = Terms.model_validate({"budgets": [{"usd": 25}, {"usd": 5, "per": "day"}]})
    await KeyRegistry(opened).create(KeyRecord("k_1", "ab" * 32, "acme", terms=terms), WHY)
    yield opened
    await opened.aclose()


async def spend(store: RedisStore, account: str, nanodollars: int, limit: int = 25 * 10**9, lease: int = 0) -> None:
    """Have the store count so much as spent, as its scripts do."""
    key = f"{ACCOUNT_PREFIX}{account}".encode()
    leased = [b"w:a", b"9000000000 9000000000 %d 9999999999999 7 0" % lease] if lease else []
    fields = [b"limit", b"%d" % limit, *leased]
    await store.ask([Command((b"HINCRBY", key, b"spent", b"%d" % nanodollars)), Command((b"HSET", key, *fields))])
    gone = Command((b"HSET", key, b"w:dead", b"5000000000 1 1 1000 7 0"))
    await store.ask([gone, Command((b"ZADD", b"{tierline:traces}:quotas", b"9999999999999", key))])


async def spent(store: RedisStore, account: str) -> int:
    [value] = await store.ask([Command((b"HGET", f"{ACCOUNT_PREFIX}{account}".encode(), b"spent"))])
    return int(value or 0)


def budgets(store: RedisStore, now: float = NOW) -> OwnerBudgets:
    return OwnerBudgets(store, {("team", "web"): Terms.model_validate({"budgets": [{"usd": 100}]})}, lambda: now)


async def test_a_reset_is_in_counter_ledger_and_trail(store: RedisStore, tmp_path: Path) -> None:
    """The counter is what the operator says; the ledger's sum is the counter's; alerts begin anew; nobody's list of
    requests has a line more."""
    await spend(store, MONTH, 24_500_000_001)
    await store.ask([Command((b"SET", f"{MARK}{MONTH}".encode(), b"25000000000 800"))])
    [month] = await budgets(store).reset(("key", "k_1"), 2.0, "month", WHY)
    assert month.spent == await spent(store, MONTH) == 2_000_000_000
    assert await store.get(f"{MARK}{MONTH}") is None
    archive = LiveArchive(tmp_path, store)
    await archive.catch_up()
    found = await usage_lines(archive, UsageQuery(0, 1e12))
    assert [line["entry"] for line in found["lines"]] == ["reset"] and found["total"]["requests"] == 0
    [entry] = found["adjustments"]
    assert entry["usd"] == pytest.approx(-22.500000001, abs=1e-12) and entry["account"] == MONTH
    assert (entry["author"], entry["reason"], entry["entry"]) == ("ann", "test traffic", "reset")
    assert await archive.newest("request_id", "true", {}, 5) == []
    await archive.aclose()
    assert await reader.latest(store, 5) == []
    [change] = (await AuditTrail(store).page(TrailFilter("budget"), "", 5))["entries"]
    said = [change[name] for name in ("by", "action", "subject", "stream", "message")]
    assert said == ["ann", "reset", MONTH, BUDGETS, "test traffic"]
    assert change["before"] == {"spent_usd": 24.500000001} and change["after"] == {"spent_usd": 2.0}


async def test_a_top_up_adds_to_one_window(store: RedisStore) -> None:
    """Also before anything is spent; with two budgets it must say which; another owner's counter stays."""
    with pytest.raises(KeysRefused, match="say by --per"):
        await budgets(store).top_up(("key", "k_1"), 10, None, WHY)
    [day] = await budgets(store).top_up(("key", "k_1"), 10, "day", WHY)
    assert day.account.name == "key:k_1/usd/2026-11-26@UTC" and day.spent == -10 * 10**9
    assert await spent(store, MONTH) == 0
    [team] = await budgets(store).top_up(("team", "web"), 1, None, WHY)
    assert team.account.name == "team:web/usd/2026-11@UTC"
    with pytest.raises(KeysRefused, match="team ops has no budget"):
        await budgets(store).top_up(("team", "ops"), 1, None, WHY)
    with pytest.raises(KeysRefused, match="key k_2 has no budget; "):
        await budgets(store).reset(("key", "k_2"), 0, None, WHY)


async def test_a_key_is_known_by_its_name(store: RedisStore) -> None:
    """What is changed is the account that its requests are counted against."""
    await KeyRegistry(store).create(
        KeyRecord("k_3", "cd" * 32, "acme", name="ada", terms=Terms(budgets=(Budget(usd=5),))), WHY
    )
    [one] = await budgets(store).top_up(("key", "ada"), 1, None, WHY)
    assert one.account.owner == "k_3"


async def test_charges_that_come_meanwhile_are_kept(store: RedisStore) -> None:
    """Resets and charges at the same time: the counter is the sum of all, and each reset saw what it replaced."""

    async def charge() -> None:
        for _ in range(100):
            await spend(store, MONTH, 1_000_000)

    [_, *done] = await asyncio.gather(
        charge(), *(budgets(store).top_up(("key", "k_1"), 1, "month", WHY) for _ in range(5))
    )
    assert len(done) == 5 and await spent(store, MONTH) == 100_000_000 - 5 * 10**9


async def test_budgets_in_use_are_those_of_running_windows(store: RedisStore) -> None:
    """The most spent first, with what workers hold; past windows, other units and odd names are none."""
    await spend(store, MONTH, 5 * 10**9, lease=10**9)
    await spend(store, "team:a%2Fb/usd/total", 9 * 10**9, 10 * 10**9)
    for other in ("key:k_1/usd/2026-10@UTC", "key:k_1/usd/2026-W01@UTC", "key:k_1/tokens", "odd"):
        await spend(store, other, 1)
    found = [
        (one.account.kind, one.account.owner, one.spent, one.account.limit, one.reserved)
        for one in await budgets(store).in_use()
    ]
    assert found == [("team", "a/b", 9 * 10**9, 10 * 10**9, 0), ("key", "k_1", 5 * 10**9, 25 * 10**9, 10**9)]


async def test_budgets_are_shown_before_anything_is_spent(store: RedisStore) -> None:
    """Those of keys, of teams with a record and of the config; each once, those in use first."""
    configured: dict[Owned, Terms] = {("tenant", "acme"): Terms.model_validate({"budgets": [{"usd": 100}]})}
    before = [(one.account.name, one.spent) for one in await OwnerBudgets(store, configured, lambda: NOW).every()]
    assert before == [("tenant:acme/usd/2026-11@UTC", 0), (MONTH, 0), ("key:k_1/usd/2026-11-26@UTC", 0)]
    await spend(store, MONTH, 5 * 10**9)
    after = [(one.account.name, one.spent) for one in await OwnerBudgets(store, configured, lambda: NOW).every()]
    assert after[0] == (MONTH, 5 * 10**9) and sorted(name for name, _ in after) == sorted(name for name, _ in before)


@pytest.mark.parametrize(
    ("name", "at", "runs"),
    [
        ("key:k/usd/2026-11-27@Asia/Tokyo", NOW, True),
        ("key:k/usd/2026-11-26@Asia/Tokyo", NOW, False),
        ("key:k/usd/2026-W48@Europe/Berlin", NOW, True),
        ("key:k/usd/total", 0.0, True),
        ("key:k/usd/2026-11@Nowhere/Land", NOW, False),
    ],
)
def test_windows_are_those_of_their_zone(name: str, at: float, runs: bool) -> None:
    """Which the name says."""
    assert (account_named(name, at) is not None) is runs


async def test_the_command_shows_and_changes(
    server: LocalStore, store: RedisStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`tierline budgets`, with the budgets of a config's teams, and what it refuses."""
    config = tmp_path / "tierline.yaml"
    config.write_text("tiers: [{name: a, backends: [{kind: scripted, script: [{reply: {text: Hello.}}]}]}]\n"
                      "teams: {web: {limits: {budgets: [{usd: 100}]}}}\n")  # fmt: skip

    async def run(*words: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["budgets", *words, "--store", server.url])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, out = await run(
        "topup", "team:web", "7.5", "-m", "release", "--author", "bo", "--config", str(config), "--json"
    )
    assert code == 0 and orjson.loads(out)["budgets"][0]["spent_usd"] == -7.5
    code, out = await run("show", "k_1")
    assert code == 0 and out.count("key:k_1") == 2 and "$25.00" in out
    assert (await run("reset", "k_1", "--to", "3", "-m", "so"))[0] == 0
    assert "$3.00" in (await run("show", "k_1"))[1]
    code, out = await run("reset", "user:u1", "-m", "so")
    assert code == 2 and "user u1 has no budget; " in out


async def test_what_workers_lease_is_reserved(store: RedisStore) -> None:
    """With the limit that they hold requests to; also of budgets without an end, and of end users, who can be reset."""
    leases = QuotaLeases(store)
    told: dict[str, int] = {}
    leases.on_spent = lambda account, nanodollars: told.update({account.name: nanodollars})
    total = Terms.model_validate({"budgets": [{"usd": 10, "per": "total"}]})
    user: Owned = ("user", "key:k_1:0a1b")
    accounts = [OwnerAccounts(kind, name, total).money(NOW)[0] for kind, name in (("team", "web"), user)]
    entered = await leases.wait(accounts, Demand(0, 10**8, 10**8, 10**9))
    assert isinstance(entered, Entered)
    found = {one.account.kind: one for one in await budgets(store).in_use()}
    assert found["team"].account.limit == 10 * 10**9 and found["team"].spent == 0
    assert all(one.reserved == 10**8 for one in found.values()) and told == {one.name: 0 for one in accounts}
    await budgets(store).reset(user, 3, None, WHY)
    leases.settle(entered)
    await leases.aclose()
    after = {one.account.kind: (one.spent, one.reserved) for one in await budgets(store).in_use()}
    assert after == {"team": (0, 0), "user": (3 * 10**9, 0)} and told[accounts[1].name] == 3 * 10**9
