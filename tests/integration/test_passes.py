from __future__ import annotations

from pathlib import Path

from tests.integration.passes import run


def test_requests_and_replies_pass_unchanged(tmp_path: Path, times: float, seed: int) -> None:
    """Sixty of them; `--times 167` sends ten thousand."""
    count = round(60 * times)
    passed = run(count, seed, tmp_path)
    print(passed)
    assert not passed.different
    assert not passed.refused
    assert passed.requests == passed.same_bytes == count
    assert passed.whole > 15
    assert passed.events > 50
    assert passed.sealed > 0
