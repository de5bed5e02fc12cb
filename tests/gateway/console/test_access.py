"""Who may see the console, and what a session is worth."""

from __future__ import annotations

import time

import pytest

from gateway.config.schema import ConsoleConfig
from gateway.console.access import SESSION_S, ConsoleAccess, Role
from gateway.console.server import CannotServeConsole, access_of

KEYS = {Role.EDITOR: "edit-key", Role.VIEWER: "view-key"}


def test_without_keys_this_machine_alone_is_served() -> None:
    """A page of another site that reaches the port by a name of its own sends that name in `Host`."""
    access = ConsoleAccess({}, frozenset({"console.test"}))
    assert access.role_of("", "") is Role.EDITOR
    for host, allowed in (("127.0.0.1:8790", True), ("localhost", True), ("[::1]:8790", True), ("console.test:1", True),
                          ("evil.example", False), ("127.0.0.1.evil.example", False), ("", False)):  # fmt: skip
        assert access.host_allowed(host) is allowed, host


def test_each_key_gives_its_role() -> None:
    access = ConsoleAccess(KEYS)
    assert access.role_of("Bearer edit-key", "") is Role.EDITOR
    assert access.role_of("bearer view-key", "") is Role.VIEWER
    for wrong in ("Bearer other", "Bearer ", "edit-key", ""):
        assert access.role_of(wrong, "") is Role.NOBODY


def test_a_session_cannot_be_made_up_and_ends() -> None:
    """Its cookie alone is worth its role, until it is signed out, or the time is over, or the process ends."""
    access = ConsoleAccess(KEYS)
    session, other = access.session(Role.VIEWER), access.session(Role.EDITOR)
    assert access.role_of("", session) is Role.VIEWER
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
        assert access.role_of("", made_up) is Role.NOBODY
    access.end_session(session)
    assert (access.role_of("", session), access.role_of("", other)) == (Role.NOBODY, Role.EDITOR)
    assert ConsoleAccess(KEYS).role_of("", other) is Role.NOBODY


def test_a_session_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    access = ConsoleAccess(KEYS)
    session, begun = access.session(Role.EDITOR), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begun + SESSION_S - 5)
    assert access.role_of("", session) is Role.EDITOR
    monkeypatch.setattr(time, "monotonic", lambda: begun + SESSION_S + 1)
    assert access.role_of("", session) is Role.NOBODY


def test_an_open_console_is_refused_where_others_reach_it() -> None:
    with pytest.raises(CannotServeConsole, match="key_env"):
        access_of(ConsoleConfig(host="0.0.0.0"), {})
    with pytest.raises(CannotServeConsole, match="VIEW is not set"):
        access_of(ConsoleConfig(viewer_key_env="VIEW"), {})
    with pytest.raises(CannotServeConsole, match="the key in K has 1 character, which can be guessed"):
        access_of(ConsoleConfig(key_env="K"), {"K": "k"})
    access = access_of(ConsoleConfig(host="0.0.0.0", key_env="K"), {"K": "edit-key"})
    assert access.role_of("Bearer edit-key", "") is Role.EDITOR
