from __future__ import annotations

from pathlib import Path

from tests.bench.cuts import INTO, OUT, run


async def test_a_cut_stream_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    """A sample of what `python -m tests.bench.cuts` does at every byte."""
    pairs = await run(tmp_path, INTO, OUT, every=431)
    assert {(pair.into, pair.out): pair.wrong for pair in pairs if pair.wrong} == {}
    assert len(pairs) == len(INTO) * len(OUT)
    for pair in pairs:
        assert pair.ends["whole"] >= 2
        assert pair.ends["error"] + pair.ends["status"] >= 4
