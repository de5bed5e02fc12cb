"""A real store for the telemetry tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cache.store.redis_store import RedisStore
from gateway.parts.measures import feedback
from gateway.telemetry.ledger import TRACES
from tests.support.store import UNHURRIED, LocalStore, local_store


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    await opened.delete(TRACES)
    await opened.delete(feedback.STREAM)
    yield opened
    await opened.aclose()
