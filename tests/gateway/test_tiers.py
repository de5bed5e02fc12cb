"""The ladder as it runs: which endpoints may be called, for how long one rests, and whose turn it is."""

from __future__ import annotations

import pytest

from gateway.backends.base import (
    Backend,
    BackendError,
    BadStatus,
    Call,
    Completion,
    EventStream,
    Saturated,
    Truncated,
    Unreachable,
)
from gateway.blame import BudgetSpent, DeadlinePassed
from gateway.settings import BackendConfig
from gateway.tiers import Endpoint, Tier


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class NoBackend:
    """A backend that is never called."""

    async def complete(self, call: Call) -> Completion:
        raise AssertionError

    async def stream(self, call: Call) -> EventStream:
        raise AssertionError

    async def aclose(self) -> None: ...


BACKEND: Backend = NoBackend()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def endpoint(clock: Clock) -> Endpoint:
    return endpoint_of(clock)


def endpoint_of(clock: Clock, name: str = "local-1", **changes: object) -> Endpoint:
    config = {"name": name, "base_url": "http://127.0.0.1:9/v1", "model": "m", "max_in_flight": 2} | changes
    return Endpoint(BackendConfig.model_validate(config), BACKEND, clock)


def fail(endpoint: Endpoint, *errors: BackendError) -> None:
    """These calls were all under way at once, and end with these errors, one after another."""
    slots = [endpoint.take() for _ in errors]
    for slot, error in zip(slots, errors, strict=True):
        slot.failed(error)


def test_rests_as_long_as_it_asks(clock: Clock, endpoint: Endpoint) -> None:
    """A 429 or 503 with Retry-After rests for just that long."""
    fail(endpoint, BadStatus(429, retry_after_s=12))
    assert endpoint.unavailable() == "asking for a pause (status 429)"
    assert endpoint.pause_s() == 12
    clock.now += 11.9
    assert endpoint.unavailable()
    clock.now += 0.2
    assert endpoint.unavailable() == ""
    assert endpoint.pause_s() is None


def test_rests_for_a_minute_at_most(endpoint: Endpoint) -> None:
    """However long it asks for."""
    fail(endpoint, BadStatus(503, retry_after_s=86400))
    assert endpoint.pause_s() == 60


