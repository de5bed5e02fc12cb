"""Wrong keys, and how many of them an address may send."""

from __future__ import annotations

import pytest

from gateway.errors import RateLimited
from gateway.parts.access.key_tries import KeyTries


def test_an_address_has_ten_tries_at_once_and_then_one_each_six_seconds() -> None:
    """Another address is not affected; who waits may try again."""
    now = 100.0
    tries = KeyTries(lambda: now)
    for _ in range(10):
        tries.check("192.0.2.1")
        tries.refused("192.0.2.1")
    with pytest.raises(RateLimited) as refused:
        tries.check("192.0.2.1")
    assert refused.value.headers == ((b"retry-after", b"6"),)
    tries.check("192.0.2.2")
    now += 6.1
    tries.check("192.0.2.1")
    tries.refused("192.0.2.1")
    with pytest.raises(RateLimited):
        tries.check("192.0.2.1")
    now += 61
    for _ in range(10):
        tries.check("192.0.2.1")
        tries.refused("192.0.2.1")


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    """Anybody there has 2^64 of them."""
    tries = KeyTries(lambda: 0.0)
    for number in range(10):
        tries.refused(f"2001:db8::{number:x}")
    with pytest.raises(RateLimited):
        tries.check("2001:db8::ffff:1%eth0")
    tries.check("2001:db8:0:1::1")


def test_clients_of_ipv4_are_told_apart_by_a_listener_on_both() -> None:
    """It sees them in a part of IPv6 that is one network."""
    tries = KeyTries(lambda: 0.0)
    for _ in range(10):
        tries.refused("::ffff:192.0.2.1")
    for same in ("::ffff:192.0.2.1", "192.0.2.1"):
        with pytest.raises(RateLimited):
            tries.check(same)
    tries.check("::ffff:192.0.2.2")


def test_what_is_remembered_is_bounded() -> None:
    """Of very many addresses the latest are kept."""
    tries = KeyTries(lambda: 0.0)
    for number in range(10_005):
        for _ in range(10):
            tries.refused(f"host-{number}")
    tries.check("host-0")
    with pytest.raises(RateLimited):
        tries.check("host-10004")
