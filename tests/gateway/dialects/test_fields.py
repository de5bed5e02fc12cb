from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gateway.dialects.fields import INTO, OUT, Variant, matrix, run
from tests.gateway.dialects.pairs import summed


async def test_no_field_is_dropped_in_silence(tmp_path: Path, times: float) -> None:
    """A sample of them; `--times 24` sends every field."""
    cells = await run(tmp_path, INTO, OUT, every=max(1, round(24 / times)))
    print(summed(cell.counts for cell in cells))
    assert [(cell.into, cell.out, cell.left_out) for cell in cells if cell.left_out] == []
    assert len(cells) == len(INTO) * len(OUT)


async def test_a_field_that_makes_no_difference_is_found(tmp_path: Path, monkeypatch: Any) -> None:
    same = Variant("seed", {"messages": []}, {"messages": []})
    monkeypatch.setattr("tests.gateway.dialects.fields._variants", lambda into: [same])
    async with matrix(tmp_path) as sender:
        cell = await sender.cell("chat", "openai")
    assert cell.left_out == ["seed (dropped: )"]
