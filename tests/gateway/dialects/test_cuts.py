from __future__ import annotations

from pathlib import Path

from tests.gateway.dialects.cuts import INTO, OUT, run
from tests.gateway.dialects.pairs import summed


async def test_a_cut_stream_is_never_taken_for_a_whole_one(tmp_path: Path, times: float) -> None:
    """At some bytes; `--times 431` cuts at every one."""
    pairs = await run(tmp_path, INTO, OUT, every=max(1, round(431 / times)))
    print(summed(pair.ends for pair in pairs))
    assert {(pair.into, pair.out): pair.wrong for pair in pairs if pair.wrong} == {}
    assert len(pairs) == len(INTO) * len(OUT)
    for pair in pairs:
        assert pair.ends["whole"] >= 2
        assert pair.ends["error"] + pair.ends["status"] >= 4
