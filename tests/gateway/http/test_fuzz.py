from __future__ import annotations

from pathlib import Path

from tests.gateway.http.fuzz import run


async def test_random_requests_meet_no_bug(tmp_path: Path, times: float, seed: int) -> None:
    """Forty of them; `--times 125` sends 5,000."""
    fuzzed = await run(round(40 * times), seed, tmp_path)
    print(fuzzed.statuses)
    assert fuzzed.wrong == []
    assert sum(count.total() for count in fuzzed.statuses.values()) > 40
