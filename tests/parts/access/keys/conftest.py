"""A registry of keys in a real store that is empty before each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from cache.store.base import Command
from cache.store.redis_store import RedisStore
from gateway.parts.access.keys.records import CONTEXT, KeyRecord, digest_of, new_id, new_key
from gateway.parts.access.keys.registry import KeyRegistry, Why
from tests.support.store import UNHURRIED, LocalStore, local_store

WHY = Why("ada", "a test")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalStore]:
    """Give the store's server."""
    with local_store() as started:
        yield started


@pytest.fixture
async def store(server: LocalStore) -> AsyncIterator[RedisStore]:
    """Give an empty store."""
    opened = RedisStore.from_url(server.url, slack=UNHURRIED)
    await opened.ask([Command((b"FLUSHALL",))])
    yield opened
    await opened.aclose()


@pytest.fixture
def registry(store: RedisStore) -> KeyRegistry:
    """Give an empty registry."""
    return KeyRegistry(store)


def minted(**fields: object) -> tuple[str, KeyRecord]:
    """Return a new key and its record."""
    key = new_key()
    values: dict[str, object] = {"tenant": "acme", **fields}
    return key, KeyRecord(new_id(), digest_of(key.encode(), CONTEXT).hex(), **values)  # type: ignore[arg-type]
