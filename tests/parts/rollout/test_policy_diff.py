"""`tierline policy diff` as a user runs it, over real files and a real ledger."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cache.store.redis_store import RedisStore
from gateway.cli.main import main
from gateway.parts.rollout.registry.records import Version
from gateway.parts.rollout.registry.registry import PolicyRegistry
from policies.loader import read_policy
from tests.parts.ledger.recorded_requests import recorded_ledger
from tests.policies.conftest import CHAT
from tests.support.store import UNHURRIED, local_store


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(CHAT)
    after.write_text(CHAT.replace("tokens_in < 3000", "tokens_in < 150").replace("p95: 400ms", "p95: 0.4s"))
    return before, after


def test_a_difference_is_shown_with_its_line_and_what_it_affects(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of diff."""
    before, after = map(str, files)
    assert main(["policy", "diff", before, after]) == 1
    out = capsys.readouterr().out
    assert "after.yaml:6" in out
    assert "p_adequate >= 0.7 and tokens_in < 3000 -> p_adequate >= 0.7 and tokens_in < 150" in out
    assert "Where requests start." in out
    assert out.rstrip().endswith("1 difference")
    assert "ttft" not in out


def test_no_difference_ends_well(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Nor do comments make one, in the JSON either."""
    before, _ = files
    again = before.with_name("again.yaml")
    again.write_text("# the same\n" + CHAT)
    assert main(["policy", "diff", str(before), str(again), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []


def test_what_cannot_be_compared_is_said(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a mistake in one, a ledger that is not there."""
    before, after = map(str, files)
    assert main(["policy", "diff", before, "nowhere.yaml"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
    assert main(["policy", "diff", before, after, "--since", "1h", "--ledger", str(files[0].parent)]) == 2
    assert "holds no ledger" in capsys.readouterr().err


async def test_recorded_requests_that_start_elsewhere_are_counted(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both policies decide the recorded inputs again; three of those that move are named."""
    before, after = map(str, files)
    async with recorded_ledger(tmp_path / "ledger", Path(before), tokens=[100, 200, 300, 400, 500, 5000]) as folder:
        assert main(["policy", "diff", before, after, "--since", "1h", "--ledger", str(folder), "--json"]) == 1
    moves = json.loads(capsys.readouterr().out)["moves"]
    assert {(one["before"], one["after"]): one["requests"] for one in moves} == {
        ("local", "local"): 1,
        ("local", "hosted"): 4,
        ("hosted", "hosted"): 1,
    }
    moved = next(one for one in moves if one["before"] != one["after"])
    assert len(moved["examples"]) == 3
    assert main(["policy", "diff", before, after, "--since", "1h", "--ledger", str(tmp_path / "ledger")]) == 1
    out = capsys.readouterr().out
    assert "of 6 recorded requests, 4 start elsewhere, 66.7%" in out
    assert "req-" in out


async def test_an_applied_version_is_read_from_the_store(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """By the beginning of its hash; the lines are those of its text."""
    before, after = files
    applied, _ = read_policy(before)
    version = Version("chat", applied.version, CHAT, "ada", "first", 1.0, document="d" * 64, content=applied.content)
    with local_store() as server:
        store = RedisStore.from_url(server.url, slack=UNHURRIED)
        assert await PolicyRegistry(store).seed([version], "seeded")
        await store.aclose()
        named = [str(after), f"chat@{applied.version[:7]}", "--store", server.url]
        assert await asyncio.to_thread(main, ["policy", "diff", *named]) == 1
        assert f"chat@{applied.version[:7]}:6" in capsys.readouterr().out
        missing = ["policy", "diff", str(before), "chat@0000000", "--store", server.url]
        assert await asyncio.to_thread(main, missing) == 2
        assert "0000000" in capsys.readouterr().err
