"""A real store and an OTLP collector for the tests of the part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cache.store.redis_store import RedisStore
from gateway.telemetry.ledger import TRACES
from tests.parts.otlp.collector import Collector
from tests.support.store import UNHURRIED, LocalStore, local_store


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    with local_store() as running:
        yield running


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    await opened.delete(TRACES)
    yield opened
    await opened.aclose()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield running
