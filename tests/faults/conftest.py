"""The gateway of the fault tests: one process with a lane for every test (see `tests.faults.lanes`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults import lanes
from tests.faults.lanes import Rig
from tests.support.gateway import serve
from tests.support.raw_upstream import RawUpstream, never_connects, raw_upstream
from tests.support.store import LocalStore
from tests.support.upstream import Upstream
from tests.support.wait import until

KEY = "sk-planted-canary-4711"
"""The key of every backend: it must show up nowhere but at the backends."""


@pytest.fixture(scope="session")
def _raw() -> Iterator[RawUpstream]:
    with raw_upstream() as server:
        yield server


@pytest.fixture(scope="session")
def _rig(
    _upstreams: tuple[Upstream, Upstream],
    _raw: RawUpstream,
    _store: LocalStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rig]:
    local, hosted = _upstreams
    with never_connects() as deaf:
        urls = dict.fromkeys(("weak", "small", "pair", "quad"), local.url)
        urls |= {"strong": hosted.url, "raw": _raw.url, "deaf": deaf}
        settings = {"tiers": lanes.tiers(urls), "limits": {"body": "64KiB"}, "default_surface": "lane-0"}
        with serve(
            tmp_path_factory.mktemp("lanes"),
            local.url,
            store_url=_store.url,
            policies=lanes.policies(),
            settings=settings,
            env={"HOSTED_KEY": KEY},
        ) as gateway:
            rig = Rig(gateway, _store.url)
            yield rig
            rig.idle()


@pytest.fixture
def rig(
    request: pytest.FixtureRequest,
    _rig: Rig,
    store: LocalStore,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
) -> Iterator[Rig]:
    """The gateway with its lanes, over scripts and a store that begin anew; no call may be left at the end.

    The gateway, whose list of tiers is long, is asked whether it counts one still after the last test, and where no
    scripted upstream can tell.
    """
    yield _rig
    for upstream in (local_upstream, hosted_upstream):
        until(lambda upstream=upstream: upstream.in_flight == 0, 5, "no call in flight")  # type: ignore[misc]
    if "raw" in request.fixturenames:
        _rig.idle()


@pytest.fixture
def raw(_raw: RawUpstream) -> RawUpstream:
    """The raw upstream behind the `raw` lanes; set its `parts`."""
    _raw.requests, _raw.keep_open, _raw.answers = 0, False, None
    return _raw
