"""One endpoint on a clock that stands."""

from __future__ import annotations

import pytest

from gateway.tiers import Endpoint
from tests.gateway.tiers.endpoints import Clock, endpoint_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def endpoint(clock: Clock) -> Endpoint:
    return endpoint_of(clock)
