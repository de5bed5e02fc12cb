"""`tierline usage` as an operator runs it, over records in files and in a real store."""

from __future__ import annotations

import asyncio
import csv
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from cache.store.base import Append, Command
from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.access.keys.budgets import OwnerBudgets
from gateway.parts.access.keys.records import KeyRecord
from gateway.parts.access.keys.registry import KeyRegistry, Why
from gateway.parts.access.quotas.terms import Budget, Terms
from gateway.parts.ledger.columns import REQUESTS
from gateway.parts.ledger.folder import TableFiles
from gateway.telemetry import names
from gateway.telemetry.ledger import ACCOUNT_PREFIX, SHADOW, TRACES, Ledger, ledger_blob
from gateway.telemetry.trace import Trace
from tests.gateway.telemetry.conftest import server, store
from tests.parts.access.keys.test_budgets import spend
from tests.parts.ledger.test_keeper import keep
from tests.support.ports import free_port
from tests.support.store import LocalStore

__all__ = ["server", "store"]

BERLIN_EVENING = 1_793_491_199.5
"""31 October 2026, 23:59:59.5 in UTC, which is 1 November in Berlin."""
NOVEMBER = 1_793_491_200.0
"""1 November 2026, 00:00 in UTC."""
FOCUS = Path(__file__).parent.parent.parent / "fixtures" / "focus-1.2.json"


async def used(store: RedisStore, ledgers: Iterable[tuple[float, Ledger]], **gone: Any) -> None:
    """Record requests that began at these times, in Unix seconds; `gone` are fields that their version had not."""
    for started, ledger in ledgers:
        trace = Trace(names.REQUEST)
        trace.root.end()
        record = orjson.loads(ledger_blob(trace, ledger))
        record["started"] = started
        for name in gone:
            del record["ledger"][name]
        await store.apply([Append(TRACES, orjson.dumps(record), 100_000)])


def one(number: int, key: str = "k_1", team: str = "web", usd: float = 0.01, **ledger: Any) -> Ledger:
    """A request of a key that was charged what it cost."""
    known: dict[str, Any] = {
        "tenant": "acme", "team": team, "key": key, "surface": "chat", "tier": "local", "model": "m", "status": 200,
        "path": "direct", "tokens_in": 100, "tokens_out": 20, "cost_usd": usd, "charged_usd": usd,
    }  # fmt: skip
    return Ledger(f"req-{number}", **(known | ledger))


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = await asyncio.to_thread(main, ["usage", *arguments])
    said = capsys.readouterr()
    assert said.err == "" or code, said.err
    return code, said.out + said.err


async def in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out = await run(capsys, *arguments, "--json")
    assert code == 0, out
    return orjson.loads(out)


@pytest.fixture
async def at(server: LocalStore, store: RedisStore, tmp_path: Path) -> tuple[str, ...]:
    """Requests of three keys: two in a segment, two in the hot file, the rest in the store alone."""
    await used(store, [(NOVEMBER + 10, one(1)), (NOVEMBER + 20, one(2, "k_2", usd=0.001))])
    await keep(store, tmp_path)
    files = TableFiles(tmp_path, REQUESTS)
    files.rotate()
    files.close()
    await used(store, [(NOVEMBER + 30, one(3, user="u1")), (NOVEMBER + 86400 * 2, one(4, surface="chat/embeddings"))])
    await keep(store, tmp_path)
    rest = [
        one(5, "k_3", team="ops", usd=0.2, cost_unknown=True),
        one(6, usd=0.0, path="cache-exact", list_usd=0.05),
        one(7, "k_2", usd=0.0, tier="odd", cost_unknown=True),
        one(8, arm=SHADOW, usd=9.0),
    ]
    await used(store, [(NOVEMBER + 40, ledger) for ledger in rest])
    await used(store, [(BERLIN_EVENING, one(9, "k_9", usd=0.5))])
    return "--store", server.url, "--dir", str(tmp_path)


