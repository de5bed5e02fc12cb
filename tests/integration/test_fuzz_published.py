from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fuzz_published import run


@pytest.mark.long
def test_random_requests_are_answered_by_the_documents(tmp_path: Path, times: float, seed: int) -> None:
    """Eighty of them; `--times 150` sends 12,000."""
    count = round(80 * times)
    fuzzed = run(count, seed, tmp_path)
    print(fuzzed)
    assert fuzzed.wrong == []
    assert fuzzed.requests == count
    assert fuzzed.events > 10
