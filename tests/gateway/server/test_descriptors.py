"""What is said, and done, where the process may have fewer files open than its config asks for."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.config.launch import CannotServe, Launch
from gateway.config.schema import Deployment
from gateway.server.descriptors import few_left, fitted_limits, raise_limit
from tests.support.gateway import config


@contextlib.contextmanager
def files(most: int) -> Iterator[None]:
    """This process may have so many open, until it asks for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """One of 1,000 connections, 64 calls to its one configured backend, and a store."""
    written = config("http://127.0.0.1:9/v1", None, "redis://127.0.0.1:9", limits={"connections": 1000})
    (tmp_path / "tierline.yaml").write_text(yaml.safe_dump(written))
    return Launch(config=tmp_path / "tierline.yaml").deployment({})


def test_what_cannot_be_had_is_lowered_and_said(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    """With room for all of them nothing is; with less, a warning says how many there are, and what to do."""
    with files(1000 + 64 + 272 + 160):
        assert fitted_limits(deployment) is deployment
    with files(1000):
        assert fitted_limits(deployment).limits.connections == 1000 - 64 - 272 - 160
    (warning,) = caplog.records
    assert "are more than the 1000 that this process may have open" in warning.getMessage()
    assert "at most 504 connections are kept open" in warning.getMessage()
    assert "ulimit -n" in warning.getMessage()


def test_a_limit_that_leaves_no_connection_is_an_error(deployment: Deployment) -> None:
    """Better no gateway than one that turns everybody away."""
    with files(500), pytest.raises(CannotServe, match=r"500 that this process may have open; raise the limit \(ulimit"):
        fitted_limits(deployment)


def test_the_limit_is_raised_as_far_as_it_may(deployment: Deployment) -> None:
    """From the usual 1,024 to the hard limit."""
    with files(500):
        raise_limit(deployment)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard
        assert fitted_limits(deployment) is deployment


def test_the_last_descriptors_are_known_by_their_numbers() -> None:
    """The lowest free number is always given next."""
    with files(500):
        assert [few_left(descriptor) for descriptor in (3, 400, 467, 468, 499)] == [False, False, False, True, True]
