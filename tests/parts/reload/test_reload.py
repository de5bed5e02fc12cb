"""Policies that change while the gateway runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.parts.reload.part import PolicyReloader
from policies.errors import ConfigError
from policies.loader import SHIPPED, PolicySet, PolicySource, policy_files
from policies.model import DeployedTier
from tests.support.wait import eventually


@dataclass
class Watched:
    """A running watcher over a folder, with what it told."""

    folder: Path
    interval_s: float = 0.02
    watcher: PolicyReloader = field(init=False)
    loaded: list[PolicySet] = field(default_factory=list)
    failed: list[ConfigError] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = PolicySource(self.folder, (DeployedTier("local"), DeployedTier("hosted")))
        self.watcher = PolicyReloader(source, self.loaded.append, self.failed.append, self.interval_s)

    @property
    def chat(self) -> Path:
        return self.folder / "chat.yaml"

    @property
    def threshold(self) -> float:
        return self.watcher.current.by_surface["chat"].escalate.when.confidence_below

    def write(self, threshold: str) -> None:
        text = (SHIPPED / "chat.yaml").read_text()
        self.chat.write_text(text.replace("confidence_below: 0.62", f"confidence_below: {threshold}"))


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    for file in policy_files(SHIPPED):
        shutil.copy(file, tmp_path)
    watched = Watched(tmp_path)
    task = asyncio.create_task(watched.watcher.run())
    yield watched
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_changed_file_comes_into_force(watched: Watched) -> None:
    """Whoever holds the old set keeps it; the next request gets the new one."""
    before = watched.watcher.current
    watched.write("0.7")
    await eventually(lambda: watched.threshold == 0.7)
    assert before.by_surface["chat"].escalate.when.confidence_below == 0.62
    assert watched.watcher.current.by_surface["batch"].version == before.by_surface["batch"].version
    assert len(watched.loaded) == 1


async def test_a_bad_file_keeps_the_last_good_set_until_it_is_mended(watched: Watched) -> None:
    """The failure is told once, with its line, remembered, and forgotten when mended."""
    before = watched.watcher.current
    watched.write("lots")
    await eventually(lambda: watched.watcher.failure is not None)
    assert watched.watcher.current is before
    assert ": escalate.when.confidence_below" in str(watched.watcher.failure)
    watched.chat.touch()
    watched.write("0.62")
    await eventually(lambda: watched.watcher.failure is None)
    assert len(watched.failed) == 1
    assert len(watched.loaded) == 1


async def test_a_burst_of_writes_is_few_reloads(watched: Watched) -> None:
    """A hundred writes on end leave the last one in force, and were not loaded one by one."""
    for i in range(100):
        watched.write(f"0.{i + 100}")
        await asyncio.sleep(0.002)
    await eventually(lambda: watched.threshold == 0.199)
    assert len(watched.loaded) < 20
    assert not watched.failed


async def test_an_editor_that_renames_is_no_failure(watched: Watched) -> None:
    """Moving the file away and a new one into its place is one change."""
    backup = watched.folder / "chat.yaml~"
    watched.chat.rename(backup)
    watched.write("0.8")
    await eventually(lambda: watched.threshold == 0.8)
    assert not watched.failed


async def test_a_surface_that_is_added_or_taken_away_is_seen(watched: Watched) -> None:
    """The set follows the folder; taking the default surface away is refused."""
    text = (watched.folder / "batch.yaml").read_text()
    (watched.folder / "nightly.yaml").write_text(
        text.replace("surface: batch", "surface: nightly").replace("[offline]", "[]")
    )
    await eventually(lambda: "nightly" in watched.watcher.current.names)
    (watched.folder / "nightly.yaml").unlink()
    await eventually(lambda: "nightly" not in watched.watcher.current.names)
    watched.chat.unlink()
    await eventually(lambda: watched.watcher.failure is not None)
    assert watched.watcher.current.default.surface == "chat"


async def test_a_folder_that_vanishes_keeps_the_last_good_set(watched: Watched) -> None:
    """It is a failure like any other, and over when the folder is back."""
    away = watched.folder.with_name("away")
    watched.folder.rename(away)
    await eventually(lambda: watched.watcher.failure is not None)
    away.rename(watched.folder)
    await eventually(lambda: watched.watcher.failure is None)


async def test_a_comment_changes_nothing(tmp_path: Path) -> None:
    """Equal rules are equal: the file is read, and nothing is announced."""
    for file in policy_files(SHIPPED):
        shutil.copy(file, tmp_path)
    watched = Watched(tmp_path)
    before = watched.watcher.current
    for _ in range(3):
        watched.chat.write_text("# a comment\n" + watched.chat.read_text())
        await watched.watcher.look()
        await watched.watcher.look()
    assert watched.loaded == []
    assert watched.watcher.current is before


async def test_only_files_with_another_content_are_read(watched: Watched) -> None:
    """A file that says what it said when it was read is taken as it was, whatever its time and the other files do."""
    batch = watched.watcher.current.by_surface["batch"]
    (watched.folder / "batch.yaml").touch()
    watched.write("0.7")
    await eventually(lambda: watched.threshold == 0.7)
    assert watched.watcher.current.by_surface["batch"] is batch


async def test_an_edit_that_leaves_size_and_time_is_seen(watched: Watched) -> None:
    """The content decides: an edit in place within the clock's step, or with its time set back, comes into force."""
    look = watched.chat.stat()
    with watched.chat.open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace("confidence_below: 0.62", "confidence_below: 0.73"))
    os.utime(watched.chat, ns=(look.st_atime_ns, look.st_mtime_ns))
    assert (watched.chat.stat().st_size, watched.chat.stat().st_ino) == (look.st_size, look.st_ino)
    await eventually(lambda: watched.threshold == 0.73)


