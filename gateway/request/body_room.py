"""Share the room for the bytes of requests among those who send them (`limits.bodies`).

Counted is what has come, not what a head announces: a client that sends slowly holds only what it has sent. One sender
may hold as many bytes as are left free, so one alone at most half of the room, two a third each, and a newcomer always
finds room. A single body may be larger: whoever holds nothing else is limited by the room alone. Senders without a key
are not told apart, and share all of it.
"""

from __future__ import annotations

from typing import Final

from gateway.errors import LimitReached, Overloaded, retry_after

ANYONE: Final = ""
"""The sender of requests without a key."""


class BodyRoom:
    """Count the bytes that one worker holds of requests. Not thread-safe: use it from one event loop."""

    __slots__ = ("_by_sender", "held", "size")

    def __init__(self, size: int) -> None:
        """Allow `size` bytes in all."""
        self.size = size
        self.held = 0
        self._by_sender: dict[str, int] = {}

    def check(self, sender: str, more: int, own: int = 0) -> None:
        """Raise Overloaded if `more` bytes do not fit, and LimitReached if they are more than the sender may hold.

        `own` is what is held already of the same body or connection.
        """
        free = self.size - self.held - more
        # Closing the connection is the only way not to read the body.
        headers = (*retry_after(1), (b"connection", b"close"))
        if free < 0:
            message = "This gateway holds as many bytes of request bodies as it may (limits.bodies)."
            raise Overloaded(message, headers=headers)
        others = self._by_sender.get(sender, 0) - own
        if sender and others and others + own + more > free:
            message = "This key's requests hold as many bytes as they may while others need room (limits.bodies)."
            raise LimitReached(message, headers=headers)

    def add(self, sender: str, more: int) -> None:
        """Count bytes of a sender, fewer if negative, without a check."""
        self.held += more
        left = self._by_sender.get(sender, 0) + more
        if left:
            self._by_sender[sender] = left
        else:
            self._by_sender.pop(sender, None)


class BodyClaim:
    """The bytes that one body or one connection holds in the room. Release it once."""

    __slots__ = ("_room", "sender", "size")

    def __init__(self, room: BodyRoom, sender: str) -> None:
        self._room = room
        self.sender = sender
        self.size = 0

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on; to hold fewer never fails. Raises Overloaded and LimitReached."""
        if size > self.size:
            self._room.check(self.sender, size - self.size, self.size)
        if size != self.size:
            self._room.add(self.sender, size - self.size)
            self.size = size

    def release(self) -> None:
        """Give back the bytes that it holds."""
        self.resize(0)
