"""A gateway with services behind it, shared by the tests of the endpoints that are no chat."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.endpoints import EndpointsSetup, setup
from tests.support.account import Account
from tests.support.store import LocalStore
from tests.support.upstream import Upstream


@pytest.fixture(scope="session")
def _running(
    _upstreams: tuple[Upstream, Upstream], _store: LocalStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EndpointsSetup]:
    folder = tmp_path_factory.mktemp("endpoints")
    with Account() as account, setup(folder, _upstreams[0].url, account, _store) as running:
        yield running


@pytest.fixture
def running(_running: EndpointsSetup, store: LocalStore) -> EndpointsSetup:
    """The gateway and the account behind it, with an empty store and nothing asked yet."""
    _running.account.reset()
    return _running
