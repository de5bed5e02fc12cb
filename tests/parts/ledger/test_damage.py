"""A ledger whose files are damaged: what can be read is shown, what cannot is named and counted, and nothing stops."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import pytest
import redis

from cache.store.redis_store import RedisStore
from gateway.parts.ledger.columns import FEEDBACK, LABELS, REQUESTS
from gateway.parts.ledger.folder import BASES, TableFiles, known_bases, segment_path, segments_of
from gateway.parts.ledger.query import ask, connect
from gateway.parts.ledger.summaries import VALUES
from gateway.telemetry.ledger import TRACES
from tests.gateway.telemetry.conftest import server, store
from tests.parts.ledger.test_keeper import expected, ids, keep, record
from tests.parts.ledger.test_live import becomes, live
from tests.parts.ledger.test_live import ids as live_ids
from tests.support.store import LocalStore

__all__ = ["server", "store"]


def other_schema(columns: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        file.unlink()
        duckdb.sql(f"SELECT {columns}").write_parquet(str(file))

    return write


def wrong_page(file: Path) -> None:
    """Overwrite the pages of all columns, and leave the footer as it was: only who reads them can tell."""
    data = bytearray(file.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4:-footer] = os.urandom(len(data) - 4 - footer)
    file.write_bytes(data)


PLACE = "1::BIGINT AS entry_ms, 1::BIGINT AS entry_seq, 1::BIGINT AS ordinal"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "other magic": lambda file: file.write_bytes(file.read_bytes()[:-4] + b"XXXX"),
    "other columns": other_schema("1 AS a"),
    "other types": other_schema(f"{PLACE}, 'now' AS started, 'me' AS tenant"),
    "page": wrong_page,
}


Segments = Callable[..., Awaitable[list[Path]]]


@pytest.fixture(scope="module")
def made() -> dict[int, tuple[Path, bytes]]:
    """Ledgers that were made for the tests so far, and the records of their requests, by their number of segments."""
    return {}


@pytest.fixture
def segments(
    server: LocalStore,
    store: RedisStore,
    made: dict[int, tuple[Path, bytes]],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Segments:
    """Give the segments of a ledger in `tmp_path`: ten requests in each, and ten more in the hot file."""

    async def copied(count: int = 3) -> list[Path]:
        with redis.Redis.from_url(server.url) as client:
            if count not in made:
                folder = tmp_path_factory.mktemp("ledger")
                await make_segments(store, folder, count)
                made[count] = folder, client.dump(TRACES)
            folder, records = made[count]
            client.restore(TRACES, 0, records, replace=True)
        shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
        return [one.path for one in segments_of(tmp_path, "requests")]

    return copied


async def make_segments(store: RedisStore, folder: Path, count: int) -> None:
    for start in range(0, (count + 1) * 10, 10):
        await record(store, start + 1, start + 10)
        await keep(store, folder)
        if start < count * 10:
            with contextlib.closing(TableFiles(folder, REQUESTS)) as files:
                files.rotate()


def without_second() -> list[str]:
    return [*expected(1, 10), *expected(21, 40)]


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_query_leaves_a_damaged_segment_out(
    store: RedisStore, segments: Segments, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All other rows are found; the file is named once in the log and, with the reason, in the view `segments`."""
    second = (await segments())[1]
    DAMAGE[kind](second)
    assert ids(tmp_path) == without_second()
    assert [record.getMessage().partition(" is damaged and is left out: ")[0] for record in caplog.records] == [
        str(second)
    ]
    with connect(tmp_path) as database:
        ask(database, "SELECT max(hash(COLUMNS(*))) FROM requests")
        found = ask(database, 'SELECT "table", file, damaged FROM segments WHERE damaged IS NOT NULL').fetchall()
    [(table, file, why)] = found
    assert (table, file) == ("requests", str(second)) and why


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_reader_starts_without_a_damaged_segment(
    store: RedisStore, segments: Segments, tmp_path: Path, kind: str
) -> None:
    """A process that serves readers has all other rows and their summaries, and tells what is missing."""
    second = (await segments())[1]
    DAMAGE[kind](second)
    async with live(tmp_path, store) as archive:
        await becomes(lambda: live_ids(archive), without_second())
        assert list(archive.damaged) == [second]
        rows = await archive.newest("request_id", "surface = $surface", {"surface": "chat"}, 99)
        assert sorted(row["request_id"] for row in rows) == sorted(without_second())
        counted = f"SELECT value FROM {VALUES.name} WHERE name = 'surface'"
        assert {row["value"] for row in await archive.ask(counted, from_ms=0, summaries=(VALUES,))} == {"chat"}


