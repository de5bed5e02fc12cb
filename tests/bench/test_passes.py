from __future__ import annotations

from pathlib import Path

from tests.bench.passes import run


def test_requests_and_replies_pass_unchanged(tmp_path: Path) -> None:
    """A sample of what `python -m tests.bench.passes` does ten thousand times."""
    passed = run(60, 2, tmp_path)
    assert not passed.different
    assert not passed.refused
    assert passed.requests == passed.same_bytes == 60
    assert passed.whole > 15
    assert passed.events > 50
    assert passed.sealed > 0
