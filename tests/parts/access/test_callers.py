"""Whom a key stands for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hmac
import timeit
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import Request

from gateway.config.schema import Access, key_digest
from gateway.config.sections import deployment_model
from gateway.dialects.reasoning import maker_of
from gateway.errors import Unauthorized
from gateway.parts.access.admin_api import gatekeeper
from gateway.parts.access.authenticator import Callers, is_operator
from gateway.parts.access.config import Admin, IdentityConfig, TenantConfig
from gateway.parts.access.keys.identities import Identities
from gateway.parts.access.keys.roles import EDITOR, NOBODY
from gateway.parts.access.pages.sessions import ConsoleAccess


def many(count: int) -> Callers:
    """So many tenants; the key of number 7 is `key-7`."""
    return Callers({f"tenant-{n}": tenant(f"key-{n}") for n in range(count)})


def tenant(*keys: str) -> TenantConfig:
    return TenantConfig(key_digests=tuple(key_digest(key.encode()) for key in keys))


def sent(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def test_every_key_stands_for_its_tenant_and_no_other_for_any() -> None:
    """The scheme may be written in any case; a key that is longer, shorter or empty is nobody's."""
    tenants = Callers({"acme": tenant("a", "b"), "other": tenant("o")})
    found = [tenants.known(sent(key)) for key in ("a", "b", "o")]
    assert [one and one.tenant for one in found] == ["acme", "acme", "other"]
    assert tenants.known({b"authorization": b"bearer o"}) == tenants.known(sent("o"))
    for wrong in ("", "A", "aa", "a b", "ab"):
        with pytest.raises(Unauthorized):
            tenants.known(sent(wrong))
    with pytest.raises(Unauthorized):
        tenants.known({})


def test_what_a_key_costs_does_not_grow_with_the_tenants() -> None:
    """Among 2,000 tenants a key, known or not, is looked up as fast as among two."""
    few, lots = many(2), many(2000)

    def cost(tenants: Callers, key: str) -> float:
        def look() -> None:
            with contextlib.suppress(Unauthorized):
                tenants.known(headers)

        headers = sent(key)
        return min(timeit.repeat(look, number=50, repeat=20))

    gc.collect()
    for key in ("key-1", "unknown"):
        assert cost(lots, key) < 3 * cost(few, key)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The pairs that are compared in constant time, as they are compared."""
    pairs: list[tuple[Any, Any]] = []
    compare = hmac.compare_digest

    def noted(one: Any, other: Any) -> bool:
        pairs.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    return pairs


def is_refused(check: Callable[[str], object], key: str) -> bool:
    """Whether a check of keys refuses one."""
    try:
        return not check(key)
    except Unauthorized:
        return True


def of_tenants(key: str) -> object:
    return Callers({"acme": tenant("right")}).known(sent(key))


def of_admin(key: str) -> object:
    headers = [(b"authorization", f"Bearer {key}".encode())]
    admitted = gatekeeper(Admin(key_env="K", key=SecretStr("right")), Identities(IdentityConfig()))
    asyncio.run(admitted(Request({"type": "http", "headers": headers})))
    return True


def of_operator(key: str) -> object:
    return asyncio.run(
        is_operator(sent(key), deployment_model().model_construct(**DEPLOYED), Identities(IdentityConfig()))
    )


def of_console(key: str) -> object:
    return asyncio.run(ConsoleAccess({EDITOR: "right"}).person_of_key(key)) is not NOBODY


def of_reasoning(key: str) -> object:
    maker = maker_of("scope", "right")
    return maker.unseal(maker_of("scope", key).seal("text").replace(maker_of("scope", key).name, maker.name))


DEPLOYED: dict[str, Any] = {
    "tenants": {"acme": tenant("other")},
    "access": Access(),
    "admin": Admin(key_env="K", key=SecretStr("right")),
}


@pytest.mark.parametrize("check", [of_tenants, of_admin, of_operator, of_console, of_reasoning])
def test_what_is_secret_is_compared_in_constant_time(
    compared: list[tuple[Any, Any]], check: Callable[[str], object]
) -> None:
    """A right key and a wrong one: each is compared with what is kept, of equal length, and by nothing else."""
    assert not is_refused(check, "right")
    assert len(compared) == 1
    assert is_refused(check, "wrong")
    assert len(compared) == 2
    for one, other in compared:
        assert len(one) == len(other)
