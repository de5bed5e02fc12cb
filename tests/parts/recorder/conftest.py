from __future__ import annotations

from tests.gateway.telemetry.conftest import server, store

__all__ = ["server", "store"]
