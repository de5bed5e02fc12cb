"""What tests leave behind."""

from __future__ import annotations

import socket

import pytest

from tests.support.account import Account
from tests.support.garbage import leaving_nothing
from tests.support.plain_http import PlainReply, PlainServer
from tests.support.upstream import Upstream


class Loop:
    """Refer to itself, so that only the collector ends it."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.self = self


def test_what_a_block_leaves_is_told_from_what_was_left_before() -> None:
    """An open socket in a cycle, made before the block or in it."""
    Loop()
    with leaving_nothing():
        pass
    with pytest.raises(AssertionError, match="unclosed"), leaving_nothing():
        Loop()


def test_a_server_that_is_never_entered_opens_nothing() -> None:
    """Some are made only for what they would say."""
    with leaving_nothing():
        Upstream()
        Account()
        PlainServer(lambda path, body: PlainReply())
    with leaving_nothing(), Upstream(), Account(), PlainServer(lambda path, body: PlainReply()):
        pass
