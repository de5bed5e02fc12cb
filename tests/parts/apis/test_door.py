"""The door of connections: whom it lets in, how many of them, and whose key it finds to be valid no more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.caller import ANYBODY, Caller
from gateway.config.schema import Limits
from gateway.errors import LimitReached, Overloaded, Unauthorized
from gateway.parts.apis.routes import response_socket
from gateway.parts.apis.routes.response_socket import Door
from gateway.request.load_shedding import LoadShedder

Headers = Mapping[bytes, bytes]
A, B, NONE = {b"x-api-key": b"a"}, {b"x-api-key": b"b"}, {b"x-api-key": b""}


class Open:
    """Lets all in: stands for the guard and for the limits of keys without any."""

    def check(self, headers: Headers) -> None:
        """Allow all."""

    def hold(self, *_: Any) -> None:
        """Limit nothing."""


class Known:
    """Callers by the key they send; a key in `refused` is valid no more."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.down = False

    async def find(self, headers: Headers) -> Caller:
        key = headers[b"x-api-key"]
        if self.down:
            raise Overloaded("The store does not answer.")
        if key in self.refused:
            raise Unauthorized("This API key was revoked.")
        return Caller(key=key.decode()) if key else ANYBODY


@pytest.fixture
def known() -> Known:
    return Known()


@pytest.fixture
def entrance(known: Known) -> Door:
    allowed: Any = Open()
    callers: Any = known
    gate = LoadShedder(10, lambda: 0.0, room=1000)
    return Door(gate, allowed, callers, allowed, Limits(connections=10, sockets=2))


async def test_a_key_has_its_number_and_all_have_half_of_the_connections(entrance: Door) -> None:
    first = await entrance.enter(A)
    await entrance.enter(A)
    with pytest.raises(LimitReached, match=r"limits\.sockets"):
        await entrance.enter(A)
    for _ in range(3):
        await entrance.enter(NONE)  # nobody can tell these apart
    with pytest.raises(Overloaded, match=r"limits\.connections"):
        await entrance.enter(B)
    first.close()
    first.close()
    await entrance.enter(A)
    with pytest.raises(LimitReached):
        await entrance.enter(A)


async def test_a_key_that_is_refused_later_ends_its_connections(
    entrance: Door, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with the reason; while nobody can say whether it is valid it stays."""
    monkeypatch.setattr(response_socket, "_CHECKED_EACH_S", 0.01)
    ended: list[str] = []
    for name, headers in (("a", A), ("b", B)):
        connection = await entrance.enter(headers)
        connection.on_refused = lambda name=name: ended.append(name)  # type: ignore[misc]
    known.down = True
    await asyncio.sleep(0.1)
    assert ended == []
    known.down, known.refused = False, {b"a"}
    await asyncio.sleep(0.1)
    assert ended == ["a"]


async def test_what_a_connection_holds_is_given_back_with_it(entrance: Door) -> None:
    connection = await entrance.enter(A)
    connection.claim.resize(600)
    with pytest.raises(Overloaded):
        (await entrance.enter(B)).claim.resize(500)
    connection.close()
    (await entrance.enter(B)).claim.resize(500)