@pytest.mark.parametrize("name", ["chat.yaml", "_defaults.yaml"])
@pytest.mark.parametrize("cut", ["never:", " max_tokens", "77"])
async def test_half_a_file_does_not_come_into_force(watched: Watched, name: str, cut: str) -> None:
    """A file cut off within a line is a failure with its code, though its YAML is valid; the last good set stays."""
    whole = "cache:\n  exact: {ttl: 1h}\n  never: [tools]\noutput:\n  max_tokens: 77\n"
    if name == "chat.yaml":
        whole = watched.chat.read_text().partition("\ncache:")[0] + "\n" + whole
    before = watched.watcher.current
    (watched.folder / name).write_text(whole[: whole.index(cut)])
    await eventually(lambda: watched.watcher.failure is not None)
    assert watched.watcher.current is before
    assert "[T108]" in str(watched.watcher.failure)
    (watched.folder / name).write_text(whole)
    await eventually(lambda: watched.watcher.failure is None)
    assert watched.watcher.current is not before


async def test_a_file_that_is_still_being_written_is_not_taken(watched: Watched) -> None:
    """A writer that pauses after whole lines, for less than two looks, never has half of its file in force."""
    text = watched.chat.read_text().splitlines(keepends=True)
    with watched.chat.open("w", buffering=1) as file:
        for line in [*text, "# end\n"]:
            file.write(line)
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.2)
    assert watched.loaded == []
    assert watched.failed == []


async def test_many_files_are_looked_at_less_often(tmp_path: Path) -> None:
    """Looking at files that do not change takes about 1% of a core at most, however many they are."""
    for file in policy_files(SHIPPED):
        shutil.copy(file, tmp_path)
    watched = Watched(tmp_path, interval_s=0.001)
    for number in range(300):
        (tmp_path / f"{number}.yaml").write_text("no policy: it is only looked at\n")
    task = asyncio.create_task(watched.watcher.run())
    await eventually(lambda: watched.watcher.failure is not None)
    began = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - began < 0.05
    task.cancel()
