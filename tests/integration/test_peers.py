"""Two gateways at one store, in front of the same backends: what one finds out, the other knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.ask import ask
from tests.support.gateway import Gateway, serve
from tests.support.store import local_store
from tests.support.upstream import Upstream, error_reply
from tests.support.wait import until

_SOON_S = 3.0
"""A third of a second as a rule and one at most, on a machine that does nothing else."""


@pytest.fixture
def replicas(local_upstream: Upstream, hosted_upstream: Upstream, tmp_path: Path) -> Iterator[tuple[Gateway, Gateway]]:
    """Both over the same tiers and the same Valkey."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    with (
        local_store() as store,
        serve(folders[0], local_upstream.url, hosted_upstream.url, store_url=store.url) as one,
        serve(folders[1], local_upstream.url, hosted_upstream.url, store_url=store.url) as other,
    ):
        yield one, other


def state_of(gateway: Gateway, tier: str = "local") -> str:
    said = httpx2.get(f"{gateway.origin}/readyz").json()
    return next(iter(said["tiers"][tier]["backends"].values()))["state"]


def test_a_breaker_that_opens_in_one_is_open_in_the_other_soon_after(
    replicas: tuple[Gateway, Gateway], local_upstream: Upstream
) -> None:
    """The other has not called the backend once, and need not find out for itself."""
    one, other = replicas
    local_upstream.default = error_reply(500)
    number = 0
    while state_of(one) == "ready":
        assert ask(one, f"question {number}").status_code == 200
        number += 1
        assert number < 20
    until(lambda: "failing" in state_of(other), _SOON_S, "the other's knowledge")


def test_a_pause_that_was_asked_of_one_is_kept_by_the_other(
    replicas: tuple[Gateway, Gateway], local_upstream: Upstream
) -> None:
    """A 429 with Retry-After holds for both, and the other's requests go elsewhere meanwhile."""
    one, other = replicas
    local_upstream.default = error_reply(429, headers={"Retry-After": "30"})
    assert ask(one, "hello").status_code == 200
    until(lambda: "pause" in state_of(other), _SOON_S, "the other's knowledge")
    seen = len(local_upstream.requests)
    assert ask(other, "hello there").status_code == 200
    assert len(local_upstream.requests) == seen


def test_rate_limit_headers_that_one_saw_hold_for_the_other(
    replicas: tuple[Gateway, Gateway], local_upstream: Upstream
) -> None:
    """With no request left for half a minute neither sends one."""
    one, other = replicas
    limits = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "30s"}
    local_upstream.default = error_reply(500, headers=limits)
    assert ask(one, "hello").status_code == 200
    assert "out of quota" in state_of(one)
    until(lambda: "out of quota" in state_of(other), _SOON_S, "the other's knowledge")
