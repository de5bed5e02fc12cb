from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.incident_list import INCIDENTS
from tests.bench.incidents import policy_of, run


def test_there_are_twenty_incidents() -> None:
    """Each has a name of its own, changes what it says, and is answered by a key that its policy has."""
    assert len({one.name for one in INCIDENTS}) == len(INCIDENTS) == 20
    for one in INCIDENTS:
        assert all(new in policy_of(one) for new in one.edits.values() if new)


@pytest.mark.long
def test_incidents_are_found_by_the_console_alone(tmp_path: Path) -> None:
    """Every fifth; `python -m tests.bench.incidents` has all of them."""
    assert run(INCIDENTS[::5], tmp_path) == len(INCIDENTS[::5])
