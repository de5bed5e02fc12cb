from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.fuzz_published import run


@pytest.mark.long
def test_random_requests_are_answered_by_the_documents(tmp_path: Path) -> None:
    """A sample of what `python -m tests.bench.fuzz_published` does."""
    fuzzed = run(80, 7, tmp_path)
    assert fuzzed.wrong == []
    assert fuzzed.requests == 80
    assert fuzzed.events > 10
