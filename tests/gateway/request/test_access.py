"""Whom a key stands for."""

from __future__ import annotations

import contextlib
import gc
import timeit

import pytest

from gateway.config.schema import TenantConfig, key_digest
from gateway.errors import Unauthorized
from gateway.request.access import Tenants


def many(count: int) -> Tenants:
    """So many tenants; the key of number 7 is `key-7`."""
    return Tenants({f"tenant-{n}": tenant(f"key-{n}") for n in range(count)})


def tenant(*keys: str) -> TenantConfig:
    return TenantConfig(key_digests=tuple(key_digest(key.encode()) for key in keys))


def sent(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def test_every_key_stands_for_its_tenant_and_no_other_for_any() -> None:
    """The scheme may be written in any case; a key that is longer, shorter or empty is nobody's."""
    tenants = Tenants({"acme": tenant("a", "b"), "other": tenant("o")})
    assert [tenants.of(sent(key)) for key in ("a", "b", "o")] == ["acme", "acme", "other"]
    assert tenants.of({b"authorization": b"bearer o"}) == "other"
    for wrong in ("", "A", "aa", "a b", "ab"):
        with pytest.raises(Unauthorized):
            tenants.of(sent(wrong))
    with pytest.raises(Unauthorized):
        tenants.of({})


def test_what_a_key_costs_does_not_grow_with_the_tenants() -> None:
    """Among 2,000 tenants a key, known or not, is looked up as fast as among two."""
    few, lots = many(2), many(2000)

    def cost(tenants: Tenants, key: str) -> float:
        def look() -> None:
            with contextlib.suppress(Unauthorized):
                tenants.of(headers)

        headers = sent(key)
        return min(timeit.repeat(look, number=50, repeat=20))

    gc.collect()
    for key in ("key-1", "unknown"):
        assert cost(lots, key) < 3 * cost(few, key)
