"""Pages wait for their figures in these tests, however slow the machine is."""

from __future__ import annotations

import pytest

from gateway.parts.console import kept_figures


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_figures, "_PATIENCE_S", 60.0)
