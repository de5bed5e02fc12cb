from __future__ import annotations

from pathlib import Path

from tests.bench.fuzz import run


async def test_random_requests_meet_no_bug(tmp_path: Path) -> None:
    """A sample of what `python -m tests.bench.fuzz` does."""
    fuzzed = await run(40, 7, tmp_path)
    assert fuzzed.wrong == []
    assert sum(count.total() for count in fuzzed.statuses.values()) > 40
