"""Hold the files of the archive: for each table, immutable Parquet segments and one hot file of JSON lines.

    requests-00001767225600123-000000-00001767229200456-000003.parquet    first and last entry, both included
    requests.jsonl                                                        what came since
    bases.jsonl                                                           {"id": ..., "basis": {...}}, for all time
    lock                                                                  locked (flock) while a keeper runs

A row is written once: the hot file grows, and when it is old or large it becomes a segment, in one rename. Whoever
reads takes the segments first, and of the hot file only what is after the last of them; so the moment in between, in
which both hold a row, shows to nobody, and neither does a crash then. Likewise a segment that lies within another's
entries is what a merge has left behind: it does not count, and the next keeper deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from gateway.cli.commands import CommandError
from gateway.parts.ledger.damage import why_damaged

if TYPE_CHECKING:
    import duckdb

    from gateway.parts.ledger.columns import Row, Table

Place = tuple[int, int]
"""The id of a stream entry: milliseconds, and a number within them."""
NOWHERE: Final[Place] = (0, 0)

BASES: Final = "bases.jsonl"
_SEGMENT: Final = re.compile(r"([a-z]+)-(\d{17})-(\d{6,})-(\d{17})-(\d{6,})\.parquet")
_DRAFT: Final = ".draft"
_DAMAGED: Final = ".damaged"
"""End of the names of files that could not be read, which count no more."""
_GROUP: Final = 16_384
"""Rows that a reader of a short time span reads at least."""


class ArchiveError(CommandError):
    """The folder cannot be used as an archive; the message says why, and what to do. A command ends with it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable Parquet file, with the places of its first and its last entry."""

    path: Path
    first: Place
    last: Place

    def within(self, other: Segment) -> bool:
        """Return whether another segment has all of its entries."""
        return self is not other and other.first <= self.first and self.last <= other.last


@dataclass(slots=True)
class _Hot:
    """The end of a hot file."""

    rows: int = 0
    size: int = 0
    first: Place = NOWHERE
    last: Place = NOWHERE
    ordinal: int = 0
    since: float = 0.0
    """Time of the first row's entry, in Unix seconds."""


