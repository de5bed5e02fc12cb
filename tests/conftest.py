"""What every test can ask for: scripted upstreams, a store, and the real gateway between them.

Processes live for the whole session, because starting them is the slow part; before each test that asks for them,
scripts are forgotten, records emptied, the store flushed. A test that needs its own policies or settings starts its own
gateway: `tests.support.gateway.serve`.

`make test` runs several pytest processes beside each other (pytest-xdist), each with such servers of its own. A file's
tests run in one of them, and so do those of a group of files, in `TOGETHER`.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import jinja2
import pytest
import redis
from hypothesis import HealthCheck, settings
from jinja2.bccache import Bucket

from tests.support.gateway import Gateway, serve
from tests.support.store import LocalStore, local_store
from tests.support.upstream import Upstream

TOGETHER = {
    "fits": (
        "test_training.py",
        "test_confidence_training.py",
        "test_difficulty_heads.py",
        "test_train.py",
        "test_train_verifier.py",
        "test_eval.py",
        "test_measure_cache.py",
    ),
    "crowds": (
        "test_bench.py",
        "test_bodies.py",
        "test_index.py",
        "test_overload.py",
        "test_exhaustion.py",
        "test_load_shedding.py",
    ),
    "figures": (
        "test_calibration_choose.py",
        "test_calibration_risk.py",
        "test_minilm.py",
        "test_calibrate.py",
        "test_control.py",
    ),
    "lanes": ("test_backends.py", "test_clients.py", "test_context.py"),
    "endpoints": ("test_embeddings.py", "test_passthrough.py", "test_other_paths.py"),
    "gateway": (
        "test_curl.py",
        "test_before_routes.py",
        "test_langchain.py",
        "test_readme.py",
        "test_sdk_node.py",
        "test_sdk_python.py",
        "test_text_completions.py",
    ),
}
"""Files, by their names, whose tests run in one process, one after the other. Those of `fits` import scikit-learn,
which takes seconds; those of `crowds` keep a machine busy and measure it, so that two of them beside each other would
slow down all others; those of `figures` compute and nothing else; the rest share a gateway that is slow to start. The
first groups take longest, and begin first."""
WAITING = ("tests/faults/", "tests/integration/")
"""Folders of the other files whose tests mostly wait: for timers, for processes. They alternate with those that mostly
compute, `PER_WAITING` to one, so that all along some workers leave the processor to others."""
PER_WAITING = 3
_GROUPS = {name: group for group, names in TOGETHER.items() for name in names}


class KeptBytecode(jinja2.BytecodeCache):
    """Templates of this process, each compiled once."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Give a template its code, if it was compiled before."""
        if code := self._kept.get(bucket.key):
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code of a template that was just compiled."""
        self._kept[bucket.key] = bucket.bytecode_to_string()


def group_of(nodeid: str) -> str:
    """Return the group of the file that a test is in; the file itself if it is in none."""
    file = nodeid.split("::", 1)[0]
    return _GROUPS.get(file.rpartition("/")[2], file)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make the tests of random cases as large as one likes."""
    parser.addoption("--times", type=float, default=1.0, help="try so many times the random cases of `make test`")
    parser.addoption("--seed", type=int, default=1, help="the seed of random cases (default: 1)")


@pytest.fixture
def times(request: pytest.FixtureRequest) -> float:
    """How many times the random cases of `make test` are to be tried."""
    return float(request.config.getoption("--times"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of random cases."""
    return int(request.config.getoption("--seed"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each pytest process whole files, and whole groups of files."""
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest; give all the time that it takes to what is made larger."""
    if config.getoption("--times") > 1:
        for item in items:
            item.add_marker(pytest.mark.timeout(0), append=False)
    groups = dict.fromkeys(group_of(item.nodeid) for item in items)
    others = [group for group in groups if group not in TOGETHER]
    waiting = [group for group in others if group.startswith(WAITING)]
    # Those of tests/gateway are the longest of the rest; none of them is to be begun last.
    computing = sorted({*others} - {*waiting}, key=lambda group: (not group.startswith("tests/gateway/"), group))
    order = [*TOGETHER]
    for group in waiting:
        order += [group, *computing[:PER_WAITING]]
        del computing[:PER_WAITING]
    places = {group: place for place, group in enumerate(order + computing)}
    items.sort(key=lambda item: places[group_of(item.nodeid)])


def pytest_configure() -> None:
    """Give the HTTP clients of this process one SSL context, and more patience than five seconds.

    Each client would read the machine's certificates, for 60 ms. A gateway that shares two slow cores with five pytest
    processes has taken more than five seconds for an answer.
    """
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
    patience = inspect.signature(httpx2.get).parameters["timeout"].default
    patience.connect = patience.read = patience.write = patience.pool = 30.0
    # Each console of a test would compile its pages anew, for 0.1 s and more.
    kept = functools.partialmethod(jinja2.Environment.__init__, bytecode_cache=KeptBytecode())
    pytest.MonkeyPatch().setattr(jinja2.Environment, "__init__", kept)
    # How long Hypothesis takes to draw a value says nothing either, where other processes have the cores.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while imports and tests make next to none: that would take an eighth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave out of every later garbage collection what was imported and collected: half a million objects that stay."""
    gc.collect()
    gc.freeze()


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