async def test_every_record_counts_once(at: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Of files, of the hot file and of the store, with hits at list price beside; shadows are the operator's."""
    found = await in_json(capsys, "--month", "2026-11", *at)
    lines = {line["key"]: (line["requests"], line["charged_usd"], line["list_usd"]) for line in found["lines"]}
    assert lines == {"k_3": (1, 0.2, 0), "k_1": (4, 0.03, 0.05), "k_2": (2, 0.001, 0)}
    assert found["total"]["charged_usd"] == pytest.approx(0.231, abs=1e-12)
    assert found["total"]["tokens_in"] == 700 and found["covers"]["records"] == 9 and not found["covers"]["missing"]


async def test_what_is_asked_for_is_grouped_and_chosen(at: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """By several columns, of one team or end user, by the days of a time zone, and between two times."""
    found = await in_json(capsys, "--month", "2026-11", "--by", "team,day", *at)
    assert {(line["team"], line["day"]): line["requests"] for line in found["lines"]} == {
        ("acme/ops", "2026-11-01"): 1,
        ("acme/web", "2026-11-01"): 5,
        ("acme/web", "2026-11-03"): 1,
    }
    found = await in_json(capsys, "--month", "2026-11", "--by", "tenant,team", *at)
    assert {(line["tenant"], line["team"]) for line in found["lines"]} == {("acme", "ops"), ("acme", "web")}
    for more, requests in {
        ("--team", "ops"): 1,
        ("--team", "acme/ops"): 1,
        ("--team", "other/ops"): 0,
        ("--user", "u1"): 1,
        ("--surface", "chat/embeddings"): 1,
        ("--zone", "Europe/Berlin"): 8,
    }.items():
        assert (await in_json(capsys, "--month", "2026-11", *more, *at))["total"]["requests"] == requests, more
    found = await in_json(capsys, "--since", "2026-11-03", "--until", "2026-11-04", *at)
    assert found["total"]["requests"] == 1


async def test_a_key_is_chosen_by_its_name(
    at: tuple[str, ...], store: RedisStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the other commands; an id works too, also of a key that is not there any more."""
    await KeyRegistry(store).create(KeyRecord("k_3", "ab" * 32, "acme", name="ada"), Why("tester"))
    for name, requests in (("ada", 1), ("k_3", 1), ("k_1", 4)):
        assert (await in_json(capsys, "--month", "2026-11", "--key", name, *at))["total"]["requests"] == requests


async def test_what_is_not_known_is_not_zero(at: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """A call whose price nobody states is named, in the cells and below."""
    _, out = await run(capsys, "--month", "2026-11", "--by", "tier", *at)
    cells = {line.split()[0]: re.split(r"  +", line.strip()) for line in out.splitlines() if line.strip()}
    assert cells["odd"][5] == "not known (1)" and cells["local"][5] == "$0.231 + not known (1)"
    assert "2 requests called a backend whose price nobody states" in out


async def test_records_of_older_versions_count_by_their_cost(
    server: LocalStore, store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have no key and charged nobody; a damaged segment is named, and the rest is counted."""
    new = dict.fromkeys(("team", "key", "user", "charged_usd", "list_usd"))
    await used(store, [(NOVEMBER + 5, one(1, usd=0.25))], **new)
    await keep(store, tmp_path)
    files = TableFiles(tmp_path, REQUESTS)
    files.rotate()
    files.close()
    at = ("--store", server.url, "--dir", str(tmp_path), "--month", "2026-11")
    found = await in_json(capsys, *at)
    assert [(line["key"], line["charged_usd"], line["older"]) for line in found["lines"]] == [("", 0.25, 1)]
    await used(store, [(NOVEMBER + 6, one(2))])
    [segment] = tmp_path.glob("requests-*.parquet")
    segment.write_bytes(segment.read_bytes()[:-300])
    _, out = await run(capsys, *at)
    assert f"{segment}isdamaged" in "".join(out.split()) and "$0.26" in out, "the store still has what was in it"


async def test_files_have_what_is_printed(
    at: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV and Parquet have the lines, and their money adds up to the total exactly."""
    table, parquet = tmp_path / "u.csv", tmp_path / "u.parquet"
    found = await in_json(
        capsys, "--month", "2026-11", "--by", "key,model", "--csv", str(table), "--parquet", str(parquet), *at
    )
    with table.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == len(found["lines"]) and {row["entry"] for row in rows} == {"usage"}
    with duckdb.connect() as database:
        [[total]] = database.execute(f"SELECT sum(charged_usd) FROM '{parquet}'").fetchall()
    assert str(total) == "0.231000000" and sum(float(row["charged_usd"]) for row in rows) == pytest.approx(0.231)


@pytest.mark.parametrize("model", ["=HYPERLINK(1)", "+1", "-1", "@x", "\t=1", "\r=1"])
async def test_a_clients_own_words_are_no_formula(
    model: str, store: RedisStore, server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client names the model of an embedding; a spreadsheet that opens the file computes nothing."""
    await used(store, [(NOVEMBER + 10, one(1, usd=0.5)), (NOVEMBER + 10, one(2, model=model))])
    table, files = tmp_path / "u.csv", ("--store", server.url, "--dir", str(tmp_path))
    code, out = await run(capsys, "--month", "2026-11", "--by", "model,key", "--csv", str(table), *files)
    assert code == 0, out
    with table.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["model"] for row in rows] == ["m", f"'{model}"]
    assert [float(row["charged_usd"]) for row in rows] == [0.5, 0.01]


async def test_focus_files_are_as_the_specification_has_them(
    at: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every mandatory column is there, every name is one of the specification or begins with `x_`, none that may not is
    empty, and values of closed sets are of them."""
    spec = orjson.loads(FOCUS.read_bytes())
    file = tmp_path / "focus.csv"
    await run(capsys, "--month", "2026-11", "--focus", str(file), *at)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    columns = set(rows[0])
    assert {name for name in columns if not name.startswith("x_")} <= spec["columns"].keys()
    assert {name for name, of in spec["columns"].items() if of["level"] == "Mandatory"} <= columns
    for row in rows:
        for name, of in spec["columns"].items():
            if name in row:
                assert row[name] or of["nulls"], (name, row)
                assert not row[name] or row[name] in of.get("values", [row[name]]), (name, row)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["ChargePeriodEnd"]) for row in rows)
    assert sum(float(row["BilledCost"]) for row in rows) == pytest.approx(0.231)
    assert sum(float(row["ListCost"]) for row in rows) == pytest.approx(0.281)
    assert {(row["ResourceId"], row["SubAccountId"]) for row in rows} == {
        ("k_1", "web"),
        ("k_2", "web"),
        ("k_3", "ops"),
    }
    assert orjson.loads(rows[0]["Tags"])["key"] == "k_3"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--by", "color"), "there is no usage by 'color'"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--month", "2026-11", "--since", "1d"), "--month says both ends"),
        (("--since", "2026-11-02", "--until", "2026-11-01"), "--until is not after --since"),
    ],
)
async def test_what_cannot_be_asked_is_said(
    arguments: tuple[str, ...], says: str, server: LocalStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to write instead."""
    try:
        code, out = await run(capsys, *arguments, "--store", server.url)
    except SystemExit:
        code, out = 2, capsys.readouterr().err
    assert code and says in out


async def test_counters_are_compared_with_the_ledger(
    server: LocalStore, store: RedisStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the nanodollar, adjustments included; each account that differs is named, and one whose counter is gone."""
    accounts = ("key:k_1/usd/total", "team:web/usd/total")
    now = time.time()
    await used(store, [(now, one(n, usd=0.1, accounts=accounts)) for n in range(3)])
    await keep(store, tmp_path)
    await used(store, [(now, one(9, usd=0.000000001, accounts=accounts[:1]))])
    for account, nanodollars in zip(accounts, (300_000_001, 300_000_000), strict=True):
        await spend(store, account, nanodollars)
    team = OwnerBudgets(store, {("team", "web"): Terms.model_validate({"budgets": [{"usd": 1, "per": "total"}]})})
    await team.reset(("team", "web"), 0.05, None, Why("ann", "so"))
    at = ("--check", "--store", server.url, "--dir", str(tmp_path))
    assert await run(capsys, *at) == (0, "2 counters are the sums of their records\n")
    await spend(store, accounts[0], 7)
    code, out = await run(capsys, *at)
    assert code == 1 and "1 of 2 counters differ" in out
    assert re.search(r"key:k_1/usd/total +\$0\.300000008 +\$0\.300000001 +\$\+0\.000000007", out)
    gone = f"{ACCOUNT_PREFIX}{accounts[1]}".encode()
    await store.ask([Command((b"DEL", gone)), Command((b"ZREM", b"{tierline:traces}:quotas", gone))])
    code, out = await run(capsys, *at, "--json")
    assert {one["account"]: one["counter_usd"] for one in orjson.loads(out)["differing"]}[accounts[1]] is None


async def test_a_store_that_is_away_leaves_what_files_have(
    at: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said that the newest records are not counted."""
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    found = await in_json(capsys, "--month", "2026-11", "--store", nobody, *at[2:])
    assert found["total"]["requests"] == 4 and "the store does not answer" in " ".join(found["notes"])


@pytest.mark.parametrize("flag", ["--csv", "--parquet", "--focus"])
def test_a_file_that_cannot_be_written_is_one_line(
    server: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """A folder that is not there, and a file in its place."""
    (tmp_path / "plain").write_text("")
    for file in (tmp_path / "gone" / "u.csv", tmp_path / "plain" / "u.csv"):
        assert main(["usage", flag, str(file), "--store", server.url, "--dir", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"{file} cannot be written" in said, said


async def test_keys_have_names_and_lines_their_surfaces(
    at: tuple[str, ...], store: RedisStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the ids, in the table too; a key that is gone, or has no name, has none."""
    await KeyRegistry(store).create(KeyRecord("k_2", "cd" * 32, "acme", "web", name="ada's agent"), Why("tester"))
    found = await in_json(capsys, "--month", "2026-11", *at)
    lines = {line["key"]: line for line in found["lines"]}
    assert (lines["k_2"]["name"], lines["k_2"]["surfaces"]) == ("ada's agent", "chat")
    assert (lines["k_1"]["name"], lines["k_1"]["surfaces"]) == ("", "chat, chat/embeddings")
    assert await asyncio.to_thread(main, ["usage", "--month", "2026-11", *at]) == 0
    text = capsys.readouterr().out
    assert "ada's agent" in text and "chat/embeddings" in text and " owed" not in text
    assert await asyncio.to_thread(main, ["usage", "--month", "2026-11", "--by", "tier", *at]) == 0
    assert " owed" in capsys.readouterr().out


async def test_budgets_of_keys_have_names_and_surfaces(
    server: LocalStore, store: RedisStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the ids, in the table and in JSON; one of all surfaces says so."""
    terms = Terms(budgets=(Budget(usd=25, per="month"),))
    registry = KeyRegistry(store)
    for id_, name, surfaces in (("k_21", "nightly job", ("batch",)), ("k_22", "", ())):
        await registry.create(
            KeyRecord(id_, id_[2:] * 32, "acme", name=name, surfaces=surfaces, terms=terms), Why("tester")
        )
    assert await asyncio.to_thread(main, ["budgets", "show", "--store", server.url, "--json"]) == 0
    shown = {one["owner"]["name"]: one for one in orjson.loads(capsys.readouterr().out)["budgets"]}
    assert (shown["k_21"]["name"], shown["k_21"]["surfaces"]) == ("nightly job", ["batch"])
    assert (shown["k_22"]["name"], shown["k_22"]["surfaces"]) == ("", [])
    assert await asyncio.to_thread(main, ["budgets", "show", "--store", server.url]) == 0
    text = capsys.readouterr().out
    assert "nightly job" in text and "batch" in text and "all" in text
