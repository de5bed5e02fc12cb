"""Who may see the console, and what a session is worth."""

from __future__ import annotations

import pytest

from gateway.config.schema import ConsoleConfig
from gateway.console.access import ConsoleAccess, Role
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


def test_a_session_cannot_be_made_up_or_raised() -> None:
    access = ConsoleAccess(KEYS)
    session = access.session(Role.VIEWER)
    assert access.role_of("", session) is Role.VIEWER
    role, until, signature = session.split(".")
    forged = (
        f"2.{until}.{signature}",
        f"{role}.{int(until) + 1}.{signature}",
        f"{role}.1.{signature}",
        "2",
        "a.b.c",
        "",
    )
    assert {access.role_of("", one) for one in forged} == {Role.NOBODY}
    assert ConsoleAccess({Role.VIEWER: "new"}).role_of("", session) is Role.NOBODY, "a changed key ends its sessions"


def test_an_open_console_is_refused_where_others_reach_it() -> None:
    with pytest.raises(CannotServeConsole, match="key_env"):
        access_of(ConsoleConfig(host="0.0.0.0"), {})
    with pytest.raises(CannotServeConsole, match="VIEW is not set"):
        access_of(ConsoleConfig(viewer_key_env="VIEW"), {})
    assert access_of(ConsoleConfig(host="0.0.0.0", key_env="K"), {"K": "k"}).role_of("Bearer k", "") is Role.EDITOR
