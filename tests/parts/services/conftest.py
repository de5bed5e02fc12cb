from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from cache.store.redis_store import RedisStore
from tests.support.store import UNHURRIED, LocalStore, local_store


@pytest.fixture(scope="session")
def valkey() -> Iterator[LocalStore]:
    """One server for all tests of this folder; each uses keys of its own."""
    with local_store() as server:
        yield server


@pytest_asyncio.fixture
async def store(valkey: LocalStore) -> AsyncIterator[RedisStore]:
    """A client of that server."""
    client = RedisStore.from_url(valkey.url, slack=UNHURRIED)
    yield client
    await client.aclose()
