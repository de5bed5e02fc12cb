"""The gateway of the fault tests: one process with a lane for every test (see `tests.faults.lanes`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

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


class Rigs:
    """Gateways with lanes, one after the other."""

    def __init__(self, start: Callable[[], AbstractContextManager[Rig]]) -> None:
        self._start = start
        self._running = ExitStack()
        self._rig: Rig | None = None

    def current(self) -> Rig:
        """The gateway that runs, or another one, where its lanes run low."""
        if self._rig is None or self._rig.runs_low:
            self.end()
            self._rig = self._running.enter_context(self._start())
        return self._rig

    def end(self) -> None:
        """Ends the gateway that runs, if there is one; no call may be left in it."""
        if self._rig is not None:
            self._rig.idle()
            self._running.close()


@pytest.fixture(scope="session")
def _rigs(
    _upstreams: tuple[Upstream, Upstream],
    _raw: RawUpstream,
    _store: LocalStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rigs]:
    local, hosted = _upstreams
    with never_connects() as deaf:
        urls = dict.fromkeys(("weak", "small", "pair", "quad"), local.url)
        urls |= {"strong": hosted.url, "raw": _raw.url, "deaf": deaf}
        settings = {"tiers": lanes.tiers(urls), "limits": {"body": "64KiB"}, "default_surface": "lane-0"}

        @contextmanager
        def start() -> Iterator[Rig]:
            with serve(
                tmp_path_factory.mktemp("lanes"),
                local.url,
                store_url=_store.url,
                policies=lanes.policies(),
                settings=settings,
                env={"HOSTED_KEY": KEY},
            ) as gateway:
                yield Rig(gateway, _store.url)

        rigs = Rigs(start)
        yield rigs
        rigs.end()


@pytest.fixture
def rig(
    request: pytest.FixtureRequest,
    _rigs: Rigs,
    store: LocalStore,
    local_upstream: Upstream,
    hosted_upstream: Upstream,
) -> Iterator[Rig]:
    """The gateway with its lanes, over scripts and a store that begin anew; no call may be left at the end.

    The gateway, whose list of tiers is long, is asked whether it counts one still after the last test, and where no
    scripted upstream can tell.
    """
    rig = _rigs.current()
    yield rig
    for upstream in (local_upstream, hosted_upstream):
        until(lambda upstream=upstream: upstream.in_flight == 0, 5, "no call in flight")  # type: ignore[misc]
    if "raw" in request.fixturenames:
        rig.idle()


@pytest.fixture
def raw(_raw: RawUpstream) -> RawUpstream:
    """The raw upstream behind the `raw` lanes; set its `parts`."""
    _raw.requests, _raw.keep_open, _raw.answers = 0, False, None
    return _raw