class TableFiles:
    """The files of one table, for the one process that writes them."""

    def __init__(self, folder: Path, table: Table) -> None:
        """Repair what a crash has left: a torn last line, drafts, segments that a merge has replaced.

        Segments that cannot be read are renamed, and damaged lines of the hot file go to a file beside it, where they
        may be mended by hand.
        """
        self.table = table
        self.damaged: dict[Path, str] = {}
        """What could not be read and was set aside, with the reason."""
        self._folder = folder
        self._path = folder / f"{table.name}.jsonl"
        for draft in folder.glob(f"{table.name}-*{_DRAFT}"):
            draft.unlink()
        self._check(_all_segments(folder, table.name))
        self._drop_merged()
        self._hot = self._repaired()
        self._file = self._path.open("ab", buffering=0)  # what is not written must not stay in a buffer

    @property
    def last(self) -> tuple[Place, int]:
        """The place and the ordinal of the newest entry; NOWHERE and 0 if there is none.

        What came after it may be in a damaged segment; it is read again from the store, as far as that has it.
        """
        if self._hot.rows:
            return self._hot.last, self._hot.ordinal
        while segments := segments_of(self._folder, self.table.name):
            newest = segments[-1]
            if self._check([newest], whole=True):
                continue
            with _duckdb() as database:
                read = database.execute(f"SELECT max(ordinal) FROM read_parquet({quoted(newest.path)})")
                [[ordinal]] = read.fetchall()
            return newest.last, int(ordinal)
        return NOWHERE, 0

    @property
    def hot_bytes(self) -> int:
        """Size of the hot file."""
        return self._hot.size

    @property
    def hot_since(self) -> float:
        """Time of the hot file's first entry in Unix seconds; infinite if it is empty."""
        return self._hot.since if self._hot.rows else float("inf")

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows, in the order of their entries, and wait until the disk has them. Raises OSError."""
        lines = b"".join([orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows])
        hot, left = self._hot, memoryview(lines)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fdatasync(self._file.fileno())
        except OSError:
            # These entries will be read again: a row of them that is there already would then be there twice.
            os.ftruncate(self._file.fileno(), hot.size)
            raise
        if not hot.rows:
            hot.first, hot.since = _place(rows[0]), rows[0]["entry_ms"] / 1000
        hot.rows += len(rows)
        hot.size += len(lines)
        hot.last, hot.ordinal = _place(rows[-1]), rows[-1]["ordinal"]

    def rotate(self) -> Segment:
        """Make the hot file a segment and begin a new one. Raises OSError; then nothing has changed."""
        segment = self._segment(self._hot.first, self._hot.last)
        hot = f"SELECT * FROM {hot_rows(self._folder, self.table, segments_of(self._folder, self.table.name))}"
        self._write(segment.path, f"SELECT * FROM ({hot}) WHERE entry_ms IS NOT NULL")
        self._file.close()
        self._file = self._path.open("wb", buffering=0)
        self._hot = _Hot()
        return segment

    def merge(self, least: int, largest_bytes: int) -> Segment | None:
        """Make one segment of the latest that are small, if at least `least` of them lie beside each other.

        Segments are merged up to `largest_bytes` together; fewer too, where no more of them fit and they fill half of
        that: under much traffic `least` never fit. Returns the new one, None if there was nothing to do. Raises
        OSError; segments that turned out to be damaged are set aside then.
        """
        run: list[Segment] = []
        size, full = 0, False
        for segment in reversed(segments_of(self._folder, self.table.name)):
            bytes_more = segment.path.stat().st_size
            if size + bytes_more > largest_bytes:
                full = len(run) > 1 and size >= largest_bytes / 2
                break
            size += bytes_more
            run.insert(0, segment)
        if len(run) < least and not full:
            return None
        merged = self._segment(run[0].first, run[-1].last)
        paths = quoted_list(segment.path for segment in run)
        try:
            self._write(merged.path, f"SELECT * FROM read_parquet({paths}, union_by_name = true)")
        except OSError:
            self._check(run, whole=True)
            raise
        self._drop_merged()
        return merged

    def drop_before(self, oldest: float) -> int:
        """Delete segments whose last entry is older than this Unix time; return how many."""
        there = [*segments_of(self._folder, self.table.name), *set_aside(self._folder, self.table.name)]
        old = [segment for segment in there if segment.last[0] / 1000 < oldest]
        for segment in old:
            segment.path.unlink()
        return len(old)

    def close(self) -> None:
        """Close the hot file."""
        self._file.close()

    def _check(self, segments: Sequence[Segment], *, whole: bool = False) -> bool:
        """Set those of some segments aside that are damaged; return whether any is."""
        found = {}
        if segments:
            with _duckdb() as database:
                for segment in segments:
                    if why := why_damaged(database, self.table, segment.path, whole=whole):
                        segment.path.open("rb").close()  # raises OSError where files cannot be opened: no damage
                        found[segment.path] = why
                        segment.path.rename(segment.path.with_name(f"{segment.path.name}{_DAMAGED}"))
        self.damaged |= found
        return bool(found)

    def _segment(self, first: Place, last: Place) -> Segment:
        return Segment(segment_path(self._folder, self.table, first, last), first, last)

    def _write(self, path: Path, select: str) -> None:
        import duckdb

        draft = path.with_name(f"{path.name}{_DRAFT}")
        try:
            with _duckdb() as database:  # which keeps the order of the rows
                database.execute(segment_copy(select, draft))
        except duckdb.Error as error:
            draft.unlink(missing_ok=True)
            raise OSError(f"{path.name} cannot be written: {error}") from None
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
        _sync(self._folder)

    def _drop_merged(self) -> None:
        everything = _all_segments(self._folder, self.table.name)
        for segment in everything:
            if any(segment.within(other) for other in everything):
                segment.path.unlink()

    def _repaired(self) -> _Hot:
        """Return what the hot file holds after the last segment, cutting off a line that was not written to its end."""
        hot = _Hot()
        segments = segments_of(self._folder, self.table.name)
        done = segments[-1].last if segments else NOWHERE
        whole, damaged = 0, []
        self._path.touch(mode=0o600)
        with self._path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                try:
                    row = orjson.loads(line)
                    place, ordinal = _place(row), int(row["ordinal"])
                except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                    damaged.append(line)
                    continue
                if place <= done:
                    continue
                if not hot.rows:
                    hot.first, hot.since = place, place[0] / 1000
                hot.rows += 1
                hot.last, hot.ordinal = place, ordinal
        if damaged:
            self._move_away(damaged, whole)
            whole = self._path.stat().st_size
        os.truncate(self._path, whole if hot.rows else 0)
        hot.size = whole if hot.rows else 0
        return hot

    def _move_away(self, lines: Sequence[bytes], whole: int) -> None:
        """Move damaged lines, among the first `whole` bytes of the hot file, into a file where they may be mended."""
        aside = self._path.with_name(f"{self._path.name}{_DAMAGED}")
        with aside.open("ab") as file:
            file.writelines(lines)
        data = self._path.read_bytes()[:whole]
        gone = set(lines)
        draft = self._path.with_name(f"{self.table.name}-hot{_DRAFT}")
        with draft.open("wb") as file:
            file.writelines(line for line in data.splitlines(keepends=True) if line not in gone)
            os.fsync(file.fileno())
        draft.chmod(0o600)
        draft.replace(self._path)
        self.damaged[self._path] = f"{len(lines)} lines were damaged, and are in {aside.name} now"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder, readable by its owner alone, and lock it for the block. Raises ArchiveError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise ArchiveError(f"{folder} cannot be written to: {error.strerror or error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(f"another process keeps the ledger in {folder}; one at a time can") from None
        yield


def segments_of(folder: Path, table: str, damaged: Container[Path] = ()) -> list[Segment]:
    """Return a table's segments, oldest first, without those whose entries another one has, and the `damaged`."""
    everything = [segment for segment in _all_segments(folder, table) if segment.path not in damaged]
    return [segment for segment in everything if not any(segment.within(other) for other in everything)]


