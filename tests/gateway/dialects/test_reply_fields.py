from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gateway.dialects import reply_fields
from tests.gateway.dialects.pairs import summed
from tests.gateway.dialects.reply_fields import INTO, OUT, cell_of, run


async def test_no_field_of_a_reply_is_lost_in_silence(tmp_path: Path, times: float) -> None:
    """A sample of them; `--times 97` translates every field."""
    cells = await run(tmp_path, [*INTO], [*OUT], every=max(1, round(97 / times)))
    print(summed(cell.counts for cell in cells))
    assert [(cell.into, cell.out, cell.lost) for cell in cells if cell.lost] == []
    assert len(cells) == len(INTO) * len(OUT)


async def test_a_field_without_a_rule_is_found(monkeypatch: Any) -> None:
    fingerprint = next(one for one in reply_fields.variants_for("openai") if one.path == "system_fingerprint")
    monkeypatch.setattr(reply_fields, "variants_for", lambda out: [fingerprint])
    monkeypatch.setattr(reply_fields, "RULES", ())
    assert (await cell_of("messages", "openai")).lost == ["whole system_fingerprint", "stream system_fingerprint"]
    assert (await cell_of("chat", "openai")).counts == {"kept": 2}
