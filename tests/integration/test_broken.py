"""Broken answers through the real gateway, over sockets, some hundreds of them: `tests.bench.broken` tries 10,000."""

from __future__ import annotations

import pytest

from tests.bench import broken


@pytest.mark.timeout(120)
def test_no_broken_answer_is_stored() -> None:
    """Whatever a backend sends that is not whole is in no entry of the store; the good answers among it are."""
    found = broken.run(300)
    assert found.sound, found
    assert found.away < found.injected / 10
    assert found.good == 15