def test_a_429_that_asks_for_nothing_backs_off(clock: Clock, endpoint: Endpoint) -> None:
    """One second, two, four, to thirty at most, each a little off; an answer begins them anew."""
    pauses = []
    for _ in range(8):
        fail(endpoint, BadStatus(429))
        pauses.append(endpoint.pause_s() or 0)
        clock.now += 60
    for pause, nominal in zip(pauses, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert nominal * 0.8 <= pause <= nominal * 1.2
    endpoint.take().succeeded()
    fail(endpoint, BadStatus(429))
    assert (endpoint.pause_s() or 99) <= 1.2


def test_many_429s_at_once_are_one(endpoint: Endpoint) -> None:
    """Calls that were all in flight when the pause began do not make it longer and longer."""
    fail(endpoint, *[BadStatus(429)] * 20)
    assert (endpoint.pause_s() or 99) <= 1.2


def test_a_longer_pause_prevails(endpoint: Endpoint) -> None:
    """Of two pauses asked for at once the longer one holds, whichever came first."""
    fail(endpoint, BadStatus(429, retry_after_s=30), BadStatus(429, retry_after_s=2))
    assert endpoint.pause_s() == 30
    fail(endpoint, BadStatus(429, retry_after_s=50))
    assert endpoint.pause_s() == 50


def test_a_call_from_before_does_not_end_a_rest(clock: Clock, endpoint: Endpoint) -> None:
    """An answer to a call that began before the pause was asked for leaves the pause as it is."""
    before, stream_before = endpoint.take(), endpoint.take()
    clock.now += 1
    fail(endpoint, BadStatus(429, retry_after_s=10))
    before.succeeded()
    stream_before.began()
    assert endpoint.unavailable()
    clock.now += 11
    endpoint.take().succeeded()
    assert endpoint.unavailable() == ""


def test_five_failures_in_a_row(clock: Clock, endpoint: Endpoint) -> None:
    """Five failures in a row make it rest, four and an answer do not; it is not a pause that it asked for."""
    fail(endpoint, *[Unreachable()] * 4)
    endpoint.take().succeeded()
    fail(endpoint, *[Unreachable()] * 4)
    assert endpoint.unavailable() == ""
    fail(endpoint, Truncated())
    assert endpoint.unavailable() == "failing (upstream_truncated, 5 in a row)"
    assert endpoint.pause_s() is None
    clock.now += 5.1
    assert endpoint.unavailable() == ""
    fail(endpoint, Unreachable())
    assert endpoint.unavailable()


def test_our_key_is_refused(clock: Clock, endpoint: Endpoint) -> None:
    """One refusal of our key is enough to rest, and is no pause."""
    fail(endpoint, BadStatus(401))
    assert endpoint.unavailable() == "refusing our key (status 401)"
    assert endpoint.pause_s() is None
    clock.now += 31
    assert endpoint.unavailable() == ""


def test_one_call_tries_a_rested_endpoint(clock: Clock, endpoint: Endpoint) -> None:
    """After its rest one call at a time tries it, until one succeeds; other calls' ends change nothing."""
    before = endpoint.take()
    fail(endpoint, BadStatus(429, retry_after_s=1))
    clock.now += 2
    probe = endpoint.take()
    assert endpoint.unavailable()
    before.free()
    assert endpoint.unavailable()
    probe.free()
    assert endpoint.unavailable() == ""
    endpoint.take().succeeded()
    endpoint.take()
    assert endpoint.unavailable() == ""


def test_a_stream_that_has_begun_lets_others_in(clock: Clock, endpoint: Endpoint) -> None:
    """A long stream is proof enough for others to call, while its own failures still count until it ends well."""
    fail(endpoint, *[Truncated()] * 5)
    clock.now += 6
    stream = endpoint.take()
    stream.began()
    assert endpoint.unavailable() == ""
    stream.failed(Truncated())
    assert endpoint.unavailable() == "failing (upstream_truncated, 6 in a row)"


def test_no_order_of_ends_makes_it_rest_for_ever(clock: Clock, endpoint: Endpoint) -> None:
    """A probing stream, overtaken by an older call's pause, leaves an endpoint that can be called again."""
    old = endpoint.take()
    fail(endpoint, *[Unreachable()] * 5)
    clock.now += 6
    probe = endpoint.take()
    old.failed(BadStatus(429, retry_after_s=20))
    probe.began()
    clock.now += 1
    probe.succeeded()
    assert (endpoint.in_flight, bool(endpoint.unavailable())) == (0, True)
    clock.now += 30
    assert endpoint.unavailable() == ""


def test_a_slot_ends_once(endpoint: Endpoint) -> None:
    """Whatever is said after the first verdict, the place is given back once."""
    slot = endpoint.take()
    slot.succeeded()
    slot.failed(Unreachable())
    slot.free()
    assert endpoint.in_flight == 0


@pytest.mark.parametrize(
    "error", [BudgetSpent(2.0), DeadlinePassed("x"), Saturated("x"), BadStatus(400), BadStatus(422)], ids=repr
)
def test_what_is_not_its_fault_makes_no_endpoint_rest(endpoint: Endpoint, error: BackendError) -> None:
    """A hurried request, a full tier and a caller's mistake are nobody's failures."""
    fail(endpoint, *[error] * 20)
    assert endpoint.unavailable() == ""


def test_silence_for_longer_than_its_patience_is_its_fault(endpoint: Endpoint) -> None:
    """However it came about, an endpoint that was given ample time and said nothing has failed."""
    fail(endpoint, *[BudgetSpent(10.0)] * 5)
    assert "5 in a row" in endpoint.unavailable()


def test_the_last_endpoint_is_asked_though_it_fails(clock: Clock, endpoint: Endpoint) -> None:
    """A tier of nothing but failing endpoints says so to routing, and still gives one when it is asked."""
    fail(endpoint, *[Unreachable()] * 5)
    tier = Tier("local", [endpoint], clock)
    assert tier.health().failing
    assert tier.pick() is endpoint
    fail(endpoint, BadStatus(401))
    assert not tier.health().failing
    assert tier.pick() is None


def test_picks_the_least_loaded_in_turn(clock: Clock) -> None:
    """Fewest calls in flight first, in turn among equals, and never one that is full or rests."""
    a, b, c = (endpoint_of(clock, name) for name in ("a", "b", "c"))
    tier = Tier("local", [a, b, c], clock)
    assert {tier.pick() for _ in range(3)} == {a, b, c}
    a.take()
    assert {tier.pick() for _ in range(4)} == {b, c}
    fail(b, BadStatus(401))
    assert {tier.pick() for _ in range(4)} == {c}
    slots = [c.take(), c.take()]
    assert {tier.pick() for _ in range(4)} == {a}
    a.take()
    assert tier.pick() is None
    slots[0].free()
    assert tier.pick() is c


def test_picks_one_that_has_not_failed(clock: Clock) -> None:
    """An endpoint that failed the same request is picked again only when no other can be."""
    a, b = endpoint_of(clock, "a"), endpoint_of(clock, "b")
    tier = Tier("local", [a, b], clock)
    b.take()
    assert {tier.pick([a]) for _ in range(3)} == {b}
    b.take()
    assert tier.pick([a]) is a


def test_health_of_a_tier(clock: Clock) -> None:
    """A tier is available while one endpoint is, can what all its endpoints can, and counts the configured ones."""
    a = endpoint_of(clock, "a", capabilities=["tools", "json"])
    b = endpoint_of(clock, "b", capabilities=["tools", "vision"])
    config = {"name": "c", "model": "m", "unconfigured_reason": "no key"}
    c = Endpoint(BackendConfig.model_validate(config), None, clock)
    tier = Tier("hosted", [a, b, c], clock)
    assert (tier.health().unavailable, tier.health().endpoints) == ("", 2)
    assert tier.health().capabilities == {"tools"}
    fail(a, BadStatus(401))
    assert tier.health().unavailable == ""
    fail(b, BadStatus(429, retry_after_s=9))
    assert tier.health().unavailable
    assert tier.pause_s() == 9
    assert Tier("alone", [c], clock).health().unavailable == "unconfigured: no key"
    assert Tier("alone", [c], clock).pause_s() is None
