"""The ledger in files: every record once, whatever is killed and whenever."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from cache.store.base import Append, Command, StoreUnavailable
from cache.store.redis_store import RedisStore
from gateway.parts.ledger.columns import FEEDBACK, LABEL, LEDGER, REQUESTS, TABLES
from gateway.parts.ledger.folder import ArchiveError, TableFiles, locked, segments_of
from gateway.parts.ledger.keeper import Keeper, Rotation
from gateway.parts.ledger.query import QueryError, ask, ask_typed, connect
from gateway.parts.measures import feedback
from gateway.parts.measures.feedback import Feedback
from gateway.parts.measures.label import PairLabel
from gateway.parts.recorder.decision_record import DecisionRecorder
from gateway.telemetry.ledger import TRACES, CallAccount, Ledger, ledger_blob
from tests.gateway.telemetry.conftest import server, store
from tests.gateway.telemetry.requests_made import escalated
from tests.support.redis_script import scripted_redis
from tests.support.store import UNHURRIED
from tests.support.wait import eventually

__all__ = ["server", "store"]

NEVER = Rotation(after_s=1e9)


async def record(store: RedisStore, first: int, last: int, keep: int = 100_000, **ledger: Any) -> None:
    """Append the records of requests `req-FIRST` to `req-LAST`."""
    recorder = DecisionRecorder({})
    for number in range(first, last + 1):
        trace, made = escalated(f"req-{number}", **ledger)
        await store.apply([Append(TRACES, ledger_blob(trace, made, recorder), keep)])


async def keep(store: RedisStore, folder: Path, rotation: Rotation = NEVER) -> list[str]:
    """Catch up once, as a keeper that starts and stops; return what it said."""
    said: list[str] = []
    with locked(folder):
        await Keeper(store, folder, rotation, said.append).catch_up()
    return said


def ids(folder: Path) -> list[str]:
    with connect(folder) as database:
        rows = ask(database, "SELECT request_id FROM requests ORDER BY entry_ms, entry_seq").fetchall()
    return [name for (name,) in rows]


def expected(first: int, last: int) -> list[str]:
    return [f"req-{number}" for number in range(first, last + 1)]


def test_every_field_of_the_ledger_has_a_column() -> None:
    """A field that is added to the ledger is added to the files too."""
    assert list(LEDGER) == [field.name for field in fields(Ledger) if not field.name.startswith("_")]
    calls = LEDGER["calls"].removeprefix("STRUCT(").removesuffix(")[]")
    assert [part.split()[0] for part in calls.split(", ")] == [field.name for field in fields(CallAccount)]
    assert list(LABEL) == [field.name for field in fields(PairLabel)]
    assert {name for name in FEEDBACK.columns if not name.startswith("entry") and name != "ordinal"} == {
        "given_at" if field.name == "at" else field.name for field in fields(Feedback)
    }


async def test_a_record_is_found_as_it_was(store: RedisStore, tmp_path: Path) -> None:
    """From the hot file, and from the segment that it becomes, every field has the value that was recorded."""
    trace, ledger = escalated("req-1")
    await store.apply([Append(TRACES, ledger_blob(trace, ledger), 100)])
    await keep(store, tmp_path)
    want: dict[str, Any] = orjson.loads(ledger_blob(trace, ledger))
    for rotated in (False, True):
        if rotated:
            with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
                files.rotate()
            assert len(segments_of(tmp_path, "requests")) == 1
        with connect(tmp_path) as database:
            result = ask(database, "SELECT * FROM requests")
            row = dict(zip([column[0] for column in result.description], result.fetchone(), strict=True))
        for name in LEDGER:
            assert row[name] == want["ledger"][name], name
        assert row["started_s"] == want["started"] and row["trace_id"] == want["trace_id"]
        assert orjson.loads(row["hops"]) == want["hops"]


async def test_each_record_is_kept_once(store: RedisStore, tmp_path: Path) -> None:
    """A keeper that starts again goes on where the files end, over hot rows, segments and merged segments."""
    for start in range(0, 60, 10):
        await record(store, start + 1, start + 10)
        await keep(store, tmp_path)
        if start < 50:
            with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
                files.rotate()
        assert ids(tmp_path) == expected(1, start + 10)
    assert len(segments_of(tmp_path, "requests")) == 5
    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        assert files.merge(16, 1 << 30) is None
        assert files.merge(4, 1 << 30) is not None
    assert len(segments_of(tmp_path, "requests")) == 1
    assert ids(tmp_path) == expected(1, 60)


async def test_a_keeper_killed_at_any_moment_leaves_every_record_once(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a line, between a segment and the end of its hot file, and within a merge."""
    await record(store, 1, 6)
    await keep(store, tmp_path)
    hot = tmp_path / "requests.jsonl"
    whole = hot.read_bytes()
    hot.write_bytes(whole[:-20])  # the last line is torn
    await keep(store, tmp_path)
    assert ids(tmp_path) == expected(1, 6)

    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        files.rotate()
    hot.write_bytes(whole)  # the segment is there, and the hot file still holds its rows
    assert ids(tmp_path) == expected(1, 6)
    await record(store, 7, 8)
    await keep(store, tmp_path)
    assert ids(tmp_path) == expected(1, 8)

    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        files.rotate()
        with monkeypatch.context() as patched:
            patched.setattr(TableFiles, "_drop_merged", lambda _: None)
            assert files.merge(2, 1 << 30) is not None
    assert len(list(tmp_path.glob("requests-*.parquet"))) == 3  # the merged one, and the two that it is made of
    (tmp_path / "requests-1.parquet.draft").write_bytes(b"half")
    assert ids(tmp_path) == expected(1, 8)
    await keep(store, tmp_path)
    assert len(list(tmp_path.glob("requests-*"))) == 1
    assert ids(tmp_path) == expected(1, 8)


