"""What every test can ask for: scripted upstreams, a store, and the real gateway between them.

Processes live for the whole session, because starting them is the slow part; before each test that asks for them,
scripts are forgotten, records emptied, the store flushed. A test that needs its own policies or settings starts its own
gateway: `tests.support.gateway.serve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream


@pytest.fixture(scope="session")
def _upstreams() -> Iterator[tuple[Upstream, Upstream]]:
    with Upstream() as local, Upstream() as hosted:
        yield local, hosted


@pytest.fixture(scope="session")
def _gateway(_upstreams: tuple[Upstream, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    local, hosted = _upstreams
    with serve(tmp_path_factory.mktemp("gateway"), local.url, hosted.url) as gateway:
        yield gateway


@pytest.fixture(scope="session")
def _store() -> Iterator[LocalStore]:
    with local_store() as store:
        yield store


@pytest.fixture(scope="session")
def _cached_gateway(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    local, hosted = _upstreams
    with serve(tmp_path_factory.mktemp("cached"), local.url, hosted.url, store_url=_store.url) as gateway:
        yield gateway


@pytest.fixture
def local_upstream(_upstreams: tuple[Upstream, Upstream]) -> Upstream:
    """The scripted model behind the local tier."""
    _upstreams[0].reset()
    return _upstreams[0]


@pytest.fixture
def hosted_upstream(_upstreams: tuple[Upstream, Upstream]) -> Upstream:
    """The scripted model behind the hosted tier."""
    _upstreams[1].reset()
    return _upstreams[1]


@pytest.fixture
def gateway(_gateway: Gateway, local_upstream: Upstream, hosted_upstream: Upstream) -> Gateway:
    """The gateway over both, without a store, with the policy `tests.support.gateway.CHAT`."""
    return _gateway


@pytest.fixture
def store(_store: LocalStore) -> LocalStore:
    """A store that is empty. A test that stops or freezes one starts its own: `tests.support.store.local_store`."""
    with redis.Redis.from_url(_store.url) as client:
        client.flushall()
    return _store


@pytest.fixture
def cached_gateway(
    _cached_gateway: Gateway, store: LocalStore, local_upstream: Upstream, hosted_upstream: Upstream
) -> Gateway:
    """`gateway`, with `store`."""
    return _cached_gateway


@pytest.fixture
def own_gateway(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> Iterator[Gateway]:
    """`gateway`, started for this test: for one after which it would let a backend rest."""
    with serve(tmp_path, local_upstream.url, hosted_upstream.url) as gateway:
        yield gateway


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """A scripted model of this test's own."""
    with Upstream() as upstream:
        yield upstream