@pytest.mark.parametrize("kind", ["empty", "page"])
async def test_a_segment_damaged_while_it_is_read_is_left_out(
    store: RedisStore, segments: Segments, tmp_path: Path, kind: str
) -> None:
    """Queries that meet it are answered from the rest, as soon as the folder has been looked at."""
    second = (await segments())[1]
    async with live(tmp_path, store) as archive:
        assert await live_ids(archive) == expected(1, 40)
        DAMAGE[kind](second)
        assert await live_ids(archive) == without_second()
        assert list(archive.damaged) == [second]


@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_keeper_goes_on_beside_a_damaged_segment(
    store: RedisStore, segments: Segments, tmp_path: Path, kind: str
) -> None:
    """It says so once, sets it aside for as long as others stay, and reads the newest again from the store."""
    first, _, third = await segments()
    for file in (first, third):
        DAMAGE[kind](file)
    (tmp_path / "requests.jsonl").unlink()
    said = await keep(store, tmp_path)
    assert sum("is damaged and was set aside" in line for line in said) == (1 if kind == "page" else 2)
    assert f"{third} is damaged" in "".join(said)
    await record(store, 41, 50)
    assert await keep(store, tmp_path) == []
    assert ids(tmp_path)[-40:] == expected(11, 50)
    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        files.rotate()
        with contextlib.suppress(OSError):  # it merges around a page that is damaged, the next time
            files.merge(2, 1 << 30)
        files.merge(2, 1 << 30)
        assert ids(tmp_path) == expected(11, 50)
        aside = sorted(file.name for file in tmp_path.glob("*.damaged"))
        assert aside == [f"{first.name}.damaged", f"{third.name}.damaged"]
        assert files.drop_before(1e12) == 3
    assert not list(tmp_path.glob("*.parquet*"))


async def test_every_table_may_be_damaged(store: RedisStore, segments: Segments, tmp_path: Path) -> None:
    """Feedback and labels, too: pages on them show the rest, and the keeper of that table goes on."""
    await segments(1)
    for one in (FEEDBACK, LABELS, REQUESTS):
        segment_path(tmp_path, one, (1, 0), (2, 0)).write_bytes(b"PAR1 half a fi")
    assert ids(tmp_path) == expected(1, 20)
    with connect(tmp_path) as database:
        ask(database, "SELECT * FROM labels, shadow_labels, feedback")
    async with live(tmp_path, store) as archive:
        assert len(archive.damaged) == 3
        assert await archive.ask("SELECT count(*) AS n FROM labels") == [{"n": 0}]
    assert await keep(store, tmp_path)


@pytest.mark.parametrize("line", [b"not json", b"\0" * 40, b"[1]", b'{"entry_ms": "x"}', b"{}", b'{"half'])
async def test_damaged_lines_of_the_hot_file_are_left_out(
    store: RedisStore, segments: Segments, tmp_path: Path, line: bytes
) -> None:
    """Readers pass over them and say so; the keeper moves them aside, where they may be mended, and goes on."""
    await segments(1)
    hot = tmp_path / "requests.jsonl"
    whole = hot.read_bytes().splitlines(keepends=True)
    hot.write_bytes(b"".join([*whole[:4], line + b"\n", *whole[4:]]))
    assert ids(tmp_path) == expected(1, 20)
    async with live(tmp_path, store) as archive:
        assert await live_ids(archive) == expected(1, 20)
        assert list(archive.damaged) == [hot]
    await record(store, 21, 21)
    said = await keep(store, tmp_path)
    assert "1 lines were damaged, and are in requests.jsonl.damaged now" in "".join(said)
    assert (tmp_path / "requests.jsonl.damaged").read_bytes() == line + b"\n"
    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        assert not files.damaged
        files.rotate()
    assert ids(tmp_path) == expected(1, 21)


async def test_a_damaged_basis_is_read_again(store: RedisStore, segments: Segments, tmp_path: Path) -> None:
    """Bases that cannot be read are passed over, and the keeper fetches those that requests name again."""
    await segments(1)
    names = known_bases(tmp_path)
    bases = tmp_path / BASES
    bases.write_bytes(b"not json\n" + b'{"id":"x","basis":\n')
    assert known_bases(tmp_path) == set()
    assert ids(tmp_path) == expected(1, 20)
    async with live(tmp_path, store) as archive:
        assert await live_ids(archive) == expected(1, 20)
    await record(store, 21, 21)
    await keep(store, tmp_path)
    assert known_bases(tmp_path) == names
    with connect(tmp_path) as database:
        assert len(ask(database, "SELECT * FROM bases").fetchall()) == len(names)