async def test_a_full_disk_writes_no_record_twice(
    store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of a page before the disk was full is taken back, since the page is read again."""
    await record(store, 1, 3)
    await keep(store, tmp_path)
    await record(store, 4, 9)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("gateway.parts.ledger.folder.os.fdatasync", full)
        with pytest.raises(OSError, match="No space"):
            await keep(store, tmp_path)
    assert ids(tmp_path) == expected(1, 3)
    await keep(store, tmp_path)
    assert ids(tmp_path) == expected(1, 9)


async def test_lost_entries_are_counted(store: RedisStore, tmp_path: Path) -> None:
    """What the store trimmed before it was read is a number, in words and in the rows' ordinals."""
    await record(store, 1, 10)
    assert await keep(store, tmp_path) == []
    await record(store, 11, 30)
    await store.ask([Command((b"XTRIM", TRACES.encode(), b"MAXLEN", b"5"))])
    said = await keep(store, tmp_path)
    assert len(said) == 1 and said[0].startswith("requests: 15 entries had left the store")
    assert ids(tmp_path) == [*expected(1, 10), *expected(26, 30)]
    with connect(tmp_path) as database:
        gap = ask(database, "SELECT max(ordinal) - min(ordinal) + 1 - count(*) FROM requests").fetchone()
    assert gap == (15,)
    await record(store, 31, 31)
    assert await keep(store, tmp_path) == []


async def test_segments_are_rotated_merged_and_deleted_in_time(store: RedisStore, tmp_path: Path) -> None:
    """By size and age; a segment goes when its last record is older than what is to be kept."""
    await record(store, 1, 3)
    with locked(tmp_path):
        keeper = Keeper(store, tmp_path, Rotation(hot_bytes=1), lambda _: None)
        await keeper.catch_up()
        with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
            keeper._tidy(files)
            assert files.hot_bytes == 0 and len(segments_of(tmp_path, "requests")) == 1
            last = segments_of(tmp_path, "requests")[0].last[0] / 1000
            assert files.drop_before(last - 1) == 0
            assert files.drop_before(last + 1) == 1
    assert ids(tmp_path) == []


async def test_the_latest_feedback_counts(store: RedisStore, tmp_path: Path) -> None:
    """The view `feedback` has one line for a request."""
    one = Feedback("req-1", "acme", "chat", 1.0, None, 5.0)
    for entry in (one, replace(one, score=0.0, comment="wrong", at=6.0), replace(one, tenant="zeta")):
        await store.apply([Append(feedback.STREAM, entry.encode(), 100)])
    await keep(store, tmp_path)
    with connect(tmp_path) as database:
        rows = ask(database, "SELECT tenant, score, comment FROM feedback ORDER BY tenant").fetchall()
        assert ask(database, "SELECT count(*) FROM feedback_all").fetchone() == (3,)
    assert rows == [("acme", 0.0, "wrong"), ("zeta", 1.0, None)]


async def test_a_query_reads_the_archive_alone(store: RedisStore, tmp_path: Path) -> None:
    """No other file, no network, no settings; a mistake is an error with DuckDB's words."""
    await record(store, 1, 1)
    folder = tmp_path / "ledger"
    await keep(store, folder)
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with connect(folder) as database:
        for sql in (
            f"SELECT * FROM '{secret}'",
            f"FROM read_text('{folder / 'lock'}')",
            "FROM read_csv('http://x.y/z')",
        ):
            with pytest.raises(QueryError):
                ask_typed(database, sql)
        with pytest.raises(QueryError, match="surfaces"):
            ask_typed(database, "SELECT surfaces FROM requests")


async def test_a_query_that_somebody_typed_writes_nothing(store: RedisStore, tmp_path: Path) -> None:
    """Neither into the ledger's folder, over a segment, nor elsewhere, in whatever it is wrapped; reading goes on."""
    await record(store, 1, 1)
    await keep(store, tmp_path)
    with contextlib.closing(TableFiles(tmp_path, REQUESTS)) as files:
        segment = files.rotate().path
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    copies = [f"COPY (SELECT 1) TO '{file}'" for file in (tmp_path / "requests.jsonl", segment, tmp_path.parent / "x")]
    wrapped = [form.format(copy) for copy in copies for form in (
        "{}", "EXPLAIN ANALYZE {}", "explain  analyze\n{}", "/* */ EXPLAIN ANALYZE {}", "EXPLAIN /* */ ANALYZE {}",
        "SELECT 1; {}", "PREPARE p AS {}", "SELECT * FROM ({})", "WITH x AS ({}) FROM x", "EXPLAIN (ANALYZE) {}",
    )]  # fmt: skip
    further = ["DROP VIEW requests", "SET threads = 9", f"EXPORT DATABASE '{tmp_path / 'out'}'", "INSTALL x", "", ";",
               f"ATTACH '{tmp_path / 'new.db'}'", "CREATE PERSISTENT SECRET s (TYPE s3)", "EXECUTE p"]  # fmt: skip
    with connect(tmp_path) as database:
        for sql in (*wrapped, *further):
            with pytest.raises(QueryError):
                ask_typed(database, sql)
        for sql in ("FROM requests", "DESCRIBE requests", "SUMMARIZE requests", "EXPLAIN ANALYZE FROM requests",
                    "WITH x AS (FROM requests) FROM x", "-- a comment\nSELECT 1;"):  # fmt: skip
            assert ask_typed(database, sql).fetchall(), sql
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


async def test_one_keeper_at_a_time(store: RedisStore, tmp_path: Path) -> None:
    """Two would write every record twice."""
    with locked(tmp_path), pytest.raises(ArchiveError, match="another process"), locked(tmp_path):
        pass
    with pytest.raises(ArchiveError, match="holds no ledger"), connect(tmp_path / "none"):
        pass


async def test_a_store_that_answers_with_errors_is_tried_again(tmp_path: Path) -> None:
    """As it does while it loads its data after a restart: it is said once, and the keeper goes on."""
    said: list[str] = []
    async with scripted_redis(b"-LOADING Valkey is loading the dataset in memory\r\n") as script:
        loading = RedisStore.from_url(script.url, slack=UNHURRIED)
        keeper = Keeper(loading, tmp_path, NEVER, said.append)
        with pytest.raises(StoreUnavailable, match="loading"):
            await keeper.catch_up()
        with pytest.raises(StoreUnavailable, match="loading"):
            await keeper._keep_bases({"unknown"})
        following = asyncio.create_task(keeper.run())
        await eventually(lambda: len(said) == len(TABLES), what="each table's complaint")
        script.reply = b"*-1\r\n"  # loaded, and no entry has come yet
        await eventually(lambda: len(said) == 2 * len(TABLES), what="each table goes on")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await loading.aclose()
    assert {line.partition(":")[2] for line in said} == {
        f" the store does not answer (loading: {script.url.removeprefix('redis://')}); trying on",
        " goes on",
    }
