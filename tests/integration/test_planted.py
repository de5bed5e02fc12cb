from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.planted import found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_search_finds_what_is_there(tmp_path: Path, times: float) -> None:
    """With capture on, prompts are in records, spans and the console's pages alone; with it off, in none of 120.

    120 have every way of asking with every way of answering; `--times 9` searches more than a thousand.
    """
    (tmp_path / "on").mkdir()
    counts = found(40, capture=True, folder=tmp_path / "on")
    assert counts["records"] > 20 and counts["spans"] > 20 and counts["console"] > 20
    assert {place for place, count in counts.items() if count} == {"records", "spans", "console"}
    (tmp_path / "off").mkdir()
    assert +found(round(120 * times), folder=tmp_path / "off") == {}