def set_aside(folder: Path, table: str) -> list[Segment]:
    """Return the damaged segments of a table that the keeper has renamed."""
    files = folder.glob(f"{table}-*.parquet{_DAMAGED}")
    return [replace(segment_of(file.with_suffix("")), path=file) for file in sorted(files)]


def segment_path(folder: Path, table: Table, first: Place, last: Place) -> Path:
    """Return the file of a segment with these first and last entries."""
    return folder / f"{table.name}-{first[0]:017}-{first[1]:06}-{last[0]:017}-{last[1]:06}.parquet"


def segment_of(file: Path) -> Segment:
    """Return the segment in a file. Raises ValueError if its name is not that of one."""
    match = _SEGMENT.fullmatch(file.name)
    if match is None:
        raise ValueError(f"{file.name} is not the name of a segment")
    return Segment(file, (int(match[2]), int(match[3])), (int(match[4]), int(match[5])))


def segment_copy(select: str, file: Path) -> str:
    """Return the SQL that writes the rows of a query as a segment's file."""
    # Ids have dictionaries too, and so Bloom filters, by which a file is asked for an id ten times as fast.
    options = f"COMPRESSION zstd, ROW_GROUP_SIZE {_GROUP}, DICTIONARY_SIZE_LIMIT {_GROUP}"
    return f"COPY ({select}) TO {quoted(file)} (FORMAT parquet, {options})"


def hot_rows(folder: Path, table: Table, segments: Sequence[Segment]) -> str:
    """Return the SQL of the rows in the hot file that are in none of its segments; a damaged line is a row of NULL."""
    ms, number = segments[-1].last if segments else NOWHERE
    read = read_lines(folder / f"{table.name}.jsonl", table.columns)
    return f"{read} WHERE (entry_ms, entry_seq) > ({ms}, {number}) OR entry_ms IS NULL"


def read_lines(file: Path, columns: Mapping[str, str]) -> str:
    """Return the SQL of a file of JSON lines; where one is damaged, all or some of its columns are NULL."""
    kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    options = "format = 'newline_delimited', ignore_errors = true, maximum_object_size = 33554432"
    return f"read_json({quoted(file)}, columns = {{{kinds}}}, {options})"


def quoted(path: Path) -> str:
    """Return a path as an SQL text."""
    return "'" + str(path).replace("'", "''") + "'"


def quoted_list(paths: Iterable[Path]) -> str:
    """Return paths as an SQL list of texts."""
    return "[" + ", ".join(map(quoted, paths)) + "]"


def add_bases(folder: Path, bases: Mapping[str, bytes]) -> None:
    """Append bases, by id, that the folder lacks. Raises OSError."""
    with (folder / BASES).open("ab") as file:
        file.writelines(b'{"id":%b,"basis":%b}\n' % (orjson.dumps(name), blob) for name, blob in bases.items())
        file.flush()
        os.fsync(file.fileno())


def known_bases(folder: Path) -> set[str]:
    """Return the ids of the bases in the folder, mending a line that was not written to its end."""
    path = folder / BASES
    names: set[str] = set()
    whole = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                os.truncate(path, whole)
                break
            whole += len(line)
            with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):  # damaged: it is read again
                names.add(orjson.loads(line)["id"])
    return names


def _all_segments(folder: Path, table: str) -> list[Segment]:
    segments = []
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _SEGMENT.fullmatch(path.name)
        if match is not None and match[1] == table:
            segments.append(segment_of(path))
    return sorted(segments, key=lambda segment: (segment.first, segment.last))


def _place(row: Row) -> Place:
    return row["entry_ms"], row["entry_seq"]


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _duckdb() -> duckdb.DuckDBPyConnection:
    import duckdb  # 0.1 s and 30 MB: only where files are made or read

    return duckdb.connect(config={"threads": 1, "memory_limit": "512MB"})
