"""A policy that is right, to be changed by the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CHAT = """\
surface: chat
match: {models: [gpt-4o-mini]}
slo: {ttft: {p95: 400ms, p99: 900ms}, deadline: 30s}
tiers: [local, hosted]
route:
  start: {local: p_adequate >= 0.7 and tokens_in < 3000, hosted: otherwise}
escalate: {when: {confidence_below: 0.62, invalid: [json]}}
cache: {exact: {ttl: 24h}, never: [tools, temperature > 0.3]}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name="chat", text=CHAT, *(old, new)): the policy with parts of its text replaced, as a file."""

    def _write(name: str = "chat", text: str = CHAT, *changes: tuple[str, str]) -> Path:
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        return file

    return _write
