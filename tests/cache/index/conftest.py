from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.redis8 import Unavailable, redis8_store
from tests.support.store import LocalStore

QUERY_ENGINE_ENV = "TIERLINE_TEST_QUERY_ENGINE"


@pytest.fixture(scope="session")
def redis8() -> Iterator[LocalStore]:
    """One Redis 8 for all tests of this folder; each uses keys of its own."""
    try:
        with redis8_store() as server:
            yield server
    except Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def query_engine_url() -> str:
    """A server with FT.*; no package that could be fetched here has one."""
    url = os.environ.get(QUERY_ENGINE_ENV)
    if url is None:
        pytest.skip(f"{QUERY_ENGINE_ENV} names no server with the query engine (Redis 8 with modules, Redis Stack)")
    return url
