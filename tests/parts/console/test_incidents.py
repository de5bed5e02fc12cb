"""Twenty seeded incidents, and whether a reader with fixed rules finds each by the console alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parts.console.incident_list import INCIDENTS
from tests.parts.console.incidents import is_right, policy_of, read, seeded


def test_there_are_twenty_incidents() -> None:
    """Each has a name of its own, changes what it says, and is answered by a key that its policy has."""
    assert len({one.name for one in INCIDENTS}) == len(INCIDENTS) == 20
    for one in INCIDENTS:
        assert all(new in policy_of(one) for new in one.edits.values() if new)


@pytest.mark.long
async def test_incidents_are_found_by_the_console_alone(tmp_path: Path, times: float) -> None:
    """Every fifth of them; at least 18 of the 20 with `--times 5`."""
    chosen = INCIDENTS[:: max(1, round(5 / times))]
    right = 0
    for incident in chosen:
        (place := tmp_path / incident.name.replace(" ", "-")).mkdir()
        with seeded(incident, place) as one:
            answer = await read(one, incident.kind)
            good = is_right(incident, one, answer)
        right += good
        print("right" if good else "WRONG", incident.name, incident.complaint, answer)
    assert right >= min(18, len(chosen))
