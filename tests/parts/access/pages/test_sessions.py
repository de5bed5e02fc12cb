"""Who may see the console, and what a session is worth."""

from __future__ import annotations

import time

import pytest

from gateway.errors import RateLimited
from gateway.parts.access.keys.roles import EDITOR, NOBODY, OWNER, VIEWER, Person
from gateway.parts.access.pages.sessions import LOGIN_S, SESSION_S, ConsoleAccess
from gateway.parts.console.config import ConsoleConfig
from gateway.parts.console.server import CannotServeConsole, access_of

KEYS = {EDITOR: "edit-key", VIEWER: "view-key"}


async def test_without_keys_this_machine_alone_is_served() -> None:
    """A page of another site that reaches the port by a name of its own sends that name in `Host`."""
    access = ConsoleAccess({}, frozenset({"console.test"}))
    assert await access.person_of("", "") is OWNER
    for host, allowed in (("127.0.0.1:8790", True), ("localhost", True), ("[::1]:8790", True), ("console.test:1", True),
                          ("evil.example", False), ("127.0.0.1.evil.example", False), ("", False)):  # fmt: skip
        assert access.host_allowed(host) is allowed, host


async def test_each_key_gives_its_role() -> None:
    access = ConsoleAccess(KEYS)
    assert await access.person_of("Bearer edit-key", "") is EDITOR
    assert await access.person_of("bearer view-key", "") is VIEWER
    for wrong in ("Bearer other", "Bearer ", "edit-key", ""):
        assert await access.person_of(wrong, "") is NOBODY


async def test_a_session_cannot_be_made_up_and_ends() -> None:
    """Its cookie alone is worth its role, until it is signed out, or the time is over, or the process ends."""
    access = ConsoleAccess(KEYS)
    session, other = access.session(VIEWER), access.session(EDITOR)
    assert await access.person_of("", session) is VIEWER
    for made_up in (
        session[:-1],
        session + "=",
        session.upper(),
        "",
        "2",
        "9" * 4400,
        "²",
        "\udcff".encode("utf-8", "ignore").decode(),
    ):
        assert await access.person_of("", made_up) is NOBODY
    access.end_session(session)
    assert (await access.person_of("", session), await access.person_of("", other)) == (NOBODY, EDITOR)
    assert await ConsoleAccess(KEYS).person_of("", other) is NOBODY


async def test_many_sign_ins_of_one_person_end_their_own_sessions() -> None:
    """There is room for a thousand; whoever has the most gives way, and of theirs the oldest."""
    access = ConsoleAccess(KEYS)
    editor, first = access.session(EDITOR), access.session(VIEWER)
    others = [access.session(VIEWER) for _ in range(1_500)]
    assert await access.person_of("", editor) is EDITOR
    assert await access.person_of("", first) is NOBODY
    assert await access.person_of("", others[-1]) is VIEWER


async def test_wrong_keys_of_an_address_do_not_lock_out_the_right_one() -> None:
    """They have to wait themselves."""
    access = ConsoleAccess(KEYS)
    for _ in range(10):
        assert await access.person_of_key("wrong", "192.0.2.1") is NOBODY
    with pytest.raises(RateLimited):
        await access.person_of_key("wrong", "192.0.2.1")
    assert await access.person_of_key("edit-key", "192.0.2.1") is EDITOR


async def test_a_session_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    access = ConsoleAccess(KEYS)
    session, begun = access.session(EDITOR), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begun + SESSION_S - 5)
    assert await access.person_of("", session) is EDITOR
    monkeypatch.setattr(time, "monotonic", lambda: begun + SESSION_S + 1)
    assert await access.person_of("", session) is NOBODY


async def test_a_persons_session_ends_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has lost a role at the provider keeps it here for no week."""
    access, person = ConsoleAccess(KEYS), Person("ada", "u_1")
    session, begun = access.session(person), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begun + LOGIN_S - 5)
    assert await access.person_of("", session) is person
    monkeypatch.setattr(time, "monotonic", lambda: begun + LOGIN_S + 1)
    assert await access.person_of("", session) is NOBODY


async def test_an_open_console_is_refused_where_others_reach_it() -> None:
    with pytest.raises(CannotServeConsole, match="key_env"):
        access_of(ConsoleConfig(host="0.0.0.0"), {})
    with pytest.raises(CannotServeConsole, match="VIEW is not set"):
        access_of(ConsoleConfig(viewer_key_env="VIEW"), {})
    with pytest.raises(CannotServeConsole, match="the key in K has 1 character, which can be guessed"):
        access_of(ConsoleConfig(key_env="K"), {"K": "k"})
    access = access_of(ConsoleConfig(host="0.0.0.0", key_env="K"), {"K": "edit-key"})
    assert await access.person_of("Bearer edit-key", "") is EDITOR
