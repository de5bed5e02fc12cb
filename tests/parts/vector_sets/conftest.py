from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cache.conftest import store, valkey
from tests.support.redis8 import Unavailable, redis8_store
from tests.support.store import LocalStore

__all__ = ["redis8", "store", "valkey"]


@pytest.fixture(scope="session")
def redis8() -> Iterator[LocalStore]:
    """One Redis 8 for all tests of this folder; each uses keys of its own."""
    try:
        with redis8_store() as server:
            yield server
    except Unavailable as why:
        pytest.skip(str(why))
