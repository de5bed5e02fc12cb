from __future__ import annotations

from tests.cache.conftest import store, valkey

__all__ = ["store", "valkey"]
