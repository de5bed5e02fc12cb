"""Parse the server-sent events of model endpoints: bytes in, the data of whole events out."""

from __future__ import annotations

import re
from typing import Final

from gateway.backends.base import InvalidReply
from gateway.backends.blame import BYTE_ORDER_MARK

DONE: Final = b"[DONE]"
_MAX_EVENT = 4 << 20
_BOUNDARY: Final = re.compile(rb"\}\n(?=data: ?(?:\{|\[DONE\])|event:)")
"""The end of an object, and the line that begins another event."""


class EventParser:
    """Parse server-sent events from bytes cut anywhere.

    LF, CRLF and CR line ends are accepted, and comments, and data with or without a space before it. An object that
    begins on a line right after another's end begins an event of its own: some servers end events with one line end.
    """

    __slots__ = ("_size", "after_cr", "comments", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """What has come of an event that is not whole."""
        self._size = 0
        self.after_cr = False
        """Whether a carriage return came last."""
        self.comments = 0
        """Comments and events without data so far: a server's signs of life."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes, in order. Raises InvalidReply for one over 4 MiB."""
        if self.after_cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        if self.parts:
            if b"\n" not in chunk:
                # Inside a large event: parts are joined once, at its end.
                self._keep(chunk)
                return []
            self.parts.append(chunk)
            chunk = b"".join(self.parts)
            self.parts, self._size = [], 0
        if b"}\ndata:" in chunk or b"}\nevent:" in chunk:
            chunk = _BOUNDARY.sub(b"}\n\n", chunk)
        blocks = chunk.split(b"\n\n")
        if rest := blocks.pop():
            self._keep(self._without_comments(rest) if rest[:1] == b":" else rest)
        events: list[bytes] = []
        for block in blocks:
            # Nearly all events have this form; a call for each would cost as much as the rest of this loop.
            data = block[6:] if block.startswith(b"data: ") and b"\n" not in block else _data(block)
            if data:
                events.append(data)
            elif block:
                self.comments += 1
        return events

    def rest(self) -> list[bytes]:
        """Return the data of an event that has whole lines, and that no blank line has ended; call it at the end."""
        rest = b"".join(self.parts)
        self.parts, self._size = [], 0
        return [data] if rest[-1:] == b"\n" and (data := _data(rest)) else []

    def _keep(self, part: bytes) -> None:
        self.parts.append(part)
        self._size += len(part)
        if self._size > _MAX_EVENT:
            raise InvalidReply("an event is larger than 4 MiB")

    def _without_comments(self, rest: bytes) -> bytes:
        """Count the whole comment lines at the beginning of what no blank line has ended, and leave them out."""
        while rest[:1] == b":" and (end := rest.find(b"\n")) >= 0:
            rest = rest[end + 1 :]
            self.comments += 1
        return rest

    def _with_lf(self, chunk: bytes) -> bytes:
        # A CR ends its line at once. If a CRLF is cut in two, the LF begins the next chunk and ends no line.
        if self.after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self.after_cr = False
        if chunk:
            self.after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data(block: bytes) -> bytes:
    """Return the data of an event that is not a single `data: ` line."""
    block = block.removeprefix(BYTE_ORDER_MARK)  # a byte order mark may precede the first event
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
